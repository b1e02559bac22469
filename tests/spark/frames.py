"""Records as Kafka's source gives them, as a batch and as a stream, and the readers' rule for what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

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

from tests.support.event_histories import Record

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
