"""A TCP proxy in front of a broker that knows which Kafka request passes, and lets a test act at that very moment.

It reads of each request only its prefix (size, api key, version, correlation id, client id) and of each response the
correlation id; everything else is bytes. So the product needs no hooks for "killed between Produce and EndTxn". It can
also lose what clients send, packet by packet (`packets_lost`).
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias, TypeVar

from reconsume.sidecar.dev.stop_listening import stop_listening
from tests.support.kafka.packet_loss import lose_packets
from tests.support.kafka.proxy_frames import without_brokers
from tests.support.kafka.proxy_rules import Api, Fate, Late, Moment, Passing, Request, Rule, parse

HOST = "127.0.0.1"
R = TypeVar("R", bound=Rule)
CLOSED = 1
"""A port at which nobody listens."""
FRAME = struct.Struct(">i")
START_SECONDS = 30.0
Handle: TypeAlias = Callable[[bytes, "Connection", bool], Awaitable[Fate]]
"""Passes one frame on unless a rule says otherwise; the flag: this direction was silenced before."""


@dataclass
class Connection:
    """One client's connection and ours to the broker on its behalf."""

    number: int
    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    under_way: dict[int, Passing] = field(default_factory=dict)
    """By correlation id."""
    keeps: bool = False
    """Whether a request of it comes late: its broker's side stands then, even if the client has gone."""


class CutError(ConnectionError):
    """A rule has ended the connection."""


