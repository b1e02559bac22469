"""The gated source: a Python data source that reads level topics as far as they are due, and no further.

Spark gives a micro-batch as a range of offsets and cannot leave a record out of it; a level's records become due in
order, so the gate is the end of the range. Needs confluent-kafka, pandas and pyarrow on the driver and the executors.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark.consumer.lookup import Lookup
from spark.consumer.offsets import (
    Offsets,
    Range,
    Reach,
    advance,
    begin,
    cut_short,
    due_ends,
    from_json,
    ranges_of,
    renewed,
    shared_out,
    taken_since,
    to_json,
)
from spark.consumer.reader import Row, read

NAME = "reconsume_levels"
SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""As Spark's own Kafka source has it, but `timestamp` in epoch ms."""
CLIENT = "client."
MOST, TASKS = 10_000, 8


class Options(NamedTuple):
    """What the source is told. `levels`: topic to delay in ms; `most`: offsets a batch; `tasks`: at most, a batch."""

    client: dict[str, str]
    levels: dict[str, int]
    most: int
    tasks: int


def options_of(given: Mapping[str, str]) -> Options:
    """The options; those of the client begin with `client.`. ValueError when one is missing or not in its form."""
    client = {name[len(CLIENT) :]: value for name, value in given.items() if name.startswith(CLIENT)}
    if "bootstrap.servers" not in client or "levels" not in given:
        raise ValueError(f"the source {NAME} needs the options client.bootstrap.servers and levels")
    levels = {str(topic): int(delay) for topic, delay in json.loads(given["levels"]).items()}
    most, tasks = int(given.get("most", MOST)), int(given.get("tasks", TASKS))
    if not levels or most < 1 or tasks < 1:
        raise ValueError("levels must name a topic, most and tasks must be at least 1")
    return Options(client, levels, most, tasks)


class Slice(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.ranges = tuple(ranges)


class LevelsSource(DataSource):
    """`session.dataSource.register(LevelsSource)`, then `.format("reconsume_levels")`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return NAME

    def schema(self) -> str:
        """The columns."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> LevelsReader:  # noqa: N802 - Spark's name
        """The reader of one query."""
        del schema
        return LevelsReader(options_of(self.options))


class LevelsReader(DataSourceStreamReader):
    """Spark keeps one on the driver, in a process of its own, and sends copies to the tasks.

    It knows how far it has come from Spark alone: after a restart Spark first asks for the partitions between the last
    offsets and themselves. So the bound of a batch counts from there, and the source goes back only in a topic that was
    made anew, which it reads from its first record.
    """

    def __init__(self, options: Options, lookup: Lookup | None = None) -> None:
        self._options = options
        self._lookup = lookup
        self._reach: Reach | None = None
        self._first: Reach | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """The first offset of each partition: where a query without a checkpoint begins.

        Spark asks for it after the first `latestOffset`, and must hear from where that one has counted.
        """
        if self._first is None:
            lookup = self._asked()
            places, ids = lookup.topics()
            self._first = Reach(lookup.lows(places), ids=ids)
        self._reach = self._reach or self._first
        return to_json(self._first)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes: what is due now, at most `most` offsets; what retention took is counted."""
        lookup = self._asked()
        places, ids = lookup.topics()
        lows, ends = lookup.lows(places), lookup.ends(places)
        cuts = lookup.cuts(places, time.time_ns() // 1_000_000)  # after the ends, see `due_ends`
        start = begin(self._goes_on(ids, ends), lows)
        self._first = self._first or start
        if self._reach is not None and start.dropped > self._reach.dropped:
            tell(f"retention took {start.dropped - self._reach.dropped} offsets of level topics before they were read")
        self._reach = advance(start, due_ends(ends, cuts), self._options.most)
        return to_json(self._reach)

    def _goes_on(self, ids: Mapping[str, str], ends: Offsets) -> Reach:
        """Where we are among the topics of now, and at the end of a log that was cut."""
        before = self._reach or Reach({})
        reach = renewed(before, ids)
        if lost := sorted({topic for topic, _ in before.next.keys() - reach.next.keys()}):
            tell(f"made anew, and read from the first record: {', '.join(lost)}")
        for place in cut_short(reach, ends):
            tell(f"{place[0]}[{place[1]}] was cut: it ends at {ends[place]}, and we were at {reach.next[place]}")
            # Of a checkpoint that knows no ids a shorter topic may be another one: all of it is read.
            reach.next[place] = ends[place] if place[0] in before.ids else 0
        return reach

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Slice]:
        """The tasks of a batch."""
        first, last = from_json(start), from_json(end)
        self._reach = last
        if (first.next, first.ids) == (last.next, last.ids):
            return []
        lookup = self._asked()
        places, ids = lookup.topics()
        lows, last = lookup.lows(places), renewed(last, ids)._replace(ids=last.ids)
        if gone := taken_since(first, last, lows):  # a batch that is repeated long after it was planned
            tell(f"retention took {gone} offsets of level topics before they were read")
            self._reach = last._replace(dropped=last.dropped + gone)  # told to Spark with the next batch
        return [Slice(ranges) for ranges in shared_out(ranges_of(first, last, lows), self._options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """The records of one task."""
        assert isinstance(partition, Slice)
        return read(self._options.client, partition.ranges)

    def _asked(self) -> Lookup:
        """The lookup, made at first use: readers are sent to tasks, and a client cannot be."""
        if self._lookup is None:
            lookup = Lookup(self._options.client, self._options.levels)
            lookup.topics()
            lookup.check_stamps()
            self._lookup = lookup
        return self._lookup


def tell(text: str) -> None:
    """A line on stderr, which Spark passes on to the driver's: the reader's process has no other log."""
    sys.stderr.write(f"{NAME}: {text}\n")
    sys.stderr.flush()
