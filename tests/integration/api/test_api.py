"""The HTTP API on a real server: what its calls answer, and how it says what is wrong."""

from __future__ import annotations

import threading

import pytest

from reconsume.sidecar.api.app import Access, build_app
from tests.support.deadline import until
from tests.support.sidecar.api_calls import METRICS, assert_problem, call
from tests.support.sidecar.running_api import Client, Operation, serving

# --- what the calls answer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz", "/status", "/metrics"])
def test_a_running_sidecar_answers_each_read(port: int, path: str) -> None:
    """Given a running sidecar, then every read is 200, by GET and by HEAD."""
    assert call(port, "GET", path).status == 200
    assert call(port, "HEAD", path).status == 200


def test_the_status_is_the_sidecars_own_words_as_json(port: int) -> None:
    answer = call(port, "GET", "/status")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {"group": "billing", "partitions": [{"topic": "orders", "partition": 3}]}


def test_metrics_are_prometheus_text(port: int) -> None:
    answer = call(port, "GET", "/metrics")
    assert answer.body == METRICS
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_a_thread_that_stands_still_fails_liveness_and_readiness(sidecar: Operation, port: int) -> None:
    """Given a stuck thread, then both probes are 503 and say which; what has started has started."""
    sidecar.found = ["main: the consumer's thread stands still"]
    for path in ("/livez", "/readyz"):
        answer = call(port, "GET", path)
        assert_problem(answer, 503)
        assert "main: the consumer" in answer.json["detail"]
    assert call(port, "GET", "/startupz").status == 200


def test_a_sidecar_that_waits_for_kafka_is_alive_and_ready_but_not_started(sidecar: Operation, port: int) -> None:
    sidecar.has_started = False
    assert_problem(call(port, "GET", "/startupz"), 503)
    assert call(port, "GET", "/livez").status == 200
    assert call(port, "GET", "/readyz").status == 200


@pytest.mark.parametrize(
    ("query", "seconds"), [("", None), ("?timeout=20s", 20.0), ("?timeout=500ms", 0.5), ("?timeout=3d", 3600.0)]
)
def test_drain_waits_as_long_as_it_is_told_an_hour_at_most(
    sidecar: Operation, port: int, query: str, seconds: float | None
) -> None:
    answer = call(port, "POST", f"/drain{query}")
    assert (answer.status, answer.json) == (200, {"drained": True, "left": 0})
    assert sidecar.drains == [seconds]


def test_a_drain_that_left_deliveries_says_so(sidecar: Operation, port: int) -> None:
    sidecar.left = 2
    assert call(port, "POST", "/drain").json == {"drained": False, "left": 2}


@pytest.mark.parametrize("query", ["timeout=20", "timeout=", "timeout=-1s", "timeout=1s&timeout=2s", "timeout=%00"])
def test_a_bad_drain_timeout_is_refused_and_the_form_is_named(sidecar: Operation, port: int, query: str) -> None:
    answer = call(port, "POST", f"/drain?{query}")
    assert_problem(answer, 400)
    assert "20s" in answer.json["detail"]
    assert sidecar.drains == []


def test_other_calls_are_answered_while_a_drain_waits(sidecar: Operation, port: int) -> None:
    """Given a drain under way, then a second one and the probes are served meanwhile."""
    sidecar.may_end = threading.Event()
    with Client(port) as first, Client(port) as second:
        for client in (first, second):
            client.send(b"POST /drain HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: len(sidecar.drains) == 2, 5, "both drains have begun")
        assert call(port, "GET", "/readyz").status == 200
        sidecar.may_end.set()
        assert [first.answer().status, second.answer().status] == [200, 200]


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("POST", "/v1/receive", 404, None),
        ("GET", "/livez/", 404, None),
        ("GET", "/drain", 405, {"POST"}),
        ("POST", "/livez", 405, {"GET", "HEAD"}),
        ("OPTIONS", "/drain", 405, {"POST"}),
        ("DELETE", "/status", 405, {"GET", "HEAD"}),
    ],
)
def test_what_is_no_call_is_a_problem_document(
    port: int, method: str, path: str, status: int, allow: set[str] | None
) -> None:
    answer = call(port, method, path)
    assert_problem(answer, status)
    if allow is not None:
        assert set(answer.headers["allow"].replace(" ", "").split(",")) == allow


def test_no_answer_invites_pages_of_other_origins(port: int) -> None:
    """Given a read with an Origin, then it is served without one CORS header."""
    answer = call(port, "GET", "/status", {"Origin": "http://evil.example"})
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_fault_of_ours_is_a_problem_that_does_not_tell_its_cause() -> None:
    def broken() -> bytes:
        raise RuntimeError("secret-cause")

    with serving(build_app(Operation(), broken, Access())) as port:
        answer = call(port, "GET", "/metrics")
        assert_problem(answer, 500)
        assert b"secret-cause" not in answer.body
        assert call(port, "GET", "/livez").status == 200


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET\r\n\r\n", b"GET  HTTP/9.9\r\n\r\n"])
def test_what_is_not_http_is_a_problem_and_ends_the_connection(port: int, garbage: bytes) -> None:
    with Client(port) as client:
        client.send(garbage)
        assert_problem(client.answer(), 400)
        assert client.is_closed()
