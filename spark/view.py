"""The view: the present state of every record that has failed (contract 11.2, 11.3). Pure functions.

Events may come in any order. Those of a record have a total order (PLACE), and every column of a row is a maximum or a
minimum. So the rows are the same if events are late, repeated, replayed, or split over batches and restarts. Rows can
be folded again with events.

**When a row leaves.** In a stream with a `keep`, let

    W = (latest `first_failed_at` of all good events, of all groups, that the query read while it had a `keep`) − keep

W moves after each batch. An event with `first_failed_at` ≤ W is dropped and counted (`numRowsDroppedByWatermark`). The
state forgets a record with `first_failed_at` ≤ W. Its last row stays in the view topic for that topic's `retention.ms`.
To follow a record to its end, even if it is redriven from the DLQ on the last day there, choose

    keep ≥ 2 × (longest time of a record in retry) + (retention of the DLQ)

and a retention of the view topic that is not smaller. To find the rows that leave, Spark reads all rows after every
batch.

Without a `keep` Spark reads none of them for this, no row leaves, and no event is dropped. An event of a record that
was forgotten then makes a row from that event alone.

A query can be stopped and can go on from its checkpoint with or without a `keep`, as often as needed: state and W stay.
The job does so (`EvictingQuery`): there a row leaves in the first sweep after its time. Rows in the state ≈ failed
records per second × (keep + seconds between two sweeps).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from spark import names, schema
from spark.names import VIEW_SUFFIX
from spark.schema import FIELDS, SUMMED, Parsed
from topics.events import RANKS, State
from topics.specs import VIEW_RETENTION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUE = (*FIELDS, *SUMMED)
"""The columns of the view, in the order of its JSON.

`times`, `redrives`, `partition`, `offset` and `retries` are BIGINT. `due`, `at`, `timestamp`, `first_failed_at`,
`last_failed_at` and `updated_at` are BIGINT, in epoch ms. All others are STRING. `level` is a duration such as `10s`,
and null if there is none.
"""
ORDER_KEY = ("redrives", "times", "rank", "at", "from_view", "from_partition", "from_offset")
"""The order of events: the first four columns as in `topics.events.order`, then the position of the event's own record.

The position makes all events different. If both of a group's topics hold an event, that in the view topic is the
greater, by name and here.
"""
CARRIED = ("level", "due", "reason", "topic", "partition", "offset", "timestamp", "instance")
"""The columns that the latest event gives, apart from the record's identity and ORDER_KEY, which has the state as its
rank. An event's `text` is none of them: a checkpoint has this form, and one of another form is unreadable."""
KEEP = f"{VIEW_RETENTION} milliseconds"
"""The default `keep`: the retention of the view topic, 37 days."""


def events(raw: DataFrame) -> Parsed:
    """Split the records of event topics into good events and bad ones.

    `raw` has the columns of Spark's Kafka source: `topic`, `partition`, `offset`, `timestamp` and `value`, from a batch
    or a stream. The result is a `schema.Parsed` of two DataFrames. A record that is not an event raises no error: it is
    a row of `bad`.

    Raises pyspark.errors.PySparkException if `raw` lacks a column.
    """
    return schema.events(raw)


def view(good: DataFrame, keep: str | None = KEEP) -> DataFrame:
    """Return one row for each record and first failure.

    `good` is the `good` of `events`, from a batch or a stream. `keep` is a Spark interval such as `37 days`; with None
    no row is forgotten. The module's docstring defines when a row leaves. A batch keeps all rows.

    The columns are VALUE and `order_key`, a STRUCT of PLACE: `redrives` BIGINT, `times` BIGINT, `rank` INT, `at` BIGINT
    (epoch ms), `from_view` BOOLEAN, `from_partition` INT, `from_offset` BIGINT. Write a stream in output mode update.

    A record has two rows if it had two first failures, because its first event was undone by a crash. Readers keep the
    row with the greater `order_key`.

    Raises pyspark.errors.PySparkException if `keep` is not an interval, or if `good` lacks a column.
    """
    # The first failure is a key, because the watermark is on it.
    first_failed = fn.timestamp_millis("first_failed_at").alias("first_failed")
    rows = of_events(good).select("*", first_failed)
    return fold(rows if keep is None else rows.withWatermark("first_failed", keep), "first_failed")


