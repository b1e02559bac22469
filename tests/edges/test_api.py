"""The HTTP API on real sockets: what each call answers, and what is kept out (INTERFACE §3, http-delivery §8)."""

from __future__ import annotations

import contextlib
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette

from sidecar.edges.api import Access, build_app, build_probe_app
from sidecar.edges.protocol import Limits
from sidecar.edges.server import Server
from sidecar.errors import SetupError
from sidecar.settings.addresses import parse_listen
from tests.support.deadline import until
from tests.support.running_api import Answer, Client, Loop, Operation, serving

METRICS = b"reconsume_in_flight 0.0\n"
MIB = 1024 * 1024


def the_app(sidecar: Operation, access: Access | None = None) -> Starlette:
    return build_app(sidecar, lambda: METRICS, access or Access())


@pytest.fixture
def sidecar() -> Operation:
    return Operation()


@pytest.fixture
def port(sidecar: Operation) -> Iterator[str | int]:
    with serving(the_app(sidecar)) as place:
        yield place


@pytest.fixture
def guarded(sidecar: Operation, token_file: Path) -> Iterator[str | int]:
    """A server whose changing calls need a token."""
    with serving(the_app(sidecar, Access(token_file, ("localhost", "billing.local")))) as place:
        yield place


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first-secret\n")
    return path


def call(place: str | int, method: str, target: str, headers: dict[str, str] | None = None, **more: object) -> Answer:
    with Client(place) as client:
        return client.call(method, target, headers, **more)  # type: ignore[arg-type]


def assert_problem(answer: Answer, status: int) -> None:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json.keys() == {"type", "title", "status", "detail"}
    assert answer.json["status"] == status
    assert answer.json["detail"]


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
    ("query", "seconds"), [("", 25.0), ("?timeout=20s", 20.0), ("?timeout=500ms", 0.5), ("?timeout=3d", 3600.0)]
)
def test_drain_waits_as_long_as_it_is_told_an_hour_at_most(
    sidecar: Operation, port: int, query: str, seconds: float
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


# --- who may call ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8471", "127.0.0.1", "127.0.0.1:1", "[::1]:8471", "[0:0::1]"])
def test_every_loopback_name_is_ours(port: int, host: str) -> None:
    assert call(port, "GET", "/livez", host=host).status == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("localhost.evil.example:8471", 421),
        ("127.0.0.1.nip.io", 421),
        ("169.254.169.254", 421),
        ("localhost.", 421),
        ("", 400),
        (None, 400),
        ("localhost/x", 400),
        ("user@localhost", 400),
        ("[::1", 400),
        ("[zz::1]", 400),
        ("localhost:port", 400),
    ],
)
def test_a_forged_host_is_refused(sidecar: Operation, port: int, method: str, host: str | None, status: int) -> None:
    """Given a page that made its name resolve to loopback, then no call of it gets in."""
    assert_problem(call(port, method, "/drain" if method == "POST" else "/status", host=host), status)
    assert sidecar.drains == []


def test_two_hosts_are_refused(port: int) -> None:
    assert_problem(call(port, "GET", "/status", {"Host": "localhost"}, host="localhost"), 400)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost.evil.example", "http://[", ""])
def test_a_page_of_another_origin_cannot_post(sidecar: Operation, port: int, origin: str) -> None:
    """Given a page that posts a form to loopback, where the Host is right, then it drains nothing."""
    assert_problem(call(port, "POST", "/drain", {"Origin": origin}), 403)
    assert sidecar.drains == []


def test_forwarded_headers_make_nobody_near(guarded: int) -> None:
    """Given X-Forwarded-For, then it is not believed either way: the socket alone tells who calls."""
    assert call(guarded, "POST", "/drain", {"X-Forwarded-For": "8.8.8.8"}).status == 200


