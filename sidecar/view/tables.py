"""The tables of the local copy of the view: their schema, how a record is written to them, how the file is opened."""

from __future__ import annotations

import secrets
import sqlite3
from pathlib import Path
from typing import NamedTuple

from reconsume.sidecar.files import open_private
from reconsume.topics import versions
from reconsume.topics.attempt import attempt_of
from reconsume.topics.events import RANKS, Event
from reconsume.topics.names import Kind
from reconsume.topics.view_record import Forgotten, StatsRow, ViewRow, encode_row

# SQLite ends each index with `number`. Lists are ordered by it within one due time, at no cost. An additional index on
# the id would double the cost of a write (measured: 45 against 80 µs).
FORM = 4
"""The version of the schema. A file with another version is created anew."""
PASSED_OVER = "passed-over"
"""The fact that holds the lowest `v` of the rows that no version which wrote the file could read."""
BUSY_SECONDS = 5.0
CACHE_KIB = 4_096
WAL_LIMIT = 16 * 1024 * 1024
"""Bytes of disk that the write-ahead log keeps after it was longer."""
CHECKPOINT_PAGES = 4_000
"""Pages of 4 KiB in that log until they are written back. With SQLite's 1 000 the fold of events costs a third more."""

TABLES = f"""
CREATE TABLE message (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, level TEXT, topic TEXT NOT NULL,
    reason TEXT NOT NULL, due INTEGER NOT NULL, last_failed_at INTEGER NOT NULL,
    cycle INTEGER NOT NULL, redrives INTEGER NOT NULL, times INTEGER NOT NULL, rank INTEGER NOT NULL,
    at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL, part INTEGER NOT NULL, place INTEGER NOT NULL, written INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX message_due ON message (due);
CREATE INDEX message_state ON message (state, due);
CREATE INDEX message_level ON message (level, due);
CREATE INDEX message_topic ON message (topic, due);
CREATE INDEX message_reason ON message (reason, due);
CREATE INDEX message_failed ON message (last_failed_at, reason);
CREATE INDEX message_dead ON message (state, reason, at) WHERE state = 'DLQ';
CREATE INDEX message_written ON message (written);
CREATE TABLE sums (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, minute INTEGER NOT NULL, written INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX sums_minute ON sums (minute);
CREATE INDEX sums_written ON sums (written);
CREATE TABLE position (
    topic TEXT NOT NULL, number INTEGER NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (topic, number)
) WITHOUT ROWID;
CREATE TABLE fact (name TEXT NOT NULL PRIMARY KEY, value) WITHOUT ROWID;
PRAGMA user_version = {FORM};
"""
PUT_MESSAGE = """
INSERT INTO message VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    state = excluded.state, level = excluded.level, topic = excluded.topic, reason = excluded.reason,
    due = excluded.due, last_failed_at = excluded.last_failed_at, cycle = excluded.cycle,
    redrives = excluded.redrives, times = excluded.times, rank = excluded.rank,
    at = excluded.at, updated_at = excluded.updated_at, part = excluded.part, place = excluded.place,
    written = excluded.written, value = excluded.value
WHERE (
    excluded.cycle, excluded.redrives, excluded.times, excluded.rank, excluded.at, excluded.updated_at, excluded.place
) > (cycle, redrives, times, rank, at, updated_at, place)
"""
PUT_SUMS = """
INSERT INTO sums VALUES (NULL, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET minute = excluded.minute, written = excluded.written, value = excluded.value
"""
TABLE: dict[Kind, str] = {Kind.VIEW: "message", Kind.STATS: "sums"}
TABLES_OF: dict[Kind, tuple[str, ...]] = {
    Kind.VIEW: ("message",),
    Kind.STATS: ("sums",),
    Kind.EVENTS: ("message", "sums"),
}
"""The tables that are made from a kind of topic."""


class Item(NamedTuple):
    """A good record as it was read; of a record of the events topic, the row of a record that has no other event.

    `kind` is that of its topic, `written` the epoch ms at which it was written.
    """

    kind: Kind
    key: str
    value: ViewRow | StatsRow | Forgotten
    offset: int
    written: int
    partition: int = 0
    event: Event | None = None


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection to a file of this schema. Raises sqlite3.DatabaseError if the file is broken or lacks rows."""
    # Created here and not by SQLite: no other user may read what the records' ids and reasons say.
    open_private(path).close()
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
    try:
        # NORMAL syncs the log before it is written back. Without that, a power loss could keep positions and lose rows.
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", f"cache_size = -{CACHE_KIB}"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        (form,) = connection.execute("PRAGMA user_version").fetchone()
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok" or form not in (0, FORM):
            raise sqlite3.DatabaseError(verdict if verdict != "ok" else f"it has form {form}")
        if form == 0:
            connection.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")
            connection.execute("INSERT INTO fact VALUES ('cursor-key', ?)", (secrets.token_bytes(32),))
        passed = connection.execute("SELECT value FROM fact WHERE name = ?", (PASSED_OVER,)).fetchone()
        if passed is not None and passed[0] <= versions.READ:
            raise sqlite3.DatabaseError(f"rows of version {passed[0]} were passed over, and can be read now")
    except BaseException:
        connection.close()
        raise
    return connection


def message_values(item: Item) -> tuple[object, ...]:
    """Return the values of a `message` row. The item must hold a ViewRow."""
    row = item.value
    assert isinstance(row, ViewRow)
    return row_values(row, 0, item.offset, item.written)


def row_values(row: ViewRow, partition: int, offset: int, written: int) -> tuple[object, ...]:
    """Return the values of a `message` row, without its number, in the order of the columns."""
    return (
        row.id,
        str(row.state),
        row.level,
        row.topic,
        row.reason,
        row.due,
        row.last_failed_at,
        *attempt_of(row),
        RANKS[row.state],
        row.at,
        row.updated_at,
        partition,
        offset,
        written,
        encode_row(row),
    )


def sums_values(item: Item) -> tuple[object, ...]:
    """Return the values of a `sums` row. The item must hold a StatsRow."""
    row = item.value
    assert isinstance(row, StatsRow)
    return item.key, row.minute, item.written, encode_row(row)
