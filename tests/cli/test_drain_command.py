"""`reconsume drain` against the real API on a socket: what a preStop hook sees."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.applications import Starlette
from typer.testing import Result

from reconsume.sidecar.api.app import Access, build_app
from reconsume.sidecar.cli.drain import call_drain
from reconsume.sidecar.settings.addresses import Listen
from tests.support.deadline import until
from tests.support.service.service import free_port
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.running_api import Operation, serving
from tests.support.sidecar.settings import write_good


def the_app(sidecar: Operation, access: Access | None = None) -> Starlette:
    return build_app(sidecar, lambda: b"", access or Access())


@pytest.fixture
def sidecar() -> Operation:
    return Operation()


@pytest.fixture
def port(sidecar: Operation, tmp_path: Path) -> Iterator[str | int]:
    """A sidecar whose changing calls need no token."""
    with serving(the_app(sidecar)) as place:
        yield place


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("\n the-newer-secret \nthe-older-secret\n")
    return tmp_path / "token"


@pytest.fixture
def guarded(sidecar: Operation, token_file: Path) -> Iterator[str | int]:
    """A sidecar whose changing calls need a token."""
    with serving(the_app(sidecar, Access(token_file))) as place:
        yield place


def drained(folder: Path, address: str, *words: object, token: Path | None = None) -> Result:
    """Drain the sidecar at an address of the API."""
    guard = "" if token is None else f", token_file: {token}"
    return reconsume("drain", "-c", write_good(folder, f'api: {{listen: "{address}"{guard}}}\n'), *words)


def test_it_ends_with_0_when_nothing_was_left(sidecar: Operation, port: int, tmp_path: Path) -> None:
    shown = drained(tmp_path, f"127.0.0.1:{port}", "-o", "json")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert json.loads(shown.stdout) == [{"drained": True, "left": 0}]
    assert sidecar.drains == [None]


def test_it_ends_with_1_when_deliveries_were_left(sidecar: Operation, port: int, tmp_path: Path) -> None:
    sidecar.left = 2
    shown = drained(tmp_path, f"127.0.0.1:{port}", "-o", "json")
    assert shown.exit_code == 1
    assert json.loads(shown.stdout) == [{"drained": False, "left": 2}]
    assert "2 deliveries still in flight" in shown.stderr


def test_the_configuration_says_where_the_sidecar_is_and_which_token_it_takes(
    sidecar: Operation, guarded: int, tmp_path: Path, token_file: Path
) -> None:
    """Given an API on every address, then loopback is called, with the token that the configuration names."""
    assert drained(tmp_path, f"0.0.0.0:{guarded}", token=token_file).exit_code == 0
    assert sidecar.drains == [None]


def test_a_sidecar_of_another_group_is_not_drained(sidecar: Operation, port: int, tmp_path: Path) -> None:
    """Given a configuration of another group with the same address, then nothing ends."""
    shown = drained(tmp_path, f"127.0.0.1:{port}", "--set", "group=shipping")
    assert (shown.exit_code, "has other groups, and goes on" in shown.stderr) == (1, True)
    assert sidecar.drains == []
    assert drained(tmp_path, f"127.0.0.1:{port}").exit_code == 0


def test_the_name_of_a_token_is_not_sent_with_it(
    sidecar: Operation, guarded: int, tmp_path: Path, token_file: Path
) -> None:
    token_file.write_text("preStop: the-newer-secret\n")
    assert drained(tmp_path, f"127.0.0.1:{guarded}", token=token_file).exit_code == 0
    assert sidecar.drains == [None]


def test_without_the_token_it_says_where_to_name_it(
    sidecar: Operation, guarded: int, tmp_path: Path, token_file: Path
) -> None:
    shown = drained(tmp_path, f"127.0.0.1:{guarded}")
    assert (shown.exit_code, "asks for a token: name its file in api.token_file" in shown.stderr) == (1, True)
    token_file.write_text("\n")
    for path, said in ((token_file, "holds no token"), (tmp_path / "none", "No such file")):
        shown = drained(tmp_path, f"127.0.0.1:{guarded}", token=path)
        assert (shown.exit_code, said in shown.stderr) == (1, True)
    assert sidecar.drains == []


def test_a_unix_socket_will_do(sidecar: Operation, tmp_path: Path) -> None:
    with serving(the_app(sidecar), f"unix:{tmp_path}/api.sock"):
        assert drained(tmp_path, f"unix:{tmp_path}/api.sock").exit_code == 0
    assert sidecar.drains == [None]


def test_it_returns_only_when_the_drain_has_ended(sidecar: Operation, port: int) -> None:
    sidecar.may_end = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(call_drain, Listen("127.0.0.1", port), (), None, 20.0)
        until(lambda: sidecar.drains, 10, "the drain has begun")
        assert not call.done()
        sidecar.may_end.set()
        assert call.result(20) == 0


def test_a_sidecar_that_is_away_is_one_sentence(tmp_path: Path) -> None:
    shown = drained(tmp_path, f"127.0.0.1:{free_port()}")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.startswith("reconsume: setup: no sidecar answers on 127.0.0.1:")
    assert shown.stderr.count("\n") == 1


def test_something_else_on_that_port_is_told(tmp_path: Path) -> None:
    with serving(Starlette()) as port:
        shown = drained(tmp_path, f"127.0.0.1:{port}")
    assert shown.exit_code == 1
    assert "does not drain: HTTP 404" in shown.stderr
