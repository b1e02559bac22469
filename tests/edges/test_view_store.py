"""The local copy of the view on a real disk: what it keeps, what it answers, and that broken files are no harm."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.core.storm import Failures
from sidecar.edges.view_query import BadCursorError, Filters, ViewQuery, questions
from sidecar.edges.view_store import Facts, ViewStore, open_store, retention_of
from sidecar.edges.view_tables import Item
from tests.support.view_rows import GROUP, stats_row, view_row
from topics.events import State
from topics.names import Kind
from topics.view_record import Forgotten, StatsRow, ViewRow, encode_row, stats_key

PLACE = (f"{GROUP}-RETRY-VIEW", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ViewStore]:
    store = open_store(tmp_path, GROUP)
    yield store
    store.close()


@pytest.fixture
def ask(store: ViewStore) -> Iterator[ViewQuery]:
    with questions(store.path) as query:
        yield query


def item(heard: ViewRow | StatsRow | Forgotten, offset: int = 0, written: int = 1) -> Item:
    match heard:
        case ViewRow():
            return Item(Kind.VIEW, heard.id, heard, offset, written)
        case StatsRow():
            return Item(Kind.STATS, stats_key(heard), heard, offset, written)
    return Item(Kind.VIEW, heard.key, heard, offset, written)


def take(store: ViewStore, *rows: ViewRow | StatsRow | Forgotten) -> None:
    store.take([item(row, offset) for offset, row in enumerate(rows)], {PLACE: len(rows)})


# --- what it keeps ----------------------------------------------------------------------------------------------------


def test_the_greater_state_is_kept_whatever_came_last(store: ViewStore, ask: ViewQuery) -> None:
    first = view_row()
    dead = view_row(1, State.DLQ, at=first.at, times=2)
    redriven = view_row(1, State.REDRIVEN, at=first.at, redrives=1, times=0)
    for rows in ([first, dead, redriven], [redriven, first, dead], [dead, redriven, first]):
        take(store, Forgotten(first.id), *rows)
        assert ask.message(first.id) == encode_row(redriven)


def test_on_a_tie_the_later_update_wins_then_the_later_offset(store: ViewStore, ask: ViewQuery) -> None:
    old = view_row(1, at=5, updated_at=10, reason="old")
    new = view_row(1, at=5, updated_at=11, reason="new")
    take(store, new, old)
    assert ask.message(old.id) == encode_row(new)
    again = view_row(1, at=5, updated_at=11, reason="again")
    store.take([item(again, 0)], {})
    assert ask.message(old.id) == encode_row(new)
    store.take([item(again, 7)], {})
    assert ask.message(old.id) == encode_row(again)


def test_a_tombstone_removes_what_came_before_it_and_nothing_after(store: ViewStore, ask: ViewQuery) -> None:
    dead, again = view_row(1, State.DLQ, redrives=3), view_row(1)
    take(store, dead, Forgotten(dead.id), again)
    assert ask.message(dead.id) == encode_row(again)
    take(store, Forgotten(dead.id))
    assert ask.message(dead.id) is None


def test_the_last_sums_of_a_key_hold(store: ViewStore, ask: ViewQuery) -> None:
    sums, better = stats_row(), stats_row(waiting=13)
    take(store, sums, better)
    assert ask.sums(0, 10).values == [encode_row(better)]


def test_rows_and_positions_are_one_transaction(store: ViewStore, ask: ViewQuery) -> None:
    take(store, view_row(1))
    broken = Item(Kind.VIEW, "x", view_row(2, reason="r"), 2**70, 1)  # no number that SQLite knows
    with pytest.raises(OverflowError):
        store.take([item(view_row(3)), broken], {PLACE: 9})
    assert store.positions() == {PLACE: 1}
    assert ask.message("orders:0:3") is None
    take(store, view_row(3), view_row(4))
    assert store.positions() == {PLACE: 2}


def test_what_was_written_before_the_retention_leaves(store: ViewStore, ask: ViewQuery) -> None:
    store.take([item(view_row(1), 0, written=99), item(view_row(2), 1, written=100)], {})
    store.drop_older(Kind.VIEW, 100)
    assert (ask.message("orders:0:1"), ask.message("orders:0:2") is None) == (None, False)


@pytest.mark.parametrize(
    ("config", "retention"),
    [
        ({"cleanup.policy": "compact,delete", "retention.ms": "5"}, 5),
        ({"cleanup.policy": "compact", "retention.ms": "5"}, None),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, None),
        ({}, None),
    ],
)
def test_retention_is_the_topics(config: dict[str, str], retention: int | None) -> None:
    assert retention_of(config) == retention


# --- what it answers --------------------------------------------------------------------------------------------------


def ids(values: list[bytes]) -> list[int]:
    return [int(value.split(b'"id":"orders:0:')[1].split(b'"')[0]) for value in values]


@pytest.fixture
def mixed(store: ViewStore) -> None:
    rows = [
        view_row(1, due=300),
        view_row(2, due=100, level="1m", reason="timeout"),
        view_row(3, due=200, topic="invoices"),
        view_row(4, State.DLQ, reason="timeout"),
        view_row(5, State.COMMIT),
    ]
    take(store, *rows)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (Filters(), [4, 5, 2, 3, 1]),
        (Filters(state=State.WAITING_RETRY), [2, 3, 1]),
        (Filters(level="1m"), [2]),
        (Filters(topic="invoices"), [3]),
        (Filters(reason="timeout"), [4, 2]),
        (Filters(reason="timeout", state=State.DLQ), [4]),
        (Filters(due_before=300), [2, 3]),
        (Filters(topic="nobody's"), []),
    ],
    ids=str,
)
def test_lists_are_filtered_and_what_is_due_first_comes_first(
    mixed: None, ask: ViewQuery, filters: Filters, found: list[int]
) -> None:
    assert ids(ask.messages(filters, 10).values) == found


def test_each_filter_has_an_index(store: ViewStore) -> None:
    with sqlite3.connect(store.path) as connection:
        for column in ("state", "level", "topic", "reason"):
            query = f"EXPLAIN QUERY PLAN SELECT value FROM message WHERE {column} = ? ORDER BY due, number LIMIT 9"
            plan = " ".join(row[3] for row in connection.execute(query, ("x",)))
            assert f"message_{column}" in plan
            assert "TEMP B-TREE" not in plan
    connection.close()


def test_pages_together_are_the_list_also_where_due_times_are_equal(store: ViewStore, ask: ViewQuery) -> None:
    take(store, *(view_row(number, due=number % 3) for number in range(50)))
    found: list[int] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        page = ask.messages(Filters(state=State.WAITING_RETRY), 7, cursor)
        found += ids(page.values)
        cursor, pages = page.cursor, pages + 1
    assert pages == 8
    assert found == sorted(range(50), key=lambda number: (number % 3, number))


def test_a_cursor_is_good_for_its_own_list_alone(store: ViewStore, ask: ViewQuery, tmp_path: Path) -> None:
    take(store, *(view_row(number) for number in range(3)))
    cursor = ask.messages(Filters(topic="orders"), 1).cursor
    assert cursor is not None
    for filters in (Filters(), Filters(topic="invoices"), Filters(level="orders"), Filters(topic="orders", level="x")):
        with pytest.raises(BadCursorError):
            ask.messages(filters, 1, cursor)
    with pytest.raises(BadCursorError):
        ask.sums(0, 1, cursor)
    other = open_store(tmp_path, GROUP)
    with questions(other.path) as elsewhere, pytest.raises(BadCursorError):
        elsewhere.messages(Filters(topic="orders"), 1, cursor)
    other.close()


@pytest.mark.parametrize("forged", ["", "x", "é", "A" * 38, "A" * 5_000, "****", "e30=", "=" * 9])
def test_a_forged_cursor_is_refused(store: ViewStore, ask: ViewQuery, forged: str) -> None:
    with pytest.raises(BadCursorError):
        ask.messages(Filters(), 1, forged)


def test_failures_are_counted_in_their_window_by_reason(store: ViewStore, ask: ViewQuery) -> None:
    rows = [view_row(number, reason="a" if number % 3 else "b", last_failed_at=number) for number in range(10)]
    take(store, *rows, view_row(99, State.COMMIT, reason="a", last_failed_at=5))
    assert ask.failures(3, 8) == Failures(6, (("a", 5), ("b", 1)))
    assert ask.failures(100, 200) == Failures(0, ())


def test_a_question_that_takes_too_long_is_given_up(store: ViewStore) -> None:
    take(store, *(view_row(number) for number in range(5_000)))
    with questions(store.path, within=-1) as query, pytest.raises(sqlite3.OperationalError, match="interrupted"):
        query.failures(0, 2**62)


def test_a_reader_cannot_write(store: ViewStore) -> None:
    with questions(store.path) as query, pytest.raises(sqlite3.OperationalError, match="readonly"):
        query._connection.execute("DELETE FROM message")


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    store = open_store(tmp_path, GROUP)
    store.begin_anew(Kind.VIEW, PLACE[0], "one")
    take(store, view_row(1))
    store.note(Facts(5, 6))
    store.close()
    again = open_store(tmp_path, GROUP)
    assert (again.positions(), again.facts(), again.identity(Kind.VIEW)) == ({PLACE: 1}, Facts(5, 6), "one")
    again.close()


def test_another_topic_of_the_same_name_is_begun_anew(store: ViewStore, ask: ViewQuery) -> None:
    take(store, view_row(1), stats_row())
    store.note(Facts(5, 6))
    store.begin_anew(Kind.VIEW, PLACE[0], "two")
    assert (ask.message("orders:0:1"), store.positions(), store.facts()) == (None, {}, Facts(None, 0))
    assert len(ask.sums(0, 10).values) == 1


def test_two_sidecars_in_one_folder_have_a_file_each(tmp_path: Path) -> None:
    one, two = open_store(tmp_path, GROUP), open_store(tmp_path, GROUP)
    assert one.path != two.path
    take(one, view_row(1))
    assert two.positions() == {}
    one.close()
    three = open_store(tmp_path, GROUP)
    assert three.path == one.path
    assert three.positions() == {PLACE: 1}
    two.close()
    three.close()


@pytest.mark.parametrize("junk", [b"junk" * 5_000, b"SQLite format 3\0" + b"\xff" * 50_000], ids=["text", "header"])
def test_a_broken_file_is_made_anew(tmp_path: Path, junk: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path, GROUP)
    take(store, view_row(1))
    store.close()
    store.path.write_bytes(junk)
    again = open_store(tmp_path, GROUP)
    assert again.positions() == {}
    assert "broken, and read anew" in caplog.text
    take(again, view_row(1))
    again.close()


def test_pages_that_were_overwritten_are_found_at_the_start(tmp_path: Path) -> None:
    store = open_store(tmp_path, GROUP)
    take(store, *(view_row(number) for number in range(500)))
    store.close()
    size = store.path.stat().st_size
    with store.path.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xa5" * 4096 * 3)
    again = open_store(tmp_path, GROUP)
    assert again.positions() == {}
    again.close()


def test_a_file_of_another_form_is_made_anew(tmp_path: Path) -> None:
    store = open_store(tmp_path, GROUP)
    take(store, view_row(1))
    store._connection.execute("PRAGMA user_version = 99")
    store.close()
    again = open_store(tmp_path, GROUP)
    assert again.positions() == {}
    again.close()


def test_a_lost_file_is_noticed(store: ViewStore) -> None:
    assert store.intact()
    store.path.unlink()
    assert not store.intact()


def test_a_temporary_folder_goes_with_its_store_and_nobody_else_can_read_it() -> None:
    store = open_store(None, GROUP)
    folder = store.path.parent
    assert (folder.stat().st_mode & 0o077, store.path.stat().st_mode & 0o077) == (0, 0)
    store.close()
    assert not folder.exists()


def test_a_folder_that_cannot_be_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        open_store(tmp_path / "file" / "view", GROUP)
