"""The sums: how many retried records changed their state, for each minute, topic, level and reason. Pure functions.

A record begins to wait, is committed, is dead-lettered or is redriven. Sidecars write each event once, by
transactions, so each record of an event topic counts. `sums` is for your own queries, over a batch or a stream; no job
of this package keeps sums.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from reconsume.topics.view_record import COUNTED

__all__ = ["sums"]

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
