"""What a batch of `for_each_record` costs: seconds of batches of 10 000 records, of which none, some or all fail.

    python -m benchmarks.spark_consumer [--batches 10] [--rows 10000] [--fail 0 10 100]

Broker and Spark share the cores. The rows come from memory, so that only handling and writing are measured. Compare
with another commit in turns: run this file with the other checkout's `deploy/editable` in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import time
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.java.jars import fetch
from reconsume.sidecar.java.spark_job import lock_for
from reconsume.spark.consumer import Record, Rules, build_rules, for_each_record, with_batch_time
from reconsume.spark.session import build
from tests.support.kafka.group_topics import create_group, fresh_group

JOB = psutil.Process()
WARM = 3
"""Batches before the measured ones."""
PARTITIONS = 4


def handle(record: Record) -> None:
    """Fail where the value says so."""
    if record.value and record.value.startswith(b"fail"):
        raise LookupError("out of stock")


def batch_of(spark: SparkSession, topic: str, rows: int, percent: int) -> DataFrame:
    """Return rows with 200 B of value, a key and three headers, of which `percent` fail."""
    header = f.struct(f.lit("trace").alias("key"), f.lit(b"0123456789abcdef").alias("value"))
    value = f.when(f.col("id") % 100 < percent, "fail").otherwise("fine")
    frame = spark.range(rows).select(
        f.lit(topic).alias("topic"),
        (f.col("id") % PARTITIONS).cast("int").alias("partition"),
        f.floor(f.col("id") / PARTITIONS).alias("offset"),
        f.lit(1_763_690_000_123).alias("timestamp"),
        f.col("id").cast("string").cast("binary").alias("key"),
        f.rpad(value, 200, "x").cast("binary").alias("value"),
        f.array(header, header, header).alias("headers"),
    )
    frame = frame.repartition(PARTITIONS, "partition").persist()
    frame.count()
    return frame


def rules_of(group: str, topics: tuple[str, ...]) -> Rules:
    """Return the rules; earlier commits know no name of a query."""
    named = {"name": "bench"} if "name" in inspect.signature(build_rules).parameters else {}
    return build_rules(group, topics, ladder=["1s", "2s", "5s"], **named)


def alone() -> dict[str, Any]:
    """Return what keeps earlier commits from reading a policy; now that costs a question every 5 s."""
    return {"follow": False} if "follow" in inspect.signature(for_each_record).parameters else {}


def cpu_of(job: psutil.Process) -> float:
    """Return the seconds of CPU of this process, Spark's JVM and its Python workers, without the broker."""
    seconds = 0.0
    for one in [job, *job.children(recursive=True)]:
        with suppress(psutil.Error):  # a worker that has ended meanwhile
            times = one.cpu_times()
            seconds += 0.0 if "kafka.Kafka" in one.cmdline() else times.user + times.system
    return seconds


def main() -> None:
    """Measure each share of failures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--fail", type=int, nargs="+", default=[0, 10, 100])
    given = parser.parse_args()
    with EmbeddedKafka.start() as kafka:
        spark = build("bench", jars=fetch(lock_for(version("pyspark"))))
        spark.sparkContext.setLogLevel("ERROR")
        for percent in given.fail:
            group = create_group(fresh_group(kafka.bootstrap), PARTITIONS)
            rules = rules_of(group.group, group.mains)
            base = batch_of(spark, group.main, given.rows, percent)
            brokers = {"bootstrap.servers": kafka.bootstrap}
            run = for_each_record(handle, rules, brokers, stop_share=1, **alone())
            took, before = list[float](), 0.0
            for number in range(WARM + given.batches):
                before = cpu_of(JOB) if number == WARM else before
                offset = f.col("offset") + number * given.rows
                frame = with_batch_time(base.withColumn("offset", offset))
                begun = time.perf_counter()
                run(frame, number)
                took.append(time.perf_counter() - begun)
            cpu = (cpu_of(JOB) - before) / given.batches
            measured = took[WARM:]
            texts = f"median {statistics.median(measured):.3f} s, least {min(measured):.3f}, CPU {cpu:.3f} s a batch"
            print(f"{percent:3d} % fail: {texts}", flush=True)
            base.unpersist()
        spark.stop()


if __name__ == "__main__":
    main()
