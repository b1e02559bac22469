"""Callers that send more than a listener keeps: calls, headers and bodies without end; and answers nobody takes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from reconsume.sidecar.api.app import build_probe_app
from reconsume.sidecar.http.bodies import LONGEST, MOST
from reconsume.sidecar.http.protocol import MOST_HEADERS, MOST_QUEUED, PROBE_LIMITS, Limits
from tests.support.deadline import until
from tests.support.sidecar.api_calls import assert_problem, call
from tests.support.sidecar.running_api import Client, Operation, serving

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
DRAIN = b"POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture
def probes(sidecar: Operation) -> Iterator[int]:
    """The port of the probes, which the whole network reaches."""
    with serving(build_probe_app(sidecar, lambda: b"x" * 1_000_000), limits=PROBE_LIMITS) as port:
        assert isinstance(port, int)
        yield port


def test_calls_without_end_that_wait_for_no_answer_end_their_connection(probes: int) -> None:
    """Given one caller that sends calls on and on, then few of them are kept, and others are answered meanwhile."""
    with Client(probes) as client:
        with contextlib.suppress(ConnectionError):  # closed while it still sent
            for _ in range(50):
                client.send(LIVEZ * 5_000)
        assert call(probes, "GET", "/livez").status == 200
        assert client.is_closed()


def test_a_few_calls_at_once_are_answered_in_their_order(port: int) -> None:
    with Client(port) as client:
        client.send(LIVEZ + LIVEZ.replace(b"livez", b"nothing") + LIVEZ * (MOST_QUEUED - 1))
        assert [client.answer().status for _ in range(MOST_QUEUED + 1)] == [200, 404] + [200] * (MOST_QUEUED - 1)


@pytest.mark.parametrize("more", [b"a:\r\n" * (MOST_HEADERS + 1), b"a:\r\n" * 60_000, b"a: " + b"x" * 40_000 + b"\r\n"])
def test_a_head_in_one_piece_has_no_more_than_any_other(probes: int, more: bytes) -> None:
    """Given too many headers, or too long ones, that came at once with their end, then they are refused, not kept."""
    with Client(probes) as client:
        with contextlib.suppress(ConnectionError):
            client.send(LIVEZ[:-2] + more + b"\r\n")
        assert_problem(client.answer(), 431)


def test_a_target_without_end_is_refused(probes: int) -> None:
    with Client(probes) as client:
        client.send(b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n")
        assert_problem(client.answer(), 431)


def test_headers_behind_a_body_are_bounded_too(sidecar: Operation, port: int) -> None:
    with Client(port) as client:
        client.send(DRAIN + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a:\r\n" * 60_000 + b"\r\n")
        assert_problem(client.answer(), 431)


@pytest.mark.parametrize("length", [b"Content-Length: 1", b"Transfer-Encoding: chunked"])
def test_the_probes_take_no_body(probes: int, length: bytes) -> None:
    with Client(probes) as client:
        client.send(LIVEZ[:-2] + length + b"\r\n\r\n")
        assert_problem(client.answer(), 413)


def test_a_length_with_thousands_of_zeros_is_a_number_and_no_fault(port: int) -> None:
    with Client(port) as client:
        client.send(LIVEZ[:-2] + b"Content-Length: " + b"0" * 5_000 + b"\r\n\r\n")
        assert client.answer().status == 200


def test_all_bodies_together_are_bounded(sidecar: Operation, port: int) -> None:
    """Given as many bodies under way as are held at most, then one more is told to come again, and then is taken."""
    sidecar.may_end = threading.Event()
    whole = DRAIN + b"Content-Length: %d\r\n\r\n" % LONGEST + b"x" * LONGEST
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(port)) for _ in range(MOST // LONGEST)]
        for client in clients:
            client.send(whole)
        until(lambda: len(sidecar.drains) == len(clients), 10, "all bodies are there")
        with Client(port) as late:
            late.send(whole)
            answer = late.answer()
            assert_problem(answer, 503)
            assert answer.headers["retry-after"] == "1"
        assert call(port, "GET", "/status").status == 200
        sidecar.may_end.set()
        assert [client.answer().status for client in clients] == [200] * len(clients)
    with Client(port) as again:
        again.send(whole)
        assert again.answer().status == 200


def test_an_answer_that_nobody_takes_gives_its_place_back(sidecar: Operation) -> None:
    """Given callers in every place that read nothing of what they asked for, then their connections end."""
    app = build_probe_app(sidecar, lambda: b"x" * 10_000_000)
    limits = Limits(connections=2, reserve=1, taken_within=0.2)
    with serving(app, limits=limits) as port, ExitStack() as stack:
        for _ in range(limits.connections):
            deaf = stack.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.connect(("127.0.0.1", port))
            deaf.sendall(LIVEZ.replace(b"livez", b"metrics"))
        until(lambda: call(port, "GET", "/nothing").status == 404, 10, "a place is free again")


def test_answers_that_nobody_takes_are_bounded_together_and_a_caller_that_reads_gets_its_own(
    sidecar: Operation,
) -> None:
    """Given more bytes that wait for callers than are kept, then the slowest caller loses its answer, not the last."""
    app = build_probe_app(sidecar, lambda: b"x" * 10_000_000)
    with serving(app, limits=Limits(untaken=8_000_000)) as port, ExitStack() as stack:
        deaf = [stack.enter_context(Client(port)) for _ in range(3)]
        for one in deaf:
            one.send(LIVEZ.replace(b"livez", b"metrics"))
        assert len(call(port, "GET", "/metrics").body) == 10_000_000
        cut = [one for one in deaf if len(one.rest()) < 10_000_000]
        assert deaf[0] in cut
