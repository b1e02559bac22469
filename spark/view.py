"""The view: the present state of every record that has failed (contract 11.2, 11.3). Pure functions without state.

A row is a function of one event. Events of a record have a total order (`place`), and its present state is the row of
the greatest. So events may come late, repeated or again, and be split over batches and restarts: readers of the view
topic keep the greater row. No query remembers a record, and none has a watermark. A row stays in the view topic for
that topic's `retention.ms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from reconsume.spark import schema
from reconsume.spark.look import VisibleTopics, look, read_batch, state_topics
from reconsume.spark.names import EVENTS_SUFFIX, VIEW_SUFFIX, reading
from reconsume.spark.schema import CYCLE, events
from reconsume.topics.events import FAILURES, RANKS
from reconsume.topics.names import Names
from reconsume.topics.position_ranges import Resets

__all__ = ["VALUE", "events", "newest", "outputs", "present", "table", "view"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUE = tuple(name for name in schema.VIEW_ROW.names if name != "v")
"""The columns of the view, in the order of its JSON (`schema.VIEW_ROW`) and with its types: times are epoch ms.

`level` is a duration such as `10s`, and null if there is none.
"""
ORDER_KEY = ("cycle", "redrives", "times", "rank", "at", "from_view", "from_partition", "from_offset")
"""The order of events: the first five columns as in `topics.events.order`, then the position of the event's own record.

The position makes all events different. If both of a group's topics hold an event, that in the view topic is the
greater, by name and here.
"""


def view(good: DataFrame) -> DataFrame:
    """Return the row of each event.

    `good` is the `good` of `events`, from a batch or a stream; write a stream in output mode append. Of several rows of
    a record readers keep the one with the greatest `place`.

    The columns are VALUE and `place`, a STRUCT of ORDER_KEY: `cycle` BIGINT, `redrives` BIGINT, `times` BIGINT,
    `rank` INT, `at` BIGINT (epoch ms), `from_view` BOOLEAN, `from_partition` INT, `from_offset` BIGINT.

    Raises pyspark.errors.PySparkException if `good` lacks a column.
    """
    return good.select(*row_columns(), order_key())


def row_columns() -> list[Column]:
    """Return VALUE as columns of a good event. What the event leaves out is said by its other fields."""
    failed = fn.when(fn.col("state").isin([state.value for state in FAILURES]), fn.col("at"))
    history = {
        "last_failed_at": fn.coalesce("last_failed_at", failed, "first_failed_at"),
        "retries": fn.coalesce("retries", "times"),
        "updated_at": fn.col("written_at"),
    }
    return [history.get(name, fn.col(name)).alias(name) for name in VALUE]


def order_key() -> Column:
    """Return an event's position in the order of its record's events."""
    rank = translated(fn.col("state"), {state.value: rank for state, rank in RANKS.items()})
    columns = {"rank": rank, "from_view": fn.col("from_topic").endswith(VIEW_SUFFIX)}
    return fn.struct(*(columns.get(name, fn.col(name)).alias(name) for name in ORDER_KEY)).alias("place")


def translated(column: Column, words: Mapping[Any, Any]) -> Column:
    """Return the meaning of the column's value in `words`; null if `words` does not have the value."""
    return fn.coalesce(*(fn.when(column == word, meaning) for word, meaning in words.items()))


def outputs(raw: DataFrame) -> DataFrame:
    """Return what the view's job writes of records of event topics, as records for Spark's Kafka sink.

    `raw` has the columns of Spark's Kafka source. Bad events are left out. The result has the columns key, value and
    topic, all STRING. The key is the record's id, the value JSON with the version `v` (1) and VALUE, nulls among them,
    and the topic `<group>-RETRY-VIEW`.

    Raises pyspark.errors.PySparkException if `raw` lacks a column.
    """
    good = schema.parsed(raw).where(fn.col("fault").isNull())
    return good.select(
        fn.col("id").alias("key"),
        row_json(row_columns()).alias("value"),
        fn.concat(fn.col("group"), fn.lit(VIEW_SUFFIX)).alias("topic"),
    )


def row_json(columns: Iterable[Column | str]) -> Column:
    """Return the columns of VALUE as the JSON of a record of the view."""
    # A level of null is written, not left out: a record without the field is not an event. A cycle of 0 is left out.
    row = fn.struct(fn.lit(1).alias("v"), *columns)
    whole = {"ignoreNullFields": "false"}
    return fn.when(row[CYCLE] == 0, fn.to_json(row.dropFields(CYCLE), whole)).otherwise(fn.to_json(row, whole))


