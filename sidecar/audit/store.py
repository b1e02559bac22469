"""Keep what an audit has read in one SQLite file in a temporary folder, so that memory stays bounded.

Rows are packed facts under the id of their record. Nothing is synced, because the file is deleted after the run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import groupby, islice

import msgspec

from reconsume.sidecar.audit.facts import Fact, Number, position_of
from reconsume.sidecar.files import TemporaryFolder

CACHE_KIB = 16_384
"""KiB of the file's pages in memory. It also bounds each step of a sort."""
LARGEST_STORY = 20_000
"""Facts of one record that are looked at together. The longest honest life has some 10 (retries and hops in 10 days)
times its redrives. A record with more is a flood, and only a part of it is looked at."""

PRAGMAS = ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE", f"cache_size = -{CACHE_KIB}")
TABLES = """
CREATE TABLE fact (id TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE output (id TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE wanted (topic TEXT, number INTEGER, position INTEGER, PRIMARY KEY (topic, number, position)) WITHOUT ROWID;
"""
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Fact)


class Table(StrEnum):
    """Where facts are kept. Outputs are apart: they fetch no main record, and most are of records that never failed."""

    FACT = "fact"
    OUTPUT = "output"


class AuditStore:
    """The facts of one audit. A context manager: the file is deleted after it. Raises sqlite3.Error."""

    def __init__(self) -> None:
        self._temporary = TemporaryFolder("reconsume-audit-")
        self.folder = self._temporary.path
        self._connection = sqlite3.connect(self.folder / "facts.sqlite", isolation_level=None)
        for pragma in PRAGMAS:
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.executescript(TABLES)
        self.cut: list[str] = []
        """Ids of records of which only a part was looked at."""

    def __enter__(self) -> AuditStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._temporary.remove()

    def put(self, facts: Iterable[Fact], table: Table = Table.FACT) -> int:
        """Keep facts; return how many there were."""
        self._connection.execute("BEGIN")
        rows = ((fact.id, _ENCODER.encode(fact)) for fact in facts)
        try:
            return self._connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows).rowcount
        finally:  # where reading has failed, what came before it is kept
            self._connection.execute("COMMIT")

    def arrange(self) -> None:
        """Index the facts by id. Called once, after nearly all facts are stored."""
        for table in Table:
            self._connection.execute(f"CREATE INDEX IF NOT EXISTS {table}_id ON {table} (id)")

    def want(self, topics: Iterable[str]) -> dict[Number, tuple[int, int]]:
        """Note which records of these topics the facts refer to. Return their first and last offset by partition."""
        names = tuple(topics)
        found = self._connection.execute("SELECT DISTINCT id FROM fact")
        self._connection.execute("BEGIN")
        writing = self._connection.cursor()
        writing.executemany(
            "INSERT OR IGNORE INTO wanted VALUES (?, ?, ?)",
            (position for (identity,) in found if (position := position_of(identity))[0] in names),
        )
        self._connection.execute("COMMIT")
        spans = self._connection.execute(
            "SELECT topic, number, min(position), max(position) FROM wanted GROUP BY topic, number"
        )
        return {(topic, number): (first, last) for topic, number, first, last in spans}

    def wanted(self, partition: Number) -> Iterator[int]:
        """Return the offsets of a partition that facts refer to, in rising order."""
        query = "SELECT position FROM wanted WHERE topic = ? AND number = ? ORDER BY position"
        return (offset for (offset,) in self._connection.execute(query, partition))

    def deleted(self, partition: Number, begin: int) -> int:
        """Return how many records that facts refer to lie before the first offset of their partition."""
        query = "SELECT count(*) FROM wanted WHERE topic = ? AND number = ? AND position < ?"
        (count,) = self._connection.execute(query, (*partition, begin)).fetchone()
        return int(count)

    def count(self) -> int:
        """Return how many records there are facts of."""
        (count,) = self._connection.execute("SELECT count(DISTINCT id) FROM fact").fetchone()
        return int(count)

    def by_record(self, table: Table = Table.FACT) -> Iterator[list[Fact]]:
        """Yield the facts of one record after another."""
        found = self._connection.execute(f"SELECT id, body FROM {table} ORDER BY id")
        for identity, rows in groupby(found, key=lambda row: row[0]):
            facts = [_DECODER.decode(body) for _, body in islice(rows, LARGEST_STORY)]
            if next(rows, None) is not None:
                self.cut.append(identity)
            yield facts

    def facts_of(self, identity: str) -> list[Fact]:
        """Return the facts of a record without its outputs, a flood's first ones alone."""
        bodies = self._connection.execute("SELECT body FROM fact WHERE id = ? LIMIT ?", (identity, LARGEST_STORY))
        return [_DECODER.decode(body) for (body,) in bodies]
