"""The view: the present state of every record that has failed, from the events in any order (contract §5, §8). Pure.

Places in a record's life form a total order, and every column is a maximum or minimum; so events that are late,
repeated, replayed or split over batches and restarts give the same rows, and rows may be folded again with events.

**When a row leaves.** In a stream with a `keep`: W = (latest `first_failed_at` of all good events that the query was
given with a `keep`, of all groups) − keep, moved after each batch. An event with `first_failed_at` ≤ W is dropped and
counted (`numRowsDroppedByWatermark`), and the state forgets a record with `first_failed_at` ≤ W; its last row stays in
the view topic for that topic's `retention.ms`. To follow a record to its end, also when it is redriven from the DLQ on
the last day, choose

    keep ≥ 2 × (longest life of a record in retry) + (retention of the DLQ)

and the view topic's retention no smaller. To find the rows that leave, Spark looks at all of them after every batch.
Without a `keep` it looks at none, nothing leaves, and nothing is dropped: an event of a record that was forgotten makes
a row of what it tells alone. A query may be stopped and go on from its checkpoint with the other of the two, as often
as one likes: the state and W stay. The job does so (`sweep`), so that in it a row leaves in the first sweep after its
time, and rows in the state ≈ failed records a second × (keep + time between two sweeps).
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
"""The columns of the view, in the order of its JSON; times are epoch ms."""
PLACE = ("redrives", "times", "rank", "at", "from_view", "from_partition", "from_offset")
"""The order of events: the first four as `topics.events.order`; then where the record is, so that no two are equal. Of
a group's two topics that hold it, the view's is the greater, by name and here."""
CARRIED = ("level", "due", "reason", "topic", "partition", "offset", "timestamp", "instance")
"""What the present state says beside its place, which has the state as its rank, and the record's identity."""
KEEP = f"{VIEW_RETENTION} milliseconds"


def events(raw: DataFrame) -> Parsed:
    """Good and bad events of records with the columns of Spark's Kafka source; see `schema.Parsed`."""
    return schema.events(raw)


def view(good: DataFrame, keep: str | None = KEEP) -> DataFrame:
    """One row for each record and first failure: VALUE and `place` (a struct of PLACE). Streams: update mode.

    `keep` is an interval such as `37 days`; None forgets nothing; see the module. A batch keeps all. The first failure
    is in the key, as it is what the watermark is on: a record that had two (its first event was undone by a crash) has
    two rows, of which readers keep the greater.
    """
    first_failed = fn.timestamp_millis("first_failed_at").alias("first_failed")
    rows = of_events(good).select("*", first_failed)
    return fold(rows if keep is None else rows.withWatermark("first_failed", keep), "first_failed")


def of_events(good: DataFrame) -> DataFrame:
    """Each event as the row of a record that it is the only event of."""
    failure = fn.col("state").isin(State.WAITING_RETRY.value, State.DLQ.value)
    summed = {
        "last_failed_at": fn.when(failure, fn.col("at")).otherwise(fn.col("first_failed_at")),
        "retries": fn.col("times"),
        "updated_at": fn.col("written_at"),
    }
    return good.select(*FIELDS, *(column.alias(name) for name, column in summed.items()), place())


def place() -> Column:
    """The place of an event in its record's life."""
    rank = translated(fn.col("state"), {state.value: rank for state, rank in RANKS.items()})
    told = {"rank": rank, "from_view": fn.col("from_topic").endswith(VIEW_SUFFIX)}
    return fn.struct(*(told.get(name, fn.col(name)).alias(name) for name in PLACE)).alias("place")


def translated(column: Column, words: Mapping[Any, Any]) -> Column:
    """What stands for the column's value in `words`; null for one that is not there."""
    return fn.coalesce(*(fn.when(column == word, meaning) for word, meaning in words.items()))


def fold(rows: DataFrame, *more_keys: str) -> DataFrame:
    """The rows of each record as one, by `group`, `id` and `more_keys`."""
    # Spark sorts by the keys, and looks at eight bytes of the first alone where it can: a time tells more than a name.
    latest = rows.groupBy(*more_keys, "id", "group").agg(
        # As max_by(CARRIED, place), but the place, which is needed again, is kept once: half the state and its cost.
        fn.max(fn.struct("place", *CARRIED)).alias("now"),
        fn.min("first_failed_at").alias("first_failed_at"),
        *(fn.max(name).alias(name) for name in SUMMED),
    )
    found = {
        **{name: fn.col(f"now.{name}") for name in CARRIED},
        **{name: fn.col(f"now.place.{name}") for name in ("redrives", "times", "at")},
        "state": translated(fn.col("now.place.rank"), {rank: state.value for state, rank in RANKS.items()}),
    }
    return latest.select(*(found.get(name, fn.col(name)).alias(name) for name in VALUE), "now.place")


def records(view: DataFrame) -> DataFrame:
    """The rows of `view` as records for Kafka's sink: key, value (JSON), topic."""
    row = fn.struct(fn.lit(1).alias("v"), *VALUE)
    return view.select(
        fn.col("id").alias("key"),
        # A level of null is said, not left out: an event without the field is not an event.
        fn.to_json(row, {"ignoreNullFields": "false"}).alias("value"),
        fn.concat(fn.col("group"), fn.lit(VIEW_SUFFIX)).alias("topic"),
    )


def present(raw: DataFrame) -> DataFrame:
    """The present state, a row (VALUE) for each record, from records of event topics and of view topics.

    Events are kept for days, the view for weeks: the view's rows remember what the events no longer tell.
    """
    is_view = fn.col("topic").endswith(VIEW_SUFFIX)
    told = view(events(raw.where(~is_view)).good)
    remembered = schema.view_rows(raw.where(is_view)).good.select(*VALUE, place())
    return fold(told.unionByName(remembered)).select(*VALUE)


def table(spark: SparkSession, bootstrap: str, group: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """The group's present state as a DataFrame with the columns VALUE, as Kafka has it when it is read.

    `options` are added to the Kafka source's, such as `kafka.security.protocol`. ValueError for an impossible group.
    """
    source = {**names.reading(bootstrap, options), **names.present(group)}
    return present(spark.read.format("kafka").options(**source).load())
