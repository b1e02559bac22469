"""The local copy of the view: one SQLite file with a row for each record, and sums by minute.

It is the same table whatever it is made from. With `view.source: events` each event gives a row and counts in the sums.
With `spark` the rows come from the topic that the Spark job writes, and the events only count. Either way a row is a
function of one event, and the greater row of a record stays (contract 11.2), so rows may come in any order and again.
A sum does not survive that. So rows, sums and the offsets up to which they were read are one transaction: what a crash
loses or breaks is read anew from Kafka.

Three bounds keep the file small. A copy of events holds so many records, and so many bytes: then the oldest done
records make room (`make_room`), and what finds none is left out and counted. The sums have rows and bytes of their own:
of them the oldest minutes go. A copy of Spark's rows is bounded by the disk.

One thread writes. Any thread may query, each with its own connection (`query.py`). Queries, and the opening of a new
file instead of a broken one, take turns (`reading`, `opening`). SQLite knows a file by its inode, and its log (`-wal`,
`-shm`) by its path: a connection to a former file of the same name would cut off the new file's log, and any access to
that ends the process with SIGBUS. SQLite's own locks do not help, as those of POSIX hold between processes alone.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NamedTuple

from reconsume.sidecar.files import TemporaryFolder, open_private, private_folder
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.view.source import Source
from reconsume.topics import versions
from reconsume.topics.attempt import attempt_of
from reconsume.topics.events import RANKS, Event, Order, State, order
from reconsume.topics.fold import sums_of
from reconsume.topics.names import Kind
from reconsume.topics.position_ranges import Resets, is_superseded
from reconsume.topics.retry_headers import LARGEST_COUNT
from reconsume.topics.view_record import COUNTED, Forgotten, ViewRow, encode_row

_LOG = logging.getLogger("reconsume.view")

# --- the tables -------------------------------------------------------------------------------------------------------

FORM = 5
"""The version of the schema. A file with another version is created anew."""
BUSY_SECONDS = 5.0
CACHE_KIB = 4_096
WAL_LIMIT = 16 * 1024 * 1024
"""Bytes of disk that the write-ahead log keeps after it was longer."""
CHECKPOINT_PAGES = 4_000
"""Pages of 4 KiB in that log until they are written back. With SQLite's 1 000 the fold of events costs a third more."""

# SQLite ends each index with `number`. Lists are ordered by it within one due time, at no cost. An additional index on
# the id would double the cost of a write (measured: 45 against 80 µs).
TABLES = f"""
CREATE TABLE message (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, level TEXT, topic TEXT NOT NULL,
    reason TEXT NOT NULL, due INTEGER NOT NULL, last_failed_at INTEGER NOT NULL,
    cycle INTEGER NOT NULL, redrives INTEGER NOT NULL, times INTEGER NOT NULL, rank INTEGER NOT NULL,
    at INTEGER NOT NULL, tie INTEGER NOT NULL, place INTEGER NOT NULL, written INTEGER NOT NULL,
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
    number INTEGER PRIMARY KEY, minute INTEGER NOT NULL, topic TEXT NOT NULL, level TEXT NOT NULL, reason TEXT NOT NULL,
    waiting INTEGER NOT NULL, committed INTEGER NOT NULL, dead INTEGER NOT NULL, redriven INTEGER NOT NULL,
    UNIQUE (minute, topic, level, reason)
);
CREATE INDEX sums_minute ON sums (minute);
CREATE TABLE position (
    topic TEXT NOT NULL, number INTEGER NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (topic, number)
) WITHOUT ROWID;
CREATE TABLE fact (name TEXT NOT NULL PRIMARY KEY, value) WITHOUT ROWID;
PRAGMA user_version = {FORM};
"""
PUT_ROW = """
INSERT INTO message VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    state = excluded.state, level = excluded.level, topic = excluded.topic, reason = excluded.reason,
    due = excluded.due, last_failed_at = excluded.last_failed_at, cycle = excluded.cycle,
    redrives = excluded.redrives, times = excluded.times, rank = excluded.rank, at = excluded.at,
    tie = excluded.tie, place = excluded.place, written = excluded.written, value = excluded.value
WHERE (excluded.cycle, excluded.redrives, excluded.times, excluded.rank, excluded.at, excluded.tie, excluded.place)
    > (cycle, redrives, times, rank, at, tie, place)
"""
ADD_SUMS = f"""
INSERT INTO sums VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (minute, topic, level, reason) DO UPDATE SET
    {", ".join(f"{name} = min({name} + excluded.{name}, {LARGEST_COUNT})" for name in COUNTED)}
"""
SUPERSEDED = "SUPERSEDED"
"""The state of a row whose record a reset has had delivered again since. Its JSON keeps the state of the event, and has
`"superseded": true`. It is no row of a level, and not due."""
SUPERSEDE = f"""
UPDATE message SET state = '{SUPERSEDED}', level = NULL, due = 0, value = flagged(value)
WHERE topic = ? AND state <> '{SUPERSEDED}' AND is_superseded(id, cycle)
"""
BYTES = " + ".join(f"length(CAST({name} AS BLOB))" for name in ("topic", "level", "reason"))
SUMS_SIZE = f"SELECT count(*), coalesce(sum({BYTES}), 0) FROM sums"
SUMS_BY_MINUTE = f"SELECT minute, count(*), sum({BYTES}) FROM sums GROUP BY minute ORDER BY minute DESC"
MOST_KEYS = 50
"""Records that one query looks for. One by one they would cost a third more."""
KNOWN = f"SELECT id FROM message WHERE id IN ({', '.join('?' * MOST_KEYS)})"


