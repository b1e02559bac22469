"""Audit lines are counted for each caller: a flood of one hides no change of another."""

from __future__ import annotations

import logging

from sidecar.observability.logs import AUDIT, BURST, Repeats, kind_of


def line(token: str, peer: str, action: str = "/drain") -> logging.LogRecord:
    told = {"event": "api-call", "action": action, "token": token, "peer": peer}
    return logging.makeLogRecord({"name": AUDIT, "levelno": logging.INFO, "msg": "a change", **told})


def test_the_audit_lines_of_one_caller_hide_those_of_no_other() -> None:
    repeats = Repeats()
    flood = [repeats.admit(kind_of(line("loud", "127.0.0.1")), 0.0) for _ in range(BURST + 2)]
    assert flood == [0] * BURST + [None, None]
    others = (line("calm", "127.0.0.1"), line("loud", "127.0.0.2"), line("loud", "127.0.0.1", "/v1/retry"))
    assert [repeats.admit(kind_of(one), 0.0) for one in others] == [0, 0, 0]
