"""An effect happens once, on a real MariaDB: duplicates that wait for each other, failures, kills, long keys.

Skipped where MariaDB is not installed. With Debian's package `mariadb-server` the tests run as they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from reconsume.once import DeliveryKey, ProducerKey, claim, forget, once
from tests.docs.once_docs import blocks, statements
from tests.support.mariadb import installed_mariadb
from tests.support.service.once_service import (
    GROUP,
    STOPS,
    Key,
    book,
    booked,
    claimed,
    connect,
    crowd,
    deliver,
    executed,
    prepare,
    stopped_at,
)

pymysql = pytest.importorskip("pymysql", reason="PyMySQL is not installed")
KEY = DeliveryKey(GROUP, "orders:3:1024")


@pytest.fixture(scope="module")
def server() -> Iterator[Path]:
    """One server for this file, by its socket."""
    with installed_mariadb() as socket:
        yield socket


@pytest.fixture
def target(server: Path) -> str:
    """A new database with both tables."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with closing(pymysql.connect(unix_socket=str(server), user="root")) as admin:
        executed(admin, f"CREATE DATABASE {name}")
    there = f"mysql:{server}:{name}"
    prepare(there)
    return there


def waiting(target: str) -> bool:
    """Whether a transaction waits for another's end."""
    with closing(connect(target)) as watcher:
        sql = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        return executed(watcher, sql).fetchone() is not None


def test_only_the_first_of_many_deliveries_makes_the_effect_and_a_redrive_is_a_new_one(target: str) -> None:
    assert [deliver(target, KEY) for _ in range(3)] == [True, False, False]
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


@pytest.mark.parametrize("stop", STOPS)
def test_a_service_killed_in_its_work_leaves_the_whole_effect_or_none(target: str, stop: str) -> None:
    with stopped_at(target, KEY, stop) as process:
        process.kill()
        process.wait(60)
        assert deliver(target, KEY) is (stop != "after-commit")
    assert booked(target) == claimed(target) == [(KEY.id, 0)]


def test_concurrent_duplicates_failures_and_lost_answers_make_each_effect_once(target: str) -> None:
    keys: list[Key] = [DeliveryKey(GROUP, f"orders:0:{offset}") for offset in range(15)]
    keys += [ProducerKey(GROUP, "orders", f"order {number}") for number in range(15)]
    crowd(target, keys, threads=8)
    assert booked(target) == sorted((key.row[1], 0) for key in keys)


def test_keys_that_a_usual_collation_takes_for_one_are_two(target: str) -> None:
    texts = ("a", "A", "ä", "Ä", "a ", "á", "ss", "ß")
    keys = [ProducerKey(GROUP, topic, text) for topic in ("orders", "Orders") for text in texts]
    assert all(deliver(target, key) for key in keys)
    assert not any(deliver(target, key) for key in keys)


def test_the_longest_names_and_texts_fit(target: str) -> None:
    longest = "g" * 249, "t" * 249
    keys: list[Key] = [
        ProducerKey(*longest, "x" * 200),
        ProducerKey(*longest, "x" * 199 + "y"),
        ProducerKey(*longest, "x" * 1_000_000),
        DeliveryKey(longest[0], f"{longest[1]}:9999999999:{9 * 10**18}", 999_999, 999_999),
    ]
    assert [deliver(target, key) for key in keys] == [True] * 4
    assert [deliver(target, key) for key in keys] == [False] * 4


def test_a_connection_that_commits_by_itself_is_refused_unless_a_transaction_is_open(
    target: str, connection: Any
) -> None:
    connection.autocommit(True)
    with pytest.raises(RuntimeError, match="autocommit"), once(connection, KEY):
        book(connection, KEY)
    with pytest.raises(RuntimeError, match="autocommit"):
        claim(connection, KEY)
    assert claimed(target) == booked(target) == []
    connection.begin()
    assert claim(connection, KEY)
    connection.commit()
    connection.begin()
    assert not claim(connection, KEY)
    connection.rollback()
    assert claimed(target) == [(KEY.id, 0)]


def test_an_error_that_is_no_duplicate_is_raised(target: str, connection: Any) -> None:
    executed(connection, "DROP TABLE reconsume_once")
    with pytest.raises(pymysql.err.ProgrammingError), once(connection, KEY):
        book(connection, KEY)
    assert booked(target) == []


def test_forget_deletes_what_is_older_and_only_that(target: str, connection: Any) -> None:
    assert deliver(target, KEY)
    assert forget(connection, timedelta(hours=1)) == 0
    executed(connection, "UPDATE reconsume_once SET done_at = done_at - 3600001")
    connection.commit()
    assert forget(connection, timedelta(hours=1)) == 1
    assert claimed(target) == []


def test_the_documented_sql_claims_a_key_once(connection: Any) -> None:
    table, steps = blocks("MySQL, MariaDB", "sql")
    _, insert, effect, _ = statements(steps)
    executed(connection, "DROP TABLE reconsume_once")
    executed(connection, table)
    executed(connection, "CREATE TABLE stock AS SELECT 1000 AS pieces")
    assert executed(connection, insert).rowcount == 1
    executed(connection, effect)
    with pytest.raises(pymysql.err.IntegrityError) as caught:
        executed(connection, insert)
    assert caught.value.args[0] == 1062
    executed(connection, blocks("How long rows are kept", "sql")[0])
