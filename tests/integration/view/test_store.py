"""The local copy of the view as a file: what it keeps, what it forgets, and what it survives."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from reconsume.sidecar.kafka.admin.descriptions import Topic
from reconsume.sidecar.view.copy import Batch, Facts, RowRead, ViewCopy, connect, open_copy, opening, reading
from reconsume.sidecar.view.query import ViewQuery, questions
from reconsume.sidecar.view.reader import retention_of
from reconsume.sidecar.view.source import Source
from reconsume.topics import versions
from reconsume.topics.events import State
from reconsume.topics.names import Kind
from reconsume.topics.view_record import Forgotten, encode_row
from tests.support.event_histories import EVENT
from tests.support.view_copy import PLACE, read, take, take_counts
from tests.support.view_rows import GROUP, view_row

# --- what it keeps ----------------------------------------------------------------------------------------------------


def test_the_greater_state_is_kept_whatever_came_last(store: ViewCopy, ask: ViewQuery) -> None:
    first = view_row()
    dead = view_row(1, State.DLQ, at=first.at, times=2)
    redriven = view_row(1, State.REDRIVEN, at=first.at, redrives=1, times=0)
    for rows in ([first, dead, redriven], [redriven, first, dead], [dead, redriven, first]):
        take(store, Forgotten(first.id), *rows)
        assert ask.message(first.id) == encode_row(redriven)
    reset = view_row(1, at=first.at - 1, cycle=1)
    take(store, reset, redriven)
    assert ask.message(first.id) == encode_row(reset)


def test_on_a_tie_the_later_update_wins_then_the_later_offset(store: ViewCopy, ask: ViewQuery) -> None:
    old = view_row(1, at=5, updated_at=10, reason="old")
    new = view_row(1, at=5, updated_at=11, reason="new")
    take(store, new, old)
    assert ask.message(old.id) == encode_row(new)
    again = view_row(1, at=5, updated_at=11, reason="again")
    store.store_batch(Batch([read(again, 0)], [], {}, []))
    assert ask.message(old.id) == encode_row(new)
    store.store_batch(Batch([read(again, 7)], [], {}, []))
    assert ask.message(old.id) == encode_row(again)


def test_a_tombstone_removes_what_came_before_it_and_nothing_after(store: ViewCopy, ask: ViewQuery) -> None:
    dead, again = view_row(1, State.DLQ, redrives=3), view_row(1)
    take(store, dead, Forgotten(dead.id), again)
    assert ask.message(dead.id) == encode_row(again)
    take(store, Forgotten(dead.id))
    assert ask.message(dead.id) is None


def test_rows_and_positions_are_one_transaction(store: ViewCopy, ask: ViewQuery) -> None:
    take(store, view_row(1))
    broken = RowRead(view_row(2, reason="r"), 2**70, 1, 1)  # no number that SQLite knows
    with pytest.raises(OverflowError):
        store.store_batch(Batch([read(view_row(3)), broken], [], {PLACE: 9}, []))
    assert store.positions() == {PLACE: 1}
    assert ask.message("orders:0:3") is None
    take(store, view_row(3), view_row(4))
    assert store.positions() == {PLACE: 2}


def test_what_was_written_before_the_retention_leaves(store: ViewCopy, ask: ViewQuery) -> None:
    store.store_batch(Batch([read(view_row(1), 0, written=99), read(view_row(2), 1, written=100)], [], {}, []))
    store.drop_older(100, 0)
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
    assert retention_of(Topic("billing-RETRY-VIEW", 1, 1, config)) == retention


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    store = open_copy(tmp_path, GROUP, Source.SPARK)
    store.begin_anew(Kind.VIEW, PLACE[0], "one")
    take(store, view_row(1))
    store.store_facts(Facts(5))
    store.close()
    again = open_copy(tmp_path, GROUP, Source.SPARK)
    assert (again.positions(), again.facts(), again.identity(Kind.VIEW)) == ({PLACE: 1}, Facts(5), "one")
    again.close()


def test_another_topic_of_the_same_name_is_begun_anew(store: ViewCopy, ask: ViewQuery) -> None:
    take(store, view_row(1))
    take_counts(store, EVENT)
    store.store_facts(Facts(5))
    store.begin_anew(Kind.VIEW, PLACE[0], "two")
    assert (ask.message("orders:0:1"), store.positions(), store.facts()) == (None, {}, Facts(None))
    assert len(ask.sums(0, 10).values) == 1


def test_two_sidecars_in_one_folder_have_a_file_each(tmp_path: Path) -> None:
    one, two = open_copy(tmp_path, GROUP, Source.SPARK), open_copy(tmp_path, GROUP, Source.SPARK)
    assert one.path != two.path
    take(one, view_row(1))
    assert two.positions() == {}
    one.close()
    three = open_copy(tmp_path, GROUP, Source.SPARK)
    assert three.path == one.path
    assert three.positions() == {PLACE: 1}
    two.close()
    three.close()


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_bytes(b"junk" * 999)])
def test_a_new_file_waits_for_the_queries_of_the_former(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    """Else they cut off the new file's log, which is memory of the process: SIGBUS."""
    store = open_copy(tmp_path, GROUP, Source.SPARK)

    def open_anew() -> None:
        again = open_copy(tmp_path, GROUP, Source.SPARK)
        take(again, view_row(1))
        again.close()

    with ThreadPoolExecutor(1) as pool:
        with questions(store.path) as query:
            store.close()
            harm(store.path)
            opened = pool.submit(open_anew)
            with pytest.raises(TimeoutError):
                opened.result(0.2)
            with suppress(sqlite3.Error):
                query.counts()
        opened.result(20)


