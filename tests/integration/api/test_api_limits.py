"""How much of a call is taken, and how long it may take to come."""

from __future__ import annotations

import contextlib
import threading

import pytest

from reconsume.sidecar.api.app import Access
from reconsume.sidecar.http.protocol import Limits
from tests.support.sidecar.api_calls import MIB, assert_problem, call, the_app
from tests.support.sidecar.running_api import Client, Operation, serving

POST = b"POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_body_that_says_it_is_too_long_is_refused_unread(sidecar: Operation, port: int) -> None:
    """Given a length over 1 MiB, then 413 comes before one byte of the body is sent."""
    assert_problem(call(port, "POST", "/drain", {"Content-Length": str(MIB + 1)}), 413)
    assert sidecar.drains == []


def test_a_chunked_body_is_refused_where_it_passes_the_limit(sidecar: Operation, port: int) -> None:
    """Given chunks without end, then 413 comes after about 1 MiB, and the connection is closed soon after."""
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with Client(port) as client:
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 17)
        assert_problem(client.answer(), 413)
        assert client.is_closed()
    assert sidecar.drains == []


def test_a_body_of_the_full_size_is_taken(port: int) -> None:
    with Client(port) as client:
        client.send(POST + b"Content-Length: %d\r\n\r\n" % MIB + b"x" * MIB)
        assert client.answer().status == 200
        assert client.call("GET", "/livez").status == 200  # on the same connection


def test_a_refused_token_is_told_before_the_body_is_sent(guarded: int) -> None:
    headers = {"Expect": "100-continue", "Content-Length": "9"}
    assert_problem(call(guarded, "POST", "/v1/ack", headers), 401)


def test_a_compressed_body_is_refused(port: int) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json", "Content-Length": "20"}
    assert_problem(call(port, "POST", "/drain", headers), 415)


@pytest.mark.parametrize("name", ["X-Big", "Cookie"])
def test_a_megabyte_of_header_is_refused(port: int, name: str) -> None:
    with Client(port) as client:
        client.send(f"GET /livez HTTP/1.1\r\nHost: localhost\r\n{name}: ".encode())
        with contextlib.suppress(ConnectionError):  # refused while it was still being sent
            for _ in range(16):
                client.send(b"x" * 0x10000)
        assert_problem(client.answer(), 431)


def test_a_head_that_drips_in_is_given_up(sidecar: Operation) -> None:
    """Given a caller that never ends its head, then it is told 408 and its connection is closed."""
    with serving(the_app(sidecar), limits=Limits(head_within=0.2)) as port, Client(port) as client:
        client.send(b"GET /livez HTTP/1.1\r\n")
        client.send(b"Host: local")
        assert_problem(client.answer(), 408)
        assert client.is_closed()


def test_a_caller_that_says_nothing_is_closed(sidecar: Operation) -> None:
    with serving(the_app(sidecar), limits=Limits(head_within=0.2)) as port, Client(port) as client:
        assert client.is_closed()


def test_a_caller_that_only_sends_empty_lines_is_closed(sidecar: Operation) -> None:
    """Given an answered call and then only line ends, which begin no head, then the connection ends all the same."""
    with serving(the_app(sidecar), limits=Limits(head_within=0.2)) as port, Client(port) as client:
        assert client.call("GET", "/livez").status == 200
        client.send(b"\r\n")
        assert_problem(client.answer(), 408)
        assert client.is_closed()


def test_a_body_that_drips_in_is_given_up(sidecar: Operation) -> None:
    with serving(the_app(sidecar, Access(body_within=0.2))) as port, Client(port) as client:
        client.send(POST + b"Content-Length: 9\r\n\r\nx")
        assert_problem(client.answer(), 408)
        assert client.is_closed()
    assert sidecar.drains == []


def test_a_long_drain_outlives_the_time_for_heads(sidecar: Operation) -> None:
    """Given the next head already half sent, then a drain that takes longer than a head may is still answered."""
    sidecar.may_end = threading.Event()
    with serving(the_app(sidecar), limits=Limits(head_within=0.05)) as port, Client(port) as client:
        client.send(b"POST /drain HTTP/1.1\r\nHost: localhost\r\n\r\nGET /livez HT")
        assert not sidecar.may_end.wait(0.3)
        sidecar.may_end.set()
        assert client.answer().status == 200
