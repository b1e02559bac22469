"""The service that a sidecar delivers to: a real HTTP server on loopback that behaves as a script says.

    with Service(tmp_path / "ledger", lambda request: FAIL if request.times == 0 else OK) as service:
        ...service.url, service.ledger...

It runs on its own thread and loop. Everything that it gets and says is in its ledger.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from reconsume.sidecar.dev.stop_listening import stop_listening
from tests.support.proof.ledger import BROKEN, FAILED, THROTTLED, TOOK, Delivery, Ledger
from tests.support.service.behaviours import OK, Answer, Behaviour, Break, Request, Script
from tests.support.service.envelopes import ENVELOPE, BatchScript, Said, deliveries_of, delivery_of, one_by_one

SECONDS = 30.0
PORTS = range(12_000, 20_000)
"""Below the ports of outgoing connections: while the service is down, a client that connects to such a port could be
given it as its own and connect to itself. And below those of the embedded Kafka."""


class Service:
    """A running service. `script` may be replaced at any time; it is called on the service's thread.

    `context`: its TLS, if any. Another one is in use when it listens anew.
    """

    def __init__(
        self,
        ledger: Path | Ledger,
        script: Script = lambda _request: OK,
        *,
        up: bool = True,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.context = context
        self.ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
        self.script = script
        self.batch_script: BatchScript | None = None
        """What it does with batches; None: what `script` says for each record."""
        self._reserved = reserved()
        self.port: int = self._reserved.getsockname()[1]
        self.in_flight = 0
        self._begin_up = up
        self._seen: Counter[tuple[str, int]] = Counter()
        self._batches = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="service", daemon=True)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._gate = asyncio.Event()

    @property
    def url(self) -> str:
        """Where records are posted."""
        return f"{'http' if self.context is None else 'https'}://127.0.0.1:{self.port}/events"

    def __enter__(self) -> Service:
        self._gate.set()
        self._thread.start()
        if self._begin_up:
            self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._await(self._close(cut=True))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()
        self._reserved.close()
        self.ledger.close()

    def up(self) -> None:
        """Listen, at the same port as ever."""
        self._await(self._listen())

    def down(self) -> None:
        """Be gone at once, as a process that is killed: connections are refused, and those that stand are cut."""
        self._await(self._close(cut=True))

    def retire(self, in_flight: int, seconds: float = SECONDS) -> None:
        """Go down in order: once `in_flight` requests (all that the sidecar may have out) are here, stop to listen,
        then answer each and close its connection. So no request is ever cut, which would be an attempt.

        No answer leaves meanwhile: who has one calls anew, and would wait in the backlog, unread, as the port closes.
        """
        self._await(self._retire(in_flight, seconds))

    # --- on the loop -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _await(self, work: Any) -> None:
        future: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.result(SECONDS * 2)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=1 << 20, backlog=1024, ssl=self.context
        )

    async def _close(self, *, cut: bool) -> None:
        server, self._server = self._server, None
        if server is not None:
            await stop_listening(server)
        if cut:
            for writer in self._open:
                writer.transport.abort()
            await asyncio.sleep(0.01)  # the loop closes the sockets in its next turn

    async def _retire(self, in_flight: int, seconds: float) -> None:
        self._gate.clear()
        end = self._loop.time() + seconds
        while self.in_flight < in_flight:
            if self._loop.time() > end:
                raise TimeoutError(f"only {self.in_flight} of {in_flight} requests came")
            await asyncio.sleep(0.005)
        await self._close(cut=False)
        self._gate.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._exchange(reader, writer):
                pass
        self._open.discard(writer)
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False when the connection is at its end."""
        headers = _parse(await reader.readuntil(b"\r\n\r\n"))
        body = await reader.readexactly(int(headers["content-length"]))
        self.in_flight += 1
        try:
            numbers, said = self._take(headers, body)
            await _work(said.behaviour)
            await self._gate.wait()
            if isinstance(said.behaviour, Break):
                self._note(numbers, said.behaviour.how, [BROKEN] * len(numbers))
                await _break(said.behaviour.how, reader, writer)
                return False
            return await self._answer(numbers, said.behaviour, said.means, writer)
        finally:
            self.in_flight -= 1

    def _take(self, headers: dict[str, str], body: bytes) -> tuple[list[int], Said]:
        if headers.get("content-type") == ENVELOPE:
            self._batches += 1
            deliveries = deliveries_of(headers, body, self._batches, _now())
            script = self.batch_script or one_by_one(self.script)
            said = script([self._request(delivery, headers) for delivery in deliveries])
            return [self.ledger.received(delivery) for delivery in deliveries], said
        delivery = delivery_of(headers, body, _now())
        request = self._request(delivery, headers)
        return [self.ledger.received(delivery)], Said(self.script(request))

    def _request(self, delivery: Delivery, headers: dict[str, str]) -> Request:
        attempt = (delivery.id, delivery.times)
        self._seen[attempt] += 1
        return Request(delivery.id, delivery.times, delivery.value, delivery.key, headers, self._seen[attempt] - 1)

    def _note(self, numbers: Sequence[int], answer: str, means: Sequence[str]) -> None:
        for number, one in zip(numbers, means, strict=True):
            self.ledger.answered(number, answer, one, _now())

    async def _answer(
        self, numbers: Sequence[int], answer: Answer, means: Sequence[str] | None, writer: asyncio.StreamWriter
    ) -> bool:
        close = answer.close or self._server is None
        self._note(numbers, str(answer.status), means or [answer.means or _meaning(answer)] * len(numbers))
        writer.write(_render(answer, close))
        await writer.drain()
        return not close