def connect(path: Path, group: str) -> sqlite3.Connection:
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
            connection.execute("INSERT INTO fact VALUES ('group', ?)", (group,))
        passed = connection.execute("SELECT value FROM fact WHERE name = ?", (PASSED_OVER,)).fetchone()
        if passed is not None and passed[0] <= versions.READ:
            raise sqlite3.DatabaseError(f"rows of version {passed[0]} were passed over, and can be read now")
    except BaseException:
        connection.close()
        raise
    return connection


# --- what goes in, and what is known ----------------------------------------------------------------------------------


class RowRead(NamedTuple):
    """A row as it was read, and when (epoch ms) it was written. Of two rows whose events are equal in order, the one
    with the greater `tie`, then with the greater `offset`, stays."""

    row: ViewRow
    tie: int
    offset: int
    written: int


class Batch(NamedTuple):
    """What one turn has read: rows and tombstones in the order in which they were read, events for the sums, and the
    next offset of each partition. `newer`: versions of records that only a newer program can read."""

    rows: list[RowRead | Forgotten]
    events: list[Event]
    moved: dict[PartitionName, int]
    newer: list[int]


class Facts(NamedTuple):
    """The known state of the copy.

    `as_of`: epoch ms up to which it is complete; None if it was never read to the end. `since`: epoch ms from which on
    it has every event; 0 if it has all that were ever written.
    """

    as_of: int | None
    since: int = 0


