"""What is kept of each action on the dashboard: a line in its file, which is its owner's alone, and one in the log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from tests.support.kafka.group_topics import GroupTopics
from tests.ui.scene import dashboard
from tests.ui.web import Visitor


def test_every_action_is_told_with_user_token_and_peer_in_the_file_and_in_the_log(
    planted: GroupTopics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a token with a name, then the name stands in both, and neither holds a token."""
    caplog.set_level(logging.INFO, "reconsume.audit")
    with dashboard(planted, tmp_path) as scene:
        (tmp_path / "token").write_text("ops: by-the-name-of-ops\n")
        visitor = Visitor(scene, "127.0.0.3")
        assert visitor.sign_in(token="a-wrong-one-of-20").status == 403
        assert visitor.sign_in(token="by-the-name-of-ops").status == 303
        assert b"by-the-name-of" not in visitor.get("/activity").body
        assert visitor.post("/sign-out", {"csrf": visitor.csrf()}).status == 303
        rows = [json.loads(line) for line in scene.audit.read_text().splitlines()]
    told = [
        {"action": action, "who": "alice", "token": token, "peer": "127.0.0.3"}
        for action, token in (("sign-in-refused", ""), ("sign-in", "ops"), ("sign-out", "ops"))
    ]
    assert [{name: row[name] for name in told[0]} for row in rows] == told
    logged = [vars(record) for record in caplog.records if record.name == "reconsume.audit"]
    assert [{name: row[name] for name in told[0]} for row in logged] == told
    assert {row["event"] for row in logged} == {"ui-action"}


def test_the_audit_log_is_its_owners_alone_and_shows_what_it_can_read(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    assert log.last() == []
    actor = Actor("alice\n<b>", "ops", "127.0.0.1")
    log.write("redrive", actor, letters=3)
    with log.path.open("ab") as file:
        file.write(b"half a li\n[1]\n")
    assert [row["who"] for row in log.last()] == ["alice\n<b>"]
    assert log.path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(SetupError):
        AuditLog(tmp_path / "none" / "audit").write("x", actor)