async def _work(behaviour: Behaviour) -> None:
    """Take the time that an answer takes."""
    if isinstance(behaviour, Break):
        return
    if behaviour.after:
        await asyncio.sleep(behaviour.after)
    while behaviour.until is not None and not behaviour.until.is_set():
        await asyncio.sleep(0.01)


def _meaning(answer: Answer) -> str:
    if answer.status == 429 or (answer.status == 503 and any(n.lower() == "retry-after" for n, _ in answer.headers)):
        return THROTTLED
    return TOOK if 200 <= answer.status < 300 else FAILED


def _render(answer: Answer, close: bool) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} Scripted", f"Content-Length: {len(answer.body)}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + answer.body


async def _break(how: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    match how:
        case "hang":
            await reader.read()  # until the client has enough
        case "close":
            pass
        case "close-mid":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\nhalf of ")
            await writer.drain()
        case "garbage":
            writer.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n" * 4)
            await writer.drain()
            await reader.read()
        case "endless":
            writer.write(b"HTTP/1.1 200 OK\r\n")
            while not reader.at_eof():
                writer.write(b"X-More: " + b"x" * 0x4000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
        case _:
            raise ValueError(f"no such behaviour: {how}")


def _parse(head: bytes) -> dict[str, str]:
    """The headers, names in lower case, and the path under `:path`, which tells sidecars apart."""
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines if line)
    return {":path": first.split(" ")[1], **{name.strip().lower(): value.strip() for name, value in pairs}}


def _now() -> int:
    return time.time_ns() // 1_000_000


def free_port() -> int:
    """A port that nobody listens on; RuntimeError when there is none."""
    with reserved() as held:
        return int(held.getsockname()[1])


def reserved() -> socket.socket:
    """A socket that keeps a free port without listening, while its owner is down too: connections are refused.

    Who sets SO_REUSEADDR, as servers do, may listen there; `reserved` gives that port to nobody else.
    """
    for port in random.sample(PORTS, 50):
        held = socket.socket()
        with suppress(OSError):
            held.bind(("127.0.0.1", port))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return held
        held.close()
    raise RuntimeError("no free port for the service")


def listens(port: int) -> bool:
    """Whether somebody takes connections at this port."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
