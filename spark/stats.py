"""The sums: how many records began to wait, committed, died, were redriven, by minute, topic, level and reason. Pure.

Counts cannot be repeated harmlessly, as rows of the view can: so each event is counted once, by its id (group, id,
redrives, times, state), and a minute's sums are written once, when no event of it can come any more.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from spark.names import STATS_SUFFIX
from topics.events import State

DELAY = "10 minutes"
"""How long a minute stays open. Copies of an event carry its time: one that comes later is dropped, never counted."""
EVENT_ID = ("group", "id", "redrives", "times", "state")
KEYS = ("group", "minute", "topic", "level", "reason")
COUNTED = {
    "waiting": State.WAITING_RETRY,
    "committed": State.COMMIT,
    "dead": State.DLQ,
    "redriven": State.REDRIVEN,
}


def sums(good: DataFrame, delay: str = DELAY) -> DataFrame:
    """Sums of events (`schema.Parsed.good`) with the columns KEYS and COUNTED; `minute` is epoch ms. Streams: append.

    `delay` is an interval: a minute is told when an event of `delay` after its end was seen, in whatever group.
    """
    told = good.select(*EVENT_ID, "topic", "level", "reason", fn.timestamp_millis("at").alias("happened"))
    aged = told.withWatermark("happened", delay)
    once = aged.dropDuplicatesWithinWatermark([*EVENT_ID]) if good.isStreaming else aged.dropDuplicates([*EVENT_ID])
    counts = (fn.count_if(fn.col("state") == state.value).alias(name) for name, state in COUNTED.items())
    counted = once.groupBy(fn.window("happened", "1 minute"), "group", "topic", "level", "reason").agg(*counts)
    return counted.select(fn.unix_millis("window.start").alias("minute"), "*").select(*KEYS, *COUNTED)


def records(sums: DataFrame) -> DataFrame:
    """The rows of `sums` as records for Kafka's sink: key, value (JSON), topic."""
    level = fn.coalesce("level", fn.lit(""))
    return sums.select(
        fn.concat_ws("|", fn.col("minute").cast("string"), "topic", level, "reason").alias("key"),
        fn.to_json(fn.struct(fn.lit(1).alias("v"), *KEYS, *COUNTED), {"ignoreNullFields": "false"}).alias("value"),
        fn.concat(fn.col("group"), fn.lit(STATS_SUFFIX)).alias("topic"),
    )
