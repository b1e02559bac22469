"""Tell the death of the service from a connection that ended alone (contract 1.10). One watch for each pool.

A request is *lost* if its connection has ended before the head of a response, and it may have been read: what the
service cannot have read was sent again before (`connection.py`). A lost request is an attempt that failed, unless the
service has died with it. Two things show a death:

- The service cannot be reached. The watch connects at once, and again every `EVERY` seconds for `LOOK` seconds, without
  a request. The kernel closes the connections of a dead process microseconds before its listener, so the first connect
  may still succeed. A port proxy of containers accepts for a dead container, and then ends the connection.
- Several connections have ended in one *pass*, within `PASS` seconds, and they are all that the pool had, or one of
  them was idle, or they are `MANY`. So one worker of several is noticed, and a supervisor that restarts the service at
  once. A handler that throws ends its own connection, and never an idle one. A busy kernel may end a connection of the
  worker apart from the others: what is lost within `LOOK` seconds of such a pass has died with it.

After a death no connection is opened for a request before one without a request has stood for `LOOK` seconds
(`reach`). Otherwise each probe that a port proxy accepts would look like one more death.

The pool calls `note_end` and `add_lost`; requests that are lost while the watch looks are judged by the next look, or
die with the present one. Event loop alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from reconsume.sidecar.background import background
from reconsume.sidecar.core.outcome import Died
from reconsume.sidecar.delivery.push.dial import dial

if TYPE_CHECKING:
    from reconsume.sidecar.delivery.push.connection import Connection, Delivery, LostRequest
    from reconsume.sidecar.delivery.push.response_reader import Interpret, Judged
    from reconsume.sidecar.delivery.push.target import Target

LOOK = 0.05
"""Seconds for which the watch connects again, and for which a connection of its own must stand."""
EVERY = 0.01
"""Seconds between two of these connections."""
PASS = 0.005
"""Seconds from the first end of a connection to the end of the pass. The loop's clock stands still while it handles
what has come together."""
MANY = 4
"""Connections that end in one pass, and of which none need be idle."""
SILENT = "connection-lost"
"""Why a service cannot be reached whose host accepts a connection and ends it without a byte."""


class Pass:
    """The connections that the service has ended in one go."""

    def __init__(self, connections: Collection[Connection], began_at: float) -> None:
        """`connections`: all that the pool had at `began_at` (loop time, seconds), when the first one ended."""
        self.remaining, self.began_at = set(connections), began_at
        self.lost: list[LostRequest] = []
        self._ends, self._had_idle = 0, False

    def add_end(self, connection: Connection) -> None:
        """Note that the service has ended a connection. One that was opened in this very pass says nothing more."""
        if connection in self.remaining:
            self.remaining.discard(connection)
            self._ends += 1
            self._had_idle |= connection.delivery is None

    @property
    def shows_death(self) -> bool:
        """Whether no handler ends connections like this."""
        return self._ends > 1 and (not self.remaining or self._had_idle or self._ends >= MANY)


class PoolCalls(msgspec.Struct, frozen=True):
    """What the watch asks of its pool. `connections`: those that are open. `reply`: ends a delivery.

    `repeat`: sends a request once more. `count_records`: how many records a delivery carries.
    """

    connections: Callable[[], Collection[Connection]]
    reply: Callable[[Delivery, Judged], None]
    repeat: Callable[[Delivery, Interpret | None, float], None]
    count_records: Callable[[Any], int]


class DeathWatch:
    """Judges the requests that are lost, for one pool. `connect_timeout`: seconds for one connect.

    Invariant: while requests wait to be judged, a task is looking, and no second one.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, target: Target, connect_timeout: float, calls: PoolCalls
    ) -> None:
        self.count = 0
        """The deaths that something was lost at."""
        self.at_death: Callable[[int], None] = lambda _records: None
        """Called with the number of records that the service died with, before their replies."""
        self.is_looking = False
        """Whether requests wait to be judged."""
        self._loop, self._calls = loop, calls
        # Without TLS: a handshake would take a handler, and says nothing more.
        self._target = msgspec.structs.replace(target, tls_name="")
        self._connect_timeout = connect_timeout
        self._pass: Pass | None = None
        self._lost_in: list[Pass] = []
        """The passes whose requests wait to be judged, the oldest first."""
        self._died_at = -math.inf
        """Loop time at which the first connection of the last death ended."""
        self._is_doubted = False
        """Whether the service has died, and no connection has stood since."""
        self._reaching: asyncio.Task[str] | None = None

    def note_end(self, connection: Connection) -> None:
        """Note that the service has ended a connection that was idle, or whose response had not begun."""
        self._present_pass().add_end(connection)

    def add_lost(self, lost: LostRequest) -> None:
        """Find out what became of a request, and reply to it."""
        ended = self._present_pass()
        if not ended.lost:
            self._lost_in.append(ended)
        ended.lost.append(lost)
        if not self.is_looking:
            self.is_looking = True
            background(self._look_for_death(), "death-watch")

    def _present_pass(self) -> Pass:
        now = self._loop.time()
        if self._pass is None or now - self._pass.began_at > PASS:
            self._pass = Pass(self._calls.connections(), now)
        return self._pass

    async def _look_for_death(self) -> None:
        while self._lost_in:
            ended = self._lost_in[0]
            reason = await self._find_unreachable()
            while (remaining := ended.began_at + PASS - self._loop.time()) >= 0:
                await asyncio.sleep(remaining + PASS / 5)
            is_behind_death = ended.began_at - self._died_at <= LOOK
            is_death = bool(reason) or is_behind_death or any(one.shows_death for one in self._lost_in)
            if is_death:  # what was lost meanwhile has died with it
                died, self._lost_in = self._lost_in, []
                if not is_behind_death:
                    self._died_at = ended.began_at
            else:
                died, self._lost_in = [ended], self._lost_in[1:]
            if self._pass in died:
                self._pass = None
            requests = [lost for one in died for lost in one.lost if not self._is_repeated(lost)]
            self._judge_lost(requests, reason, is_death=is_death, is_counted=not is_behind_death)
        self.is_looking = False

    def _is_repeated(self, lost: LostRequest) -> bool:
        """Send a request once more if it turned out meanwhile that the service did not read it."""
        if not lost.was_reset():
            return False
        self._calls.repeat(lost.delivery, lost.judge, lost.until)
        return True

    def _judge_lost(self, requests: Sequence[LostRequest], reason: str, *, is_death: bool, is_counted: bool) -> None:
        self._is_doubted |= is_death
        if is_death and is_counted and requests:
            self.count += 1
            self.at_death(sum(self._calls.count_records(lost.delivery[0]) for lost in requests))
        for lost in requests:
            self._calls.reply(lost.delivery, Died(reason) if is_death else lost.otherwise)

    # --- is it there ------------------------------------------------------------------------------------------------

    async def reach(self) -> str:
        """Return why the service cannot be reached; empty if it can, or if nothing speaks against that."""
        if not self._is_doubted:
            return ""
        if self._reaching is None:
            self._reaching = self._loop.create_task(self._find_unreachable(), name="reach-service")
            self._reaching.add_done_callback(self._reached)
        return await asyncio.shield(self._reaching)

    def _reached(self, reaching: asyncio.Task[str]) -> None:
        self._reaching = None
        if not reaching.cancelled() and reaching.exception() is None:
            self._is_doubted = bool(reaching.result())

    async def _find_unreachable(self) -> str:
        """Return why the service cannot be reached; empty if connections to it stand for `LOOK` seconds."""
        first, until = SilentConnection(), self._loop.time() + LOOK
        if reason := await self._connect(first, self._connect_timeout):
            return reason
        try:
            while (now := self._loop.time()) < until:
                await asyncio.sleep(min(EVERY, until - now))
                another = SilentConnection()
                # One that takes as long waits for room in a full backlog: the service is there.
                reason = await self._connect(another, LOOK, late="")
                another.close()
                if reason or first.has_ended:
                    return reason or SILENT
        finally:
            first.close()
        return ""

    async def _connect(self, protocol: SilentConnection, within: float, late: str = "connect-timeout") -> str:
        """Connect within seconds. Return why there is no connection; `late` if it took too long."""
        try:
            async with asyncio.timeout(within):
                return await dial(self._loop, self._target, protocol)
        except TimeoutError:
            return late


class SilentConnection(asyncio.Protocol):
    """A connection that carries nothing, and knows whether the service has ended it without a byte."""

    def __init__(self) -> None:
        self.has_ended = False
        self._transport: asyncio.BaseTransport | None = None
        self._has_spoken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection until `close`."""
        self._transport = transport

    def data_received(self, _data: bytes) -> None:
        """Note that the service is there, whatever it says."""
        self._has_spoken = True

    def connection_lost(self, _exc: Exception | None) -> None:
        """Note the end."""
        self.has_ended = not self._has_spoken

    def close(self) -> None:
        """End the connection, if it has not ended."""
        if self._transport is not None:
            self._transport.close()