def test_every_changing_call_but_drain_needs_the_token(guarded: int) -> None:
    """Given a token file, then changing calls without a token are 401, and reads and a near drain need none."""
    answer = call(guarded, "POST", "/v1/ack")
    assert_problem(answer, 401)
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert call(guarded, "GET", "/status").status == 200
    assert call(guarded, "POST", "/drain").status == 200


@pytest.mark.parametrize(
    "given",
    ["Bearer wrong", "Bearer first-secre", "Bearer first-secretx", "Bearer", "first-secret", "Basic first-secret", ""],
)
def test_a_wrong_token_is_refused(guarded: int, given: str) -> None:
    assert_problem(call(guarded, "POST", "/v1/ack", {"Authorization": given}), 401)


def test_two_authorizations_are_refused(guarded: int) -> None:
    headers = {"Authorization": "Bearer first-secret", "authorization": "Bearer first-secret"}
    assert_problem(call(guarded, "POST", "/v1/ack", headers), 401)


def test_a_rotated_token_is_valid_at_once_and_the_old_one_as_long_as_it_is_listed(
    guarded: int, token_file: Path
) -> None:
    """Given a rotation old -> both -> new, then each step holds with the next call, without a restart."""

    def status(token: str) -> int:
        return call(guarded, "POST", "/v1/ack", {"Authorization": f"bearer {token}"}).status

    valid = 404  # let in, and then there is no such call yet
    assert [status("first-secret"), status("second-secret")] == [valid, 401]
    token_file.write_text("second-secret\r\n\nfirst-secret\n")
    assert [status("first-secret"), status("second-secret")] == [valid, valid]
    swapped = token_file.with_name("new")
    swapped.write_text("second-secret\n")
    swapped.rename(token_file)
    assert [status("first-secret"), status("second-secret")] == [401, valid]
    token_file.unlink()
    assert status("second-secret") == 401


def test_an_empty_token_file_lets_nobody_in(guarded: int, token_file: Path) -> None:
    token_file.write_text("\n  \n")
    assert_problem(call(guarded, "POST", "/v1/ack", {"Authorization": "Bearer  "}), 401)


# --- how much ---------------------------------------------------------------------------------------------------------


def test_a_body_that_says_it_is_too_long_is_refused_unread(sidecar: Operation, port: int) -> None:
    """Given a length over 1 MiB, then 413 comes before one byte of the body is sent."""
    assert_problem(call(port, "POST", "/drain", {"Content-Length": str(MIB + 1)}), 413)
    assert sidecar.drains == []


