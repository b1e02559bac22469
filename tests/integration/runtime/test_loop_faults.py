"""Exceptions on a real event loop: which end the process, and which end one connection alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from starlette.applications import Starlette

from reconsume.sidecar.api.app import Access, build_app
from reconsume.sidecar.background import background
from reconsume.sidecar.clock import now
from reconsume.sidecar.core.outcome import Failed, Outcome
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.delivery.push.pool import Push
from reconsume.sidecar.delivery.push.settings import PushSettings
from reconsume.sidecar.delivery.push.target import parse_target
from reconsume.sidecar.http.protocol import Limits, Protocol, protocol_of
from reconsume.sidecar.http.server import Server
from reconsume.sidecar.runtime.loop_faults import LoopFaults
from reconsume.sidecar.settings.addresses import parse_listen
from tests.support.sidecar.running_api import Operation

WITHIN = 10.0
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


class Broken(Exception):  # noqa: N818 - a fault of a test
    """What goes wrong."""


def breaks(*_: object) -> None:
    raise Broken("here")


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    make: Callable[[], asyncio.AbstractEventLoop] = request.param
    return make


def faults_of(new_loop: Callable[[], asyncio.AbstractEventLoop], work: Coroutine[Any, Any, None]) -> LoopFaults:
    """Run some work on a loop with the handler; what it has seen."""
    faults = LoopFaults()
    loop = new_loop()
    loop.set_exception_handler(faults.handle)
    try:
        loop.run_until_complete(asyncio.wait_for(work, WITHIN))
        loop.run_until_complete(asyncio.sleep(0.01))
    finally:
        loop.close()
    return faults


def counted(faults: LoopFaults) -> tuple[int, int]:
    return faults.counts["connection"], faults.counts["sidecar"]


# --- what ends the process -----------------------------------------------------------------------------------------


async def in_a_callback() -> None:
    asyncio.get_running_loop().call_soon_threadsafe(breaks)
    await asyncio.sleep(0.01)


async def in_a_timer() -> None:
    asyncio.get_running_loop().call_later(0.001, breaks)
    await asyncio.sleep(0.02)


async def in_a_task() -> None:
    async def ends() -> None:
        breaks()

    kept = background(ends(), "start-main")
    await asyncio.wait([kept])


async def in_a_task_by_an_error_of_the_system() -> None:
    async def ends() -> None:
        raise ConnectionResetError

    await asyncio.wait([background(ends(), "start-main")])


@pytest.mark.parametrize(
    "work", [in_a_callback, in_a_timer, in_a_task, in_a_task_by_an_error_of_the_system], ids=lambda work: work.__name__
)
def test_an_exception_of_ours_is_logged_counted_and_the_end(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    work: Callable[[], Coroutine[Any, Any, None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = faults_of(new_loop, work())
    assert counted(faults) == (0, 1)
    assert faults.fatal.startswith("the event loop: ")
    (line,) = caplog.records
    assert (line.levelname, vars(line)["event"], vars(line)["scope"]) == ("ERROR", "loop-fault", "sidecar")
    assert "Traceback (most recent call last)" in caplog.text


def test_a_task_that_is_cancelled_or_comes_to_its_end_is_no_fault(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def work() -> None:
        background(asyncio.sleep(0), "one")
        background(asyncio.sleep(60), "other").cancel()
        await asyncio.sleep(0.01)

    faults = faults_of(new_loop, work())
    assert (counted(faults), faults.fatal) == ((0, 0), "")


def test_the_first_one_is_told_and_all_are_counted(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_soon(breaks)
        asyncio.get_running_loop().call_soon(lambda: int("x"))
        await asyncio.sleep(0.01)

    faults = faults_of(new_loop, work())
    assert counted(faults) == (0, 2)
    assert "Broken('here')" in faults.fatal


# --- the connection to the service ---------------------------------------------------------------------------------


async def pushed(judge: Callable[..., Any] | None, reply: Callable[[Record, Outcome, Now], None]) -> None:
    """One delivery, to a service that fails one record a connection. `judge` reads the answer."""
    hung_up = asyncio.Event()

    async def fails(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 No\r\ncontent-length: 1\r\n\r\nx")
        await reader.read()
        writer.close()
        hung_up.set()

    async with await asyncio.start_server(fails, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        push = Push(parse_target(f"http://127.0.0.1:{port}/", False), PushSettings("g", 5_000, idle_ms=100), now)
        record = Record(Partition("orders", 0), 0, 1, 0, None, b"", [], None)
        push.post((record, reply), b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", judge)
        await hung_up.wait()
        push.close()
        while push.connections:
            await asyncio.sleep(0.01)


def test_a_lane_that_breaks_at_an_answer_is_the_end(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Given an exception behind the connection's back, in what it calls, then it is not the connection's."""
    faults = faults_of(new_loop, pushed(None, breaks))
    assert counted(faults) == (0, 1)


def test_an_answer_that_cannot_be_read_is_a_failed_attempt_and_no_more(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    heard: list[Outcome] = []
    faults = faults_of(new_loop, pushed(breaks, lambda record, outcome, moment: heard.append(outcome)))
    assert (faults.counts["sidecar"], faults.fatal) == (0, "")
    assert [type(outcome) for outcome in heard] == [Failed]


# --- the API -------------------------------------------------------------------------------------------------------


class Fragile(Protocol):
    """A connection of the API that breaks at its first bytes, or when its time is over."""

    def data_received(self, data: bytes) -> None:
        if data == b"break":
            breaks()

    def _expired(self) -> None:
        breaks()


async def called(data: bytes) -> None:
    """Call a server whose connections are fragile."""
    app: Starlette = build_app(Operation(), lambda: b"", Access())
    server = Server(app, parse_listen("127.0.0.1:0"))
    server._uvicorn.config.http = protocol_of(Limits(head_within=0.05), Fragile)
    await server.start()
    with socket.socket() as caller:
        caller.setblocking(False)
        await asyncio.get_running_loop().sock_connect(caller, ("127.0.0.1", server.port))
        await asyncio.get_running_loop().sock_sendall(caller, data)
        await asyncio.sleep(0.3)
    await server.stop()


@pytest.mark.parametrize("data", [b"break", b"GET / HT"], ids=["at its bytes", "at its timer"])
def test_a_call_of_the_api_that_breaks_ends_its_connection_alone(
    new_loop: Callable[[], asyncio.AbstractEventLoop], data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    faults = faults_of(new_loop, called(data))
    assert counted(faults)[0] >= 1
    assert (counted(faults)[1], faults.fatal) == (0, "")
    assert "Broken: here" in caplog.text
