"""The API's connection without a socket: bytes in, bytes out, and whatever its loop complains about is an error."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from reconsume.sidecar.api.app import Access, build_app
from reconsume.sidecar.http.protocol import Limits, protocol_of
from tests.support.sidecar.running_api import Operation

TURNS = 20
"""Turns of the loop after each read: an answer takes some five."""
CALLS = (
    b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /status HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /drain?timeout=5s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2\r\n\r\n{}",
    b"POST /drain HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://localhost:1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: [::1]:8471\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nExpect: 100-continue\r\n\r\n",
)


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written, self.closing = b"", False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing is read that is not given."""

    def resume_reading(self) -> None:
        """As above."""


class Caller:
    """Calls one app; made once, because an app takes a while to load."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._faults: list[dict[str, Any]] = []
        self._loop.set_exception_handler(lambda _loop, context: self._faults.append(context))
        app = build_app(Operation(), lambda: b"metrics", Access())
        self._config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None)
        self._config.load()
        self._protocol = protocol_of(Limits())

    def __call__(self, data: bytes) -> None:
        """Send bytes in two reads and hang up. AssertionError where a part of ours broke."""
        # Only meanwhile: other tests look at what this logger writes.
        log = logging.getLogger("uvicorn.error")
        before = log.level
        log.setLevel(logging.CRITICAL)
        try:
            self._loop.run_until_complete(self._call(data))
        finally:
            log.setLevel(before)
        assert not self._faults, self._faults

    async def _call(self, data: bytes) -> None:
        wire = Wire()
        connection = self._protocol(self._config, ServerState(), {}, self._loop)
        connection.connection_made(wire)
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            if part and not wire.closing:
                connection.data_received(part)
            await self._turns()
        connection.connection_lost(None)
        await self._turns()
        assert not wire.written or wire.written.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")), wire.written[:80]
        assert not connection.tasks, "a call goes on without its caller"

    async def _turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
