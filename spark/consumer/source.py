"""The source of retries: a Python data source that reads the ready topic, and level topics as far as they are due.

For Spark a micro-batch is a range of offsets, and no record of it can be left out. The records of a level become due in
order, so the end of the range is the gate. The ready topic is a level without a delay. A relay query has only that one:
sidecars read its levels.

The reader is in a process of its own at the driver as long as the query runs. So it also claims the group's retries
(`claim.py`), before anything else, and decides where a query without a checkpoint begins (`start.py`). The driver and
the executors need confluent-kafka, pandas and pyarrow.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from reconsume.sidecar.errors import BrokerError
from reconsume.spark.consumer.brokers import LevelTopicError, Lookup, Row, read
from reconsume.spark.consumer.claim import Claim
from reconsume.spark.consumer.offsets import (
    Offsets,
    Range,
    Reach,
    Skips,
    advance,
    begin,
    by_partition,
    cut_short,
    due_ends,
    from_json,
    ranges_of,
    renewed,
    shared_out,
    taken_since,
    to_json,
)
from reconsume.spark.consumer.start import Query
from reconsume.spark.consumer.start import begin as begin_anew
from reconsume.topics.client_rules import check_properties
from reconsume.topics.names import Names, check_name

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

NAME = "reconsume_levels"
SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""The columns of Spark's own Kafka source, but with `timestamp` in epoch ms."""
CLIENT = "client."
"""How the names of options begin that are settings of librdkafka."""
NEEDED = ("client.bootstrap.servers", "group", "name", "topics", "levels")
"""The options without a default."""
MOST, TASKS = 10_000, 8
"""The defaults of `most` and `tasks`."""
LOOK_EVERY = 10.0
"""Seconds between two looks for other level topics: the group's policy may change the ladder at any time, and a level
that left it may still have records. The answer names all topics of the cluster."""


class Options(NamedTuple):
    """The options of the source.

    `client` holds librdkafka's settings. `levels` maps a topic to its delay in ms. `query` is the group, the query in
    it, and where it begins. `most` is the most offsets in a batch, and `tasks` the most tasks of a batch. `prefixes`
    are how the names of the group's level topics begin: other levels are read as soon as they exist; none for a relay
    query. `application` is Spark's id of it.
    """

    client: dict[str, str]
    levels: dict[str, int]
    query: Query
    most: int = MOST
    tasks: int = TASKS
    prefixes: tuple[str, ...] = ()
    application: str = ""


def options_of(options: Mapping[str, str]) -> Options:
    """Return the options from Spark's texts; those of the client begin with `client.`.

    Raises ValueError if one is missing or not valid, or would bring code along (contract 14.6).
    """
    options = {name.lower(): value for name, value in options.items()}  # as Spark compares them
    client = {name[len(CLIENT) :]: value for name, value in options.items() if name.startswith(CLIENT)}
    if missing := [name for name in NEEDED if name not in options]:
        raise ValueError(f"the source {NAME} needs the options {', '.join(NEEDED)}: {', '.join(missing)} missing")
    check_properties(client)
    levels = {str(topic): int(delay) for topic, delay in json.loads(options["levels"]).items()}
    most, tasks = int(options.get("most", MOST)), int(options.get("tasks", TASKS))
    if not levels or most < 1 or tasks < 1:
        raise ValueError("levels must name a topic, most and tasks must be at least 1")
    names = Names(options["group"], options.get("prefix", "{group}"))
    check_name(names.spark_group(options["name"]))
    return Options(
        client,
        levels,
        Query(
            names,
            options["name"],
            tuple(map(str, json.loads(options["topics"]))),
            options.get("start", ""),
            by_partition(json.loads(options.get("main", "{}"))),
            options.get("gated", "true") == "true",
        ),
        most,
        tasks,
        tuple(map(str, json.loads(options.get("prefixes", "[]")))),
        options.get("application", ""),
    )


