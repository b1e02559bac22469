"""The tables of the local copy of the view: their schema, how the file is opened, and how records get into them.

Of Spark's view each record is a row. Events are folded: a record's row is read, merged and written back. The caller
holds a transaction in which it also stores the positions. So each event counts once in the sums.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from reconsume.sidecar.files import open_private
from reconsume.topics import versions
from reconsume.topics.attempt import attempt_of
from reconsume.topics.events import RANKS, Event
from reconsume.topics.fold import Folded, added, merged, sums_of
from reconsume.topics.names import Kind
from reconsume.topics.view_record import Forgotten, StatsRow, ViewRow, encode_row, stats_key

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


# --- events ----------------------------------------------------------------------------------------------------------


MOST_KEYS = 50
"""Records that one query looks for. One by one they would cost a third more."""
FIND = f"SELECT id, number, part, place, value FROM message WHERE id IN ({', '.join('?' * MOST_KEYS)})"
INSERT = "INSERT INTO message VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
UPDATE = """
UPDATE message SET id = ?, state = ?, level = ?, topic = ?, reason = ?, due = ?, last_failed_at = ?, cycle = ?,
    redrives = ?, times = ?, rank = ?, at = ?, updated_at = ?, part = ?, place = ?, written = ?, value = ?
WHERE number = ?
"""

_ROW = msgspec.json.Decoder(ViewRow)
_SUMS = msgspec.json.Decoder(StatsRow)


class Taken(NamedTuple):
    """What a batch of events has changed.

    `rows`: the rows that differ now, as items of the view. `new`: how many of them are new. `left_out`: records that
    had no room.
    """

    rows: list[Item]
    new: int
    left_out: int


def fold_in(run: sqlite3.Connection, items: Sequence[Item], room: int) -> Taken:
    """Fold events into the rows and the sums; take at most `room` new records, and leave out the others.

    The sums count every event. Raises sqlite3.Error.
    """
    _add_sums(run, items)
    folded = _by_record(items)
    kept = _kept(run, list(folded))
    new = [key for key in folded if key not in kept]
    taken = new[: max(0, room)]
    changed = {key: now for key, (_, before) in kept.items() if (now := merged(before, folded[key])) != before}
    run.executemany(INSERT, (_values(folded[key]) for key in taken))
    run.executemany(UPDATE, ((*_values(now), kept[key][0]) for key, now in changed.items()))
    rows = [_item(one) for one in (*(folded[key] for key in taken), *changed.values())]
    return Taken(rows, len(taken), len(new) - len(taken))


def _by_record(items: Iterable[Item]) -> dict[str, Folded]:
    rows: dict[str, Folded] = {}
    for item in items:
        assert isinstance(item.value, ViewRow)
        one = Folded(item.value, item.partition, item.offset)
        known = rows.get(item.key)
        rows[item.key] = one if known is None else merged(known, one)
    return rows


def _kept(run: sqlite3.Connection, keys: Sequence[str]) -> dict[str, tuple[int, Folded]]:
    """Return the number and the row of each of these records that has a row."""
    kept: dict[str, tuple[int, Folded]] = {}
    for begin in range(0, len(keys), MOST_KEYS):
        some: list[str | None] = [*keys[begin : begin + MOST_KEYS]]
        selected = run.execute(FIND, (*some, *[None] * (MOST_KEYS - len(some))))
        kept |= {key: (number, Folded(_ROW.decode(value), *order)) for key, number, *order, value in selected}
    return kept


def _values(one: Folded) -> tuple[object, ...]:
    return row_values(one.row, one.partition, one.offset, one.row.updated_at)


def _item(one: Folded) -> Item:
    return Item(Kind.VIEW, one.row.id, one.row, one.offset, one.row.updated_at, one.partition)


def _add_sums(run: sqlite3.Connection, items: Sequence[Item]) -> None:
    written = max((item.written for item in items), default=0)
    changed = []
    for sums in sums_of(item.event for item in items if item.event is not None).values():
        key = stats_key(sums)
        kept = run.execute("SELECT value FROM sums WHERE key = ?", (key,)).fetchone()
        now = sums if kept is None else added(_SUMS.decode(kept[0]), sums)
        changed.append((key, now.minute, written, encode_row(now)))
    run.executemany(PUT_SUMS, changed)
