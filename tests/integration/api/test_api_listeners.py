"""The listeners: a port, a Unix socket, the one for probes; begun and ended."""

from __future__ import annotations

import socket
import stat
import threading
from pathlib import Path

import pytest

from reconsume.sidecar.api.app import Access, build_probe_app
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.http.server import Server
from reconsume.sidecar.settings.addresses import parse_listen
from tests.support.deadline import until
from tests.support.sidecar.api_calls import METRICS, assert_problem, call, the_app
from tests.support.sidecar.running_api import Client, Loop, Operation, serving


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


def test_a_unix_socket_spares_nobody_the_token(sidecar: Operation, tmp_path: Path, token_file: Path) -> None:
    with serving(the_app(sidecar, Access(token_file)), f"unix:{tmp_path / 'api.sock'}") as place:
        assert_problem(call(place, "POST", "/drain"), 401)
        assert call(place, "POST", "/drain", {"Authorization": "Bearer the-first-secret"}).status == 200


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
    except (ConnectionRefusedError, ConnectionResetError):  # it was in the backlog of a listener that has just gone
        return True
