"""Opens few connections at once, so that the service's listen backlog holds them, however short it is.

For the client a TCP connection is open before the service's kernel has room for it. While the backlog is full, the
kernel drops the end of the handshake, and after a minute the connection with the request that was sent on it: an
attempt that the service never saw. So a connection is *new* until it has carried an answer, or until the service's
kernel has acknowledged its request and a moment has passed. A delivery that would need one new connection too many
waits for room, or for a connection that becomes free.

Measured with a backlog of 5 and 256 first deliveries at once: without the limit 74 of them are lost at nginx, 114 at
Node, 123 at uvicorn, 59 at gunicorn (no response within 10 s); with it none. A slow start loses 35 to 218 of 511.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from reconsume.sidecar.core.outcome import CANCELLED, Outcome
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.delivery.push.connection import Connection, Wanted
from reconsume.sidecar.delivery.push.transports import unacknowledged
from reconsume.sidecar.open_files import is_short, limit

MOST_NEW = 4
"""Connections. The backlog of Python's http.server, 5, is the shortest that is common."""
MOMENT = 0.02
"""Seconds that a service may need to accept a connection. A service that needs seconds for an answer gets 200 new
connections a second."""
LOOK_EVERY = 0.002
"""Seconds between two checks for room, while a delivery waits for one. An acknowledgement is no event."""
FILES_EVERY = 0.1
"""Seconds between two checks while this process may open no more files. A connection that becomes free is taken at
once."""
WELL_AFTER = 60.0
"""Seconds without a shortage of files after which the next one is logged again."""
_LOG = logging.getLogger("reconsume.push")


class Dial(Protocol):
    """Begins to open a connection for a delivery."""

    def __call__(self, wanted: Wanted) -> Connection: ...


class NewConnectionLimit:
    """The new connections of a pool, and the deliveries that wait until there may be one more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], Now], dial: Dial) -> None:
        self.waiting: deque[Wanted] = deque()
        """The pool takes from its left when a connection becomes free."""
        self._loop, self._clock, self._dial = loop, clock, dial
        self._new: list[Connection] = []
        self._timer: asyncio.TimerHandle | None = None
        self._short_until = self._quiet_until = 0.0
        """Loop times (seconds): until when files count as used up, and until when that is not logged again."""

    def open_connection(self, wanted: Wanted) -> None:
        """Open a connection for a delivery, now or later."""
        if not self.waiting and self._has_place():
            self._new.append(self._dial(wanted))
            return
        self.waiting.append(wanted)
        self._look_later()

    def wait_for_files(self, wanted: Wanted) -> None:
        """Keep a delivery for which the system had no file: for a connection that becomes free, or a later one."""
        self._note_shortage()
        self.waiting.appendleft(wanted)
        self._look_later()

    def give_up(self, outcome: Outcome) -> None:
        """Reply with `outcome` to all deliveries that wait."""
        self._reply(self._all_waiting(), outcome)

    def close(self) -> None:
        """Cancel the deliveries that wait: none of them is sent."""
        self._loop.call_soon(self._reply, self._all_waiting(), CANCELLED)

    def _all_waiting(self) -> tuple[Wanted, ...]:
        waiting = tuple(self.waiting)
        self.waiting.clear()
        return waiting

    def _reply(self, wanted: Iterable[Wanted], outcome: Outcome) -> None:
        for what, reply in [each.delivery for each in wanted]:
            reply(what, outcome, self._clock())

    def _has_place(self) -> bool:
        if len(self._new) >= MOST_NEW:
            now = self._loop.time()
            self._new = [connection for connection in self._new if is_new(connection, now)]
        return len(self._new) < MOST_NEW and not self._is_short_of_files()

    def _is_short_of_files(self) -> bool:
        if self._loop.time() < self._short_until:
            return True
        if is_short():
            self._note_shortage()
            return True
        return False

    def _note_shortage(self) -> None:
        now = self._loop.time()
        self._short_until = now + FILES_EVERY
        if now >= self._quiet_until:
            text = (
                "no more connections to the service: this process may have %d files open, and the last of them are "
                "kept for Kafka, probes and the API. Deliveries wait for a connection that becomes free. Raise the "
                "limit of open files, or lower deliver.concurrency"
            )
            _LOG.warning(text, limit(), extra={"event": "files-used-up", "limit": limit()})
        self._quiet_until = now + WELL_AFTER

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_EVERY, self._open_waiting)

    def _open_waiting(self) -> None:
        self._timer = None
        while self.waiting and self._has_place():
            self._new.append(self._dial(self.waiting.popleft()))
        if self.waiting:
            self._look_later()


def is_new(connection: Connection, now: float) -> bool:
    """Whether it is still being opened, or the service may have no room for it yet."""
    if connection.task is not None:
        return True
    if not connection.sent or connection.answered:
        return False
    return now - connection.began < MOMENT or unacknowledged(connection.socket) > 0
