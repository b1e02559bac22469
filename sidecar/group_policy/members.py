"""Who else is in the group and what they subscribe to: instances of one group must want the same records (contract §6).

With different subscriptions a record is passed over or delivered by the chance of whose partition it is in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sidecar.core.record import Now
from topics.policy_record import SubscriptionRecord, same_subscription

SILENT_AFTER = 180_000
"""ms. An instance that has not told for so long, three times its heartbeat, is gone and does not count."""
MOST = 4_096
"""Instances that are kept at most: whoever may write to the topic may name any number."""
MOST_SIGNS = 1024 * 1024
"""Characters of subscriptions other than ours that are kept at most; a subscription may have 64 Ki."""


class Member(NamedTuple):
    """What another instance subscribes to, in how many characters (0: the same as ours), and until when that counts.

    `until` is in steady ms.
    """

    subscription: Mapping[str, str]
    signs: int
    until: int


class GroupMembers:
    """The other instances of the group."""

    def __init__(self, instance: str, own: Mapping[str, str]) -> None:
        self.own = own
        self._instance = instance
        self._members: dict[str, Member] = {}
        self._signs = 0

    def hear(self, instance: str, record: SubscriptionRecord | None, now: Now, *, live: bool) -> None:
        """Take in what an instance told. Unless heard `live`, how long ago that was is only known by its own clock."""
        if instance == self._instance:
            return
        before = self._members.pop(instance, None)
        self._signs -= 0 if before is None else before.signs
        if record is None:
            return
        same = same_subscription(record.subscription, self.own)
        subscription = self.own if same else record.subscription
        signs = 0 if same else sum(len(topic) + len(tags) for topic, tags in subscription.items())
        if len(self._members) < MOST and self._signs + signs <= MOST_SIGNS:
            age = 0 if live else max(0, now.wall - record.at)
            self._members[instance] = Member(subscription, signs, now.steady + SILENT_AFTER - age)
            self._signs += signs

    def differing(self, now: Now) -> dict[str, Mapping[str, str]]:
        """The instances that subscribe to something else, and to what; forgets those that are silent."""
        self._members = {name: member for name, member in self._members.items() if member.until > now.steady}
        self._signs = sum(member.signs for member in self._members.values())
        return {
            name: member.subscription
            for name, member in sorted(self._members.items())
            if not same_subscription(member.subscription, self.own)
        }
