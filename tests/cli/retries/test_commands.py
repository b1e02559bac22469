"""`retries list`, `show`, `stats` on a real broker, from Spark's view; the test plays the job."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from reconsume.topics.events import State
from reconsume.topics.names import Names
from reconsume.topics.view_record import encode_row
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import create_topic, dump, produce
from tests.support.kafka.view_topics import create_view_topics, event, summed, tell
from tests.support.sidecar.cli import reconsume
from tests.support.view_rows import HOSTILE, out, view_row, wall

Call = Callable[..., Result]


@pytest.fixture
def call(kafka: Broker, group: str, tmp_path: Path) -> Call:
    """`call("list")` for a fresh group."""
    file = tmp_path / "reconsume.yaml"
    tree = {
        "group": group,
        "topics": ["orders"],
        "kafka": {"bootstrap.servers": kafka.bootstrap},
        "deliver": {"url": "http://127.0.0.1:1/"},
        "view": {"source": "spark"},
    }
    file.write_text(json.dumps(tree), encoding="utf-8")
    return lambda *words, **environ: reconsume("retries", *words, "-c", file, **environ)


@pytest.fixture
def names(kafka: Broker, group: str) -> Names:
    return create_view_topics(kafka.bootstrap, group)


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_list_prints_what_waits_one_view_value_a_line(call: Call, kafka: Broker, group: str, names: Names) -> None:
    later = wall() + 60_000
    waiting = [view_row(number, group=group, due=later - number) for number in range(3)]
    dead = view_row(9, State.DLQ, group=group, reason="timeout")
    keyed = [record for record in HOSTILE if record.key is not None]
    produce(kafka.bootstrap, names.view, [*map(out, [*waiting, dead]), *keyed])
    shown = call("list")
    assert shown.stdout.encode().splitlines() == [
        json.dumps(json.loads(encode_row(row))).encode() for row in reversed(waiting)
    ]
    assert "as of" in shown.stderr
    assert f"{len(keyed)} records of the view are no such" in shown.stderr
    assert [row["id"] for row in rows(call("list", "--state", "all"))] == ["orders:0:9", *(
        row.id for row in reversed(waiting)
    )]  # fmt: skip
    assert [row["id"] for row in rows(call("list", "--state", "DLQ", "--reason", "timeout"))] == ["orders:0:9"]
    assert len(rows(call("list", "--limit", "2"))) == 2
    assert rows(call("list", "--level", "1m")) == []
    assert rows(call("list", "--due-before", "10s")) == []
    assert len(rows(call("list", "--due-before", "2m", "--topic", "orders"))) == 3
    table = call("list", "-o", "table", COLUMNS="200").stdout
    assert ("orders:0:1" in table, " WAITING_RETRY " in table, "+00:00" in table) == (True, True, False)
    assert "+00:00" in call("list", "-o", "table", "--wide", COLUMNS="200").stdout


def test_list_shows_a_redriven_record_until_it_is_done_before_those_that_are_due_later(
    call: Call, kafka: Broker, group: str, names: Names
) -> None:
    states = {1: State.WAITING_RETRY, 2: State.REDRIVEN, 3: State.COMMIT, 4: State.DLQ}
    produce(
        kafka.bootstrap, names.view, [out(view_row(number, state, group=group)) for number, state in states.items()]
    )
    assert [row["id"] for row in rows(call("list"))] == ["orders:0:2", "orders:0:1"]
    assert [row["id"] for row in rows(call("list", "--limit", "1"))] == ["orders:0:2"]
    assert [row["id"] for row in rows(call("list", "--state", "waiting_retry"))] == ["orders:0:1"]
    refused = call("list", "--state", "gone")
    assert (refused.exit_code, "REDRIVEN, DISMISSED, all or open" in " ".join(refused.stderr.split())) == (2, True)


def test_list_shows_why_a_record_failed(call: Call, kafka: Broker, group: str, names: Names) -> None:
    produce(kafka.bootstrap, names.view, [out(view_row(1, group=group, text="there is no customer 7"))])
    assert "there is no customer 7" in call("list", "-o", "table", COLUMNS="200").stdout
    assert "there is no customer 7" in call("list", "-o", "table", "--wide", COLUMNS="60").stdout


def test_list_shows_that_a_record_of_an_ordered_group_waits_in_a_queue(
    call: Call, kafka: Broker, group: str, names: Names
) -> None:
    produce(kafka.bootstrap, names.view, [out(view_row(1, group=group, level=None))])
    words = ("list", "-o", "table", "--set", "deliver.order=key", "--set", "retry.ordered_ladder=[10s]")
    assert " queue " in call(*words, COLUMNS="200").stdout
    assert " queue " not in call("list", "-o", "table", COLUMNS="200").stdout


def test_no_field_of_a_hostile_row_reaches_the_terminal_raw(
    call: Call, kafka: Broker, group: str, names: Names
) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202e\r\nforged line"
    produce(kafka.bootstrap, names.view, [out(view_row(1, group=group, reason=evil, instance=evil))])
    tell(kafka.bootstrap, [event(group, 1, reason=evil, instance=evil)])
    for words in (("list",), ("show", "orders:0:1"), ("stats",)):
        for form in ("table", "jsonl", "tsv"):
            shown = call(*words, "-o", form, COLUMNS="300")
            assert shown.exit_code == 0
            assert not set("\x1b\x07\x9b\u202e\r") & set(shown.stdout + shown.stderr)
            assert not any(line.startswith("forged") for line in shown.stdout.splitlines())


def test_show_is_the_views_value_with_the_journey_beside_it(
    call: Call, kafka: Broker, group: str, names: Names
) -> None:
    begin = wall() - 60_000
    first = event(group, 1, at=begin, due=begin + 10_000, level="10s", first_failed_at=begin)
    second = event(
        group, 1, times=2, at=begin + 10_200, due=begin + 40_200, level="30s", reason="timeout", first_failed_at=begin
    )
    done = event(group, 1, State.COMMIT, 2, at=begin + 41_000, due=0, level=None, first_failed_at=begin, reason="")
    tell(kafka.bootstrap, [done, second, first, first, event(group, 2)])
    row = view_row(1, State.COMMIT, group=group, times=2, at=begin + 41_000, first_failed_at=begin)
    produce(kafka.bootstrap, names.view, [out(row)])
    (shown,) = rows(call("show", "orders:0:1"))
    journey = shown.pop("journey")
    assert shown.pop("journey_complete") is True
    assert shown == json.loads(encode_row(row))
    assert [(step["state"], step["times"], step["after"], step["waits"], step["reason"]) for step in journey] == [
        ("WAITING_RETRY", 1, None, "10s", "http-500"),
        ("WAITING_RETRY", 2, "10s200ms", "30s", "timeout"),
        ("COMMIT", 2, "30s800ms", None, ""),
    ]
    table = call("show", "orders:0:1", "-o", "table", COLUMNS="200").stdout
    assert "10s200ms" in table
    assert "last_failed_at" in table


def test_a_table_of_a_record_that_does_not_wait_has_no_due_time(
    call: Call, kafka: Broker, group: str, names: Names
) -> None:
    past = wall() - 600_000
    waiting, dead = view_row(1, group=group, due=past), view_row(2, State.DLQ, group=group, due=past)
    produce(kafka.bootstrap, names.view, [out(waiting), out(dead)])

    def fields(ident: str) -> list[str]:
        table = call("show", ident, "-o", "table", COLUMNS="200").stdout
        return [line.split()[0] for line in table.splitlines() if line.split()]

    assert ("due" in fields("orders:0:1"), "due" in fields("orders:0:2")) == (True, False)


def test_show_says_when_the_journey_is_not_complete(call: Call, kafka: Broker, group: str, names: Names) -> None:
    produce(kafka.bootstrap, names.view, [out(view_row(1, group=group))])
    tell(kafka.bootstrap, [event(group, number) for number in range(50)])
    cut = call("show", "orders:0:1", "--most", "3")
    assert rows(cut)[0]["journey_complete"] is False
    assert "the journey is not complete: only 3 of some" in cut.stderr


def test_show_of_what_only_the_events_have_says_so_and_of_what_nobody_has_fails(
    call: Call, kafka: Broker, group: str, names: Names
) -> None:
    produce(kafka.bootstrap, names.view, [out(view_row(1, group=group))])
    tell(kafka.bootstrap, [event(group, 2)])
    young = call("show", "orders:0:2")
    assert (rows(young)[0]["id"], rows(young)[0]["state"]) == ("orders:0:2", None)
    assert "the view does not have it" in young.stderr
    nobody = call("show", "orders:0:3", "-o", "json")
    assert (nobody.exit_code, nobody.stdout) == (1, "")
    said = "there is no record orders:0:3: neither the view nor the events have it"
    told = json.loads(nobody.stderr.splitlines()[-1])
    assert told == {"title": "retries", "detail": said, "exit": 1}
    ordered = ("show", "orders:0:3", "--set", "deliver.order=key")
    in_place = call(*ordered)
    assert (in_place.exit_code, "--key" in in_place.stderr) == (1, False), "no key has a queue there"
    in_order = call(*ordered, "--set", "retry.ordered_ladder=[1s]")
    assert "what waits behind another of its key has no event: `reconsume find --key KEY -c " in in_order.stderr


def test_stats_are_the_sums(call: Call, kafka: Broker, group: str, names: Names) -> None:
    produce(kafka.bootstrap, names.view, [out(view_row(number, group=group)) for number in range(100)])
    ago = {minutes: wall() - 60_000 * minutes for minutes in (1, 30, 120)}
    tell(kafka.bootstrap, [event(group, minutes, at=at, first_failed_at=at) for minutes, at in ago.items()])
    shown = call("stats")
    made = summed(dump(kafka.bootstrap, names.events)).values()
    wanted = sorted((row for row in made if row["minute"] > wall() - 3_600_000), key=lambda row: row["minute"])
    assert rows(shown) == [{**row, "retries": row["waiting"]} for row in wanted]
    assert "retries" in call("stats", "-o", "table").stdout.splitlines()[1]
    assert len(rows(call("stats", "--since", "3h"))) == 3


def test_a_view_that_is_missing_or_was_never_written_is_said(call: Call, kafka: Broker, group: str) -> None:
    began = time.monotonic()
    absent = call("list")
    assert (absent.exit_code, absent.stdout) == (1, "")
    assert f"{group}-RETRY-VIEW: missing, or not for this user to see" in absent.stderr
    create_topic(kafka.bootstrap, f"{group}-RETRY-VIEW", 2, {"cleanup.policy": "compact"})
    empty = call("list")
    assert (empty.exit_code, empty.stdout) == (1, "")
    assert "nothing was ever written" in empty.stderr
    assert time.monotonic() - began < 30


@pytest.mark.long
def test_a_broker_that_is_away_is_said_in_seconds(call: Call) -> None:
    shown = call("list", "--set", "kafka.bootstrap.servers=127.0.0.1:1")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "no broker of 127.0.0.1:1 answered" in shown.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list", "--state", "SLEEPING"), "--state is WAITING_RETRY"),
        (("list", "--due-before", "soon"), "neither a duration like 10m nor RFC 3339"),
        (("list", "--due-before", "2026-01-01T00:00:00"), "nor RFC 3339"),
        (("stats", "--since", "1"), "--since"),
        (("show", "nonsense"), "'nonsense' is no id"),
    ],
)
def test_wrong_usage(call: Call, words: tuple[str, ...], said: str) -> None:
    shown = call(*words)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert said in " ".join(shown.stderr.split())
