"""Whether the service died with a request, or ended one connection: judged on real processes and sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, Died, Failed, NotSent, Outcome
from reconsume.sidecar.delivery.push import Push
from tests.integration.delivery.batch_client import Feeder
from tests.support.rings import inner
from tests.support.service import stub_service as stub
from tests.support.service.mortal_service import MortalService
from tests.support.service.stub_service import StubService
from tests.support.sidecar.push_client import a_push, a_record, deliver, run, settled

LOST = Failed("connection-lost", "the service closed the connection before its answer was complete", "broken_answer")
GONE = "connection-refused"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def on(url: str, work: Callable[[Push], Awaitable[None]]) -> None:
    """Run with a client of this URL."""

    async def runs() -> None:
        push = a_push(url)
        await work(push)
        push.close()
        await settled(lambda: push.connections == 0)

    run(runs)


def doing(number: int, deed: str = "") -> bytes:
    """The value of a record that makes the service do something."""
    return b'{"n": %d%s}' % (number, b', "do": "%s"' % deed.encode() if deed else b"")


async def together(push: Push, *deeds: str) -> list[Outcome]:
    """Deliver records at once, and return what became of each."""
    records = [a_record(number, doing(number, deed)) for number, deed in enumerate(deeds)]
    return list(await asyncio.gather(*(deliver(push, record) for record in records)))


@pytest.mark.parametrize("deed", ["exit", "kill", "oom"])
@pytest.mark.parametrize("unix", [False, True], ids=["TCP", "Unix"])
def test_a_process_that_ends_takes_what_it_had_with_it_and_no_attempt_is_counted(
    deed: str, unix: bool, tmp_path: Path
) -> None:
    """On the connections that were used before, and on fresh ones."""
    told: list[int] = []
    with MortalService(tmp_path, restart_after=30, unix=unix) as service:

        async def work(push: Push) -> None:
            push.deaths.at_death = told.append
            assert set(await together(push, "", "", "")) == {COMMITTED}
            died = await together(push, "slow", "slow", "slow", "slow", deed)
            assert all(isinstance(outcome, Died) and outcome.reason == GONE for outcome in died), died

        on(service.url, work)
    assert told == [5]


@pytest.mark.parametrize("deed", inner("exit", ["exit", "kill", "oom"]))
def test_a_jvm_that_ends_takes_what_it_had_with_it(deed: str, tmp_path: Path) -> None:
    with MortalService(tmp_path, restart_after=30, java=True) as service:

        async def work(push: Push) -> None:
            assert set(await together(push, "", "", "")) == {COMMITTED}
            *slow, died = await together(push, "slow", "slow", deed)
            assert isinstance(died, Died)
            # On a busy machine the JVM takes longer to run out of memory than these take.
            assert all(isinstance(outcome, Died) or outcome == COMMITTED for outcome in slow), slow

        on(service.url, work)


@pytest.mark.parametrize("java", [False, True], ids=["Python", "JVM"])
def test_a_handler_that_throws_is_a_failure_and_runs_once_an_attempt(java: bool, tmp_path: Path) -> None:
    """Also on a kept connection, and beside requests that are answered."""
    with MortalService(tmp_path, java=java) as service:

        async def work(push: Push) -> None:
            assert set(await together(push, "", "")) == {COMMITTED}
            assert await together(push, "throw", "slow", "slow") == [LOST, COMMITTED, COMMITTED]
            assert await together(push, "throw") == [LOST]
            assert push.deaths.count == 0

        on(service.url, work)
        assert service.executions()[0] == 3


@pytest.mark.parametrize("prefork", [False, True], ids=["a listener each", "one listener"])
def test_of_four_workers_the_one_that_ends_takes_only_its_own(prefork: bool, tmp_path: Path) -> None:
    """Given idle connections to it too, then this is a death though the service can be reached.

    A busy kernel may end them more than 5 ms apart, or take a probe into the backlog of the dead worker: then it is a
    failure of the cause alone, or an outage. So there are five tries, and in each of them no other record pays.
    """
    found: list[Outcome] = []

    async def work(push: Push) -> None:
        assert set(await together(push, *["slow"] * 24)) == {COMMITTED}
        found[:] = await together(push, "exit", *["slow"] * 11)

    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        with MortalService(folder, workers=4, restart_after=30, prefork=prefork) as service:
            on(service.url, work)
        assert COMMITTED in found
        assert set(found) <= {COMMITTED, found[0]}
        if found[0] == Died(""):
            return
    pytest.fail(f"the end of a worker with idle connections was never a death: {found[0]}")


class WorkerConnection(asyncio.Protocol):
    """A connection of a service in this process, which answers when it is told."""

    def __init__(self, every: list[WorkerConnection]) -> None:
        self.is_busy = False
        every.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, _data: bytes) -> None:
        self.is_busy = True

    def answer(self) -> None:
        self.is_busy = False
        self.transport.write(OK)


@pytest.mark.parametrize("is_first", [True, False], ids=["before the others", "behind them"])
def test_a_request_whose_connection_a_busy_kernel_ends_apart_from_the_others_dies_with_them(is_first: bool) -> None:
    """Given a worker of several, whose connections end 15 ms apart: one alone, and two with an idle one."""
    every: list[WorkerConnection] = []

    async def runs() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: WorkerConnection(every), "127.0.0.1", 0)
        push = a_push(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/events")

        async def begun(count: int) -> asyncio.Future[list[Outcome]]:
            delivered = asyncio.ensure_future(together(push, *[""] * count))
            await settled(lambda: sum(connection.is_busy for connection in every) == count)
            return delivered

        delivered = await begun(5)
        for connection in every:
            connection.answer()
        assert set(await delivered) == {COMMITTED}
        delivered = await begun(4)
        one, two, three, lives = (connection for connection in every if connection.is_busy)
        (idle,) = (connection for connection in every if not connection.is_busy)
        groups = [[one], [two, three, idle]]
        for group in groups if is_first else reversed(groups):
            for connection in group:
                connection.transport.abort()
            await asyncio.sleep(0.015)
        await settled(lambda: push.deaths.count == 1)
        lives.answer()
        found = await delivered
        assert sorted(map(repr, found)) == sorted(map(repr, [Died(""), Died(""), Died(""), COMMITTED]))
        push.close()
        server.close()

    run(runs)


def test_a_batch_that_dies_with_its_service_dies_with_all_its_records(tmp_path: Path) -> None:
    told: list[int] = []
    with MortalService(tmp_path, restart_after=30) as service:

        async def work() -> None:
            feeder = Feeder(service.url, requests=1)
            feeder.batches.deaths.at_death = told.append
            feeder.feed(*(a_record(number, doing(number, "exit" if number == 2 else "")) for number in range(3)))
            await feeder.answered(3)
            assert feeder.found == dict.fromkeys(range(3), Died(GONE))
            feeder.batches.close()

        run(work)
    assert told == [3]


@contextmanager
def port_proxy() -> Iterator[str]:
    """A proxy of ports that accepts for a container that is dead, and ends each connection without a byte."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.close()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/events"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(10)


