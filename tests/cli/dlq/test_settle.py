"""`settle --commit` on a real broker: one dead letter leaves lists and redrives, and stays where it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.names import Kind
from reconsume.topics.policy_record import (
    SETTLE,
    SettlementHeard,
    SettlementRecord,
    parse_record,
    render_record,
    settlement_key,
)
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out, Row, dump, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.dlq_calls import Call, now, plant, rows
from tests.support.sidecar.redrive import dead_letter


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap, delays=(1_000,)), partitions=1, also=[Kind.POLICY])


@pytest.fixture
def settle(call: Call) -> Call:
    """`settle("ID", …)`: `reconsume settle` for the group of `call`."""
    (file,) = [cell.cell_contents for cell in call.__closure__ or ()]
    return lambda *words, **more: reconsume("settle", *words, "-c", file, **more)


def listed(call: Call, *words: str) -> dict[str, str]:
    """The state of each letter in a list, by its number."""
    return {row["id"].rpartition(":")[2]: row["state"] for row in rows(call("list", *words))}


def actions(ended: object) -> list[tuple[str, int]]:
    return [(row["action"], row["letters"]) for row in rows(ended)]  # type: ignore[arg-type]


def test_a_dismissed_letter_leaves_lists_and_redrives_and_stays_in_the_topic(
    call: Call, settle: Call, group: GroupTopics, tmp_path: Path
) -> None:
    """Given two letters, when one is dismissed, then only the other is listed and redriven, and all is written down."""
    plant(group, dead_letter(group, 1), dead_letter(group, 2))
    ident = f"{group.main}:0:1"
    planned = settle(ident, "--commit", "--why", "cancelled", "--dry-run")
    assert (planned.exit_code, listed(call)) == (0, {"1": "ready", "2": "ready"})
    done = settle(ident, "--commit", "--why", "cancelled", "--who", "ann", "--yes")
    assert (done.exit_code, rows(done)[0]["id"], rows(done)[0]["is"]) == (0, ident, "dismissed"), done.stderr
    assert listed(call) == {"2": "ready"}
    assert listed(call, "--all") == {"1": "dismissed", "2": "ready"}
    assert listed(call, "--state", "dismissed") == {"1": "dismissed"}
    assert rows(call("show", ident))[0]["state"] == "dismissed"
    assert rows(call("show", ident))[0]["journey"][-1]["state"] == "DISMISSED"
    edited = [row | {"value_base64": "bmV3"} for row in rows(call("export", "--id", ident))]
    (tmp_path / "edited.jsonl").write_text(json.dumps(edited[0]), encoding="utf-8")
    refused = call("import", tmp_path / "edited.jsonl", "--yes")
    assert (refused.exit_code, rows(refused)[0]["action"], rows(refused)[0]["why"]) == (1, "refused", "dismissed")
    assert actions(call("redrive", "--yes")) == [("redriven", 1), ("dismissed", 1)]
    assert actions(call("redrive", "--id", ident, "--yes")) == [("dismissed", 1)]
    assert len(dump(group.bootstrap, group.dlq)) == 2
    (row,) = decisions(group)
    heard = parse_record(row.key, row.value)
    assert isinstance(heard, SettlementHeard)
    record = heard.record
    assert record is not None
    assert (heard.id, record.how, record.why, record.who) == (ident, "commit", "cancelled", "ann")
    assert (record.position, record.redrives) == (f"{group.dlq}:0:0", 0)
    told = [decode_event(row.value) for row in dump(group.bootstrap, group.names.events) if row.key == ident.encode()]
    (event,) = told
    assert isinstance(event, Event)
    assert (event.state, event.instance, event.text, event.due) == (State.DISMISSED, "settle:ann", "cancelled", 0)
    (shown,) = rows(call("show", ident))
    assert (shown["dismissed"]["who"], shown["dismissed"]["why"]) == ("ann", "cancelled")
    assert [(step["instance"], step["waits"]) for step in shown["journey"]] == [("settle:ann", None)]
    table = call("show", ident, "-o", "table").stdout
    assert "dismissed: why" in table


def decisions(group: GroupTopics) -> list[Row]:
    """The records of decisions in the policy topic."""
    return [row for row in dump(group.bootstrap, group.names.policy) if (row.key or b"").startswith(SETTLE)]


def test_it_is_about_this_death_alone(call: Call, settle: Call, group: GroupTopics) -> None:
    """Given a letter that was dismissed while a redrive had it in hand, when it dies again, then it is listed again."""
    plant(group, dead_letter(group, 1))
    ident = f"{group.main}:0:1"
    assert settle(ident, "--commit", "--why", "x", "--yes").exit_code == 0
    plant(group, dead_letter(group, 1, redrives=1))
    assert [row["redrives"] for row in rows(call("list"))] == [1]
    assert actions(call("redrive", "--yes")) == [("redriven", 1), ("dismissed", 1)]
    planned = settle(ident, "--commit", "--why", "x", "--dry-run")
    assert (planned.exit_code, rows(planned)[0]["was"]) == (0, "waiting"), "it was redriven, and is no dead letter now"


def test_a_second_time_decides_nothing_and_keeps_the_first_reason(settle: Call, group: GroupTopics) -> None:
    """Given a dismissed letter, when it is dismissed for another reason, then who and why it was is said.

    The event may be missing: it is written again, and is the same.
    """
    plant(group, dead_letter(group, 1))
    ident = f"{group.main}:0:1"
    assert settle(ident, "--commit", "--why", "x", "--who", "ann", "--yes").exit_code == 0
    before = decisions(group)
    again = settle(ident, "--commit", "--why", "y", "--who", "bob", "--yes")
    assert (again.exit_code, rows(again)[0]["why"]) == (0, "x")
    assert f"{ident} was dismissed before by ann, because x: the new reason is not kept" in again.stderr
    assert decisions(group) == before
    assert len(before) == 1
    first, second = (row.value for row in dump(group.bootstrap, group.names.events))
    assert first == second


def test_an_event_that_was_not_written_is_written_by_the_same_command(settle: Call, group: GroupTopics) -> None:
    """Given a decision whose event is missing, when it is made again, then the event tells of the first decision."""
    plant(group, dead_letter(group, 1))
    ident, made = f"{group.main}:0:1", SettlementRecord(0, 2, "commit", "x", "ann", now(), "n", f"{group.dlq}:0:0")
    produce(group.bootstrap, group.names.policy, [Out(render_record(made), settlement_key(ident))])
    again = settle(ident, "--commit", "--why", "x", "--who", "bob", "--yes")
    assert (again.exit_code, "was dismissed before by ann, because x" in again.stderr) == (0, True), again.stderr
    (event,) = [decode_event(row.value) for row in dump(group.bootstrap, group.names.events)]
    assert isinstance(event, Event)
    assert (event.instance, event.text, event.at) == ("settle:ann", "x", made.at)


def settlements(group: GroupTopics, count: int, place: Callable[[int], str]) -> list[Out]:
    return [
        Out(
            render_record(SettlementRecord(0, 2, "commit", "x", "ann", 1, f"n{number}", place(number))),
            settlement_key(f"{group.main}:0:{1_000 + number}"),
        )
        for number in range(count)
    ]


def test_at_ten_thousand_it_is_refused_and_a_purge_makes_room(call: Call, settle: Call, group: GroupTopics) -> None:
    plant(group, dead_letter(group, 1, at=now() - 90_000_000), dead_letter(group, 2))
    ident = f"{group.main}:0:2"
    full = settlements(group, 10_000, lambda number: f"{group.dlq}:0:0")
    produce(group.bootstrap, group.names.policy, full)
    refused = settle(ident, "--commit", "--why", "x", "--yes")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "reconsume dlq purge" in refused.stderr
    purged = call("purge", "--until", "1d", "--confirm", group.group)
    assert purged.exit_code == 0, purged.stderr
    assert settle(ident, "--commit", "--why", "x", "--yes").exit_code == 0
    kept: dict[bytes | None, bytes | None] = {}
    for row in decisions(group):
        kept[row.key] = row.value
    assert [key for key, value in kept.items() if value is not None] == [settlement_key(ident)]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--why", "x"], 2, "by one of --dead-letter, --commit and --retry-now"),
        (["--why", "x", "--commit", "--retry-now"], 2, "by one of --dead-letter"),
        (["--why", "x", "--retry-now", "--yes"], 1, "does not wait in this group"),
        (["--commit"], 2, "--why"),
        (["--commit", "--why", " "], 2, "printable"),
        (["--commit", "--why", "x" * 2_000], 2, "1000"),
        (["--commit", "--why", "x"], 2, "there is no terminal to ask on"),
    ],
)
def test_wrong_usage_changes_nothing(
    words: list[str], code: int, said: str, settle: Call, call: Call, group: GroupTopics
) -> None:
    plant(group, dead_letter(group, 1))
    ended = settle(f"{group.main}:0:1", *words)
    assert (ended.exit_code, said in ended.stderr) == (code, True), ended.stderr
    assert dump(group.bootstrap, group.names.policy) == []


def test_an_unknown_id_and_a_letter_without_headers_are_refused(settle: Call, group: GroupTopics) -> None:
    plant(group, Out(b"foreign", b"k", (), 0, now()))
    unknown = settle(f"{group.main}:0:9", "--commit", "--why", "x", "--yes", "-o", "json")
    assert (unknown.exit_code, json.loads(unknown.stderr.splitlines()[-1])["title"]) == (1, "settle")
    nameless = settle(f"{group.dlq}:0:0", "--commit", "--why", "x", "--yes")
    assert (nameless.exit_code, "has no readable headers" in nameless.stderr) == (1, True)
