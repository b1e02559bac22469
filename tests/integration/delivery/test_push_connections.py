"""How the push client comes to a connection, keeps it, and lets it go: on real sockets."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Failed, NotSent, Outcome
from reconsume.sidecar.core.record import Now, Record
from reconsume.sidecar.delivery.push import Push, PushSettings, parse_target
from tests.support.service import stub_service as stub
from tests.support.service.stub_service import StubService
from tests.support.sidecar.push_client import SECONDS, SHORT_MS, a_push, a_record, deliver, now, outcomes, run, settled


def a_refused_url() -> str:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/events"


def test_a_refused_connection_is_not_an_attempt() -> None:
    """Given a port where nobody listens, then NotSent."""

    async def work() -> None:
        push = a_push(a_refused_url())
        assert await deliver(push, a_record()) == NotSent("connection-refused")
        assert await deliver(push, a_record()) == NotSent("connection-refused")
        assert push.connections == 0

    run(work)


def test_a_lookup_that_fails_after_it_was_given_up_is_no_fault_of_the_loop() -> None:
    """Given a name service that is slower than the connect timeout, then its late answers end nothing."""

    async def work() -> None:
        target = parse_target("http://no-such-host.invalid:1/", True)
        push = Push(target, PushSettings("billing", 10_000, connect_timeout_ms=1), now)
        for number in range(20):
            outcome = await deliver(push, a_record(number))
            assert outcome in (NotSent("connect-timeout"), NotSent("no-such-host"))
        gc.collect()
        await asyncio.sleep(0.5)  # the lookups end

    run(work)


def test_a_missing_socket_file_is_not_an_attempt(tmp_path: Path) -> None:
    """Given a Unix socket that is not there, then NotSent."""

    async def work() -> None:
        push = a_push(f"unix:{tmp_path}/none.sock:/events")
        assert await deliver(push, a_record()) == NotSent("no-such-socket")

    run(work)


def test_a_unix_socket_with_a_full_backlog_is_waited_for_and_is_not_an_attempt(tmp_path: Path) -> None:
    """Given a service that accepts nobody, when its backlog is full, then the connect timeout ends it with NotSent."""
    path = tmp_path / "app.sock"
    with closing(socket.socket(socket.AF_UNIX)) as listener, closing(socket.socket(socket.AF_UNIX)) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))

        async def work() -> None:
            push = a_push(f"unix:{path}:/events", connect_timeout_ms=SHORT_MS)
            began = time.monotonic()
            assert await deliver(push, a_record()) == NotSent("connect-timeout")
            assert time.monotonic() - began >= SHORT_MS / 1000
            assert push.connections == 0

        run(work)


def test_records_go_through_a_unix_socket(tmp_path: Path) -> None:
    """Given a service on a Unix socket, then it is asked for the path of the URL."""
    with StubService([stub.ok], tmp_path / "app.sock") as service:

        async def work() -> None:
            push = a_push(service.url)
            assert await deliver(push, a_record()) is COMMITTED
            push.close()

        run(work)
        assert service.requests[0].startswith(b"POST /events HTTP/1.1\r\nHost: localhost\r\n")


def test_localhost_is_tried_on_both_families() -> None:
    """Given a service on ::1 alone, then `localhost` finds it."""
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with closing(listener):

        async def work() -> None:
            push = a_push(f"http://localhost:{listener.getsockname()[1]}/", timeout_ms=SHORT_MS)
            outcome = await deliver(push, a_record())
            assert isinstance(outcome, Failed)
            assert outcome.reason == "timeout"

        run(work)


def test_a_connection_that_the_service_closed_while_idle_is_not_used() -> None:
    """Given a service that closes after each answer without saying so, then no attempt is lost on it."""
    with StubService([stub.close_idle]) as service:

        async def work() -> None:
            push = a_push(service.url)
            for number in range(3):
                assert await deliver(push, a_record(number)) is COMMITTED
                await settled(lambda: push.connections == 0)
            push.close()

        run(work)
        assert service.connections == 3


def test_a_connection_that_was_idle_too_long_is_closed() -> None:
    """Given an idle connection, when its time is over, then it is closed by us and the next record has a new one."""
    with StubService([stub.ok]) as service:

        async def work() -> None:
            push = a_push(service.url, idle_ms=40)
            assert await deliver(push, a_record()) is COMMITTED
            assert push.connections == 1
            await settled(lambda: push.connections == 0)
            assert await deliver(push, a_record()) is COMMITTED
            push.close()

        run(work)
        assert service.connections == 2


def test_a_connection_that_was_idle_too_long_is_not_used_after_a_freeze() -> None:
    """Given an idle connection, when a reply comes before any timer after a freeze, then it is not used."""
    gate = threading.Event()

    def after_the_gate(talk: stub.Talk) -> bool:
        gate.wait(SECONDS)
        return stub.ok(talk)

    with StubService([after_the_gate, stub.ok]) as service:

        async def work() -> None:
            push, found, done = a_push(service.url, idle_ms=100), [], asyncio.Event()

            def reply(record: Record, outcome: Outcome, _: Now) -> None:
                found.append(outcome)
                if record.offset == 0:  # its own connection takes one of these, the idle one could take the other
                    push(a_record(2), reply)
                    push(a_record(3), reply)
                if len(found) == 3:
                    done.set()

            push(a_record(0), reply)
            await settled(lambda: len(service.requests) == 1)
            assert await deliver(push, a_record(1)) is COMMITTED
            gate.set()
            time.sleep(0.3)  # it is the loop that is to be held up
            await asyncio.wait_for(done.wait(), SECONDS)
            assert found == [COMMITTED] * 3
            push.close()

        run(work)
        assert service.connections == 3


def test_words_out_of_turn_close_an_idle_connection() -> None:
    """Given an answer with more behind it, then the first is taken, and the rest is no answer to the next record."""
    surplus = stub.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    found, service = outcomes([surplus, stub.answer(500)], count=2)
    assert found == [COMMITTED, Failed("http-500")]
    assert service.connections == 2


def test_deliveries_at_once_have_a_connection_each_and_keep_it() -> None:
    """Given eight deliveries at a time, when many are made, then eight connections carry them, each answer its own."""
    with StubService([stub.ok]) as service:

        async def work() -> None:
            push = a_push(service.url)
            for turn in range(20):
                records = [a_record(turn * 8 + number) for number in range(8)]
                assert await asyncio.gather(*(deliver(push, record) for record in records)) == [COMMITTED] * 8
            assert push.connections == 8
            push.close()

        run(work)
        assert service.connections == 8
        assert len(service.requests) == 160
        assert len(set(service.requests)) == 160


def test_the_reply_may_send_the_next_record_on_the_same_connection() -> None:
    """Given a core that delivers from within a reply, then one connection carries everything."""
    with StubService([stub.ok, stub.answer(500), stub.ok]) as service:

        async def work() -> None:
            push, done, found = a_push(service.url), asyncio.Event(), []

            def reply(record: Record, outcome: Outcome, _: Now) -> None:
                found.append(outcome)
                if record.offset < 50:
                    push(a_record(record.offset + 1), reply)
                else:
                    done.set()

            push(a_record(0), reply)
            await asyncio.wait_for(done.wait(), SECONDS)
            assert found == [COMMITTED, Failed("http-500"), *[COMMITTED] * 49]
            push.close()

        run(work)
        assert service.connections == 1


def test_an_answer_that_the_service_gave_before_is_told_from_another_one() -> None:
    """Given answers that differ only in their verdict, when they alternate, then each means what it says."""
    busy = stub.answer(200, "Reconsume-Verdict: retry")
    found, _ = outcomes([stub.ok, stub.ok, busy, stub.ok, busy], count=5)
    retry = Failed("retry-asked", asked=True)
    assert found == [COMMITTED, COMMITTED, retry, COMMITTED, retry]


def test_closing_leaves_what_is_sent_and_cancels_what_is_not() -> None:
    """Given one delivery that is sent and one that is still connecting, then the first is answered all the same."""
    with StubService([stub.drip(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20), stub.ok]) as service:

        async def work() -> None:
            push = a_push(service.url, timeout_ms=1_000)
            sent = asyncio.ensure_future(deliver(push, a_record(0)))
            await settled(lambda: len(service.requests) == 1)
            connecting = asyncio.ensure_future(deliver(push, a_record(1)))
            await asyncio.sleep(0)
            push.close()
            assert await connecting == CANCELLED
            assert await deliver(push, a_record(2)) == CANCELLED
            outcome = await sent
            assert isinstance(outcome, Failed)
            assert outcome.reason == "timeout"
            assert push.connections == 0

        run(work)
        assert len(service.requests) == 1


def test_a_large_value_arrives_whole() -> None:
    """Given a value beyond every socket buffer, then the service gets it byte for byte in one request."""
    value = bytes(range(256)) * 16_384
    with StubService([stub.ok]) as service:

        async def work() -> None:
            push = a_push(service.url)
            assert await deliver(push, a_record(value=value)) is COMMITTED
            push.close()

        run(work)
        assert service.requests[0].partition(b"\r\n\r\n")[2] == value
