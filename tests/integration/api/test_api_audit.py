"""Each call that changes something leaves a line: what, by which token, from where, with which end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from reconsume.sidecar.api.app import Access, build_app
from reconsume.sidecar.api.holds import hold_routes
from tests.support.sidecar.api_calls import call, the_app
from tests.support.sidecar.running_api import Client, Operation, serving

Told = Callable[[], list[dict[str, object]]]
FIELDS = ("event", "action", "token", "peer", "status")
REFUSED = {"event": "api-refused", "peer": "127.0.0.1", "token": "none"}


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
    assert told() == [{**REFUSED, "action": "/drain", "status": 401}] * 3


def test_every_refused_change_is_told_by_the_calls_own_path(sidecar: Operation, token_file: Path, told: Told) -> None:
    """Given a change that is refused for whatever reason, then the line has the path as the API defines it."""
    calls = hold_routes(cast(Any, None), cast(Any, None), ())
    with_token = {"Authorization": "Bearer a-named-long-secret"}
    with serving(build_app(sidecar, lambda: b"", Access(token_file, operators=token_file), calls)) as port:
        for method, target, headers in (
            ("DELETE", "/v1/holds/words-of-the-caller", {}),
            ("DELETE", "/v1/holds/words-of-the-caller", with_token),
            ("POST", "/drain", {**with_token, "Origin": "http://evil.example"}),
            ("POST", "/drain", {**with_token, "Content-Type": "text/plain"}),
            ("POST", "/words/of-the-caller", {}),
        ):
            call(port, method, target, headers)
    operators = {**REFUSED, "event": "operator-call-refused", "action": "/v1/holds/{id}"}
    assert told() == [
        {**operators, "status": 401},
        {**operators, "status": 403, "token": "deploy-bot"},
        {**REFUSED, "action": "/drain", "status": 403},
        {**REFUSED, "action": "/drain", "status": 415, "token": "deploy-bot"},
        {**REFUSED, "action": "no such call", "status": 401},
    ]


def test_where_no_token_is_needed_the_peer_is_told(sidecar: Operation, told: Told) -> None:
    with serving(the_app(sidecar)) as port, Client(port, "127.0.0.2") as client:
        assert client.call("POST", "/drain").status == 200
    assert told() == [{"event": "api-call", "action": "/drain", "token": "none", "peer": "127.0.0.2", "status": 200}]


def test_a_unix_socket_is_told_as_such(sidecar: Operation, token_file: Path, tmp_path: Path, told: Told) -> None:
    with serving(the_app(sidecar, Access(token_file)), f"unix:{tmp_path / 'api.sock'}") as path:
        assert call(path, "POST", "/drain", {"Authorization": "Bearer a-named-long-secret"}).status == 200
    assert [(line["token"], line["peer"]) for line in told()] == [("deploy-bot", "unix")]
