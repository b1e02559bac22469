"""A minimal HTTP/1.1 server that can be closed, as if it had crashed, and opened again; and a client for one POST."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from reconsume.sidecar.dev.demo.ledger import Verdict, clock
from reconsume.sidecar.dev.demo.shop.order_log import OrderLog
from reconsume.sidecar.dev.stop_listening import stop_listening

HOST = "127.0.0.1"
# Below the ports that systems give to outgoing connections. While the port is closed, a client that keeps trying
# could otherwise get that very port as its own and connect to itself.
PORTS = range(12_000, 20_000)


class Request(NamedTuple):
    """A request: its headers, with names in lower case, and its body."""

    headers: dict[str, str]
    body: bytes


class Said(NamedTuple):
    """The part of an answer that is about one order, given by its number."""

    number: int
    verdict: Verdict
    status: int = 0


class Response(NamedTuple):
    """A complete answer, ready to be sent, and its verdicts."""

    data: bytes
    said: Iterable[Said]


Take = Callable[[Request], Awaitable[Response]]


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Read the next request of a connection. Raises IncompleteReadError if the caller has gone."""
    _, headers = await read_head(reader)
    return Request(headers, await reader.readexactly(int(headers.get("content-length", "0"))))


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """Read the first line and the headers of the next message. Raises IncompleteReadError if the other side has
    gone."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
    fields = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in fields}


def render(status: int, verdict: str = "", body: bytes = b"", content_type: str = "") -> bytes:
    """Return an answer as HTTP/1.1; `verdict` is the value of Reconsume-Verdict, if any."""
    head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\n"
    head += f"Content-Type: {content_type}\r\n" if content_type else ""
    head += f"Reconsume-Verdict: {verdict}\r\n" if verdict else ""
    return f"{head}\r\n".encode() + body


async def post(port: int, path: str, body: bytes) -> tuple[int, bytes]:
    """Send JSON by POST to this machine, on a connection of its own; return the status and the body.

    Raises OSError if no server listens, EOFError if the answer is cut off.
    """
    reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 24)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        first, headers = await read_head(reader)
        return int(first.split()[1]), await reader.readexactly(int(headers["content-length"]))
    finally:
        writer.close()


def free_port() -> int:
    """Return a port on which no server listens. Raises OSError if there is none."""
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.create_server((HOST, port)):
            return port
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop}")


class WebFront:
    """The server: it passes each request to `take`, and logs the answers."""

    def __init__(self, counter: OrderLog, take: Take) -> None:
        self._counter, self._take = counter, take
        self._port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        """Listen: on a free port the first time, on the same one later."""
        for port in [self._port] if self._port else random.sample(PORTS, len(PORTS)):
            try:
                self._server = await asyncio.start_server(self._serve, HOST, port, limit=1 << 24)
            except OSError:
                if self._port:
                    raise
                continue
            self._port = port
            self._counter.opened(port)
            return
        raise OSError(f"no free port from {PORTS.start} to {PORTS.stop}")

    async def close(self) -> None:
        """Close the port and cut every connection, answered or not."""
        assert self._server is not None
        await stop_listening(self._server)
        self._counter.closed()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            # The error needs no handling: the ledger already has every answer that was sent on this connection.
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._answer(reader, writer):
                    pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; return False if it could not be answered."""
        response = await self._take(await read_request(reader))
        if writer.is_closing() or reader.at_eof():
            return False
        at = clock()  # taken before the write: an effect of the answer must not seem earlier than it
        writer.write(response.data)
        for said in response.said:
            self._counter.answered(said.number, said.verdict, said.status, at)
        return True
