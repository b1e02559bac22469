"""Make this instance a member of the group while its service can work; `core/participation.py` has the rules.

A service without a health URL is asked by connecting to it: before the instance joins, and while deliveries to it are
stopped. A healthy member asks nothing. With a health URL the pace knows whether that is well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import AWAY, State
from reconsume.sidecar.core.participation import Others, Participation
from reconsume.sidecar.core.ports import Delivery
from reconsume.sidecar.delivery.pull.queue import PullQueue
from reconsume.sidecar.delivery.push.access import Access
from reconsume.sidecar.delivery.push.connection_check import ConnectionCheck
from reconsume.sidecar.delivery.push.health_check import HEALTH
from reconsume.sidecar.delivery.push.target import parse_target
from reconsume.sidecar.runtime.lane_runner import LaneRunner
from reconsume.sidecar.runtime.service_wait import Absence, ServiceWait
from reconsume.sidecar.settings.model import Settings

LOOK_EVERY = 0.5
"""Seconds between two looks. A service that begins to listen gets its first record so much later at most."""

_LOG = logging.getLogger("reconsume.run")


class GroupMembership:
    """Decide with each look whether the lanes are members. Made and called on the event loop.

    `others`: what the heartbeats of the other instances say. `access`: how the service is called.
    """

    def __init__(
        self,
        settings: Settings,
        runners: Sequence[LaneRunner],
        dispatcher: Dispatcher,
        others: Callable[[], Others],
        access: Access | None = None,
    ) -> None:
        deliver = settings.deliver
        self.always = settings.membership == "always" or deliver.mode == "relay" or deliver.broadcast
        self._runners, self._pace, self._others = runners, dispatcher.pace, others
        self._state = Participation(
            deliver.leave_after, now().steady_ms, always=self.always, leaves=deliver.mode == "push"
        )
        asks = deliver.mode == "push" and not deliver.broadcast
        self._guarded = asks and deliver.health_url is not None
        self._knock: ConnectionCheck | None = None
        if asks and not self._guarded:
            target = parse_target(deliver.url or "", deliver.allow_remote)
            self._knock = ConnectionCheck(target, self._answered, access)
        self._timer: asyncio.TimerHandle | None = None
        self._wait = ServiceWait(deliver)
        self._waits_since = self._away_since = now()
        """When it began to wait, and when its service was first seen to be away. Only while that lasts."""
        for runner in runners:
            runner.take_part(self._state.member)

    @property
    def waits(self) -> bool:
        """Whether the lanes are no members, as the service cannot work."""
        return not self._state.member

    def waited(self) -> float:
        """Return the seconds for which it has waited; 0 for a member. For any thread."""
        return (now().steady_ms - self._waits_since.steady_ms) / 1000 if self.waits else 0.0

    def status(self) -> dict[str, object]:
        """Return what `/status` shows: since when it waits (epoch ms), and for what; None for a member."""
        if not self.waits:
            return {"waiting_since": None, "waiting_reason": None}
        return {"waiting_since": self._waits_since.wall_ms, "waiting_reason": self._wait.reason()}

    def absence(self) -> Absence | None:
        """Return since when its service is away, and why; None if it is there. For any thread."""
        if self.waits:
            return Absence(self._waits_since.wall_ms, self._wait.reason())
        return None if self._state.service_well else Absence(self._away_since.wall_ms, self._wait.reason())

    def works(self) -> bool:
        """Return whether the instance is a member, which its group takes, and its service is well. For any thread."""
        # An instance that its group refuses reads nothing. Another one must not leave because this one said "well".
        return self._state.works and not any(runner.refused for runner in self._runners)

    async def start(self, known: Callable[[], Awaitable[None]], delivery: Delivery) -> None:
        """Look, and again until `close`. Before that, wait for `known`: the heartbeats of the others are read."""
        await known()
        if isinstance(delivery, PullQueue):
            delivery.at_receive = self._received
            if delivery.was_asked:  # that call may still wait, and be the only one for a minute
                self._received()
        self._look_at_service()

    def close(self) -> None:
        """Change nothing any more: a drain has begun."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_at_service(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY, self._look_at_service)
        if self._guarded:
            well = self._pace.state is not State.OUTAGE
            self._wait.note_cause("" if well else self._pace.reason.removeprefix(HEALTH))
            self._service(well)
        elif self._knock is not None and (self.waits or not self._state.service_well or self._pace.state in AWAY):
            self._knock.ask()
        self._turn()
        self._wait.log_wait(self.waited())

    def _answered(self, cause: str) -> None:
        self._wait.note_cause(cause)
        self._service(not cause)
        self._turn()

    def _received(self) -> None:
        self._service(True)
        self._turn()

    def _service(self, well: bool) -> None:
        if self._state.service_well and not well:
            self._away_since = now()
        self._state.service(well, now().steady_ms)

    def _turn(self) -> None:
        if not self._state.turn(self._others(), now().steady_ms):
            return
        member = self._state.member
        if not member:
            self._waits_since = now()
            text = "the service is away and another instance is well: this one leaves the group"
            _LOG.warning(text, extra={"event": "group-left"})
        elif self._state.service_well:
            _LOG.info("the service is there: this instance asks to join the group", extra={"event": "group-joined"})
        else:
            text = "no instance of the group has a service that is well: this one joins all the same"
            _LOG.warning(text, extra={"event": "group-joined-unwell"})
        for runner in self._runners:
            runner.take_part(member)
