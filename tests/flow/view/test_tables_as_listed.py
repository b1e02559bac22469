"""The tables of a group that has failed, been redriven and been dismissed say what the commands list."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reconsume.spark import session, tables, view
from reconsume.topics.names import Kind
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.service.behaviours import FAIL, OK, Behaviour, Request, verdict
from tests.support.service.service import Service
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.process import SidecarProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

LONG = 600_000
"""ms of the only level: what waits there waits until the test is over."""
RETRY = {"levels": [f"{LONG}ms"], "ladder": [f"{LONG}ms"]}
SECONDS = 90.0
SAME = ("state", "reason", "text", "times", "redrives", "topic")
"""Columns of `dlq list` that the table has as they are."""


def service(request: Request) -> Behaviour:
    """Fails what is called `wait…`, takes what is redriven and what is called `fine…`, and dead-letters the rest."""
    value = (request.value or b"").decode()
    if value.startswith("wait"):
        return FAIL
    if value.startswith("fine") or request.headers["reconsume-redrives"] != "0":
        return OK
    return verdict("dead-letter; reason=bad-sku")


class Stage:
    """A group with a sidecar, and the commands for it."""

    def __init__(self, group: GroupTopics, folder: Path) -> None:
        self.group, self.folder = group, folder

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """The rows of a command that lists something, or what a command did that changes something."""
        source = "spark" if words[0] == "view" else "events"
        done = for_group(self.folder, self.group, *words, "-o", "jsonl", retry=RETRY, view={"source": source})
        assert done.exit_code == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def stage(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Five dead letters, one of which was redriven, and one dismissed; three records wait."""
    folder = tmp_path_factory.mktemp("listed")
    group = create_group(fresh_group(kafka.bootstrap, delays=(LONG,)), 2, also=(Kind.POLICY,))
    with ExitStack() as stack:
        url = stack.enter_context(Service(folder / "ledger.jsonl", service)).url
        stack.enter_context(SidecarProcess(group, url, folder / "sidecar", overrides={"retry": RETRY})).wait_ready()
        own = (("trace", b"1"), ("trace", b"\xff"), ("none", None))
        names = [*(b"dead %d" % n for n in range(5)), *(b"wait %d" % n for n in range(3)), b"fine", b"fine too"]
        produce(group.bootstrap, group.main, [Out(name, b"k", own, number % 2) for number, name in enumerate(names)])
        stage = Stage(group, folder)
        until(lambda: len(stage.rows("dlq", "list")) == 5, SECONDS, "five records are dead")
        until(lambda: len(stage.rows("retries", "list")) == 3, SECONDS, "three records wait")
        redriven, dismissed = sorted(row["id"] for row in stage.rows("dlq", "list"))[:2]
        stage.rows("dlq", "redrive", "--id", redriven, "--yes")
        stage.rows("settle", dismissed, "--commit", "--why", "a test", "--yes")
        done = ("retries", "list", "--state", "COMMIT")
        until(lambda: [row["id"] for row in stage.rows(*done)] == [redriven], SECONDS, "what was redriven is done")
        yield stage


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session as `session.build` makes it, which was told of no jars."""
    with session.build("listed") as started:
        yield started


def ms(at: datetime) -> int:
    """A TIMESTAMP as PySpark gives it, in epoch ms."""
    return round(at.timestamp() * 1000)


def test_the_table_of_dead_letters_says_what_dlq_list_says(stage: Stage, spark: SparkSession) -> None:
    listed = {row["id"]: row for row in stage.rows("dlq", "list", "--all")}
    rows = {row["id"]: row for row in tables.dead_letters(spark, stage.group.bootstrap, stage.group.group).collect()}
    assert len(listed) == 5
    assert {row["state"] for row in listed.values()} == {"ready", "redriven", "dismissed"}
    assert {ident: {name: row[name] or "" for name in SAME} for ident, row in rows.items()} == {
        ident: {name: row[name] or "" for name in SAME} for ident, row in listed.items()
    }
    assert all(
        bytes(row["value"]).startswith(b"dead") and bytes(row["headers"]["trace"]) == b"\xff" for row in rows.values()
    )


def test_the_table_of_what_waits_says_what_retries_list_says(stage: Stage, spark: SparkSession) -> None:
    listed = {row["id"]: (row["due"], row["times"], row["reason"]) for row in stage.rows("retries", "list")}
    rows = tables.waiting(spark, stage.group.bootstrap, stage.group.group).collect()
    assert {row["id"]: (ms(row["due"]), row["times"], row["reason"]) for row in rows} == listed
    assert {bytes(row["value"]) for row in rows} == {b"wait 0", b"wait 1", b"wait 2"}
    assert {row["state"] for row in rows} == {"waiting"}


def test_sql_has_the_same_tables(stage: Stage) -> None:
    counts = stage.rows("view", "sql", "SELECT state, count(*) AS n FROM dead_letters GROUP BY 1")
    assert {row["state"]: row["n"] for row in counts} == {"ready": 3, "redriven": 1, "dismissed": 1}
    query = (
        "SELECT w.id, w.due, e.state, string(w.value) AS value FROM waiting w JOIN events e ON w.id = e.id "
        "JOIN view v ON v.id = w.id ORDER BY 4"
    )
    rows = stage.rows("view", "sql", query)
    assert [(row["state"], row["value"]) for row in rows] == [("WAITING_RETRY", f"wait {n}") for n in range(3)]
    assert all(datetime.fromisoformat(row["due"]).timestamp() > time.time() for row in rows)
    assert all(row["due"].endswith("Z") for row in rows)


def test_a_mistyped_group_and_a_wrong_port_are_named(stage: Stage, spark: SparkSession) -> None:
    with pytest.raises(LookupError, match="no group nobody"):
        view.table(spark, stage.group.bootstrap, "nobody")
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"Kafka at 127.0.0.1:1 does not answer"):
        tables.events(spark, "127.0.0.1:1", stage.group.group)
    assert time.monotonic() - began < 20