def test_a_chunked_body_is_refused_where_it_passes_the_limit(sidecar: Operation, port: int) -> None:
    """Given chunks without end, then 413 comes after about 1 MiB, and the connection is closed soon after."""
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with Client(port) as client:
        client.send(b"POST /drain HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 17)
        assert_problem(client.answer(), 413)
        assert client.is_closed()
    assert sidecar.drains == []


def test_a_body_of_the_full_size_is_taken(port: int) -> None:
    with Client(port) as client:
        head = f"POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MIB}\r\n\r\n"
        client.send(head.encode() + b"x" * MIB)
        assert client.answer().status == 200
        assert client.call("GET", "/livez").status == 200  # on the same connection


def test_a_refused_token_is_told_before_the_body_is_sent(guarded: int) -> None:
    headers = {"Expect": "100-continue", "Content-Length": "9"}
    assert_problem(call(guarded, "POST", "/v1/ack", headers), 401)


def test_a_compressed_body_is_refused(port: int) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Length": "20"}
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
        client.send(b"POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
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


def test_one_connection_too_many_is_refused_and_a_place_that_is_free_again_is_given(sidecar: Operation) -> None:
    with serving(the_app(sidecar), limits=Limits(connections=2)) as port:
        with Client(port) as first, Client(port) as second:
            assert first.call("GET", "/livez").status == second.call("GET", "/livez").status == 200
            with Client(port) as third:
                assert_problem(third.answer(), 503)
        until(lambda: call(port, "GET", "/livez").status == 200, 5, "a place is free again")


# --- the listeners ---------------------------------------------------------------------------------------------------


def test_the_probe_listener_serves_probes_and_metrics_by_any_name_and_nothing_else(sidecar: Operation) -> None:
    with serving(build_probe_app(sidecar, lambda: METRICS)) as port:
        for path in ("/livez", "/readyz", "/startupz", "/metrics"):
            assert call(port, "GET", path, host="10.1.2.3:8472").status == 200
        assert_problem(call(port, "POST", "/drain"), 404)
        assert_problem(call(port, "GET", "/status"), 404)
    assert sidecar.drains == []


def test_a_unix_socket_is_for_owner_and_group_alone_and_gone_after_the_stop(sidecar: Operation, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with serving(the_app(sidecar), f"unix:{path}") as place:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert call(place, "GET", "/livez").status == 200
        assert_problem(call(place, "GET", "/livez", host="evil.example"), 421)
    assert not path.exists()


def test_a_drain_over_a_unix_socket_needs_no_token(sidecar: Operation, tmp_path: Path, token_file: Path) -> None:
    with serving(the_app(sidecar, Access(token_file)), f"unix:{tmp_path / 'api.sock'}") as place:
        assert call(place, "POST", "/drain").status == 200
        assert_problem(call(place, "POST", "/v1/ack"), 401)


def test_a_socket_that_a_dead_process_left_is_replaced(sidecar: Operation, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with serving(the_app(sidecar), f"unix:{path}") as place:
        assert call(place, "GET", "/livez").status == 200


def test_a_socket_that_somebody_serves_is_left_alone(sidecar: Operation, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with serving(the_app(sidecar), f"unix:{path}") as place:
        with pytest.raises(SetupError, match="in use"), serving(the_app(sidecar), f"unix:{path}"):
            pass
        assert call(place, "GET", "/livez").status == 200


def test_a_file_in_the_sockets_place_is_left_alone(sidecar: Operation, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    path.write_text("precious")
    with pytest.raises(SetupError, match="no socket"), serving(the_app(sidecar), f"unix:{path}"):
        pass
    assert path.read_text() == "precious"


def test_a_port_that_is_taken_is_told(sidecar: Operation, port: int) -> None:
    with pytest.raises(SetupError, match=f"127.0.0.1:{port}"), serving(the_app(sidecar), f"127.0.0.1:{port}"):
        pass


def test_a_stop_lets_an_answer_under_way_end(sidecar: Operation) -> None:
    """Given a drain under way, when the server stops, then nobody new gets in and the drain is still answered."""
    sidecar.may_end = threading.Event()
    loop, server = Loop(), Server(the_app(sidecar), parse_listen("127.0.0.1:0"))
    loop.run(server.start)
    port = server.port or 0
    with Client(port) as client:
        client.send(b"POST /drain HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: sidecar.drains, 5, "the drain has begun")
        stopping = threading.Thread(target=loop.run, args=(lambda: server.stop(grace=5.0),))
        stopping.start()
        until(lambda: _refused(port), 5, "new connections are refused")
        sidecar.may_end.set()
        assert client.answer().status == 200
        stopping.join(5)
        assert not stopping.is_alive()
    loop.close()


def test_a_stop_does_not_wait_longer_than_its_grace(sidecar: Operation) -> None:
    """Given a call that never ends, when the server stops, then it is cut off."""
    sidecar.may_end = threading.Event()
    loop, server = Loop(), Server(the_app(sidecar), parse_listen("127.0.0.1:0"))
    loop.run(server.start)
    with Client(server.port or 0) as client:
        client.send(b"POST /drain HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: sidecar.drains, 5, "the drain has begun")
        loop.run(lambda: server.stop(grace=0.1))
        assert client.is_closed()
    loop.close()


def _refused(port: int) -> bool:
    try:
        with Client(port):
            return False
    except ConnectionRefusedError:
        return True