def rows(raw: DataFrame, *, has_view: bool = True) -> DataFrame:
    """Return the row of each good record of event topics and of view topics, as a batch: VALUE, `text` and `place`.

    `raw` has the columns of Spark's Kafka source, and without `has_view` no records of view topics: Spark then compiles
    half as much, which takes longer than to read some thousand records. `text` STRING is what the service said of the
    failure; null if it said nothing, and in rows of view topics. Bad records are left out.

    Raises pyspark.errors.PySparkException if `raw` lacks a column.
    """
    is_view = fn.col("topic").endswith(VIEW_SUFFIX)
    # Without the metrics of `events`: a query over two tables would have two of one name, which Spark refuses.
    event_rows = schema.split_good_bad(schema.parse(raw.where(~is_view), EVENTS_SUFFIX)).good
    event_rows = event_rows.select(*row_columns(), "text", order_key())
    if not has_view:
        return event_rows
    remembered = schema.view_rows(raw.where(is_view)).good.select(*VALUE, "text", order_key())
    return event_rows.unionByName(remembered)


def present(raw: DataFrame) -> DataFrame:
    """Return the present state, one row (VALUE) for each record, from records of event topics and of view topics.

    `raw` is a batch with the columns of Spark's Kafka source. Events are kept for days, the view for weeks: the rows of
    the view topic hold the last state of records whose events were deleted. Bad records are left out. Times are epoch
    ms; `schema.with_timestamps` makes TIMESTAMP of them.

    Raises pyspark.errors.PySparkException if `raw` lacks a column.
    """
    return newest(rows(raw)).select(*VALUE)


def newest(rows: DataFrame) -> DataFrame:
    """Return one row for each record, the one with the greatest `place`: all columns of `rows`, `place` the last.

    `rows` is a batch of `view`, such as `foreachBatch` gives. All rows of a record are in one partition of the result.
    """
    columns = [name for name in rows.columns if name != "place"]
    latest = rows.groupBy("group", "id").agg(fn.max(fn.struct("place", *columns)).alias("latest"))
    return latest.select(*(fn.col(f"latest.{name}").alias(name) for name in (*columns, "place")))


def table(
    spark: SparkSession,
    bootstrap: str,
    group: str,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the group's present state as a batch DataFrame: one row for each record that has failed at least once.

    The columns are VALUE, with times as TIMESTAMP: null where there is no time, such as `due` of a parked record. The
    state is the one in Kafka when Spark reads it. It is complete since the oldest record in the group's events topic (7
    days, as `topics apply` makes it), and with a view topic since the oldest one there (37 days). A record that a reset
    has had delivered again since has the state SUPERSEDED until the first event of its new cycle; with Spark Connect,
    and without the right to read the policy topic, it keeps the one before.

    `bootstrap` is Kafka's address, `host:port`, or several of them separated by commas. `options` are added to those of
    Spark's Kafka source, such as `kafka.security.protocol`.

    Raises ValueError if Kafka would not allow the name of the group's events topic. Raises errors.NoAnswerError if
    Kafka does not answer within 10 s, and errors.GroupNotFoundError if it shows this user no events topic of the group.
    With Spark Connect neither is raised: a missing group is empty. Raises pyspark.errors.PySparkException if Spark
    refuses an option or has no Kafka connector.
    """
    source = reading(bootstrap, options)
    visible = look(spark, source, group)
    rows = newest(read_rows(spark, source, visible, group))
    if visible is not None and visible.resets:
        state = fn.when(fn.col("superseded"), "SUPERSEDED").otherwise(fn.col("state"))
        rows = with_superseded(rows, visible.resets).withColumn("state", state)
    return schema.with_timestamps(rows.select(*VALUE))


def with_superseded(rows: DataFrame, resets: Resets) -> DataFrame:
    """Return rows with the column `superseded` BOOLEAN: a reset has had the record delivered again, in a later cycle.

    `rows` has the columns `topic`, `partition`, `offset` and `cycle`.
    """
    segments = [(*source, *segment) for source, one in resets.items() for segment in one.segments()]
    form = "in_topic STRING, in_partition BIGINT, first BIGINT, end BIGINT, in_cycle BIGINT"
    ranges = rows.sparkSession.createDataFrame(segments, form)
    is_in = (fn.col("topic") == fn.col("in_topic")) & (fn.col("partition") == fn.col("in_partition"))
    is_in &= (fn.col("offset") >= fn.col("first")) & (fn.col("offset") < fn.col("end"))
    joined = rows.join(fn.broadcast(ranges), is_in & (fn.col("cycle") < fn.col("in_cycle")), "left")
    return joined.withColumn("superseded", fn.col("in_cycle").isNotNull()).drop(*ranges.columns)


def read_rows(spark: SparkSession, source: Mapping[str, str], visible: VisibleTopics | None, group: str) -> DataFrame:
    """Return the `rows` of a group's topics, as a batch. `visible`: what a look has shown."""
    has_view = visible is None or Names(group).view in visible.topics
    return rows(read_batch(spark, {**source, **state_topics(visible, group)}), has_view=has_view)