class Slice(InputPartition):
    """The ranges that one task reads, and those in them that it leaves out."""

    def __init__(self, ranges: Sequence[Range], skips: Skips) -> None:
        self.ranges = tuple(ranges)
        self.skips = {at: skips[at] for at in ((one.topic, one.partition) for one in ranges) if at in skips}


class LevelsSource(DataSource):
    """The data source for `session.dataSource.register(LevelsSource)`, then `.format("reconsume_levels")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns, as DDL."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> LevelsReader:  # noqa: N802 - Spark's name
        """Return the reader of one query. Raises ValueError if an option is missing or not valid."""
        del schema
        return LevelsReader(options_of(self.options))


class LevelsReader(DataSourceStreamReader):
    """The reader of one query. Spark keeps it on the driver, in a process of its own, and sends copies to the tasks.

    The reader learns only from Spark how far the query has read. Spark 4.2 and newer say it each time. Older versions
    only ask, after a restart, for the partitions between the last offsets and the same offsets. The bound of a batch
    counts from there. The reader goes back only in a topic that was created again, which it reads from its first
    record.

    Its methods on the driver raise RetriesOwnedError if somebody else reads the group's retries, StartError if nobody
    has said where the query begins, and LevelTopicError if a level topic is missing or does not carry append times.
    They raise BrokerError if the brokers do not answer.
    """

    def __init__(
        self,
        options: Options,
        lookup: Lookup | None = None,
        look_every: float = LOOK_EVERY,
        claim: Claim | None = None,
    ) -> None:
        self._options = options
        self._claim = claim
        self._look_every = look_every
        self._lookup = lookup
        self._next_look = 0.0
        self._unread: dict[str, str] = {}
        """Level topics that cannot be read, and why."""
        self._reach: Reach | None = None
        self._first: Reach | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Return the first offset of each partition, where a query without a checkpoint begins."""
        # Older versions call this after the first `latestOffset`: it must return the offsets from which that counted.
        if self._first is None:
            self._first = self._begin_anew(self._lookup_now())
        self._reach = self._reach or self._first
        return to_json(self._first)

    def _begin_anew(self, lookup: Lookup) -> Reach:
        """Return where the query begins, as it has no checkpoint."""
        query = self._options.query
        reach, said = begin_anew(lookup, self._options.client, query)
        if said:
            tell(f'the query "{query.name}" has no checkpoint and {said}')
        return reach

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the bound of a batch, which Spark 4.2 and newer give to `latestOffset`."""
        from pyspark.sql.streaming.datasource import ReadMaxRows  # older versions have no such module, nor call this

        return ReadMaxRows(self._options.most)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next batch ends: all offsets that are due now, at most `most`.

        `start` and `limit` come from Spark 4.2 and newer: where the query is, and whether the batch has a bound (a
        query that ends by itself asks for all). Offsets that retention deleted before they were read are counted.
        """
        if start is not None:
            position, dropped = from_json(start), 0 if self._reach is None else self._reach.dropped
            self._reach = position._replace(dropped=max(position.dropped, dropped))
        most = self._options.most if limit is None else getattr(limit, "max_rows", sys.maxsize)
        lookup = self._lookup_now()
        if self._reach is None:
            self.initialOffset()
        partitions, ids = lookup.topics()
        lows, ends = lookup.lows(partitions), lookup.ends(partitions)
        cuts = lookup.cuts(partitions, time.time_ns() // 1_000_000)  # after the ends, see `due_ends`
        first = begin(self._goes_on(lookup, ids, ends), lows)
        if self._reach is not None and first.dropped > self._reach.dropped:
            tell(f"retention took {first.dropped - self._reach.dropped} offsets of level topics before they were read")
        self._reach = advance(first, due_ends(ends, cuts), most)
        return to_json(self._reach)

    def _goes_on(self, lookup: Lookup, ids: Mapping[str, str], ends: Offsets) -> Reach:
        """Return the position in the topics that exist now.

        Offsets in topics that were created again are forgotten. A partition whose log was truncated goes on at its end.
        The private group follows, so that what it has of the former log keeps no record of the present one out.
        """
        before = self._reach or Reach({})
        reach = renewed(before, ids)
        if lost := before.next.keys() - reach.next.keys():
            tell(f"made anew, and read from the first record: {', '.join(sorted({topic for topic, _ in lost}))}")
            lookup.commit(self._options.query.private_group, dict.fromkeys(lost & ends.keys(), 0))
        for partition in cut_short(reach, ends):
            name, end = f"{partition[0]}[{partition[1]}]", ends[partition]
            tell(f"{name} was cut: it ends at {end}, and we were at {reach.next[partition]}")
            # If the checkpoint knows no id, a shorter topic may be a new one: all of it is read.
            reach.next[partition] = ends[partition] if partition[0] in before.ids else 0
            lookup.commit(self._options.query.private_group, {partition: reach.next[partition]})
        return reach

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Slice]:
        """Return the tasks of a batch."""
        self._claim_now().hold()
        first, last = from_json(start), from_json(end)
        self._reach = last
        if (first.next, first.ids) == (last.next, last.ids):
            return []
        lookup = self._lookup_now()
        partitions, ids = lookup.topics()
        lows, last = lookup.lows(partitions), renewed(last, ids)._replace(ids=last.ids)
        if gone := taken_since(first, last, lows):  # in a batch that is repeated long after it was planned
            tell(f"retention took {gone} offsets of level topics before they were read")
            self._reach = last._replace(dropped=last.dropped + gone)  # Spark gets it with the next batch
        tasks = shared_out(ranges_of(first, last, lows), self._options.tasks)
        return [Slice(ranges, first.skips) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """Yield the records of one task."""
        assert isinstance(partition, Slice)
        for row in read(self._options.client, partition.ranges):
            skips = partition.skips.get((row[0], row[1]), ())
            if not any(first <= row[2] < end for first, end in skips):
                yield row

    def stop(self) -> None:
        """Withdraw the query's claim. Spark calls this at the query's end."""
        if self._claim is not None:
            self._claim.withdraw()

    def _claim_now(self) -> Claim:
        if self._claim is None:
            client, query, application = self._options.client, self._options.query, self._options.application
            at = client, query.names, query.name, query.topics
            self._claim = Claim(*at, gated=query.gated, application=application)
        return self._claim

    def _lookup_now(self) -> Lookup:
        """Return the lookup, made at first use: Spark sends readers to tasks, but a Kafka client cannot be sent.

        The query holds the group's retries then.
        """
        self._claim_now().hold()
        if self._lookup is None:
            lookup = Lookup(self._options.client, self._options.levels)
            lookup.topics()
            lookup.check_stamps(self._options.levels)
            self._lookup = lookup
        if self._options.prefixes and time.monotonic() >= self._next_look:
            self._look(self._lookup)
            self._next_look = time.monotonic() + self._look_every
        return self._lookup

    def _look(self, lookup: Lookup) -> None:
        """Read other levels that exist now from here on. What is wrong with one of them does not stop the others."""
        try:
            others = lookup.other_levels(self._options.prefixes)
        except BrokerError as error:
            tell(f"other level topics were not looked for: {error}")
            return
        for name, delay in others.items():
            try:
                lookup.check_stamps([name])
            except (LevelTopicError, BrokerError) as error:
                if self._unread.get(name) != str(error):
                    tell(f"{name} is not read: {error}")
                self._unread[name] = str(error)
            else:
                lookup.add({name: delay})
                tell(f"{name} is read too")


def tell(text: str) -> None:
    """Write a line to stderr, which Spark passes on to the driver's. The reader's process has no other log."""
    sys.stderr.write(f"{NAME}: {text}\n")
    sys.stderr.flush()
