"""The HTTP server: uvicorn on the sidecar's own event loop, on TCP or a Unix socket.

It starts and stops as part of the sidecar: no signal handlers, no process of its own, no access log. The calls of the
API are in `sidecar/api`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from reconsume.sidecar.background import background, on_own_thread
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.http.protocol import Limits, protocol_of
from reconsume.sidecar.settings.addresses import Listen

BACKLOG = 1024
"""Connections that wait to be accepted. If a flood fills it, the system drops the next caller's first packet. That
caller tries again only after a second."""
IDLE = 5
"""Seconds that a connection may be idle between two calls."""
SOCKET_MODE = 0o660
"""The service reaches the socket by the pod's fsGroup; no other user does."""
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
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises SetupError if the address is taken or cannot be used."""
        try:
            await self._listen()
        except OSError as failure:
            whence = f" ({self._setting})" if self._setting else ""
            why = failure.strerror or str(failure)
            raise SetupError(f"cannot listen on {_shown(self._address)}{whence}: {why}") from failure
        self._ticking = background(self._tick(), "api")

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
        listener = _bind_unix(Path(address.path)) if address.path is not None else await _bind_tcp(address)
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


async def _bind_tcp(listen: Listen) -> socket.socket:
    """Return a socket on the first address of the name that can be bound."""
    ask = partial(socket.getaddrinfo, listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = await on_own_thread("lookup", ask)
    refused: tuple[object, ...] = ("the name has no address",)
    for family, kind, protocol, _, address in addresses:
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(address)
        except OSError as refusal:
            listener.close()
            refused = refusal.args
        else:
            return listener
    raise OSError(*refused)


def _bind_unix(path: Path) -> socket.socket:
    """Return a socket at `path`.

    A socket that a crashed process left there is removed. One that a process listens on is not: then OSError is raised.
    """
    if path.exists():
        _check_stale(path)
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(str(path))
        path.chmod(SOCKET_MODE)  # before listen, so that no caller can connect while the mode is wider
    except OSError:
        listener.close()
        raise
    return listener


def _check_stale(path: Path) -> None:
    """Raise OSError unless `path` is a socket that no process listens on."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(errno.EEXIST, "a file that is no socket stands there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _shown(listen: Listen) -> str:
    return f"unix:{listen.path}" if listen.path is not None else f"{listen.host}:{listen.port}"
