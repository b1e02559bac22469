"""Begin with a ladder that keeps the order only while every live instance of the group reads queue topics.

An instance of an older version would deliver what comes later of a key past what waits in a queue, which it does not
read. While one lives, a failure is retried in place, as without a ladder, and what waits in the queues is delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sidecar.core.policy import InPlace, Policy
from sidecar.runtime.lane_runner import LaneRunner

LOOK_EVERY = 1.0
"""Seconds between two looks at the heartbeats."""

_LOG = logging.getLogger("reconsume.run")


class LadderGate:
    """Whether the ladder is in force. `others`: returns the live instances that do not read queue topics.

    `interval`: ms between two tries in place meanwhile.
    """

    def __init__(self, runners: Sequence[LaneRunner], interval: int) -> None:
        self._runners, self._interval = runners, interval
        self._wanted: Policy | None = None
        self._closed = False

    def shaped(self, policy: Policy) -> Policy:
        """Return the policy to apply instead of this one."""
        self._wanted = policy
        if not policy.queued or not self._closed:
            return policy
        return replace(policy, queued=False, drained=True, in_place=InPlace(self._interval))

    def look(self, others: Sequence[str]) -> None:
        """Apply what follows from which live instances do not read queue topics."""
        if self._wanted is None or not self._wanted.queued or self._closed is bool(others):
            return
        self._closed = bool(others)
        if self._closed:
            text = "retry.ordered_ladder waits: %d instances of the group do not read its queues yet, such as %s"
            _LOG.warning(text, len(others), others[0], extra={"event": "ladder-waits"})
        else:
            _LOG.info("every instance reads the queues: failures wait there", extra={"event": "ladder-begins"})
        for runner in self._runners:
            runner.apply_policy(self.shaped(self._wanted), {})

    async def follow(self, others: Callable[[], Sequence[str]]) -> None:
        """Look again and again."""
        while True:
            self.look(others())
            await asyncio.sleep(LOOK_EVERY)
