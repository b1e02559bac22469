"""`python -m benchmarks.spark_bench`: what an event costs the Spark view, and what the driver needs, at many keys.

File source → parse → view → JSON → nowhere, in a session as the job starts it. Each measurement is a process of its
own; its CPU is that of the whole tree, Java included, after every key was there once and one more batch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from spark import schema, session, stats, view
from spark.checkpoint import write_plainly
from topics.events import State

BASE = 1_763_690_000_000
QUIET = {"spark.log.level": "ERROR"}
PERIOD = 0.1
"""Seconds between two looks at the processes."""
BATCH = 100_000


class Usage(NamedTuple):
    """The process tree at one moment."""

    seconds: float
    cpu: float
    rss: int


class Result(NamedTuple):
    """What one measurement found; memory in bytes, of the driver's JVM, at its highest."""

    query: str
    keys: int
    events: int
    cpu_us: float
    rate: float
    rss: int
    state_rows: int


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


def write(folder: Path, keys: int, batches: int) -> None:
    """The input as parquet files, one a batch: every key once, then random keys."""
    spark = session.build("input", options={**QUIET, "spark.sql.shuffle.partitions": "1"})
    for number in range(max(1, keys // BATCH)):
        first = number * BATCH
        ids = spark.range(first, min(first + BATCH, keys)).select("id", fn.lit(1).alias("times"))
        save(events_of(spark, ids, keys), folder, number)
    for number in range(batches):
        picked = (fn.rand(number) * keys).cast("bigint").alias("id")
        times = (fn.rand(number + 1000) * 8).cast("int") + 2
        ids = spark.range(BATCH).select(picked, times.alias("times"))
        save(events_of(spark, ids, keys), folder, 1000 + number)
    spark.stop()


def save(frame: DataFrame, folder: Path, number: int) -> None:
    """One file."""
    frame.coalesce(1).write.mode("overwrite").parquet(str(folder / f"{number:05}"))


def tree() -> Usage:
    """What this process and its children have used, and what its JVM holds."""
    me = psutil.Process()
    cpu, jvm = 0.0, 0
    for each in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # Spark starts small helpers that end at once
            cpu += sum(each.cpu_times()[:2])
            jvm = max(jvm, each.memory_info().rss if each.name() == "java" else 0)
    return Usage(time.monotonic(), cpu, jvm)


class Peak:
    """The highest memory of the JVM, looked at all the time."""

    def __init__(self) -> None:
        self.rss = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(PERIOD):
            self.rss = max(self.rss, tree().rss)


QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "view": (view.outputs, "append"),
    "stats": (lambda raw: stats.records(stats.sums(schema.events(raw).good)), "update"),
    "parse": (lambda raw: schema.events(raw).good.select(fn.to_json(fn.struct(*schema.FIELDS))), "append"),
}


def measure(query: str, folder: Path, keys: int, batches: int) -> Result:
    """Run one query over the input and take the figures of all batches but the first ones."""
    spark = session.build("bench", options=QUIET)
    source = spark.read.option("recursiveFileLookup", "true").parquet(str(folder)).schema
    options = {"maxFilesPerTrigger": "1", "recursiveFileLookup": "true"}
    raw = spark.readStream.schema(source).options(**options).parquet(str(folder))
    build, mode = QUERIES[query]
    warm = max(1, keys // BATCH) + 1
    with tempfile.TemporaryDirectory() as checkpoint, Peak() as peak:
        write_plainly(spark, checkpoint)
        writer = build(raw).writeStream.outputMode(mode).format("noop")
        running = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
        before, first = when_done(running, warm)
        after, last = when_done(running, warm + batches - 1)
        running.stop()
    count = (last - first) * BATCH
    rows = max((state.numRowsTotal for state in running.recentProgress[-1].stateOperators), default=0)
    spark.stop()
    seconds = after.seconds - before.seconds
    cpu_us = (after.cpu - before.cpu) / count * 1e6
    return Result(query, keys, count, cpu_us, count / seconds, peak.rss, rows)


def when_done(running: Any, batches: int) -> tuple[Usage, int]:
    """What had been used when that many batches were done, and how many were."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        if (failure := running.exception()) is not None:
            raise failure
        done = sum(1 for each in running.recentProgress if each.numInputRows > 0)
        if done >= batches:
            return tree(), done
        time.sleep(PERIOD)
    raise TimeoutError(f"{batches} batches were not done in 10 minutes")


def child(*arguments: str) -> str:
    """What another process of this module prints."""
    command = [sys.executable, "-m", "benchmarks.spark_bench", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=1800).stdout


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--queries", nargs="+", default=["view", "stats"], choices=list(QUERIES))
    parser.add_argument("--batches", type=int, default=8, help="batches of 100 000 events that are measured")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write is not None:
        write(given.write, given.keys[0], given.batches + 1)
    elif given.measure is not None:
        print(json.dumps(measure(given.queries[0], given.measure, given.keys[0], given.batches)))
    else:
        report(given.keys, given.queries, given.batches)


def report(many: list[int], queries: list[str], batches: int) -> None:
    """Measure all and print a table."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()}")
    print("| query | keys | CPU µs an event | events/s | driver RSS MB, peak | state rows |\n|---|---|---|---|---|---|")
    for keys in many:
        with tempfile.TemporaryDirectory() as folder:
            size = ("--keys", str(keys), "--batches", str(batches))
            child("--write", folder, *size)
            for query in queries:
                found = Result(*json.loads(child("--measure", folder, "--queries", query, *size)))
                rss = found.rss / 2**20
                cells = (f"{found.cpu_us:.1f}", f"{found.rate:,.0f}", f"{rss:,.0f}", f"{found.state_rows:,}")
                print(f"| {query} | {keys:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
