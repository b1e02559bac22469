"""The group's retry policy: complete once built, so that no decision ever finds a missing level or an empty name."""

from __future__ import annotations

import msgspec

from topics.headers import RetryState
from topics.levels import Ladder, level_delays, longest_fit
from topics.names import Names

MIN_DELAY = 1_000
MAX_DELAY = 864_000_000
"""ms: the delays that a failure may ask for, 1 s to 10 days (contract §4)."""

LONGEST_PASSING = 30_000
"""ms: the longest level that passes on records that only other instances consume. It is short compared with a roll-out,
and few copies are made meanwhile."""

SHORTEST_IN_PLACE, LONGEST_IN_PLACE = 10, 30_000
"""ms between two attempts in place (contract §6)."""

CLOCK_SLACK = 3_600_000
"""ms that a due time may lie beyond the longest delay before it counts as forged: the clocks of pods differ."""


class InPlace(msgspec.Struct, frozen=True):
    """Ordered mode: a failure is retried in place, every `interval` ms, `max_times` times (None: without limit)."""

    interval: int = 1_000
    max_times: int | None = None

    def wait(self, asked: int | None) -> int:
        """Return the ms until the next attempt.

        What the service asked for is brought within RocketMQ's bounds, 10 ms to 30 s.
        """
        return self.interval if asked is None else min(max(asked, SHORTEST_IN_PLACE), LONGEST_IN_PLACE)


class Policy(msgspec.Struct, frozen=True):
    """Everything that a decision needs to know about the group.

    `table`: the delay table that numbered levels refer to, in ms. `delays`: the delay of every level topic, in ms,
    ascending. `max_deaths`: how often a record may be in flight while its service and its sidecar crash together (None:
    no limit, and no check).

    `unknown_topic`: ms after its due time until which a copy of a topic that this instance does not consume is passed
    on. After that it is a dead letter. `instance`: the name of this process in the events that it writes.

    `in_place`: None unless the group is ordered. `relay`: due records go to the ready topic. `broadcast`: a failure is
    only counted. `traced`: copies carry the trace context of the attempt before.

    Raises:
        ValueError: if there is no topic, a delay has no level topic, or `max_reconsume_times` is negative.
    """

    names: Names
    topics: tuple[str, ...]
    ladder: Ladder
    table: tuple[int, ...]
    delays: tuple[int, ...]
    max_reconsume_times: int = 16
    max_deaths: int | None = None
    instance: str = ""
    in_place: InPlace | None = None
    nack_delay: int = 60_000
    relay: bool = False
    broadcast: bool = False
    traced: bool = False
    unknown_topic: int = 3_600_000

    def __post_init__(self) -> None:
        if not self.topics:
            raise ValueError("a policy needs at least one topic")
        if self.delays != level_delays(self.ladder, self.table):
            raise ValueError("each delay of the ladder and of the table needs its level topic, in ascending order")
        if self.max_reconsume_times < 0:
            raise ValueError("max_reconsume_times cannot be negative")

    def wait_of(self, retry: int, delay: int | None, level: int | None) -> int:
        """Return how long retry `retry` (1, 2, …) waits, in ms. What the service asked for wins if it is allowed."""
        if delay is not None and not MIN_DELAY <= delay <= MAX_DELAY:
            delay = None
        asked = self.asked(delay, level)
        return self.ladder.delay(retry) if asked is None else asked

    def asked(self, delay: int | None, level: int | None) -> int | None:
        """Return the wait that a failure asked for, in ms: its delay, else its level of the table; None if it asked for
        none."""
        if delay is None and level is not None and 1 <= level <= len(self.table):
            return self.table[level - 1]
        return delay

    def understands(self, delay: int | None, level: int | None) -> bool:
        """Return whether what a failure asked for is allowed.

        If it is not, the ladder decides (DECISIONS), or the nearer bound of a wait in place.
        """
        if delay is None:
            return level is None or -1 <= level <= len(self.table)
        if self.in_place is not None:
            return SHORTEST_IN_PLACE <= delay <= LONGEST_IN_PLACE
        return MIN_DELAY <= delay <= MAX_DELAY

    def level_for(self, wait: int) -> int | None:
        """Return the delay of the level topic that a wait of `wait` ms begins in; None if it is shorter than all."""
        return longest_fit(wait, self.delays)

    def retry_topic(self, level: int | None, life: RetryState) -> str:
        """Return the topic that a copy waits in; the ready topic if the wait is shorter than every level."""
        return self.names.ready if level is None else self.names.level(level, life.topic)

    def dlq_of(self, topic: str) -> str:
        """Return the dead-letter topic for records of `topic`, which need not be one of the group's own main topics."""
        return self.names.dlq(self.family(topic))

    def family(self, topic: str) -> str:
        """Return the main topic that names the levels and the DLQ for a record found in `topic`, whatever its headers
        say."""
        role = self.names.role(topic, self.topics)
        return role.topic if role is not None and role.topic is not None else self.topics[0]

    def passing_level(self, found: str) -> int:
        """Return the level that passes on a record found in topic `found`: each of the short levels in turn.

        All partitions of one level may belong to instances that do not consume the topic of the record.
        """
        role = self.names.role(found, self.topics)
        short = tuple(delay for delay in self.delays if delay <= LONGEST_PASSING) or self.delays[:1]
        shorter = longest_fit((role.delay or 0) - 1 if role is not None else 0, short)
        return short[-1] if shorter is None else shorter

    def latest_due(self, now: int) -> int:
        """Return the latest due time, epoch ms, that a header may carry at wall time `now`."""
        return now + MAX_DELAY + CLOCK_SLACK
