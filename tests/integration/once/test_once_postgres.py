"""An effect happens once, on a real PostgreSQL: duplicates that wait for each other, failures, kills.

Skipped where PostgreSQL is not installed, in CI too: nothing is installed by apt for a check. With Debian's package
`postgresql` the tests run as they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from reconsume.once import DeliveryKey, claim, forget, once
from tests.docs.once_docs import blocks, statements
from tests.support.postgres import installed_postgres
from tests.support.service.once_service import (
    GROUP,
    STOPS,
    book,
    booked,
    claimed,
    connect,
    crowd,
    deliver,
    prepare,
    stopped_at,
)

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
KEY = DeliveryKey(GROUP, "orders:3:1024")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """One server for this file, by its connection string."""
    with installed_postgres() as running:
        yield running


@pytest.fixture
def target(server: str) -> str:
    """A new database with both tables."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    there = server.replace("dbname=postgres", f"dbname={name}")
    prepare(there)
    return there


def waiting(target: str) -> bool:
    """Whether a transaction of this database waits for another's end."""
    sql = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'"
    with closing(connect(target)) as watcher:
        return watcher.execute(sql).fetchone() is not None


def test_only_the_first_of_many_deliveries_makes_the_effect(target: str) -> None:
    assert [deliver(target, KEY) for _ in range(3)] == [True, False, False]
    assert booked(target) == [(KEY.id, 0)]


def test_a_redrive_is_a_new_effect(target: str) -> None:
    assert deliver(target, KEY)
    assert deliver(target, replace(KEY, redrives=1))
    assert booked(target) == [(KEY.id, 0), (KEY.id, 1)]


def test_a_duplicate_waits_for_the_commit_and_then_does_nothing(
    target: str, connection: Any, duplicate: Callable[[], Future[bool]]
) -> None:
    with once(connection, KEY) as first:
        assert first
        book(connection, KEY)
        second = duplicate()
    assert second.result(20) is False
    assert booked(target) == [(KEY.id, 0)]


def test_a_duplicate_takes_over_when_the_first_delivery_fails(
    target: str, connection: Any, duplicate: Callable[[], Future[bool]]
) -> None:
    assert claim(connection, KEY)
    book(connection, KEY)
    second = duplicate()
    connection.rollback()
    assert second.result(20) is True
    assert booked(target) == [(KEY.id, 0)]


def test_a_duplicate_takes_over_when_the_first_service_is_killed(
    target: str, duplicate: Callable[[], Future[bool]]
) -> None:
    with stopped_at(target, KEY, "before-commit") as process:
        second = duplicate()
        process.kill()
        assert second.result(20) is True
    assert booked(target) == [(KEY.id, 0)]


@pytest.mark.parametrize("stop", STOPS)
def test_a_service_killed_in_its_work_leaves_the_whole_effect_or_none(target: str, stop: str) -> None:
    with stopped_at(target, KEY, stop) as process:
        process.kill()
        process.wait(60)
        assert deliver(target, KEY) is (stop != "after-commit")
    assert booked(target) == claimed(target) == [(KEY.id, 0)]


def test_concurrent_duplicates_failures_and_lost_answers_make_each_effect_once(target: str) -> None:
    keys = [DeliveryKey(GROUP, f"orders:0:{offset}") for offset in range(30)]
    crowd(target, keys, threads=8)
    assert booked(target) == sorted((key.id, 0) for key in keys)


def test_under_repeatable_read_a_duplicate_of_what_was_not_seen_fails_instead_of_passing(
    target: str, connection: Any
) -> None:
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT 1 FROM booked")  # takes the snapshot
    assert deliver(target, KEY)
    with pytest.raises(psycopg.errors.SerializationFailure), once(connection, KEY):
        book(connection, KEY)
    assert booked(target) == [(KEY.id, 0)]


def book_and_swallow_an_error(connection: Any) -> None:
    """An effect whose last statement fails, which the service does not mind."""
    book(connection, KEY)
    with suppress(psycopg.errors.UndefinedTable):
        connection.execute("INSERT INTO nowhere VALUES (1)")


def test_an_error_that_the_service_swallows_is_not_taken_for_success(target: str, connection: Any) -> None:
    with pytest.raises(RuntimeError, match="cannot be committed"), once(connection, KEY):
        book_and_swallow_an_error(connection)
    assert claimed(target) == booked(target) == []
    assert deliver(target, KEY)


def test_once_refuses_a_connection_that_commits_by_itself(target: str) -> None:
    with psycopg.connect(target, autocommit=True) as connection:
        with pytest.raises(RuntimeError, match="autocommit"), once(connection, KEY):
            book(connection, KEY)
        with pytest.raises(RuntimeError, match="autocommit"):
            claim(connection, KEY)
    assert claimed(target) == booked(target) == []


def test_claim_joins_a_transaction_that_the_service_began(target: str) -> None:
    with psycopg.connect(target, autocommit=True) as connection:
        with connection.transaction(force_rollback=True):
            assert claim(connection, KEY)
        with connection.transaction():
            assert claim(connection, KEY)
        with connection.transaction():
            assert not claim(connection, KEY)
    assert claimed(target) == [(KEY.id, 0)]


def test_forget_deletes_what_is_older_and_only_that(target: str, connection: Any) -> None:
    assert deliver(target, KEY)
    assert forget(connection, timedelta(hours=1)) == 0
    connection.execute("UPDATE reconsume_once SET done_at = done_at - 3600001")
    connection.commit()
    assert forget(connection, timedelta(hours=1)) == 1
    assert claimed(target) == []


def test_the_documented_sql_claims_a_key_once(target: str, connection: Any) -> None:
    table, steps, one_statement = blocks("PostgreSQL", "sql")
    _, insert, effect, _ = statements(steps)
    connection.execute("DROP TABLE reconsume_once")
    connection.execute(table)
    connection.execute("CREATE TABLE stock AS SELECT 1000 AS pieces")
    assert connection.execute(insert).rowcount == 1
    connection.execute(effect)
    assert connection.execute(insert).rowcount == 0
    assert connection.execute(one_statement).rowcount == 0
    connection.execute("DELETE FROM reconsume_once")
    assert connection.execute(one_statement).rowcount == 1
    assert connection.execute("SELECT pieces FROM stock").fetchone() == (996,)
    connection.execute(blocks("How long rows are kept", "sql")[0])
    connection.execute(blocks("The key", "sql")[0])
