"""`dlq list` and `dlq show` on a real broker: what is shown, and what never reaches a terminal."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from reconsume.topics import retry_headers as wire
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import Out
from tests.support.sidecar.dlq_calls import DAY, HOSTILE, Call, now, plant, rows
from tests.support.sidecar.redrive import dead_letter


def test_list_shows_the_newest_first_with_their_state_and_says_what_it_has_not_seen(
    call: Call, group: GroupTopics
) -> None:
    at = now()
    plant(
        group,
        dead_letter(group, 1, at=at - 9_000, reason="timeout"),
        dead_letter(group, 2, at=at - 8_000, redrives=3),
        dead_letter(group, 3, at=at - 30 * DAY),
        Out(b"foreign", b"k", (), 0, at - 5_000),
    )
    shown = call("list")
    assert (shown.stderr.startswith("looked at"), [(row["reason"], row["state"]) for row in rows(shown)]) == (
        True,
        [("", "unfit"), ("http-500", "quarantined"), ("timeout", "ready"), ("http-500", "forgotten")],
    )
    assert "looked at 4 dead letters, 4 match\n" in shown.stderr
    assert "looked at 1 dead letter, 1 matches\n" in call("list", "--scan", "1").stderr
    assert "incomplete" not in shown.stderr
    assert [row["reason"] for row in rows(call("list", "--reason", "timeout"))] == ["timeout"]
    by_status = call("list", "--reason", "500")
    assert rows(by_status) == []
    assert "no dead letter has the reason 500: the class of a status is http-500" in by_status.stderr
    assert len(rows(call("list", "--since", "1h"))) == 3
    assert len(rows(call("list", "--until", "1h"))) == 1
    cut = call("list", "--scan", "2")
    assert "incomplete: older dead letters were not looked at" in cut.stderr
    few = call("list", "--limit", "1", "--state", "ready,unfit")
    assert [row["state"] for row in rows(few)] == ["unfit"]
    assert "incomplete: the newest 1 of 2 are shown" in few.stderr


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "tsv"])
def test_nothing_that_a_record_holds_reaches_the_terminal_raw(call: Call, group: GroupTopics, form: str) -> None:
    bad = HOSTILE.encode()
    own = ((f"name{HOSTILE}", bad), ("binary", b"\xff\x1b[0m"), ("null", None))
    plant(group, dead_letter(group, 1, bad * 3, key=bad, own=own))
    broken = [(wire.REAL_TOPIC, bad), (wire.RETRY_REASON, bad)]
    plant(group, Out(b"\xff" + bad, bad, tuple(broken), 0))
    for words in (("list",), ("show", f"{group.main}:0:1"), ("show", f"{group.dlq}:0:1")):
        shown = call(*words, "-o", form)
        assert shown.exit_code == 0, shown.stderr
        for text in (shown.stdout, shown.stderr):
            assert not {"\x1b", "\x9b", "‮"} & set(text)
    hostile_id = call("show", HOSTILE)
    assert hostile_id.exit_code == 2
    assert "\x1b" not in hostile_id.stderr


def test_show_has_the_headers_the_value_and_the_journey(call: Call, group: GroupTopics) -> None:
    value = b'{"b": 1.10, "a": [1e400]}'
    plant(group, dead_letter(group, 7, value, own=(("a", b"1"), ("a", None))), dead_letter(group, 7, None, redrives=1))
    (newest, first) = rows(call("show", f"{group.main}:0:7"))
    assert (newest["redrives"], newest["value"]["kind"], first["redrives"]) == (1, "null", 0)
    assert first["value"]["shown"] == '{\n  "b": 1.10,\n  "a": [\n    1e400\n  ]\n}'
    assert first["value"]["sha256"] == hashlib.sha256(value).hexdigest()
    assert first["headers"][:2] == [["a", base64.b64encode(b"1").decode()], ["a", None]]
    assert rows(call("redrive", "--id", f"{group.dlq}:0:1", "--yes"))[0]["letters"] == 1
    (only,) = rows(call("show", f"{group.dlq}:0:1"))
    assert [(event["state"], event["redrives"]) for event in only["journey"]] == [("REDRIVEN", 2)]
    assert only["state"] == "redriven"
    table = call("show", f"{group.main}:0:7", "-o", "table").stdout
    assert "header a" in table
    assert "\n    1e400\n" in table


def test_an_unknown_id_is_one_sentence_and_one_line_of_json(call: Call, group: GroupTopics) -> None:
    ident = f"{group.main}:0:9"
    shown = call("show", ident, "-o", "json")
    assert (shown.exit_code, shown.stdout) == (1, "")
    said = {"title": "dlq", "detail": f"there is no dead letter {ident}", "exit": 1}
    assert json.loads(shown.stderr.splitlines()[-1]) == said
    assert f"reconsume: dlq: there is no dead letter {ident}" in call("show", ident).stderr


@pytest.mark.parametrize("words", [("show", "nonsense"), ("list", "--id", "nonsense")])
def test_what_is_no_id_is_wrong_usage(words: tuple[str, ...], call: Call, group: GroupTopics) -> None:
    shown = call(*words)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "'nonsense' is no id: it is like orders:3:1024" in " ".join(shown.stderr.split())
