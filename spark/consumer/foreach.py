"""`for_each_record`: the function for `foreachBatch` that calls a handler once a row and writes what follows.

Order within a batch: all rows are handled, the share of failures is looked at, the writes go out, then Spark commits
the batch. Whatever goes wrong before the end repeats the whole batch: at least once, so handlers must be idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import TimestampType

from spark.consumer.handling import COLUMNS, RESULT, Handler, handling
from spark.consumer.isolation import died
from spark.consumer.rules import Rules

BATCH_TIME = "batch_time"
"""The column of `current_timestamp()` on the streaming frame. Spark keeps its value in the offset log, so a batch that
is repeated writes the same due times; a clock read in the batch would not."""

STOP_SHARE = 0.5
STOP_COUNT = 100

PREFERRED: Mapping[str, str] = {
    # The topic's own limit decides, not the client's default of 1 MiB; this much fits the client's buffer of 32 MiB.
    "max.request.size": str(31 * 1024 * 1024),
}
"""Settings of the Kafka producer that the user's own override."""
REQUIRED: Mapping[str, str] = {"acks": "all", "enable.idempotence": "true"}
"""Settings that they never override: a batch is committed after its copies, so these must be there."""

_LOG = logging.getLogger("reconsume.spark")


class Counts(NamedTuple):
    """What a batch came to. `retry` and `dead_letter` also count what a handler asked for; `odd` what it may not ask.

    `failed`: the handler raised, asked for a retry or ended its process; `fresh` and `fresh_failed` count main records
    alone. `refused`: dead-lettered unseen for headers not in their form.
    """

    batch: int
    commit: int = 0
    retry: int = 0
    dead_letter: int = 0
    hop: int = 0
    refused: int = 0
    failed: int = 0
    odd: int = 0
    fresh: int = 0
    fresh_failed: int = 0
    writes: int = 0


OUTCOMES = ("commit", "retry", "dead_letter", "hop", "refused")

Write: TypeAlias = Callable[[DataFrame], None]
"""Writes a frame of topic, key, value and headers; returns once all of it is confirmed."""
Report: TypeAlias = Callable[[Counts], None]
Work: TypeAlias = Callable[[Column], Column]
"""A function of Spark's that handles a row."""


class TooManyFailuresError(RuntimeError):
    """Most of a batch failed: nothing was written, the query ends, and a restart handles the batch again."""


def for_each_record(
    handler: Handler,
    rules: Rules,
    kafka: Mapping[str, str] | None = None,
    *,
    stop_share: float = STOP_SHARE,
    stop_count: int = STOP_COUNT,
    write: Write | None = None,
    report: Report | None = None,
) -> Callable[[DataFrame, int], None]:
    """The function for `foreachBatch`. `kafka` holds the Java producer's settings, `bootstrap.servers` among them.

    A batch in which at least `stop_count` main records and more than `stop_share` of them fail raises
    TooManyFailuresError; a share of 1 never does. Retries do not count: those that fail again and again come together,
    and would stop the job for good. `report` gets the counts of each batch after its writes. ValueError when there is
    nowhere to write to.
    """
    if write is None:
        if not kafka or "bootstrap.servers" not in kafka:
            raise ValueError("write the brokers of the copies as kafka={'bootstrap.servers': …}")
        write = kafka_writer(kafka)
    work = f.udf(handling(handler, rules), RESULT).asNondeterministic()
    work_apart = f.udf(handling(handler, rules, apart=True), RESULT).asNondeterministic()

    def run(frame: DataFrame, batch: int) -> None:
        check_frame(frame.columns, frame.sparkSession.conf.get("spark.speculation", "false"))
        try:
            run_with(work, frame, batch)
        except Exception as error:
            if not died(error):
                raise
            # The record that did it would do it again: no batch would ever be done.
            _LOG.warning("batch %d: a Python worker died; it is done again, with handlers in processes apart", batch)
            run_with(work_apart, frame, batch)

    def run_with(work: Work, frame: DataFrame, batch: int) -> None:
        # Kept, because the counts and the writes both read it, and each evaluation would call the handler again.
        results = frame.select(work(f.struct(*columns(frame))).alias("r")).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = count(results, batch)
            check_share(counts, stop_share, stop_count)
            if counts.writes:
                write(results.select(f.explode("r.writes").alias("w")).select("w.*"))
        finally:
            results.unpersist()
        _LOG.info("batch %d: %s", batch, counts)
        if report is not None:
            report(counts)

    return run


def columns(frame: DataFrame) -> list[Column]:
    """The columns that a row is made of, times as epoch ms."""
    stamp = frame.schema["timestamp"].dataType
    replaced = {
        "timestamp": f.unix_millis("timestamp") if isinstance(stamp, TimestampType) else f.col("timestamp"),
        "now": f.unix_millis(BATCH_TIME),
    }
    return [replaced.get(name, f.col(name)).alias(name) for name in COLUMNS]


def check_frame(found: Collection[str], speculation: str | None) -> None:
    """ValueError when a frame lacks a column, or its session would call handlers twice on purpose."""
    wanted = {*COLUMNS, BATCH_TIME} - {"now"}
    if missing := sorted(wanted - set(found)):
        raise ValueError(
            f"the frame lacks {', '.join(missing)}: make it with read_relay, read_gated or with_batch_time"
        )
    if speculation == "true":
        raise ValueError("spark.speculation runs a slow task twice, and with it its handlers: switch it off")


def count(results: DataFrame, batch: int) -> Counts:
    """Handle all rows, and count what came of them: one row comes back, whatever the size of the batch."""
    outcomes = [f.count_if(f.col("r.outcome") == name).alias(name) for name in OUTCOMES]
    flags = [f.count_if(f.col(f"r.{name}")).alias(name) for name in ("failed", "odd", "fresh")]
    flags.append(f.count_if(f.col("r.fresh") & f.col("r.failed")).alias("fresh_failed"))
    writes = f.coalesce(f.sum(f.size("r.writes")), f.lit(0)).alias("writes")
    row = results.agg(*outcomes, *flags, writes).collect()[0]
    return Counts(batch, **row.asDict())


def check_share(counts: Counts, share: float, least: int) -> None:
    """TooManyFailuresError when at least `least` main records and more than `share` of them have failed."""
    if counts.fresh_failed >= max(least, 1) and counts.fresh_failed > share * counts.fresh:
        raise TooManyFailuresError(
            f"{counts.fresh_failed} of {counts.fresh} new records of batch {counts.batch} failed: what they need is "
            "probably away, so nothing was written and no retry is spent; start the job again once it is back"
        )


def kafka_writer(kafka: Mapping[str, str]) -> Write:
    """Writes to Kafka with these settings of the Java producer."""
    options = writer_options(kafka)

    def write(frame: DataFrame) -> None:
        frame.write.format("kafka").options(**options).save()

    return write


def writer_options(kafka: Mapping[str, str]) -> dict[str, str]:
    """The options of Spark's Kafka sink for these settings of the Java producer."""
    return {f"kafka.{name}": value for name, value in {**PREFERRED, **kafka, **REQUIRED}.items()}
