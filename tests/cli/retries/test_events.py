"""`retries` and `view sql` in a group without a Spark job: all from the events, read once, and said so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from reconsume.sidecar.cli.view_sql import TIMES, iso
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.topics.events import State
from reconsume.topics.names import Names
from reconsume.topics.specs import EVENTS_PARTITIONS
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import create_topic, dump
from tests.support.kafka.view_topics import event, folded, summed, tell
from tests.support.sidecar.cli import reconsume
from tests.support.view_rows import wall

Call = Callable[..., Result]
MORE_THAN_A_PIPE = 2_000
"""Rows of which a pipe that nobody reads takes only a part: the command waits with its copy open."""


@pytest.fixture
def file(kafka: Broker, group: str, tmp_path: Path) -> Path:
    """The configuration of a fresh group, whose only topic is that of its events."""
    create_topic(kafka.bootstrap, Names(group).events, EVENTS_PARTITIONS)
    file = tmp_path / "reconsume.yaml"
    servers = {"bootstrap.servers": kafka.bootstrap}
    file.write_text(
        json.dumps({"group": group, "topics": ["orders"], "kafka": servers, "deliver": {"url": "http://127.0.0.1:1/"}})
    )
    return file


@pytest.fixture
def call(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """`call("retries", "list")`."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return lambda *words: reconsume(*words, "-c", file)


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def told(group: str) -> list[Any]:
    """Two records that wait, one that is done and one that is dead."""
    at = wall() - 60_000
    waiting = [event(group, number, at=at, due=wall() + 60_000 + number, first_failed_at=at) for number in (1, 2)]
    done = event(group, 3, State.COMMIT, at=at, level=None, due=0, first_failed_at=at)
    dead = event(group, 4, State.DLQ, at=at, level=None, due=0, reason="timeout", first_failed_at=at)
    return [done, *waiting, dead]


def test_all_commands_show_the_fold_of_the_events_and_say_so(
    call: Call, kafka: Broker, group: str, tmp_path: Path
) -> None:
    tell(kafka.bootstrap, told(group))
    records = dump(kafka.bootstrap, Names(group).events)
    shown = call("retries", "list", "--state", "all")
    assert {row["id"]: row for row in rows(shown)} == folded(records)
    assert "from the events, as of" in shown.stderr
    assert "Spark" not in shown.stderr
    assert [row["id"] for row in rows(call("retries", "list"))] == ["orders:0:1", "orders:0:2"]
    assert [row["id"] for row in rows(call("retries", "list", "--reason", "timeout", "--state", "DLQ"))] == [
        "orders:0:4"
    ]
    (one,) = rows(call("retries", "show", "orders:0:4"))
    assert (one["state"], one["journey_complete"], len(one["journey"])) == ("DLQ", True, 1)
    sums = rows(call("retries", "stats"))
    assert sorted(map(str, sums)) == sorted(str(dict(row)) for row in sorted_like(summed(records).values(), sums))
    assert not list((tmp_path / "tmp").iterdir()), "nothing is left"


def sorted_like(wanted: Any, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows with their fields in the order of those that were printed."""
    return [{name: {**row, "retries": row["waiting"]}[name] for name in found[0]} for row in wanted]


def test_what_was_left_out_is_said(call: Call, kafka: Broker, group: str) -> None:
    for number in range(6):
        tell(kafka.bootstrap, [event(group, 10 * number + one) for one in range(10)])
    shown = call("retries", "list", "--most", "20")
    count = len(rows(shown))
    assert 20 - EVENTS_PARTITIONS < count <= 20
    assert f"{60 - count} events, the oldest, are left out; Spark's view (`reconsume view run -c " in (shown.stderr)
    assert "complete since" in shown.stderr


def test_a_missing_events_topic_is_said_with_the_command_that_creates_it(
    kafka: Broker, group: str, tmp_path: Path
) -> None:
    file = tmp_path / "reconsume.yaml"
    servers = {"bootstrap.servers": kafka.bootstrap}
    file.write_text(
        json.dumps({"group": group, "topics": ["orders"], "kafka": servers, "deliver": {"url": "http://127.0.0.1:1/"}})
    )
    refused = reconsume("retries", "list", "-c", file)
    assert refused.exit_code == 1
    assert (
        f"{group}-RETRY-EVENTS: missing, or not for this user to see; `reconsume topics apply -c {file}` creates"
        in refused.stderr
    )


SQL = ("view", "sql", "--set", "view.source=events")


def test_sql_asks_the_events_without_spark(call: Call, kafka: Broker, group: str) -> None:
    tell(kafka.bootstrap, told(group))
    states = call(*SQL, "SELECT state, count(*) AS n FROM view GROUP BY state ORDER BY state")
    assert rows(states) == [
        {"state": "COMMIT", "n": 1},
        {"state": "DLQ", "n": 1},
        {"state": "WAITING_RETRY", "n": 2},
    ]
    assert "from the events" in states.stderr
    (one,) = rows(call(*SQL, "SELECT * FROM view WHERE state = 'DLQ'"))
    wanted = folded(dump(kafka.bootstrap, Names(group).events))["orders:0:4"]
    times = {name: iso(wanted[name]) for name in TIMES}
    assert one == {
        "text": None,
        "parked": None,
        "cycle": None,
        **{name: value for name, value in wanted.items() if name != "v"},
        **times,
    }
    assert rows(call(*SQL, 'SELECT id, id, "group" FROM view LIMIT 1'))[0].keys() == {"id", "id_2", "group"}


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM message",
        "ATTACH '/etc/passwd' AS other",
        "PRAGMA journal_mode",
        "SELECT load_extension('x')",
        "SELECT 1; SELECT 2",
        "SELECT nothing FROM view",
        "",
    ],
)
def test_sql_that_is_more_than_one_question_is_refused(call: Call, query: str) -> None:
    refused = call(*SQL, query)
    assert refused.stdout == ""
    assert refused.exit_code == (1 if query else 0)
    assert "the query failed" in refused.stderr or not query


@pytest.mark.parametrize("words", [("list",), ("show", "orders:0:1"), ("stats",)])
def test_a_broker_that_is_away_is_waited_for_once(words: tuple[str, ...], call: Call) -> None:
    """Nothing is asked twice, and a program gets the hint too."""
    began = time.monotonic()
    away = call("retries", *words, "-o", "json", "--set", "kafka.bootstrap.servers=127.0.0.1:1")
    assert time.monotonic() - began < 2 * ANSWER_SECONDS
    assert (away.exit_code, away.stdout) == (1, "")
    told = json.loads(away.stderr.splitlines()[-1])
    assert told["title"] == "Kafka"
    assert "answered within 8 s" in told["detail"]
    assert re.search(r"; `reconsume doctor -c \S+ --set \S+` looks for the cause$", told["detail"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_is_ended_by_a_signal_leaves_no_file(
    number: signal.Signals, file: Path, kafka: Broker, group: str, tmp_path: Path
) -> None:
    """Given a list that nobody reads on, when it is told to end, then its folder is gone, and the code is a shell's."""
    tell(kafka.bootstrap, [event(group, number) for number in range(MORE_THAN_A_PIPE)])
    folder = tmp_path / "watched"
    folder.mkdir()
    command = [sys.executable, "-m", "reconsume.sidecar", "retries", "list", "-o", "jsonl", "-c", str(file)]
    with subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL),  # under nohup it would be ignored, as nohup promises
    ) as process:
        try:
            until(lambda: bool(list(folder.iterdir())), 60, "the copy is made")
            process.send_signal(number)
            assert process.wait(60) == 128 + number
        finally:
            process.kill()
    assert list(folder.iterdir()) == []
