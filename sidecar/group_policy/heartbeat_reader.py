"""Take in the heartbeats of the other instances: their subscriptions, and whether they are well.

Instances of one group must want the same records (contract 6.12). If their subscriptions differ, chance decides whether
a record is delivered: it depends on which instance owns its partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reconsume.sidecar.core.participation import Others
from reconsume.sidecar.core.record import Now
from reconsume.topics.policy_record import SubscriptionRecord, same_subscription

SILENT_AFTER = 180_000
"""ms, three times the heartbeat. An instance that was silent for so long is gone and does not count."""
MOST = 4_096
"""Instances that are kept. A writer to the topic may name any number."""
MOST_SIGNS = 1024 * 1024
"""Characters of subscriptions other than ours that are kept. One subscription may have 64 Ki."""


class Member(NamedTuple):
    """The subscription of another instance.

    `signs`: its characters, 0 if it is the same as ours. `until`: the end of its validity, in steady ms. `well`: it
    works, or does not say whether it does. `order`: the position of its heartbeat among all of them.
    """

    subscription: Mapping[str, str]
    signs: int
    until: int
    well: bool
    order: int


class GroupMembers:
    """The other instances of the group."""

    def __init__(self, instance: str, own: Mapping[str, str]) -> None:
        self.own = own
        self._instance = instance
        self._members: dict[str, Member] = {}
        self._signs = 0
        self._order = 0
        self._not_well_at: int | None = None
        """The position of the heartbeat that says that this instance does not work. None: there is none."""

    def hear(self, instance: str, record: SubscriptionRecord | None, now: Now, *, live: bool) -> None:
        """Process the record of an instance. `record` is None if the instance stopped cleanly.

        Unless the record was read `live`, only the clock of that instance says how old it is.
        """
        self._order += 1
        if instance == self._instance:
            self._hear_own(record, live=live)
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
            self._members[instance] = Member(subscription, signs, until, well, self._order)
            self._signs += signs

    def _hear_own(self, record: SubscriptionRecord | None, *, live: bool) -> None:
        if record is None or record.well is not False:
            self._not_well_at = None
        elif live and self._not_well_at is None:  # else it may be of a process before this one
            self._not_well_at = self._order

    def others(self, now: Now) -> Others:
        """Return whether other instances are well, and whether one has said so behind our own "not well"."""
        well = [member.order for member in self._members.values() if member.well and member.until > now.steady_ms]
        behind = self._not_well_at is not None and max(well, default=0) > self._not_well_at
        return Others(bool(well), behind)

    def differing(self, now: Now) -> dict[str, Mapping[str, str]]:
        """Return the instances with another subscription, and that subscription. Drop the silent ones."""
        self._members = {name: member for name, member in self._members.items() if member.until > now.steady_ms}
        self._signs = sum(member.signs for member in self._members.values())
        return {
            name: member.subscription
            for name, member in sorted(self._members.items())
            if not same_subscription(member.subscription, self.own)
        }
