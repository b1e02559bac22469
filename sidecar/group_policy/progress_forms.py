"""Which form of progress all instances of the group read: the newer one is written only while each of them does.

The source of the rule is contract 7.2: until then, and wherever it can say the same, the older form is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from reconsume.sidecar.core.progress_codec import FAR_PROGRESS
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.group_policy.heartbeat_reader import GroupMembers
from reconsume.topics.policy_record import SubscriptionRecord

CHECKED_EVERY = 10.0
"""Seconds between two checks whether all instances still read the newest form of progress, while it is written."""


class ProgressForms:
    """Tells the lanes whether progress of any distance may be written, each time that this changes."""

    def __init__(
        self,
        members: GroupMembers,
        allow_far: Callable[[bool], None],
        clock: Callable[[], Now],
        every: float = CHECKED_EVERY,
    ) -> None:
        self._members, self._allow_far, self._clock, self._every = members, allow_far, clock, every
        self._far = False
        self._is_timed = False
        self._loop = asyncio.get_running_loop()
        self.is_stale = False
        """Whether a heartbeat may have changed which forms of records all instances read."""

    def hear(self, record: SubscriptionRecord | None) -> None:
        """Note a heartbeat of any instance; None: it has stopped cleanly."""
        if not self._far or record is None or FAR_PROGRESS not in (record.reads or ()):
            self.is_stale = True

    def agree(self) -> None:
        """Compare the heartbeats, and see to it that they are compared again while the newer form is written."""
        self.is_stale = False
        far = self._members.all_read(FAR_PROGRESS, self._clock())
        if far != self._far:
            self._far = far
            self._allow_far(far)
        if far and not self._is_timed:  # heartbeats may cease, and then there is no news
            self._is_timed = True
            self._loop.call_later(self._every, self._agree_again)

    def _agree_again(self) -> None:
        self._is_timed = False
        self.agree()