def test_a_proxy_that_accepts_for_a_dead_service_shows_one_death_and_then_an_outage() -> None:
    """Else each probe would count as a death of the record that it carries."""

    async def work(push: Push) -> None:
        assert await deliver(push, a_record(0)) == Died("connection-lost")
        for number in range(3):
            assert await deliver(push, a_record(number)) == NotSent("connection-lost")
        assert push.deaths.count == 1

    with port_proxy() as url:
        on(url, work)


@pytest.mark.parametrize("restart_after", [0.0, 0.02])
def test_a_service_that_is_back_at_once_has_died_all_the_same(restart_after: float, tmp_path: Path) -> None:
    """All connections of the pool end together, whether or not a connect is refused meanwhile."""
    with MortalService(tmp_path, restart_after=restart_after) as service:

        async def work(push: Push) -> None:
            assert set(await together(push, "", "", "", "")) == {COMMITTED}
            died = await together(push, "slow", "slow", "exit")
            assert all(isinstance(outcome, Died) for outcome in died), died
            await settled(lambda: service.starts == 2)
            found: Outcome = NotSent("not asked yet")
            while isinstance(found, NotSent):
                found = await deliver(push, a_record(9, doing(9)))
            assert found is COMMITTED

        on(service.url, work)


def test_what_was_not_read_is_sent_again_before_a_death_is_looked_for(tmp_path: Path) -> None:
    """Given that the sent one is refused too, then the record died with its service."""
    with StubService([stub.ok_then_leaves_the_next_unread, stub.ok]) as service:

        async def work(push: Push) -> None:
            assert await deliver(push, a_record(0)) is COMMITTED
            service.stop_listening()
            assert await deliver(push, a_record(1)) == Died(GONE)

        on(service.url, work)
        assert len(service.requests) == 1


def test_many_handlers_that_throw_one_by_one_end_no_service(tmp_path: Path) -> None:
    """The looks of many failures share their connects: there are few, however many fail."""
    with MortalService(tmp_path) as service:

        async def work(push: Push) -> None:
            assert await together(push, *["slow"] * 8) == [COMMITTED] * 8
            for _ in range(10):
                assert await together(push, "throw") == [LOST]
            assert push.deaths.count == 0

        on(service.url, work)