def of_events(good: DataFrame) -> DataFrame:
    """Return each event as the row of a record that has no other event."""
    failure = fn.col("state").isin(State.WAITING_RETRY.value, State.DLQ.value)
    summed = {
        "last_failed_at": fn.when(failure, fn.col("at")).otherwise(fn.col("first_failed_at")),
        "retries": fn.col("times"),
        "updated_at": fn.col("written_at"),
    }
    return good.select(*FIELDS, *(column.alias(name) for name, column in summed.items()), order_key())


def order_key() -> Column:
    """Return an event's position in the order of its record's events."""
    rank = translated(fn.col("state"), {state.value: rank for state, rank in RANKS.items()})
    columns = {"rank": rank, "from_view": fn.col("from_topic").endswith(VIEW_SUFFIX)}
    return fn.struct(*(columns.get(name, fn.col(name)).alias(name) for name in ORDER_KEY)).alias("place")


def translated(column: Column, words: Mapping[Any, Any]) -> Column:
    """Return the meaning of the column's value in `words`; null if `words` does not have the value."""
    return fn.coalesce(*(fn.when(column == word, meaning) for word, meaning in words.items()))


def fold(rows: DataFrame, *more_keys: str) -> DataFrame:
    """Merge the rows of each record into one, by `group`, `id` and `more_keys`."""
    # Spark sorts by the keys, and compares only eight bytes of the first one if it can. Eight bytes of a time differ
    # more often than eight bytes of a name.
    latest = rows.groupBy(*more_keys, "id", "group").agg(
        # The same as max_by(CARRIED, place), but `place`, which is needed again, is kept once. This halves the state
        # and its cost.
        fn.max(fn.struct("place", *CARRIED)).alias("now"),
        fn.min("first_failed_at").alias("first_failed_at"),
        *(fn.max(name).alias(name) for name in SUMMED),
    )
    columns = {
        **{name: fn.col(f"now.{name}") for name in CARRIED},
        **{name: fn.col(f"now.place.{name}") for name in ("redrives", "times", "at")},
        "state": translated(fn.col("now.place.rank"), {rank: state.value for state, rank in RANKS.items()}),
    }
    return latest.select(*(columns.get(name, fn.col(name)).alias(name) for name in VALUE), "now.place")


def records(view: DataFrame) -> DataFrame:
    """Return the rows of `view` as records for Spark's Kafka sink: the columns key, value and topic, all STRING.

    `key` is the record's id. `value` is JSON with the version `v` (1) and VALUE; nulls are written. `topic` is
    `<group>-RETRY-VIEW`. `view` is the result of the function `view`, or of `present`.

    Raises pyspark.errors.PySparkException if `view` lacks a column.
    """
    row = fn.struct(fn.lit(1).alias("v"), *VALUE)
    return view.select(
        fn.col("id").alias("key"),
        # A level of null is written, not left out: a record without the field is not an event.
        fn.to_json(row, {"ignoreNullFields": "false"}).alias("value"),
        fn.concat(fn.col("group"), fn.lit(VIEW_SUFFIX)).alias("topic"),
    )


def present(raw: DataFrame) -> DataFrame:
    """Return the present state, one row (VALUE) for each record, from records of event topics and of view topics.

    `raw` is a batch with the columns of Spark's Kafka source. Events are kept for days, the view for weeks: the rows of
    the view topic hold the last state of records whose events were deleted. Bad records are left out.

    Raises pyspark.errors.PySparkException if `raw` lacks a column.
    """
    is_view = fn.col("topic").endswith(VIEW_SUFFIX)
    folded = view(events(raw.where(~is_view)).good)
    remembered = schema.view_rows(raw.where(is_view)).good.select(*VALUE, order_key())
    return fold(folded.unionByName(remembered)).select(*VALUE)


def table(spark: SparkSession, bootstrap: str, group: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """Return the group's present state as a batch DataFrame: one row (VALUE) for each record.

    The state is the one in Kafka when Spark reads it. `bootstrap` is Kafka's address, `host:port`, or several of them
    separated by commas. `options` are added to those of Spark's Kafka source, such as `kafka.security.protocol`. The
    result is empty if the group has no topics.

    Raises ValueError if Kafka would not allow the name of the group's events topic. Raises
    pyspark.errors.PySparkException if Spark refuses an option or has no Kafka connector.
    """
    source = {**names.reading(bootstrap, options), **names.present(group)}
    return present(spark.read.format("kafka").options(**source).load())
