"""Whose end of a kept connection it was: what no handler saw is no attempt."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from pathlib import Path

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, Failed
from tests.integration.delivery.batch_client import Feeder, batches
from tests.support.service import stub_service as stub
from tests.support.service.stub_service import Behaviour, StubService, Talk
from tests.support.sidecar.push_client import SHORT_MS, a_push, a_record, deliver, outcomes, run, settled

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
LOST = Failed("connection-lost", "the service closed the connection before its answer was complete", "broken_answer")


def closes_after(count: int) -> Behaviour:
    """Answer so many requests of each connection, and close it behind the last without saying so."""
    served: Counter[int] = Counter()
    lock = threading.Lock()

    def behave(talk: Talk) -> bool:
        with lock:
            served[id(talk.connection)] += 1
            last = served[id(talk.connection)] == count
            if last:
                del served[id(talk.connection)]
        talk.say(OK)
        return not last

    return behave


@pytest.mark.parametrize("at_once", [1, 4, 32])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_connections_that_end_behind_an_answer_cost_no_attempt(count: int, at_once: int) -> None:
    """Given a service that closes each connection after some answers, then each record is one request, and done."""
    with StubService([closes_after(count)]) as service:

        async def work() -> None:
            push = a_push(service.url)
            numbers = iter(range(300))

            async def worker() -> None:
                for number in numbers:
                    assert await deliver(push, a_record(number)) is COMMITTED

            await asyncio.gather(*(worker() for _ in range(at_once)))
            push.close()
            await settled(lambda: push.connections == 0)

        run(work)
        assert len(service.requests) == 300


TIME_LEFT = re.compile(rb"Reconsume-Timeout: ([0-9]+)\r\n")


@pytest.mark.parametrize("transport", ["TCP", "Unix"])
def test_a_request_that_the_service_did_not_read_on_a_used_connection_is_sent_once_more(
    transport: str, tmp_path: Path
) -> None:
    """Given a service that closes on a request in its buffer, then the same bytes come on a fresh connection."""
    path = tmp_path / "app.sock" if transport == "Unix" else None
    with StubService([stub.ok_then_leaves_the_next_unread, stub.ok], path) as service:

        async def work() -> None:
            push = a_push(service.url)
            assert await deliver(push, a_record(0)) is COMMITTED
            assert await deliver(push, a_record(1)) is COMMITTED
            push.close()

        run(work)
        assert len(service.requests) == 2
        assert service.connections == 2


def test_a_request_that_was_read_is_not_sent_again() -> None:
    """Given a handler that throws, and so ends its connection in order, then each attempt is one execution."""
    found, service = outcomes([stub.ok, stub.close_before, stub.ok], count=3)
    assert found == [COMMITTED, LOST, COMMITTED]
    assert len(service.requests) == 3


def test_a_request_on_a_fresh_connection_is_not_sent_again_even_after_a_reset() -> None:
    """Given a peer that resets the first request of each connection, then it may be a proxy, and the attempt fails."""
    found, service = outcomes([stub.resets, stub.ok], count=2)
    assert found == [LOST, COMMITTED]
    assert len(service.requests) == 2


def test_a_request_that_is_reset_twice_is_one_failed_attempt() -> None:
    """Given a service that resets what it has read, then the request is sent twice, and one attempt is counted."""
    found, service = outcomes([stub.ok, stub.resets, stub.resets, stub.ok], count=3)
    assert found == [COMMITTED, LOST, COMMITTED]
    first, repeated = (TIME_LEFT.split(request) for request in service.requests[1:3])
    assert (first[0], first[2]) == (repeated[0], repeated[2])
    assert 0 < int(repeated[1]) <= int(first[1]) == 10_000
    assert len(service.requests) == 4


@pytest.mark.parametrize(("said", "connections"), [("timeout=1, max=100", 2), ("timeout=60", 1), ("max=100", 1)])
def test_a_connection_is_not_used_again_when_the_service_is_about_to_close_it(said: str, connections: int) -> None:
    """Given `Keep-Alive: timeout=1`, then a connection that was idle for 0.7 s gets no further request."""
    with StubService([stub.answer(200, f"Keep-Alive: {said}")]) as service:

        async def work() -> None:
            push = a_push(service.url)
            assert await deliver(push, a_record(0)) is COMMITTED
            idle_until = asyncio.get_running_loop().time() + 0.7
            await settled(lambda: asyncio.get_running_loop().time() >= idle_until)
            assert await deliver(push, a_record(1)) is COMMITTED
            push.close()

        run(work)
        assert service.connections == connections


@pytest.mark.parametrize("behaviour", [stub.close_mid_head, stub.close_mid_json, stub.hang])
def test_what_began_to_be_answered_or_is_late_is_not_sent_again(behaviour: Behaviour) -> None:
    """Given one byte of an answer, or a timeout, then the service had the request: the attempt has failed."""
    found, service = outcomes([stub.ok, behaviour, stub.ok], count=2, timeout_ms=SHORT_MS)
    assert isinstance(found[1], Failed)
    assert len(service.requests) == 2


GOODBYE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
STAYS = stub.answer(408)
LATE = Failed("http-408")


@pytest.mark.parametrize(
    ("behaviours", "expected", "requests"),
    [
        ([stub.ok, stub.raw(GOODBYE, keep=False), stub.ok], [COMMITTED, COMMITTED], 3),
        ([stub.ok, stub.raw(GOODBYE, keep=False), stub.raw(GOODBYE, keep=False)], [COMMITTED, LATE], 3),
        ([stub.raw(GOODBYE, keep=False), stub.ok], [LATE, COMMITTED], 2),
        ([stub.ok, STAYS, stub.ok], [COMMITTED, LATE, COMMITTED], 3),
        (
            [stub.ok, stub.answer(408, "Connection: close", "Reconsume-Verdict: retry; reason=http-408")],
            [COMMITTED, Failed("http-408", asked=True)],
            2,
        ),
    ],
)
def test_a_408_that_ends_a_used_connection_is_no_answer_to_the_record(
    behaviours: list[Behaviour], expected: list[object], requests: int
) -> None:
    """Given a load balancer that says so to an idle connection, then a request that crossed it is sent once more."""
    found, service = outcomes(behaviours, count=len(expected))
    assert found == expected
    assert len(service.requests) == requests


ENDS = {"a reset": stub.resets, "a 408 crosses it": stub.raw(GOODBYE, keep=False)}


@pytest.mark.parametrize("end", ENDS)
def test_a_batch_that_meets_the_end_of_a_used_connection_is_sent_once_more(end: str) -> None:
    """Given a service that ends its connection on the second batch, then the same batch comes again."""
    with StubService([stub.ok, ENDS[end], stub.ok]) as service:

        async def work() -> None:
            feeder = Feeder(service.url, requests=1)
            feeder.feed(*(a_record(number) for number in range(6)))
            await feeder.answered(6)
            assert set(feeder.found.values()) == {COMMITTED}
            feeder.batches.close()

        run(work)
        assert batches(service) == [[0, 1, 2], [3, 4, 5], [3, 4, 5]]


def test_an_early_answer_ends_the_connection() -> None:
    """Given a service that refuses a large body before it has read it, then its answer counts."""
    gate = threading.Event()

    def refuse(talk: Talk) -> bool:
        talk.say(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        gate.wait(10)
        return False

    with StubService([refuse, stub.ok], early=True) as service:

        async def work() -> None:
            push = a_push(service.url)
            large = a_record(0, b"x" * (64 << 20))
            assert await deliver(push, large) == Failed("http-413")
            assert push.connections == 0
            gate.set()
            push.close()

        run(work)
