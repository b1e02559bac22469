"""More connections than the API has places for: who is let in then, and who has to go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from reconsume.sidecar.api.app import Access, build_probe_app
from reconsume.sidecar.http.protocol import PROBE_LIMITS, Limits
from tests.support.deadline import until
from tests.support.sidecar.api_calls import assert_problem, call, the_app
from tests.support.sidecar.running_api import Client, Operation, serving

RESERVE = ("/livez", "/readyz", "/startupz")


@contextmanager
def held(port: str | int, count: int, said: bytes = b"") -> Iterator[list[Client]]:
    """So many connections that say no more than this."""
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            clients.append(stack.enter_context(Client(port)))
            clients[-1].send(said)
        yield clients


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /livez HTTP/1.1\r\n",
        b"POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\nx",
    ],
    ids=["nothing", "half a head", "a body that does not come"],
)
def test_idle_connections_keep_nobody_out(sidecar: Operation, said: bytes) -> None:
    """Given three times as many silent callers as there are places, then probes, calls and a drain are answered."""
    with serving(the_app(sidecar)) as port, held(port, 3 * Limits().connections, said):
        answers = [call(port, "GET", target).status for target in (*RESERVE, "/status", "/metrics")]
        assert (answers, call(port, "POST", "/drain").status) == ([200] * 5, 200)


def test_the_oldest_that_never_called_goes_first_and_a_caller_between_two_calls_stays(sidecar: Operation) -> None:
    with serving(the_app(sidecar), limits=Limits(connections=2)) as port, Client(port) as known:
        assert known.call("GET", "/status").status == 200
        with Client(port) as silent, Client(port) as third:
            assert silent.is_closed()
            assert third.call("GET", "/status").status == known.call("GET", "/status").status == 200


def test_calls_under_way_leave_a_reserve_for_probes_and_the_drain(sidecar: Operation) -> None:
    """Given a call under way in each place, then others are told 503, and probes and a drain are answered still."""
    sidecar.may_end = threading.Event()
    limits = Limits(connections=2, reserve=2)
    drain = b"POST /drain HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(the_app(sidecar), limits=limits) as port, held(port, 2, drain) as places:
        until(lambda: len(sidecar.drains) == 2, 5, "both places have their call")
        assert_problem(call(port, "GET", "/status"), 503)
        with held(port, 20), held(port, 20, drain):  # and the reserve is flooded as well
            assert [call(port, "GET", target).status for target in RESERVE] == [200] * 3
            sidecar.may_end.set()
            assert call(port, "POST", "/drain").status == 200
        assert [place.answer().status for place in places] == [200, 200]
        until(lambda: call(port, "GET", "/status").status == 200, 5, "a place is free again")


def test_a_reserved_connection_makes_one_call(sidecar: Operation) -> None:
    sidecar.may_end = threading.Event()
    with serving(the_app(sidecar), limits=Limits(connections=1)) as port, Client(port) as first:
        first.send(b"POST /drain HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: len(sidecar.drains) == 1, 5, "the place has its call")
        with Client(port) as second:
            assert second.call("GET", "/livez").status == 200
            assert second.is_closed()
        sidecar.may_end.set()


def test_one_address_takes_a_part_of_the_probe_port_and_no_more(sidecar: Operation) -> None:
    """Given a neighbour that holds what one address may hold, then its own oldest goes, and nobody else's."""
    app = build_probe_app(sidecar, lambda: b"")
    most = PROBE_LIMITS.per_peer
    assert most * 4 <= PROBE_LIMITS.connections
    with serving(app, "0.0.0.0:0", PROBE_LIMITS) as port, Client(port, "127.0.0.2") as other:
        assert other.call("GET", "/livez").status == 200
        with held(port, most + 1) as flood:
            assert flood[0].is_closed()
            assert [flood[-1].call("GET", "/livez").status, other.call("GET", "/livez").status] == [200, 200]


def test_a_whole_head_has_two_seconds_to_come(sidecar: Operation, token_file: Path) -> None:
    assert Limits().head_within == PROBE_LIMITS.head_within == 2.0
    with serving(the_app(sidecar, Access(token_file))) as port, held(port, 1, b"GET /li") as [client]:
        assert_problem(client.answer(), 408)