class KafkaProxy:
    """Listens on a free port of 127.0.0.1, on a thread of its own. A context manager.

    `with KafkaProxy() as proxy`, start the broker with `advertised=lambda _: proxy.address`, then `proxy.target(port)`.
    """

    def __init__(self) -> None:
        self.address = ""
        """`host:port` for clients, once started."""
        self.problems: list[BaseException] = []
        """What a rule's action raised; a test that ends well has none."""
        self._target = 0
        self._listener: Any = None
        self._lossy = False
        self._rules: tuple[Rule, ...] = ()
        self._connections = 0
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(START_SECONDS):
            raise AssertionError("the proxy did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(START_SECONDS)

    def target(self, port: int) -> None:
        """The broker's own port; until it is set, connections are closed at once."""
        self._target = port

    def add(self, rule: R) -> R:
        """From the next request on the rule holds; gives it back."""
        self._rules += (rule,)
        return rule

    def clear(self) -> None:
        """Everything passes again, except on connections that were silenced. What is kept is never delivered."""
        for rule in self._rules:
            self.remove(rule)

    def remove(self, rule: Rule) -> None:
        """The rule holds no longer. What waits at its gate passes, what it keeps is never delivered."""
        self._rules = tuple(other for other in self._rules if other is not rule)
        if rule.gate is not None:
            rule.gate.open()
        if isinstance(rule, Late):
            rule.drop()

    @contextmanager
    def packets_lost(self) -> Iterator[None]:
        """Lose every packet that clients send, also those that open a connection; what the broker answers arrives.

        Nobody is told. Each client's kernel repeats a packet after 0.2, 0.4, 0.8 … s, also for a closed connection.
        """
        self._now(self._lose(lossy=True))
        try:
            yield
        finally:
            self._now(self._lose(lossy=False))

    @contextmanager
    def brokers_forgotten(self, client: str) -> Iterator[None]:
        """Cut off clients whose id contains `client`, as a node may that stops: its last answer names no broker.

        Nobody can connect meanwhile. A client of librdkafka (2.16) then has no broker left, for ever.
        """
        port, endless = self._target, 10**9

        def leave(_request: Request) -> None:
            self._target = CLOSED

        self.add(Rule(Api.METADATA, client, Moment.ANSWERED, times=endless, instead=without_brokers))
        self.add(Rule(Api.METADATA, client, Moment.DONE, leave, times=endless, fate=Fate.CUT))
        try:
            yield
        finally:
            self.clear()
            self._target = port

    def _now(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS)

    async def _lose(self, *, lossy: bool) -> None:
        self._lossy = lossy
        open_ones = [writer for writer in self._open.values() if not writer.transport.is_closing()]
        for sock in (self._listener, *(writer.get_extra_info("socket") for writer in open_ones)):
            lose_packets(sock, lossy=lossy)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, HOST, 0)
        self._listener = server.sockets[0]
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._started.set()
        await self._ended.wait()
        await stop_listening(server)
        for writer in self._open.values():
            writer.close()
        if self._open:
            await asyncio.wait(self._open, timeout=START_SECONDS)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._lossy:  # its handshake was over before
            lose_packets(writer.get_extra_info("socket"), lossy=True)
        task = self._loop.create_task(self._on_client(reader, writer))
        self._open[task] = writer
        task.add_done_callback(self._open.pop)

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):  # the broker is down: the client is to notice
            broker_reader, broker_writer = await asyncio.open_connection(HOST, self._target)
            with closing(broker_writer):
                self._connections += 1
                await self._pass_on(reader, broker_reader, Connection(self._connections, writer, broker_writer))

    async def _pass_on(
        self, reader: asyncio.StreamReader, broker_reader: asyncio.StreamReader, connection: Connection
    ) -> None:
        pumps = {
            asyncio.ensure_future(self._pump(reader, connection, self._request)),
            asyncio.ensure_future(self._pump(broker_reader, connection, self._response)),
        }
        done, others = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        self.problems += [error for pump in done if (error := pump.exception()) is not None and not gone(error)]
        for pump in others:
            pump.cancel()
        await asyncio.wait(pumps)

    async def _pump(self, reader: asyncio.StreamReader, connection: Connection, handle: Handle) -> None:
        """Pass frames of one direction on, until one side hangs up or a rule ends it."""
        silenced = False
        while True:
            (size,) = FRAME.unpack(await reader.readexactly(FRAME.size))
            fate = await handle(await reader.readexactly(size), connection, silenced)
            silenced |= fate is Fate.SILENCE
            if fate is Fate.CUT:
                raise CutError

    async def _request(self, frame: bytes, connection: Connection, silenced: bool) -> Fate:
        request = parse(frame, connection.number)
        passing = Passing(request, tuple(rule for rule in self._rules if rule.takes(request)))
        connection.under_way[request.correlation] = passing
        fate = await passing.at(Moment.ARRIVED)
        if fate is Fate.KEEP and passing.late is not None:
            return await self._keep(frame, connection, passing.late)
        if fate is Fate.PASS and not silenced:
            await write(connection.broker, frame)
            await passing.at(Moment.FORWARDED)
        return fate

    async def _keep(self, frame: bytes, connection: Connection, late: Late) -> Fate:
        """Pass a request on when the test says so, and wait for its answer: its client may have hung up by then."""
        connection.keeps = True
        if late.cut:
            connection.client.transport.abort()
        try:
            if not await late.due():
                return Fate.CUT
            await write(connection.broker, frame)
            await late.over()
        finally:
            late.end()
        connection.keeps = False
        return Fate.CUT if late.cut else Fate.PASS

    async def _response(self, frame: bytes, connection: Connection, silenced: bool) -> Fate:
        passing = connection.under_way.pop(FRAME.unpack_from(frame)[0])
        fate = await passing.at(Moment.ANSWERED)
        if fate is Fate.PASS and not silenced:
            try:
                await write(connection.client, passing.rewritten(frame))
            except ConnectionError:
                if not connection.keeps:
                    raise
            fate = await passing.at(Moment.DONE)
        if passing.late is not None:
            passing.late.hear(frame)
        return fate


def gone(error: BaseException) -> bool:
    """Whether one side has only hung up."""
    return isinstance(error, asyncio.IncompleteReadError | ConnectionError)


async def write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Pass a request or a response on, with its size before it."""
    writer.write(FRAME.pack(len(frame)) + frame)
    await writer.drain()
