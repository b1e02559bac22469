"""The group's retry policy: complete once built, so that no decision ever finds a missing level or an empty name."""

from __future__ import annotations

import msgspec

from reconsume.topics.group_rules import GroupRules

SHORTEST_IN_PLACE, LONGEST_IN_PLACE = 10, 30_000
"""ms between two attempts in place (contract 5.2)."""


HUNG_MS = 30_000
"""ms that a suspect may be with its service before it is cleared, at least (contract 1.10). With less, a record that
slowly takes the memory of the service would never be found."""


class InPlace(msgspec.Struct, frozen=True):
    """Ordered mode: a failure is retried in place, every `interval_ms`, `max_times` times (None: without limit)."""

    interval_ms: int = 1_000
    max_times: int | None = None

    def wait(self, requested: int | None) -> int:
        """Return the ms until the next attempt.

        What the service asked for is brought within RocketMQ's bounds, 10 ms to 30 s.
        """
        return self.interval_ms if requested is None else min(max(requested, SHORTEST_IN_PLACE), LONGEST_IN_PLACE)


class Policy(GroupRules, frozen=True):
    """Everything that a decision needs to know about the group.

    `max_deaths`: at which death of its service a record that was in flight alone is dead-lettered (None: no limit, and
    no check). `hang_ms`: after which a suspect that is still in flight is cleared. `in_place`: None unless the group is
    ordered and has no queues. `broadcast`: a failure is only counted. `nack_max_times`: how often a
    record may be nacked (None: no limit).

    Raises:
        ValueError: if there is no topic, no level without retries in place, or `max_reconsume_times` is negative.
    """

    max_deaths: int | None = None
    hang_ms: int = HUNG_MS
    in_place: InPlace | None = None
    nack_delay_ms: int = 60_000
    nack_max_times: int | None = None
    broadcast: bool = False
    max_waiting: int = 20_000
    """Records of one partition that may wait in its queue (`queued`)."""
    postpone_limit: int = 3_600_000
    """ms from its first postponement after which a record that is postponed again has failed."""

    def __post_init__(self) -> None:
        if not self.topics:
            raise ValueError("a policy needs at least one topic")
        if self.delays != tuple(sorted(set(self.delays))):
            raise ValueError("the delays of the levels must rise")
        if not self.delays and self.in_place is None and not self.queued:
            raise ValueError("a policy needs at least one level, unless it retries in place or has queues")
        if self.max_reconsume_times < 0:
            raise ValueError("max_reconsume_times cannot be negative")

    def understands(self, delay_ms: int | None, level: int | None) -> bool:
        """Return whether what a failure asked for is allowed.

        If it is not, the ladder decides (contract 2.4), or the nearer bound of a wait in place (contract 5.2).
        """
        # Contract 5.2: bounds of a wait in place are RocketMQ's, not those of the ladder (2.4).
        if delay_ms is not None and self.in_place is not None:
            return SHORTEST_IN_PLACE <= delay_ms <= LONGEST_IN_PLACE
        return super().understands(delay_ms, level)
