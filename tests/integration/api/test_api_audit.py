"""Each call that changes something leaves a line: what, by which token, from where, with which end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from reconsume.sidecar.api.app import Access
from tests.support.sidecar.api_calls import call, the_app
from tests.support.sidecar.running_api import Client, Operation, serving

Told = Callable[[], list[dict[str, object]]]
FIELDS = ("event", "action", "token", "peer", "status")


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """The audit lines so far."""
    caplog.set_level(logging.INFO, "reconsume.audit")

    def lines() -> list[dict[str, object]]:
        rows = [vars(record) for record in caplog.records if record.name == "reconsume.audit"]
        return [{name: row[name] for name in FIELDS if name in row} for row in rows]

    return lines


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("a-bare-long-secret\ndeploy-bot: a-named-long-secret\n")
    return path


def test_a_change_is_told_with_the_tokens_name_and_the_peer(guarded: int, told: Told) -> None:
    for secret, target in (("a-bare-long-secret", "/drain"), ("a-named-long-secret", "/drain?timeout=never")):
        call(guarded, "POST", target, {"Authorization": f"Bearer {secret}"})
    line = {"event": "api-call", "action": "/drain", "peer": "127.0.0.1"}
    assert told() == [{**line, "token": "unnamed", "status": 200}, {**line, "token": "deploy-bot", "status": 400}]


def test_reads_and_calls_that_do_not_exist_are_not_told(guarded: int, told: Told) -> None:
    with_token = {"Authorization": "Bearer a-named-long-secret"}
    for method, target in (("GET", "/status"), ("GET", "/livez"), ("POST", "/x\x1b[2J"), ("POST", "/status")):
        call(guarded, method, target.replace("\x1b", "%1b"), with_token)
    assert told() == []


def test_a_refusal_is_told_with_the_peer_and_nothing_that_the_caller_wrote(guarded: int, told: Told) -> None:
    for authorization in ("Bearer wrong-secret", "Bearer deploy-bot: a-named-long-secret", "Basic x"):
        assert call(guarded, "POST", "/drain", {"Authorization": authorization}).status == 401
    assert told() == [{"event": "api-refused", "peer": "127.0.0.1"}] * 3


def test_where_no_token_is_needed_the_peer_is_told(sidecar: Operation, told: Told) -> None:
    with serving(the_app(sidecar)) as port, Client(port, "127.0.0.2") as client:
        assert client.call("POST", "/drain").status == 200
    assert told() == [{"event": "api-call", "action": "/drain", "token": "none", "peer": "127.0.0.2", "status": 200}]


def test_a_unix_socket_is_told_as_such(sidecar: Operation, token_file: Path, tmp_path: Path, told: Told) -> None:
    with serving(the_app(sidecar, Access(token_file)), f"unix:{tmp_path / 'api.sock'}") as path:
        assert call(path, "POST", "/drain", {"Authorization": "Bearer a-named-long-secret"}).status == 200
    assert [(line["token"], line["peer"]) for line in told()] == [("deploy-bot", "unix")]
