"""The input of `spark_bench`: parquet files with the columns of Spark's Kafka source, one a batch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.spark_bench import BATCH, SMALL
from reconsume.spark import session
from reconsume.topics.events import State

BASE = 1_763_690_000_000


def events_of(spark: SparkSession, ids: DataFrame, keys: int) -> DataFrame:
    """Rows of Kafka's source with one event for each of `ids` (`id`, `times`), as the sidecar writes them."""
    number, times = fn.col("id"), fn.col("times")
    at = fn.lit(BASE) + number * 20 + times * 10_000
    state = fn.when(times % 4 == 0, State.COMMIT.value).otherwise(State.WAITING_RETRY.value)
    value: dict[str, Any] = {
        "group": fn.lit("billing"),
        "id": fn.concat(fn.lit("orders:3:"), number),
        "state": state,
        "times": times,
        "redrives": fn.lit(0),
        "level": fn.when(times % 4 != 0, fn.lit("10s")),
        "due": at + 10_000,
        "at": at,
        "reason": fn.concat(fn.lit("http-5"), number % 10),
        "topic": fn.lit("orders"),
        "partition": fn.lit(3),
        "offset": number,
        "timestamp": fn.lit(BASE) + number * 20 - 500,
        "first_failed_at": fn.lit(BASE) + number * 20,
        "instance": fn.lit("billing-7c9f-x2x"),
        "v": fn.lit(1),
    }
    columns = fn.struct(*(column.alias(name) for name, column in value.items()))
    return ids.select(
        fn.encode(fn.concat(fn.lit("orders:3:"), number), "UTF-8").alias("key"),
        fn.encode(fn.to_json(columns, {"ignoreNullFields": "false"}), "UTF-8").alias("value"),
        fn.lit("billing-RETRY-EVENTS").alias("topic"),
        fn.lit(3).alias("partition"),
        fn.monotonically_increasing_id().alias("offset"),
        fn.timestamp_millis(at).alias("timestamp"),
        fn.lit(0).alias("timestampType"),
    )


def write(folder: Path, keys: int, batches: int, small: int) -> None:
    """The input as parquet files, one a batch: every key once, then random keys."""
    spark = session.build("input", jars=(), options={"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "1"})
    for number in range(max(1, keys // BATCH)):
        first = number * BATCH
        ids = spark.range(first, min(first + BATCH, keys)).select("id", fn.lit(1).alias("times"))
        save(events_of(spark, ids, keys), folder, number)
    for number in range(batches + small):
        picked = (fn.rand(number) * keys).cast("bigint").alias("id")
        times = (fn.rand(number + 1000) * 8).cast("int") + 2
        ids = spark.range(BATCH if number < batches else SMALL).select(picked, times.alias("times"))
        save(events_of(spark, ids, keys), folder, 1000 + number)
    spark.stop()


def save(frame: DataFrame, folder: Path, number: int) -> None:
    """One file."""
    frame.coalesce(1).write.mode("overwrite").parquet(str(folder / f"{number:05}"))


def main() -> None:
    """The command line, for `spark_bench` alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    for name in ("--keys", "--batches", "--small"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args()
    # The batch behind the first ones is not measured.
    write(given.folder, given.keys, given.batches + 1, given.small)


if __name__ == "__main__":
    main()
