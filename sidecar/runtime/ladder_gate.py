"""Begin with a ladder that keeps the order only while every live instance of the group reads queue topics.

An instance of an older version would deliver what comes later of a key past what waits in a queue, which it does not
read. While one lives, a failure is retried in place, as without a ladder, and what waits in the queues is delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.sidecar.runtime.lane_runner import LaneRunner

LOOK_EVERY = 1.0
"""Seconds between two looks at the heartbeats."""

_LOG = logging.getLogger("reconsume.run")


class LadderGate:
    """Whether the ladder is in force.

    `policy`: the one to begin with. `interval`: ms between two tries in place while it is not. `others`: returns the
    live instances that do not read queue topics.
    """

    def __init__(
        self, runners: Sequence[LaneRunner], policy: Policy, interval: int, others: Callable[[], Sequence[str]]
    ) -> None:
        self._runners, self._wanted, self._interval, self._others = runners, policy, interval, others
        self._closed = False
        self._expect_wanted()

    def shaped(self, policy: Policy, interval: int) -> Policy:
        """Return the policy to apply instead of this one."""
        self._wanted, self._interval = policy, interval
        self._expect_wanted()
        if policy.queued:  # it may be the first with a ladder, and nothing may be written before the others are known
            self._note(self._others())
        return self._in_force()

    def look(self) -> None:
        """Apply what follows from which live instances do not read queue topics."""
        if self._wanted.queued and self._note(self._others()):
            for runner in self._runners:
                runner.apply_policy(self._in_force(), {})

    def expect_queues(self) -> None:
        """Tell the lanes of a ladder, in force, ended or not begun: what a former owner wrote may wait in any queue."""
        for runner in self._runners:
            runner.expect_queues()

    def _expect_wanted(self) -> None:
        if self._wanted.queued:
            self.expect_queues()

    def _in_force(self) -> Policy:
        if not self._wanted.queued or not self._closed:
            return self._wanted
        return replace(self._wanted, queued=False, drained=True, in_place=InPlace(self._interval))

    def _note(self, others: Sequence[str]) -> bool:
        """Note which live instances do not read queue topics; return whether that changes anything."""
        if self._closed is bool(others):
            return False
        self._closed = bool(others)
        if self._closed:
            text = "retry.ordered_ladder waits: %d instances of the group do not read its queues yet, such as %s"
            _LOG.warning(text, len(others), others[0], extra={"event": "ladder-waits"})
        else:
            _LOG.info("every instance reads the queues: failures wait there", extra={"event": "ladder-begins"})
        return True

    async def follow(self) -> None:
        """Look again and again."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY)