def test_queries_neither_wait_for_a_new_file_nor_hold_it_up_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with reading(path), pytest.raises(sqlite3.OperationalError, match="still read the former"), opening(path, 0.01):
        raise AssertionError
    with opening(path), pytest.raises(sqlite3.OperationalError, match="being opened anew"), reading(path):
        raise AssertionError
    with reading(path):
        pass


@pytest.mark.parametrize("junk", [b"junk" * 5_000, b"SQLite format 3\0" + b"\xff" * 50_000], ids=["text", "header"])
def test_a_broken_file_is_made_anew(tmp_path: Path, junk: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = open_copy(tmp_path, GROUP, Source.SPARK)
    take(store, view_row(1))
    store.close()
    store.path.write_bytes(junk)
    again = open_copy(tmp_path, GROUP, Source.SPARK)
    assert again.positions() == {}
    assert "cannot be used and is read again" in caplog.text
    take(again, view_row(1))
    again.close()


def test_pages_that_were_overwritten_are_found_at_the_start(tmp_path: Path) -> None:
    store = open_copy(tmp_path, GROUP, Source.SPARK)
    take(store, *(view_row(number) for number in range(500)))
    store.close()
    size = store.path.stat().st_size
    with store.path.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xa5" * 4096 * 3)
    again = open_copy(tmp_path, GROUP, Source.SPARK)
    assert again.positions() == {}
    again.close()


def test_a_file_of_another_form_is_made_anew(tmp_path: Path) -> None:
    store = open_copy(tmp_path, GROUP, Source.SPARK)
    take(store, view_row(1))
    store._connection.execute("PRAGMA user_version = 99")
    store.close()
    again = open_copy(tmp_path, GROUP, Source.SPARK)
    assert again.positions() == {}
    again.close()


def test_a_lost_file_is_noticed(store: ViewCopy) -> None:
    assert store.intact()
    store.path.unlink()
    assert not store.intact()


def test_a_temporary_folder_goes_with_its_store_and_nobody_else_can_read_it() -> None:
    store = open_copy(None, GROUP, Source.SPARK)
    folder = store.path.parent
    assert (folder.stat().st_mode & 0o077, store.path.stat().st_mode & 0o077) == (0, 0)
    store.close()
    assert not folder.exists()


def test_a_folder_that_cannot_be_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        open_copy(tmp_path / "file" / "view", GROUP, Source.SPARK)


def test_rows_that_an_older_version_could_not_read_are_read_by_one_that_can(tmp_path: Path) -> None:
    def kept(passed_over: int) -> bool:
        """Whether a file is still there at the next start that lacks rows of this version."""
        store = open_copy(tmp_path, f"{GROUP}-{passed_over}", Source.SPARK)
        store.store_batch(Batch([read(view_row(1))], [], {PLACE: 9}, [passed_over + 1]))
        store.store_batch(Batch([], [], {PLACE: 10}, [passed_over]))
        store.store_batch(Batch([read(view_row(2))], [], {PLACE: 11}, []))
        store.close()
        again = open_copy(tmp_path, f"{GROUP}-{passed_over}", Source.SPARK)
        positions = again.positions()
        again.close()
        assert positions in ({}, {PLACE: 11})
        return bool(positions)

    assert kept(versions.READ + 1), "this version cannot read them either"
    assert not kept(versions.READ), "an older one has passed them over"


def test_a_loss_of_power_cannot_keep_positions_without_their_rows(tmp_path: Path) -> None:
    connection = connect(tmp_path / "file", GROUP)
    assert connection.execute("PRAGMA synchronous").fetchone() == (1,), "NORMAL: no row is lost behind a position"
    connection.close()
