"""The HTTP server: uvicorn on the sidecar's own event loop, on TCP or a Unix socket.

It starts and stops as part of the sidecar: no signal handlers, no process of its own, no access log. The calls of the
API are in `sidecar/api`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from reconsume.sidecar.background import background
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.http.listeners import listener_on, shown
from reconsume.sidecar.http.protocol import Limits, protocol_of
from reconsume.sidecar.settings.addresses import Listen

BACKLOG = 1024
"""Connections that wait to be accepted. If a flood fills it, the system drops the next caller's first packet. That
caller tries again only after a second."""
IDLE = 5
"""Seconds that a connection may be idle between two calls."""
LOOK_EVERY_S = 0.01
DATE_EVERY = 1.0
"""Seconds between two refreshes of the `Date` header. Each also lets uvicorn do its housekeeping."""


class Server:
    """The server of one app on one address. `start` and `stop` are called on the event loop, once each.

    `setting`: where the address comes from, for the error if it cannot be used. `headers`: of every response.
    """

    def __init__(
        self,
        app: ASGIApp,
        listen: Listen,
        limits: Limits | None = None,
        setting: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.port: int | None = None
        """The TCP port, once started. With port 0 it is the one that the system chose."""
        self.path = listen.path
        """The path of the Unix socket; None for TCP."""
        self._address, self._setting = listen, setting
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                app,
                http=protocol_of(limits or Limits()),
                ws="none",
                lifespan="off",
                interface="asgi3",
                proxy_headers=False,  # else X-Forwarded-For decides who is on loopback
                server_header=False,
                headers=list((headers or {}).items()),
                access_log=False,
                log_config=None,
                log_level="warning",
                backlog=BACKLOG,
                timeout_keep_alive=IDLE,
            )
        )
        self._inode: int | None = None
        self._listener: socket.socket
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises SetupError if the address is taken or cannot be used."""
        try:
            await self._listen()
        except OSError as failure:
            whence = f" ({self._setting})" if self._setting else ""
            why = failure.strerror or str(failure)
            raise SetupError(f"cannot listen on {shown(self._address)}{whence}: {why}") from failure
        self._ticking = background(self._tick(), "api")

    def keep_listener(self) -> tuple[str, socket.socket]:
        """Return the address and a second socket that goes on listening on it. Call it before `stop`.

        Nobody accepts what comes there from the stop on, until the process has restarted in place.
        """
        self._inode = None  # the socket's file stays
        return shown(self._address), self._listener.dup()

    async def stop(self, grace: float = 1.0) -> None:
        """Accept no more connections, let answers under way end within `grace` seconds, then close."""
        if self._ticking is None:
            return
        self._ticking.cancel()
        for server in self._uvicorn.servers:
            server.close()
        self._remove_socket()
        state = self._uvicorn.server_state
        for connection in tuple(state.connections):
            connection.shutdown()
        deadline = asyncio.get_running_loop().time() + grace
        while (state.connections or state.tasks) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(LOOK_EVERY_S)
        for task in tuple(state.tasks):
            task.cancel()
        for connection in tuple(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the loop closes the sockets in its next round

    async def _listen(self) -> None:
        address = self._address
        listener = await listener_on(address)
        if address.path is None:
            self.port = listener.getsockname()[1]
        else:
            self._inode = Path(address.path).stat().st_ino
        config = self._uvicorn.config
        config.load()
        self._uvicorn.lifespan = config.lifespan_class(config)
        await self._uvicorn.on_tick(0)  # from the first response on, all have the headers
        try:
            await self._uvicorn.startup(sockets=[listener])
        except OSError:
            listener.close()
            raise
        self._listener = listener

    async def _tick(self) -> None:
        while True:
            await self._uvicorn.on_tick(0)
            await asyncio.sleep(DATE_EVERY)

    def _remove_socket(self) -> None:
        """Remove our socket, unless another server has put its own there meanwhile."""
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                path = Path(self.path)
                if path.stat().st_ino == self._inode:
                    path.unlink()
