"""The HTTP API on a real server, on an event loop of its own, and a client that sees every byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop
from starlette.types import ASGIApp

from reconsume.sidecar.http.protocol import Limits
from reconsume.sidecar.http.server import Server
from reconsume.sidecar.settings.addresses import parse_listen

ANSWER_WITHIN = 30.0


@dataclass
class Operation:
    """A running sidecar as the API sees it, played by plain values."""

    found: list[str] = field(default_factory=list)
    has_started: bool = True
    left: int = 0
    drains: list[float] = field(default_factory=list)
    may_end: threading.Event | None = None
    groups: tuple[str, ...] = ("billing",)

    def problems(self) -> list[str]:
        return self.found

    def started(self) -> bool:
        return self.has_started

    def status(self) -> dict[str, object]:
        return {"group": "billing", "partitions": [{"topic": "orders", "partition": 3}]}

    async def drain(self, timeout: float | None = None) -> int:
        self.drains.append(timeout)
        while self.may_end is not None and not self.may_end.is_set():
            await asyncio.sleep(0.01)
        return self.left


@dataclass
class Answer:
    """One answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection. Every wait ends after ten seconds with an error."""

    def __init__(self, place: str | int, source: str | None = None) -> None:
        """`source`: the address to call from, for TCP."""
        family = socket.AF_INET if isinstance(place, int) else socket.AF_UNIX
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(ANSWER_WITHIN)
        try:
            if source is not None:
                self.socket.bind((source, 0))
            self.socket.connect(("127.0.0.1", place) if isinstance(place, int) else place)
        except OSError:
            self.socket.close()
            raise
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def call(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, *, host: str | None = "localhost"
    ) -> Answer:
        """One call without a body."""
        lines = [f"{method} {target} HTTP/1.1", *([] if host is None else [f"Host: {host}"])]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))
        return self.answer(method)

    def answer(self, method: str = "GET") -> Answer:
        """The next answer; ConnectionError when there is none."""
        status = self._file.readline().split()
        if not status:
            raise ConnectionError("closed without an answer")
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        length = 0 if method == "HEAD" else int(headers.get("content-length", "0"))
        return Answer(int(status[1]), headers, self._file.read(length))

    def rest(self) -> bytes:
        """All that still comes, until nothing does."""
        read = bytearray()
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            self.socket.settimeout(1.0)
            while part := self.socket.recv(1 << 20):
                read += part
        return bytes(read)

    def is_closed(self) -> bool:
        """Whether the server has closed; waits for it."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True


class Loop:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, make: Callable[[], Any]) -> Any:
        """Run what `make` gives, on the loop."""
        running: Future[Any] = asyncio.run_coroutine_threadsafe(make(), self._loop)
        return running.result(ANSWER_WITHIN)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_WITHIN)
        self._loop.close()


@contextmanager
def serving(app: ASGIApp, listen: str = "127.0.0.1:0", limits: Limits | None = None) -> Iterator[str | int]:
    """Serve an app; the port, or the socket's path."""
    loop = Loop()
    server = Server(app, parse_listen(listen), limits)
    try:
        loop.run(server.start)
        assert server.path is not None or server.port
        yield server.path if server.path is not None else server.port or 0
    finally:
        loop.run(server.stop)
        loop.close()
