"""Records as Kafka's source gives them, as a batch and as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
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
