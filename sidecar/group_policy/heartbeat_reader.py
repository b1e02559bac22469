"""Take in the heartbeats of the other instances: their subscriptions, whether they are well, what they can read.

Instances of one group must want the same records (contract 6.12). If their subscriptions differ, chance decides whether
a record is delivered: it depends on which instance owns its partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reconsume.sidecar.core.participation import Others
from reconsume.sidecar.core.record import NEVER, Now
from reconsume.topics.policy_record import QUEUES, SubscriptionRecord, same_subscription

SILENT_AFTER = 180_000
"""ms, three times the heartbeat. An instance that was silent for so long is gone and does not count."""
MOST = 4_096
"""Instances that are kept. A writer to the topic may name any number."""
MOST_SIGNS = 1024 * 1024
"""Characters of subscriptions other than ours that are kept. One subscription may have 64 Ki."""


class Member(NamedTuple):
    """The subscription of another instance.

    `signs`: its characters, 0 if it is the same as ours. `until`: the end of its validity, in steady ms. `well`: it
    works, or is of a version that does not say it. `order`: the position of its heartbeat among all of them. `reads`:
    the newer forms of records that its version reads.
    """

    subscription: Mapping[str, str]
    signs: int
    until: int
    well: bool
    order: int
    reads: frozenset[str]


class GroupMembers:
    """The other instances of the group."""

    def __init__(self, instance: str, own: Mapping[str, str]) -> None:
        self.own = own
        self._instance = instance
        self._members: dict[str, Member] = {}
        self._signs = 0
        self._order = 0
        self._unknown_until = -NEVER
        """The steady time (ms) until which instances may live that were left out, because there are too many, or
        because what they wrote cannot be read."""
        self._own_reads: frozenset[str] = frozenset()
        self._own_since, self._own_until = NEVER, -NEVER
        """The forms that this instance's own heartbeat named when it was read back, since when it has come back without
        a break, and until when that holds (steady ms)."""
        self._not_well_at: int | None = None
        """The position of the heartbeat that says that this instance does not work. None: there is none."""

    def hear(self, instance: str, record: SubscriptionRecord | None, now: Now, *, live: bool) -> None:
        """Process the record of an instance. `record` is None if the instance stopped cleanly.

        Unless the record was read `live`, only the clock of that instance says how old it is.
        """
        self._order += 1
        if instance == self._instance:
            self._hear_own(record, now, live=live)
            return
        before = self._members.pop(instance, None)
        self._signs -= 0 if before is None else before.signs
        if record is None:
            return
        same = same_subscription(record.subscription, self.own)
        subscription = self.own if same else record.subscription
        signs = 0 if same else sum(len(topic) + len(tags) for topic, tags in subscription.items())
        if len(self._members) < MOST and self._signs + signs <= MOST_SIGNS:
            age = 0 if live else max(0, now.wall_ms - record.at)
            until, well = now.steady_ms + SILENT_AFTER - age, record.well is not False
            reads = frozenset(record.reads or ())
            self._members[instance] = Member(subscription, signs, until, well, self._order, reads)
            self._signs += signs
        else:
            self.miss(now)

    def miss(self, now: Now) -> None:
        """Note a record that cannot be read: it may be of an instance that lives."""
        self._unknown_until = now.steady_ms + SILENT_AFTER

    def _hear_own(self, record: SubscriptionRecord | None, now: Now, *, live: bool) -> None:
        if live and record is not None:
            if now.steady_ms >= self._own_until:
                self._own_since = now.steady_ms
            self._own_reads, self._own_until = frozenset(record.reads or ()), now.steady_ms + SILENT_AFTER
        if record is None or record.well is not False:
            self._not_well_at = None
        elif live and self._not_well_at is None:  # else it may be of a process before this one
            self._not_well_at = self._order

    def others(self, now: Now) -> Others:
        """Return whether other instances are well, and whether one has said so behind our own "not well"."""
        well = [member.order for member in self._members.values() if member.well and member.until > now.steady_ms]
        behind = self._not_well_at is not None and max(well, default=0) > self._not_well_at
        return Others(bool(well), behind)

    def without_queues(self, now: Now) -> list[str]:
        """Return the live instances that do not read queue topics, as older versions."""
        return sorted(
            name for name, one in self._members.items() if one.until > now.steady_ms and QUEUES not in one.reads
        )

    def all_read(self, form: str, now: Now) -> bool:
        """Return whether each instance that lives says to read a form of records.

        None lives unseen: this instance's own heartbeats have come back for as long as others may be silent, so the
        topic takes heartbeats and gives them, and each that lives has written one meanwhile, whatever its clock says.
        """
        reads_own = self._own_since + SILENT_AFTER <= now.steady_ms < self._own_until
        complete = reads_own and now.steady_ms >= self._unknown_until
        living = (member for member in self._members.values() if member.until > now.steady_ms)
        return complete and form in self._own_reads and all(form in member.reads for member in living)

    def differing(self, now: Now) -> dict[str, Mapping[str, str]]:
        """Return the instances with another subscription, and that subscription. Drop the silent ones."""
        self._members = {name: member for name, member in self._members.items() if member.until > now.steady_ms}
        self._signs = sum(member.signs for member in self._members.values())
        return {
            name: member.subscription
            for name, member in sorted(self._members.items())
            if not same_subscription(member.subscription, self.own)
        }
