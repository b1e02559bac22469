"""`hold`, `release` and `holds`: what is refused before anything is asked of Kafka, and what a topic tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconsume.sidecar.cli.terminal.output import cells_of
from reconsume.sidecar.group_policy.operations import hold_row
from reconsume.sidecar.group_policy.state import ControlState, control_record
from reconsume.topics.hold_record import HoldRecord, hold_key, render_hold
from reconsume.topics.policy_record import SubscriptionRecord, instance_key, render_record
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import write_good

HOUR = 3_600_000
ALL = ("--for", "1h", "--why", "x", "--yes")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("hold", *ALL), "give a topic, a level or a key, or hold all alone"),
        (("hold", "--topic", "odrers", *ALL), "is none of the group's topics: orders; did you mean orders?"),
        (("hold", "--all", "--topic", "orders", *ALL), "give a topic, a level or a key, or hold all alone"),
        (("hold", "--level", "soon", *ALL), "a level is main, ready, ordered, or a delay like 10m"),
        (("hold", "--key", "a", "--key-base64", "YQ==", *ALL), "not both"),
        (("hold", "--key-base64", "?", *ALL), "not Base64"),
        (("hold", "--all", "--for", "8d", "--why", "x", "--yes"), "a hold lasts from 1s to 7d"),
        (("hold", "--all", "--for", "10", "--why", "x", "--yes"), "--for"),
        (("hold", "--all", "--for", "1h", "--why", " ", "--yes"), "the reason must have"),
        (("hold", "--all", "--for", "1h", "--why", "a\nb", "--yes"), "cannot be printed"),
        (("hold", "--all", "--for", "1h"), "--why"),
        (("hold", "--all", "--why", "x"), "--for"),
        (("release",), "give the ids of holds, or --all"),
        (("release", "a", "--all"), "give the ids of holds, or --all"),
        (("holds", "--set", "deliver.broadcast=true", "--set", "start=latest"), "instances of a broadcast follow no"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    ended = reconsume(*words, "-c", write_good(tmp_path))
    assert (ended.exit_code, ended.stdout) == (2, ""), ended.stderr
    assert sentence in " ".join(ended.stderr.split())


def hold(ident: str, until: int = HOUR, **more: object) -> tuple[bytes, bytes | None]:
    return hold_key(ident), render_hold(HoldRecord(0, until, "x", "ann", all=True, **more))  # type: ignore[arg-type]


def test_what_a_topic_tells_of_holds() -> None:
    rows = [
        hold("a"),
        hold("b"),
        hold("b", released_by="bob"),
        hold("over", until=5),
        hold("bad", until=0),
        (hold_key("gone"), None),
        (hold_key("new"), b'{"v": 2, "tenant": "a"}'),
        (hold_key("known-again"), b'{"v": 2}'),
        hold("known-again", released_by="bob"),
        (instance_key("other"), render_record(SubscriptionRecord({}, HOUR))),
    ]
    state = ControlState()
    for offset, (key, value) in enumerate(rows):
        state.apply(control_record(key, value, offset, 0), HOUR - 1)
    force = state.holds.in_force(HOUR - 1)
    assert list(force.records) == ["a"]
    assert state.holds.over(HOUR - 1) == ["over"]
    assert state.holds.newer == {"new"}, "left alone and named"
    bad, newer = force.ignored
    assert "must end after it begins" in bad
    assert newer == "hold new: a newer version of Reconsume wrote it (v 2), and this one reads v 1"


def test_a_table_says_when_a_hold_ends_in_utc_and_a_program_in_ms() -> None:
    row = hold_row("h", HoldRecord(0, HOUR, "x", "ann", all=True))
    assert json.loads(json.dumps(row))["until"] == HOUR
    assert cells_of(["until"], [row], brief=False) == [["1970-01-01T01:00:00+00:00"]]
