"""Audit lines are counted for each caller: a flood of one hides no change of another."""

from __future__ import annotations

import logging

from reconsume.sidecar.observability.repeats import AUDIT, BURST, Repeats


def line(token: str, peer: str, action: str = "/drain") -> logging.LogRecord:
    told = {"event": "api-call", "action": action, "token": token, "peer": peer}
    return logging.makeLogRecord({"name": AUDIT, "levelno": logging.INFO, "msg": "a change", **told})


def test_the_audit_lines_of_one_caller_hide_those_of_no_other() -> None:
    repeats = Repeats()
    flood = [repeats.admit(line("loud", "127.0.0.1"), 0.0) for _ in range(BURST + 2)]
    assert flood == [True] * BURST + [False, False]
    others = (line("calm", "127.0.0.1"), line("loud", "127.0.0.2"), line("loud", "127.0.0.1", "/v1/retry"))
    assert all(repeats.admit(one, 0.0) for one in others)
    [told] = repeats.sums(60.0)
    assert (told.token, told.peer, told.action, told.kept_back) == ("loud", "127.0.0.1", "/drain", 2)  # type: ignore[attr-defined]
