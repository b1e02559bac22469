"""An effect happens once, on SQLite: under duplicates, failures and kills. PostgreSQL's tests are in tests/edges."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from reconsume.once import DeliveryKey, claim, create_table, forget, once
from tests.support.service.once_service import (
    GROUP,
    STOPS,
    BrokenError,
    book,
    booked,
    claimed,
    connect,
    crowd,
    deliver,
    prepare,
    stopped_at,
)

KEY = DeliveryKey(GROUP, "orders:3:1024")


@pytest.fixture
def target(tmp_path: Path) -> str:
    """A database with both tables."""
    path = f"sqlite:{tmp_path / 'service.db'}"
    prepare(path)
    return path


@pytest.fixture
def connection(target: str) -> Iterator[sqlite3.Connection]:
    with closing(connect(target)) as opened:
        yield opened


def fail_after_effect(connection: sqlite3.Connection) -> None:
    """A first delivery whose service fails when the effect is made and not yet committed."""
    with once(connection, KEY) as first:
        assert first
        book(connection, KEY)
        raise BrokenError


def test_only_the_first_of_many_deliveries_makes_the_effect(target: str) -> None:
    assert [deliver(target, KEY) for _ in range(5)] == [True, False, False, False, False]
    assert booked(target) == [(KEY.id, 0)]


def test_a_failed_effect_leaves_no_record_and_is_made_by_the_retry(target: str, connection: sqlite3.Connection) -> None:
    with pytest.raises(BrokenError):
        fail_after_effect(connection)
    assert claimed(target) == booked(target) == []
    assert deliver(target, KEY)
    assert booked(target) == [(KEY.id, 0)]


def test_a_commit_that_fails_leaves_nothing_open_on_the_connection(target: str, connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("CREATE TABLE late (id TEXT REFERENCES booked (record_id) DEFERRABLE INITIALLY DEFERRED)")
    connection.execute("CREATE UNIQUE INDEX one ON booked (record_id)")
    connection.execute("CREATE TRIGGER too AFTER INSERT ON booked BEGIN INSERT INTO late VALUES ('nobody'); END")
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"), once(connection, KEY):
        book(connection, KEY)
    assert not connection.in_transaction
    assert claimed(target) == booked(target) == []


def test_a_redrive_is_a_new_effect_unless_the_service_leaves_redrives_out(target: str) -> None:
    redriven = replace(KEY, redrives=1)
    assert [deliver(target, key) for key in (KEY, redriven, redriven)] == [True, True, False]
    assert booked(target) == [(KEY.id, 0), (KEY.id, 1)]
    assert not deliver(target, replace(redriven, redrives=0))


def test_a_reset_is_a_new_effect(target: str) -> None:
    keys = (KEY, replace(KEY, cycle=1), replace(KEY, cycle=2), replace(KEY, cycle=1, redrives=1))
    assert [deliver(target, key) for key in keys * 2] == [True] * 4 + [False] * 4


def test_groups_that_share_a_database_each_have_their_effect(target: str) -> None:
    assert deliver(target, KEY)
    assert deliver(target, replace(KEY, group="mailing"))


def test_ids_that_differ_in_case_alone_are_two_records(target: str) -> None:
    assert deliver(target, KEY)
    assert deliver(target, replace(KEY, id="Orders:3:1024"))


def test_a_duplicate_cannot_pass_a_delivery_that_is_under_way(target: str, connection: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(target.removeprefix("sqlite:"), timeout=0)) as second:
        with once(connection, KEY) as first:
            assert first
            book(connection, KEY)
            with pytest.raises(sqlite3.OperationalError, match="locked"), once(second, KEY):
                book(second, KEY)
        with once(second, KEY) as again:
            assert not again
    assert booked(target) == [(KEY.id, 0)]


def test_concurrent_duplicates_failures_and_lost_answers_make_each_effect_once(target: str) -> None:
    keys = [DeliveryKey(GROUP, f"orders:0:{offset}") for offset in range(10)]
    crowd(target, keys, threads=4)
    assert booked(target) == [(key.id, 0) for key in keys]


@pytest.mark.parametrize("stop", STOPS)
def test_a_service_killed_in_its_work_leaves_the_whole_effect_or_none(target: str, stop: str) -> None:
    with stopped_at(target, KEY, stop) as process:
        process.kill()
        process.wait(60)
        happened = stop == "after-commit"
        assert booked(target) == claimed(target) == ([(KEY.id, 0)] if happened else [])
        assert deliver(target, KEY) is not happened
    assert booked(target) == [(KEY.id, 0)]


def test_once_refuses_a_connection_that_commits_by_itself(target: str) -> None:
    with closing(sqlite3.connect(target.removeprefix("sqlite:"), isolation_level=None)) as connection:
        with pytest.raises(RuntimeError, match="autocommit"), once(connection, KEY):
            book(connection, KEY)
        with pytest.raises(RuntimeError, match="autocommit"):
            claim(connection, KEY)
    assert claimed(target) == booked(target) == []


def test_once_does_not_end_a_transaction_that_was_begun_by_hand_in_autocommit_mode(target: str) -> None:
    connection = sqlite3.connect(target.removeprefix("sqlite:"), isolation_level=None)
    with closing(connection):
        connection.execute("BEGIN")
        with pytest.raises(RuntimeError, match="autocommit"), once(connection, KEY):
            book(connection, KEY)
        assert connection.in_transaction
    assert claimed(target) == booked(target) == []


def test_claim_joins_a_transaction_that_the_service_began(target: str) -> None:
    with closing(sqlite3.connect(target.removeprefix("sqlite:"), isolation_level=None)) as connection:
        for end, first in (("ROLLBACK", True), ("COMMIT", True), ("COMMIT", False)):
            connection.execute("BEGIN IMMEDIATE")
            assert claim(connection, KEY) is first
            connection.execute(end)
    assert claimed(target) == [(KEY.id, 0)]


class Vague(sqlite3.Connection):
    """A connection of a driver that does not count rows, which DB-API 2.0 allows."""

    def cursor(self, *_: object) -> sqlite3.Cursor:  # type: ignore[override]
        return VagueCursor(self)


class VagueCursor(sqlite3.Cursor):
    @property
    def rowcount(self) -> int:
        return -1


def test_a_driver_that_does_not_count_rows_is_refused_rather_than_believed(target: str) -> None:
    connection = sqlite3.connect(target.removeprefix("sqlite:"), factory=Vague)
    with closing(connection), pytest.raises(RuntimeError, match="-1 rows"), once(connection, KEY):
        book(connection, KEY)
    assert claimed(target) == []


def test_forget_deletes_what_is_older_and_only_that(target: str, connection: sqlite3.Connection) -> None:
    young = replace(KEY, id="orders:3:1025")
    assert deliver(target, KEY)
    assert deliver(target, young)
    connection.execute("UPDATE reconsume_once SET done_at = done_at - 86400000 WHERE record_id = ?", (KEY.id,))
    assert forget(connection, timedelta(days=1)) == 1
    assert claimed(target) == [(young.id, 0)]
    assert forget(connection, timedelta(days=1)) == 0


def test_the_table_is_made_again_without_harm(target: str, connection: sqlite3.Connection) -> None:
    assert deliver(target, KEY)
    create_table(connection)
    assert claimed(target) == [(KEY.id, 0)]