class Bound(NamedTuple):
    """How much a copy may hold: records, and bytes of their part of the file; minutes of sums by topic, level and
    reason, and bytes of their names."""

    records: int = 2_000_000
    bytes: int = 2_000_000_000
    sums: int = 200_000
    sums_bytes: int = 50_000_000

    @property
    def step(self) -> int:
        """Done records that make room at a time; room is made when so much is left."""
        return max(1, self.records // 20)


BOUND = Bound()
"""The bound of a copy that is made from events."""
SPARK_BOUND = Bound(records=2**62, bytes=2**62)
"""The bound of a copy of Spark's rows: the disk, and for the sums as above."""


class Missing(NamedTuple):
    """What a copy lacks because of its bound: done records that made room for others, events of records that had no
    room, and the sums of minutes before `minute` (epoch ms; 0: none)."""

    done: int = 0
    events: int = 0
    minute: int = 0


LEFT_OUT, GIVEN_UP, SUMS_BEGIN = "left-out", "given-up", "sums-begin"
"""The facts that hold the fields of Missing."""
PASSED_OVER = "passed-over"
"""The fact that holds the lowest `v` of the rows that no version which wrote the file could read."""


class ViewCopy:
    """An open file. All calls must come from the thread that opened it; each raises sqlite3.Error.

    `source`: what it is made from. `temporary`: the folder of a file that is removed when the copy is closed.
    """

    def __init__(
        self,
        path: Path,
        group: str,
        source: Source,
        bound: Bound,
        lock: IO[bytes],
        temporary: TemporaryFolder | None = None,
    ) -> None:
        self.path, self.source = path, source
        self._lock, self._temporary, self._bound = lock, temporary, bound
        self._connection = connect(path, group)
        self._inode = path.stat().st_ino
        self._connection.create_function("flagged", 1, flagged, deterministic=True)
        self._connection.create_function("is_superseded", 2, self._is_superseded)
        self._resets: Resets = {}
        self._count_records()
        self._count_sums()

    def _count_records(self) -> None:
        (self._records,) = self._connection.execute("SELECT count(*) FROM message").fetchone()
        self._is_estimate = False
        """Whether the number of records may be too high: rows of known records were counted as new."""

    def _count_sums(self) -> None:
        self._sums, self._sums_bytes = self._connection.execute(SUMS_SIZE).fetchone()

    # --- what is known -----------------------------------------------------------------------------------------------

    def positions(self) -> dict[PartitionName, int]:
        """Return the next offset of each partition that was read."""
        rows = self._connection.execute("SELECT topic, number, next FROM position")
        return {(topic, number): after for topic, number, after in rows}

    def facts(self) -> Facts:
        """Return what is known of the copy."""
        return Facts(self._fact("as_of"), self._fact("since") or 0)

    def rows_since(self, facts: Facts) -> int:
        """Return the epoch ms from which on the rows have every event; 0 if none is lacking."""
        return facts.since if self.source is Source.EVENTS else 0

    def sums_since(self, facts: Facts) -> int:
        """Return the epoch ms from which on the sums count every event; 0 if they count all."""
        return max(facts.since, self.missing.minute)

    @property
    def missing(self) -> Missing:
        """What the copy lacks because of its bound."""
        return Missing(*(self._fact(name) or 0 for name in (GIVEN_UP, LEFT_OUT, SUMS_BEGIN)))

    @property
    def is_tight(self) -> bool:
        """Whether room should be made soon."""
        return self._room() <= self._bound.step

    def identity(self, kind: Kind) -> str | None:
        """Return the id that Kafka gave the topic that was read; None before any was read."""
        stored: str | None = self._fact(f"identity-{kind}")
        return stored

    def intact(self) -> bool:
        """Whether the file still lies where readers look for it."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    # --- what changes it ---------------------------------------------------------------------------------------------

    def begin_anew(self, kind: Kind, topic: str, identity: str) -> None:
        """Delete all that was read from the topic: it is another topic now."""
        gives_rows = kind is Kind.VIEW or self.source is Source.EVENTS
        with self._transaction() as run:
            if gives_rows:
                run.execute("DELETE FROM message")
                run.execute("DELETE FROM fact WHERE name IN ('as_of', ?, ?)", (LEFT_OUT, GIVEN_UP))
            if kind is Kind.EVENTS:
                run.execute("DELETE FROM sums")
                run.execute("DELETE FROM fact WHERE name IN ('since', ?)", (SUMS_BEGIN,))
            run.execute("DELETE FROM position WHERE topic = ?", (topic,))
            self._note(f"identity-{kind}", identity)
        self._count_records()
        self._count_sums()

    def store_batch(self, batch: Batch, since: int = 0) -> None:
        """Store a batch and its next offsets in one transaction. `since` is that of the facts.

        Rows of new records are left out while the copy holds as much as it may. The sums count every event.
        """
        with self._transaction() as run:
            self._add_sums(run, batch.events)
            left_out = self._put_rows(run, batch.rows)
            run.executemany(
                "INSERT OR REPLACE INTO position VALUES (?, ?, ?)",
                [(topic, number, after) for (topic, number), after in batch.moved.items()],
            )
            if batch.newer:  # the version that can read them will read everything anew
                self._note(PASSED_OVER, min(*batch.newer, self._fact(PASSED_OVER) or batch.newer[0]))
            self._note("since", since)
            if left_out:
                self._note(LEFT_OUT, self.missing.events + left_out)
        if self._sums > self._bound.sums or self._sums_bytes > self._bound.sums_bytes:
            self._drop_oldest_sums()

    def _put_rows(self, run: sqlite3.Connection, rows: Sequence[RowRead | Forgotten]) -> int:
        """Put rows and tombstones. Return how many rows had no room."""
        left_out = 0
        for gone, group in groupby(rows, lambda read: isinstance(read, Forgotten)):
            if gone:
                run.executemany("DELETE FROM message WHERE id = ?", [(one.key,) for one in group])  # type: ignore[union-attr]
                continue
            read: list[RowRead] = [*group]  # type: ignore[list-item]
            greatest: dict[str, RowRead] = {}
            for one in read:  # a record that fails and is done within a batch is written once
                known = greatest.get(one.row.id)
                if known is None or _order_of_row(one) > _order_of_row(known):
                    greatest[one.row.id] = one
            if self._is_estimate and len(greatest) > self._room():
                self._count_records()
            if len(greatest) > (room := self._room()):  # what is new matters: it is looked for
                new = self._new_of(run, list(greatest))
                refused = frozenset(new[room:])
                left_out += sum(one.row.id in refused for one in read)
                greatest = {key: one for key, one in greatest.items() if key not in refused}
                self._records += len(new) - len(refused)
            else:
                self._records, self._is_estimate = self._records + len(greatest), True
            run.executemany(PUT_ROW, map(self._values_of_row, greatest.values()))
        return left_out

    def _values_of_row(self, read: RowRead) -> tuple[object, ...]:
        row = read.row
        is_old = bool(self._resets) and is_superseded(self._resets, row.id, row.cycle)
        return (
            row.id,
            *((SUPERSEDED, None) if is_old else (str(row.state), row.level)),
            row.topic,
            row.reason,
            0 if is_old else row.due,
            row.last_failed_at,
            *attempt_of(row),
            RANKS[row.state],
            row.at,
            read.tie,
            read.offset,
            read.written,
            flagged(encode_row(row)) if is_old else encode_row(row),
        )

    def _new_of(self, run: sqlite3.Connection, keys: list[str]) -> list[str]:
        """Return the records that are not in the copy."""
        known = set[str]()
        for begin in range(0, len(keys), MOST_KEYS):
            some: list[str | None] = [*keys[begin : begin + MOST_KEYS]]
            known.update(key for (key,) in run.execute(KNOWN, (*some, *[None] * (MOST_KEYS - len(some)))))
        return [key for key in keys if key not in known]

    def _add_sums(self, run: sqlite3.Connection, events: Sequence[Event]) -> None:
        begin = self._fact(SUMS_BEGIN) or 0
        sums = [
            (one.minute, one.topic, one.level or "", one.reason, one.waiting, one.committed, one.dead, one.redriven)
            for one in sums_of(events).values()
            if one.minute >= begin
        ]
        if sums:
            run.executemany(ADD_SUMS, sums)
            self._sums, self._sums_bytes = self._sums + len(sums), self._sums_bytes + _bytes_of_sums(sums)

    def _drop_oldest_sums(self) -> None:
        """Delete the oldest minutes until a twentieth of the bound is free. Nothing is deleted if all of it fits: what
        was added since the last count may have been there."""
        self._count_sums()
        bound = self._bound
        if self._sums <= bound.sums and self._sums_bytes <= bound.sums_bytes:
            return
        most, most_bytes = bound.sums * 19 // 20, bound.sums_bytes * 19 // 20
        with self._transaction() as run:
            rows = size = begin = 0
            for minute, rows_of_minute, size_of_minute in run.execute(SUMS_BY_MINUTE).fetchall():
                rows, size = rows + rows_of_minute, size + size_of_minute
                if rows > most or size > most_bytes:
                    begin = begin or minute + 1  # not even the newest minute fits
                    break
                begin = minute
            run.execute("DELETE FROM sums WHERE minute < ?", (begin,))
            self._note(SUMS_BEGIN, begin)
        self._count_sums()

    def supersede(self, resets: Resets) -> None:
        """Note which rows resets have superseded, now and from now on. `resets`: of the topics as they are now."""
        if resets == self._resets:
            return
        self._resets = resets
        with self._transaction() as run:
            run.executemany(SUPERSEDE, [(topic,) for topic in sorted({source.topic for source in resets})])

    def _is_superseded(self, ident: str, cycle: int) -> bool:
        return is_superseded(self._resets, ident, cycle)

    def make_room(self) -> None:
        """Delete the oldest of the done records, if it is tight. Those that wait or are dead are what it is for."""
        self._count_records()
        if not self.is_tight:
            return
        oldest = "SELECT number FROM message WHERE state IN (?, ?) ORDER BY written LIMIT ?"
        with self._transaction() as run:
            done = run.execute(
                f"DELETE FROM message WHERE number IN ({oldest})", (State.COMMIT, SUPERSEDED, self._bound.step)
            )
            if done.rowcount:
                self._note(GIVEN_UP, self.missing.done + done.rowcount)
        self._count_records()

    def drop_older(self, rows: int | None, minutes: int) -> None:
        """Delete rows that were written before `rows` (epoch ms; None: none), and sums of minutes before `minutes`: by
        their retention they would have left a topic too."""
        with self._transaction() as run:
            if rows is not None:
                run.execute("DELETE FROM message WHERE written < ?", (rows,))
            run.execute("DELETE FROM sums WHERE minute < ?", (minutes,))
        self._count_records()
        self._count_sums()

    def store_facts(self, facts: Facts) -> None:
        """Store what is known, for the next start."""
        with self._transaction():
            for name, value in facts._asdict().items():
                self._note(name, value)

    def close(self) -> None:
        """Close the file, whose name another sidecar may then have. Remove a temporary file."""
        self._connection.close()
        self._lock.close()
        if self._temporary is not None:
            self._temporary.remove()

    def _room(self) -> int:
        """Return how many more records may be taken."""
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        fits = (pages - free) * size - self._sums_bytes < self._bound.bytes
        return max(0, self._bound.records - self._records) if fits else 0

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._count_records()
            self._count_sums()
            raise
        self._connection.execute("COMMIT")

    def _fact(self, name: str) -> Any:
        row = self._connection.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def _note(self, name: str, value: object) -> None:
        self._connection.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))


def _order_of_row(read: RowRead) -> tuple[Order, int, int]:
    return order(read.row), read.tie, read.offset


def flagged(value: bytes) -> bytes:
    """Return the JSON of a row with `"superseded": true` at its end."""
    return value[:-1] + b',"superseded":true}'


def _bytes_of_sums(sums: Sequence[tuple[Any, ...]]) -> int:
    return sum(len(name.encode()) for _, topic, level, reason, *_ in sums for name in (topic, level, reason))


# --- the file ---------------------------------------------------------------------------------------------------------

MOST_FILES = 64
"""Files of one group in one folder. Each running sidecar has its own."""
FILES = {Source.SPARK: "view", Source.EVENTS: "events"}
"""The word in the name of a file, by what it is made from. A copy of the one never becomes a copy of the other."""
WITHIN = 10.0
"""Seconds. Queries of the running sidecar take at most 5."""

_changed = threading.Condition()
_readers: Counter[Path] = Counter()
_being_opened: set[Path] = set()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Keep a file where it is. Raises sqlite3.OperationalError while it is opened anew."""
    with _changed:
        if path in _being_opened:
            raise sqlite3.OperationalError("the file is being opened anew")
        _readers[path] += 1
    try:
        yield
    finally:
        with _changed:
            _readers.subtract([path])
            if not _readers[path]:
                del _readers[path]
            _changed.notify_all()


@contextmanager
def opening(path: Path, within: float = WITHIN) -> Iterator[None]:
    """Wait until nobody reads, and let nobody begin. Raises sqlite3.OperationalError if that takes longer."""
    with _changed:
        _being_opened.add(path)
    try:
        with _changed:
            if not _changed.wait_for(lambda: not _readers[path], within):
                raise sqlite3.OperationalError(f"queries still read the former file after {within:g} s")
        yield
    finally:
        with _changed:
            _being_opened.remove(path)


def open_copy(folder: Path | None, group: str, source: Source, bound: Bound | None = None) -> ViewCopy:
    """Open a file that no other sidecar uses, with what an earlier start left in it. Raises OSError, sqlite3.Error.

    The file is in a folder of this user's own in `folder`, which others may write to. None: in a temporary folder,
    which is removed when the copy is closed. `source`: what it is made from. `bound`: None for the usual one.
    """
    bound = bound or (BOUND if source is Source.EVENTS else SPARK_BOUND)
    temporary = None
    if folder is None:
        temporary = TemporaryFolder("reconsume-view-")
        own = temporary.path
    else:
        own = private_folder(folder)
    name, lock = _lock_file(own, f"{group}-{FILES[source]}")
    try:
        with opening(path := own / f"{name}.sqlite"):
            try:
                return ViewCopy(path, group, source, bound, lock, temporary)
            except sqlite3.OperationalError:
                raise  # the disk is full or may not be written: a new file would fail as well
            except sqlite3.DatabaseError as fault:
                text = "the local copy of the view cannot be used and is read again: %s"
                _LOG.warning(text, fault, extra={"event": "view-rebuilt"})
                for suffix in ("-wal", "-shm", ""):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
                return ViewCopy(path, group, source, bound, lock, temporary)
    except BaseException:
        lock.close()
        raise


def _lock_file(folder: Path, prefix: str) -> tuple[str, IO[bytes]]:
    """Return the first name that no process holds, with its lock. The lock ends with the process, however it ends."""
    for number in range(MOST_FILES):
        name = f"{prefix}-{number}"
        lock = open_private(folder / f"{name}.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return name, lock
    raise OSError(f"all {MOST_FILES} files for the view in {folder} are in use")
