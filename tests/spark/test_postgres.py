"""The view in a real PostgreSQL: what is older never wins. Skipped where PostgreSQL is not installed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reconsume.spark import schema, upsert, view
from reconsume.topics.events import Event, State
from tests.spark.frames import batch
from tests.support.event_histories import BASE, EVENT, as_told, changed, disturbed, histories, truth, written
from tests.support.postgres import installed_postgres

pytestmark = pytest.mark.long

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
Write = Callable[[list[Event]], None]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """One server for this file, by its connection string."""
    with installed_postgres() as running:
        yield running


@pytest.fixture
def table() -> str:
    """A table that is not there yet, with a name that needs quotes."""
    return f'View "{uuid.uuid4().hex[:8]}'


@pytest.fixture
def write(spark: SparkSession, server: str, table: str) -> Write:
    """`write(events)` upserts the view of these events as one batch."""
    function = upsert.upsert(server, table)
    return lambda events: function(view.view(schema.events(batch(spark, written(events))).good), 0)


def kept(server: str, table: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The table's rows by group and id."""
    with psycopg.connect(server, row_factory=psycopg.rows.dict_row) as connection:
        name = psycopg.sql.Identifier(table)
        rows = connection.execute(psycopg.sql.SQL("SELECT * FROM {}").format(name)).fetchall()
    told = [as_told({key: row[key] for key in row if key != "rank"}) for row in rows]
    return {(row["group"], row["id"]): row for row in told}


def test_batches_in_any_order_repeated_and_overlapping_end_in_the_fold(write: Write, server: str, table: str) -> None:
    random = Random(11)
    events = histories(random, 50)
    # A stream's rows tell all that was seen of a record: cut by record, not by event.
    parts = [[event for event in events if event.offset % 3 != number] for number in range(3)]
    for part in (*parts, parts[0], []):
        write(disturbed(random, part) if part else [])
    assert kept(server, table) == truth(events)


def test_an_older_batch_changes_nothing(write: Write, server: str, table: str) -> None:
    ended = changed(state=State.COMMIT, level=None, due=0, at=BASE + 5)
    write([EVENT, ended])
    before = kept(server, table)
    write([EVENT])
    assert kept(server, table) == before == truth([EVENT, ended])


def test_a_later_state_wins_although_its_clock_is_behind(write: Write, server: str, table: str) -> None:
    write([EVENT])
    later = changed(times=2, at=BASE - 5000)
    write([EVENT, later])
    assert kept(server, table) == truth([EVENT, later])


def test_two_first_failures_of_a_record_are_one_row(write: Write, server: str, table: str) -> None:
    events = [EVENT, changed(times=2, at=BASE + 10, first_failed_at=BASE + 5)]
    write(events)
    row = kept(server, table)[EVENT.group, EVENT.id]
    assert (row["times"], row["at"]) == (2, BASE + 10)


def test_a_text_that_postgresql_cannot_hold_does_not_stop_the_batch(write: Write, server: str, table: str) -> None:
    write([changed(reason='a\0b\t\\N"')])
    assert kept(server, table)[EVENT.group, EVENT.id]["reason"] == 'a\ufffdb\t\\N"'


def test_writers_at_the_same_time_end_in_the_fold(write: Write, server: str, table: str) -> None:
    random = Random(12)
    events = histories(random, 50)
    write([events[0]])
    with ThreadPoolExecutor(3) as writers:
        for done in [writers.submit(write, disturbed(random, events)) for _ in range(3)]:
            done.result()
    assert kept(server, table) == truth(events)


def test_what_an_executor_cannot_write_fails_the_batch_which_may_be_repeated(
    write: Write, server: str, table: str
) -> None:
    events = histories(Random(13), 20)
    write([events[0]])
    refused = [events[0], changed(group=events[0].group, id="orders:3:refused")]
    name = psycopg.sql.Identifier(table)
    with psycopg.connect(server, autocommit=True) as connection:
        rule = psycopg.sql.SQL("ALTER TABLE {} ADD CONSTRAINT refusing CHECK (id <> 'orders:3:refused')").format(name)
        connection.execute(rule)
        with pytest.raises((PySparkException, Py4JJavaError), match="refusing"):
            write([*refused, *events])
        connection.execute(psycopg.sql.SQL("ALTER TABLE {} DROP CONSTRAINT refusing").format(name))
    write([*refused, *events])
    assert kept(server, table) == truth([*refused, *events])
