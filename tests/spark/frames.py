"""Records as Kafka's source gives them, as a batch and as a stream, and the readers' rule for what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from topics.events import Event, State, encode_event

GROUP = "billing"
TOPIC = f"{GROUP}-RETRY-EVENTS"
BASE = 1_763_690_000_000
"""A time in the past, in ms: what happened then is on no machine ahead of the clock."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVENT = Event(
    group=GROUP,
    id="orders:3:1024",
    state=State.WAITING_RETRY,
    times=1,
    redrives=0,
    level="10s",
    due=BASE + 10_000,
    at=BASE,
    reason="http-500",
    topic="orders",
    partition=3,
    offset=1024,
    timestamp=BASE - 1000,
    first_failed_at=BASE,
    instance="billing-7c9f-x2x",
)
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("timestampType", IntegerType(), nullable=False),
    ]
)


class Record(NamedTuple):
    """A record of an event topic; `timestamp` in epoch ms."""

    value: bytes | None
    offset: int = 0
    partition: int = 0
    timestamp: int = BASE
    topic: str = TOPIC
    appended: bool = False
    """Whether the timestamp is the broker's."""

    def row(self) -> tuple[Any, ...]:
        written = EPOCH + timedelta(milliseconds=self.timestamp)
        return None, self.value, self.topic, self.partition, self.offset, written, int(self.appended)


def changed(**fields: Any) -> Event:
    """EVENT with other fields."""
    return msgspec.structs.replace(EVENT, **fields)


def written(events: Iterable[Event]) -> list[Record]:
    """The events as records, one after another, each written when it happened."""
    return [
        Record(encode_event(event), number, timestamp=event.at, topic=f"{event.group}-RETRY-EVENTS")
        for number, event in enumerate(events)
    ]


def batch(spark: SparkSession, records: Iterable[Record]) -> DataFrame:
    """The records as a batch frame."""
    return spark.createDataFrame([record.row() for record in records], SCHEMA)


def put(spark: SparkSession, folder: Path, number: int, records: Sequence[Record]) -> None:
    """The records as the stream's file `number`, read as one batch of `stream`."""
    # Files are read in the order of their time of change, and two may have the same: the name decides.
    batch(spark, records).coalesce(1).write.parquet(str(folder / f"part-{number:05}"))


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """The folder's files as a stream, each file a batch of its own."""
    options = {"maxFilesPerTrigger": "1", "recursiveFileLookup": "true"}
    return spark.readStream.schema(SCHEMA).options(**options).parquet(str(folder))


class Reader:
    """What a reader of the view topic keeps: the greater order, of equals the later update, then the later record."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}

    def take(self, rows: Iterable[Row]) -> None:
        """Rows of `view.view`, in the order of the topic."""
        for row in rows:
            kept = self.rows.get((row.group, row.id))
            if kept is None or newness(row) >= newness(kept):
                self.rows[row.group, row.id] = row

    def values(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The rows without their place."""
        found = {key: row.asDict() for key, row in self.rows.items()}
        return {key: {name: row[name] for name in row if name != "place"} for key, row in found.items()}


def newness(row: Row) -> tuple[int, ...]:
    """By which readers compare."""
    return row.redrives, row.times, row.place.rank, row.at, row.updated_at
