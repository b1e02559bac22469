"""The sums: how many retried records changed their state, for each minute, topic, level and reason. Pure functions.

A record begins to wait, is committed, is dead-lettered or is redriven. A row of a minute is written again whenever one
of its counts has changed, so the running minute can be seen: readers keep the last row of each key. Sidecars write each
event once, by transactions, so each record of an event topic counts.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from reconsume.spark.names import STATS_SUFFIX
from reconsume.topics.view_record import COUNTED

__all__ = ["records", "sums"]

DELAY = "10 minutes"
"""How long a minute stays open, as a Spark interval. An event that comes later is dropped, and its row is final."""
KEYS = ("group", "minute", "topic", "level", "reason")
"""Columns that the events are grouped by. `minute` (TIMESTAMP) is the start of the minute; the others are STRING."""


def sums(good: DataFrame, delay: str = DELAY) -> DataFrame:
    """Return the sums of good events: one row for each group, minute, topic, level and reason.

    `good` is `schema.Parsed.good`, from a batch or a stream. `delay` is a Spark interval such as `10 minutes`. The
    columns of the result are KEYS and then COUNTED (BIGINT); `minute` is the minute of the event's `at`. `level` is
    null where an event has none.

    Write a stream in output mode update: each batch gives the rows that it changed. A row is final when an event was
    read that is `delay` newer than the end of the minute. That event may be of any group. An event that comes later is
    dropped. A batch counts all events.

    Raises pyspark.errors.PySparkException if `delay` is not an interval, or if `good` lacks a column.
    """
    counting = good.where(fn.col("state").isin([state.value for state in COUNTED.values()]))
    happened = counting.select(
        "group", "state", "topic", "level", "reason", fn.timestamp_millis("at").alias("happened")
    )
    counts = (fn.count_if(fn.col("state") == state.value).alias(name) for name, state in COUNTED.items())
    minutes = fn.window("happened", "1 minute")
    counted = (
        happened.withWatermark("happened", delay).groupBy(minutes, "group", "topic", "level", "reason").agg(*counts)
    )
    return counted.select(fn.col("window.start").alias("minute"), "*").select(*KEYS, *COUNTED)


def records(sums: DataFrame) -> DataFrame:
    """Return the rows of `sums` as records for Spark's Kafka sink: the columns key, value and topic, all STRING.

    `key` is `minute|topic|level|reason`, with an empty text for a level of null. `value` is JSON with the version `v`
    (1), KEYS and COUNTED; nulls are written. In both, `minute` is epoch ms. `topic` is `<group>-RETRY-STATS`.

    Raises pyspark.errors.PySparkException if `sums` lacks a column.
    """
    level = fn.coalesce("level", fn.lit(""))
    return sums.withColumn("minute", fn.unix_millis("minute")).select(
        fn.concat_ws("|", fn.col("minute").cast("string"), "topic", level, "reason").alias("key"),
        fn.to_json(fn.struct(fn.lit(1).alias("v"), *KEYS, *COUNTED), {"ignoreNullFields": "false"}).alias("value"),
        fn.concat(fn.col("group"), fn.lit(STATS_SUFFIX)).alias("topic"),
    )
