"""The one way to a Spark session: memory, state store and time zone, each with its reason.

Only this module touches the process's environment, which the JVM and Spark's Python workers inherit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

SETTINGS: dict[str, str] = {
    # Fixed for the life of a checkpoint, so it is set before the first start. 200, Spark's default, makes a batch of
    # 200 events take 5 s instead of 0.4 s; two carry some two million rows.
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Before Spark 4.1 an aggregation throws its store away after each batch (SPARK-51955), and the next one loads it
    # from the checkpoint: with changelogs a snapshot and every change since, those of a minute or more.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    # RocksDB lives outside the heap: unbounded, a million rows take the driver to 4.5 GB.
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "256",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.ui.enabled": "false",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
}
LOCAL: dict[str, str] = {
    # Driver and executor are one process: nothing of it need be reachable from another machine.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
}


COUNTED = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"


@contextmanager
def counting(spark: SparkSession, rows: bool) -> Iterator[None]:
    """Whether queries that are started within count the rows of their state, also those that they find there.

    To count them, each row that is written is looked for first, which takes a quarter of the view's CPU at a million.
    """
    before = spark.conf.get(COUNTED, "true") or "true"
    spark.conf.set(COUNTED, str(rows).lower())
    try:
        yield
    finally:
        spark.conf.set(COUNTED, before)


def build(
    name: str, *, jars: Sequence[Path] = (), master: str = "local[2]", options: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, started if there is none; `options` win over our settings.

    `jars` are the Kafka connector's; nothing is resolved or downloaded. An empty `master` leaves it to spark-submit.
    """
    # glibc gives each thread an arena of its own; with RocksDB that doubles the driver's memory.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    # Otherwise workers are the `python3` of PATH, not the environment that runs this.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    settings = dict(SETTINGS)
    if master:
        builder = builder.master(master)
    if master.startswith("local"):
        settings |= LOCAL
    if jars:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars)
    for key, value in {**settings, **(options or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
