"""Where an audit keeps what it has read: one SQLite file in a temporary folder, so that memory stays bounded.

Rows are packed facts under the id of their record. Nothing is synced and nothing is kept: the file goes with the run.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import msgspec

from sidecar.audit.facts import Fact, Number

CACHE_KIB = 16_384
"""Of the file's pages; it bounds each step of a sort too."""
LARGEST_STORY = 20_000
"""Facts of one record that are looked at together. The longest honest life has some 10 (retries and hops in 10 days)
times its redrives; what has more is a flood, and is cut."""

PRAGMAS = ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE", f"cache_size = -{CACHE_KIB}")
TABLES = """
CREATE TABLE fact (id TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE wanted (topic TEXT, number INTEGER, place INTEGER, PRIMARY KEY (topic, number, place)) WITHOUT ROWID;
"""
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Fact)


class AuditStore:
    """The facts of one audit. A context manager: the file is gone after it. Raises sqlite3.Error."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="reconsume-audit-"))
        self._connection = sqlite3.connect(self.folder / "facts.sqlite", isolation_level=None)
        for pragma in (
            "journal_mode = OFF",
            "synchronous = OFF",
            "locking_mode = EXCLUSIVE",
            f"cache_size = -{CACHE_KIB}",
        ):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.executescript(TABLES)
        self.cut: list[str] = []
        """Ids of which not all was looked at."""

    def __enter__(self) -> AuditStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def put(self, facts: Iterable[Fact]) -> None:
        """Keep facts."""
        self._connection.execute("BEGIN")
        rows = ((fact.id, _ENCODER.encode(fact)) for fact in facts)
        self._connection.executemany("INSERT INTO fact VALUES (?, ?)", rows)
        self._connection.execute("COMMIT")

    def arrange(self) -> None:
        """Bring the facts in the order of their ids: once, after nearly all are there."""
        self._connection.execute("CREATE INDEX IF NOT EXISTS fact_id ON fact (id)")

    def want(self, topics: Iterable[str]) -> dict[Number, tuple[int, int]]:
        """Note which records of these topics are spoken of; by partition the first and the last offset of them."""
        names = tuple(topics)
        found = self._connection.execute("SELECT DISTINCT id FROM fact")
        self._connection.execute("BEGIN")
        writing = self._connection.cursor()
        writing.executemany(
            "INSERT OR IGNORE INTO wanted VALUES (?, ?, ?)",
            (place for (identity,) in found if (place := place_of(identity))[0] in names),
        )
        self._connection.execute("COMMIT")
        spans = self._connection.execute(
            "SELECT topic, number, min(place), max(place) FROM wanted GROUP BY topic, number"
        )
        return {(topic, number): (first, last) for topic, number, first, last in spans}

    def wanted(self, place: Number) -> Iterator[int]:
        """The offsets of a partition that are spoken of, rising."""
        query = "SELECT place FROM wanted WHERE topic = ? AND number = ? ORDER BY place"
        return (offset for (offset,) in self._connection.execute(query, place))

    def deleted(self, place: Number, begin: int) -> int:
        """How many of a partition's records that are spoken of lie before its first offset."""
        query = "SELECT count(*) FROM wanted WHERE topic = ? AND number = ? AND place < ?"
        (count,) = self._connection.execute(query, (*place, begin)).fetchone()
        return int(count)

    def by_record(self) -> Iterator[list[Fact]]:
        """All facts of one record after another."""
        found = self._connection.execute("SELECT id, body FROM fact ORDER BY id")
        for identity, rows in groupby(found, key=lambda row: row[0]):
            facts: list[Fact] = []
            for _, body in rows:
                if len(facts) < LARGEST_STORY:
                    facts.append(_DECODER.decode(body))
            if len(facts) == LARGEST_STORY:
                self.cut.append(identity)
            yield facts


def place_of(identity: str) -> tuple[str, int, int]:
    """Topic, partition and offset of an id."""
    topic, number, offset = identity.rsplit(":", 2)
    return topic, int(number), int(offset)
