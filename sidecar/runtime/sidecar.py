"""The running sidecar: its groups on one event loop, with one API, started and stopped in order.

It has what is the process's: the servers of API, probes and dashboard, the restarts in place, the faults of the event
loop, the watch over the threads, and the end. All else is its groups' (`running_group.py`). States:

    state     | what it means                                       | leaves to, when
    ----------|-----------------------------------------------------|--------------------------------------------------
    running   | the groups work, each by its own service and policy | draining: a stop, `POST /drain`, a restart is due
    draining  | no group fetches, deliveries in flight end          | drained: all have ended, or their time is up
    drained   | the groups are left; the process still answers      | ended: a stop, the restart, or `DRAINED_FOR` later

Invariants: the groups begin together and end together, so whatever ends the process ends it for all of them; a group
that waits (for its policy topic, its rights or its service) keeps no other one waiting. All of it runs on the event
loop; `run.py` makes and watches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
from collections.abc import Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from reconsume.sidecar.api.app import Status
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.core.room import SharedRoom
from reconsume.sidecar.hints import PRESENT_GROUP
from reconsume.sidecar.http.listeners import close_unclaimed
from reconsume.sidecar.observability.metrics import scraper
from reconsume.sidecar.observability.thread_watch import ThreadWatch
from reconsume.sidecar.runtime.loop_faults import LoopFaults
from reconsume.sidecar.runtime.restarts import BROKEN_DRAIN, LEAVE_WITHIN, MOST, USED_UP, WITHIN, Restarts
from reconsume.sidecar.runtime.running_group import CLOSED_WITHIN, RunningGroup
from reconsume.sidecar.runtime.servers import Serving, build_servers
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.process_settings import shared_memory
from reconsume.sidecar.ui.in_sidecar import build_groups_dashboards

LOOK_EVERY = 1.0
"""Seconds between two checks whether every thread is alive."""
STOP_LEAVES_WITHIN = 1.0
"""Seconds to leave the consumer groups in at a stop (`CLOSED_WITHIN`)."""
DRAINED_FOR = 60.0
"""Seconds beyond its drain time that a drained process waits for a stop. If no stop comes, the drain was a mistake, or
the operator wanted this instance to do nothing. A new process then replaces it."""

_LOG = logging.getLogger("reconsume.run")


class Member(NamedTuple):
    """A group, and the context in which it was made: its log lines name it, if there are several."""

    group: RunningGroup
    context: Context


class Sidecar:
    """A running sidecar; implements `api.app.Operated`. `all_settings`: of each of its groups, with the settings of the
    process the same in all of them (`process_settings.load_groups`)."""

    def __init__(
        self,
        all_settings: Sequence[Settings],
        restarts: Restarts | None = None,
        drained_for: float = DRAINED_FOR,
        speed: int = 1,
    ) -> None:
        """`speed`: what the waits of retries are divided by, as in `GroupRules`."""
        self._restarts, self._drained_for = restarts or Restarts({}), drained_for
        self._faults = LoopFaults()
        asyncio.get_running_loop().set_exception_handler(self._faults.handle)
        rooms = shared_rooms(all_settings)
        self._members = [self._build_member(settings, rooms, speed) for settings in divided(all_settings)]
        groups = [member.group for member in self._members]
        scrape = scraper(*(group.sources for group in groups))
        dashboards = groups[0].build_dashboards() if len(groups) == 1 else build_groups_dashboards(all_settings)
        self._servers: list[Serving] = [*build_servers([group.api() for group in groups], self, scrape), *dashboards]
        with_threads = [one for group in groups for one in group.with_threads()]
        self._watch = ThreadWatch([*with_threads, *dashboards])
        self._gave_up: list[str] = []
        self._is_draining = False
        self._ends_at = math.inf
        """When a drained process ends without a stop, by the event loop's clock."""

    def _build_member(self, settings: Settings, rooms: Mapping[str, SharedRoom], speed: int) -> Member:
        context = context_of(settings.group, is_one_of_several=bool(rooms))
        group = context.run(RunningGroup, settings, self._restarts, rooms, lambda: self._faults.counts, speed)
        return Member(group, context)

    async def start(self) -> None:
        """Listen, and start all groups; return before Kafka answers. Raises SetupError."""
        for server in self._servers:
            await server.start()
        close_unclaimed(os.environ)
        for member in self._members:
            member.context.run(member.group.start)

    async def watch(self, stop: asyncio.Event) -> int | None:
        """Wait for a stop, and return the exit code; None if the process is to restart in place.

        0 after a stop, that of `_fault`, or 75 if the process has restarted in place too often.
        """
        while not stop.is_set():
            if (code := self._fault()) is not None:
                return code
            if not self._is_draining and self._restarts.is_due():
                if not self._restarts.are_used_up:
                    return None
                text = "restarted in place %d times within %d s: the process ends, so that its supervisor starts it"
                _LOG.error(text, MOST, WITHIN, extra={"event": "restarts-used-up"})
                await self.drain_for_restart()
                return USED_UP
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_EVERY)
        return 0

    def _fault(self) -> int | None:
        """Return the exit code if the process must end; None if nothing is wrong.

        1 if a part of the sidecar is broken, or if no stop followed a drain; otherwise that of the first group that
        must end (`RunningGroup.fault`).
        """
        for member in self._members:
            if (code := member.context.run(member.group.fault)) is not None:
                return code
        if asyncio.get_running_loop().time() > self._ends_at:
            _LOG.error(
                "drained but not stopped: the process ends, so that a new one takes over",
                extra={"event": "drained-alone"},
            )
            return 1
        # No thread is started again: what it left behind is in doubt, and a new process begins at what Kafka knows.
        if problems := self.problems():
            self._gave_up = problems
            _LOG.error("giving up: %s", "; ".join(problems), extra={"event": "giving-up"})
            return 1
        return None

    async def drain_for_restart(self) -> bool:
        """Drain, for a short time if something is broken; return whether the process may restart then.

        It may not if a drain was asked for meanwhile: whoever does that waits for the end of the process.
        """
        longest = BROKEN_DRAIN if self._restarts.is_broken else math.inf
        await self._drain_groups(longest, LEAVE_WITHIN, is_at_most=True)
        return self._ends_at == math.inf

    async def close_for_restart(self) -> list[tuple[str, socket.socket]]:
        """Close what is left; return the sockets that go on listening, by address."""
        listeners = [server.keep_listener() for server in self._servers]
        await self._end_groups(0)
        return listeners

    def unclean_partitions(self) -> dict[str, Mapping[Partition, int]]:
        """Return the partitions whose last commits Kafka did not take, by consumer group."""
        return dict(chain.from_iterable(member.group.unclean_partitions() for member in self._members))

    async def stop(self) -> None:
        """Drain, then close what is left, in CLOSED_WITHIN seconds at most."""
        await self._end_groups(await self.drain())

    async def _end_groups(self, unfinished: int) -> None:
        for member in self._members:
            member.context.run(member.group.log_sums)
        _LOG.info("stopped", extra={"event": "stopped", "left": unfinished})
        closing = [member.context.run(asyncio.ensure_future, member.group.close()) for member in self._members]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                asyncio.gather(*closing, *(server.stop() for server in self._servers)), CLOSED_WITHIN
            )

    # --- called by the API -------------------------------------------------------------------------------------------

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of its groups."""
        return tuple(member.group.settings.group for member in self._members)

    def problems(self) -> list[str]:
        """Return the threads that make no progress, by name, and the fault that broke the event loop.

        Once a drain has begun, only the problems that made the sidecar give up are returned.
        """
        if self._gave_up or self._is_draining:
            return self._gave_up
        return [*self._watch.check(), *([self._faults.fatal] if self._faults.fatal else [])]

    def started(self) -> bool:
        """Whether all groups consume."""
        return all(member.group.started() for member in self._members)

    def status(self) -> Status | list[Status]:
        """Return what `/status` shows: of the only group, or a list."""
        shown = [member.group.status() for member in self._members]
        return shown[0] if len(shown) == 1 else shown

    async def drain(self, timeout: float | None = None) -> int:
        """Stop fetching, finish the deliveries in flight, commit, leave the groups. Safe to call again.

        `timeout`: seconds; None: the usual time of each group. Returns how many records were left, at most: not
        answered, or not committed to Kafka.
        """
        usual = max(member.group.usual_drain for member in self._members)
        longest = usual if timeout is None else max(timeout, usual)
        self._ends_at = min(self._ends_at, asyncio.get_running_loop().time() + longest + self._drained_for)
        return await self._drain_groups(timeout, STOP_LEAVES_WITHIN)

    async def _drain_groups(self, timeout: float | None, leave_within: float, *, is_at_most: bool = False) -> int:
        """Drain all groups side by side, each in `timeout` seconds (None: its usual time).

        `is_at_most`: none may take longer than usual.
        """
        self._is_draining = True
        drains = []
        for group, context in self._members:
            within = group.usual_drain if timeout is None else timeout
            within = min(within, group.usual_drain) if is_at_most else within
            drains.append(context.run(group.drain, within, leave_within))
        return sum(await asyncio.shield(asyncio.gather(*drains)))


def context_of(group: str, *, is_one_of_several: bool) -> Context:
    """Return a context for code that is about one group: if there are several, log lines and hints name it."""
    context = copy_context()
    if is_one_of_several:
        context.run(PRESENT_GROUP.set, group)
    return context


def divided(all_settings: Sequence[Settings]) -> list[Settings]:
    """Return the settings of each group with its even part of the memory that all share.

    Bounds that do not change follow from it, such as that of refused copies, so that they add up to what they are for
    one group. What a lane may have of the rest is decided as it needs it (`SharedRoom`).
    """
    if len(all_settings) == 1:
        return list(all_settings)
    memory = shared_memory(all_settings[0].deliver.buffer_memory, len(all_settings)) // len(all_settings)
    return [replace(one, deliver=replace(one.deliver, buffer_memory=memory)) for one in all_settings]


def shared_rooms(all_settings: Sequence[Settings]) -> dict[str, SharedRoom]:
    """Return what the main lanes of several groups share, and their retry lanes, by the lane's name; empty for one."""
    if len(all_settings) == 1:
        return {}
    groups, memory = len(all_settings), all_settings[0].deliver.buffer_memory
    return {lane: SharedRoom(shared_memory(memory, groups), groups) for lane in ("main", "retry")}
