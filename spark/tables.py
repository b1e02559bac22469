"""What the command line lists, as DataFrames: dead letters, records that wait for a retry, and events.

`dead_letters`, `waiting` and `events` take the same arguments, explained here once; what waits is a state, so `waiting`
has no `stream`:

- `brokers`: Kafka's address, `host:port`, or several of them separated by commas. `group`: the group's name.
- `since` (inclusive), `until` (exclusive): bounds of the table's time, `died_at`, `due` or `at`. Each is a duration
  such as `2h` (so long ago; also a `timedelta`), an ISO text with a zone, or a `datetime` with a zone. `since` also
  bounds what is read of Kafka, where Kafka's answer by time is certain to leave out nothing.
- `stream`: a streaming DataFrame of what Kafka has and will get, in place of a batch of what it has when it is read.
- `options`: added to those of Spark's Kafka source, such as `kafka.security.protocol`.

All have `id` STRING; `topic` STRING, `partition` BIGINT, `offset` BIGINT, the position of the first copy in a main
topic; `reason`, `text` STRING, the class of the last failure and what was said of it, null if nothing was; `times`,
`redrives`, `cycle` BIGINT; and `first_failed_at` TIMESTAMP. Each function says what else it has.

All raise ValueError for a time that cannot be read, or a group that Kafka would not allow; errors.NoAnswerError if
Kafka does not answer within 10 s; errors.GroupNotFoundError if it shows this user no events topic of the group. With
Spark Connect they do not raise the last two, and a missing group is empty. `dead_letters` and `waiting` need this
package on the executors, where a Python function parses the headers of each record, but neither key nor value.

**What a state says.** The events tell it, not the progress of redrives that `dlq list` reads: a dead letter is
`redriven` if an event says that its record was redriven since. So the table needs no right beyond READ on the topics,
and also works where Kafka has forgotten that progress. Only the command can tell that a dead letter's topic is not
among those of the configuration (`unfit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from reconsume.spark import schema, view
from reconsume.spark.look import copy_topics, dead_letter_topics, look, read_batch
from reconsume.spark.names import EVENTS_SUFFIX, reading
from reconsume.topics.dead_letter_headers import EDITED
from reconsume.topics.durations import parse_duration
from reconsume.topics.events import AHEAD, State
from reconsume.topics.names import LEGAL_NAMES, Names
from reconsume.topics.reasons import reason_class, text_of
from reconsume.topics.retry_headers import LARGEST_LONG, RETRY_GROUP, BadHeader, parse_retry_headers

__all__ = ["dead_letters", "events", "waiting"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Moment: TypeAlias = str | timedelta | datetime
"""A time as users give it: a duration before now, an ISO text with a zone, or a datetime with a zone."""

MOST_REDRIVES = 3
"""Redrives after which a dead letter is `quarantined`, as `dlq redrive` takes it unless --max-redrives says more."""
CLOCKS = 3_600_000
"""ms by which the clocks of producers and brokers may differ."""
ORIGIN = ("id", "topic", "partition", "offset")
CAUSE = ("reason", "text")
COUNTS = ("times", "redrives", "cycle")
CONTENT = ("key", "value", "headers")
ATTEMPT = ("id", *COUNTS)
POSITION = ("from_topic", "from_partition", "from_offset")
HOW = "write a duration such as 2h, or a time such as 2026-11-29T10:00:00Z"
WAITING = (State.WAITING_RETRY.value, State.REDRIVEN.value)
"""The states of records that are not done, and are no dead letters."""
REPLACED = "\ufffd"
"""What Kafka's client puts for bytes that are not UTF-8. A header's name that has it is not the written name."""
PARSED = (
    "id STRING, topic STRING, `partition` BIGINT, `offset` BIGINT, reason STRING, text STRING, times BIGINT, "
    "redrives BIGINT, cycle BIGINT, first_failed_at BIGINT, group STRING, edits INT, fault STRING, "
    "headers MAP<STRING, BINARY>"
)
"""What `parse_headers` returns."""


def dead_letters(
    spark: SparkSession,
    brokers: str,
    group: str,
    *,
    since: Moment | None = None,
    until: Moment | None = None,
    stream: bool = False,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the group's dead letters: one row for each record of its dead letter topics. See the module, too.

    - A record without readable headers of ours has its own position as `id`, and in `text` why they cannot be read;
      null in `topic`, `partition`, `offset` and `reason`.
    - `state` STRING, not in a stream: `ready` (a redrive would take it), `redriven`, `dismissed`, `superseded` (a reset
      has had the record delivered again), `quarantined`
      (redriven three times already), `copy` (another one of the same failure counts: the newest, or an edited one),
      `unfit` (its headers cannot be read, or do not name a main topic), or `forgotten` (the events that would say
      whether it was redriven have left Kafka).
    - `died_at` TIMESTAMP: the time of the record.
    - `key`, `value` BINARY, `headers` MAP<STRING, BINARY>: of several headers of a name the last one; a null stays.

    The table is complete since the oldest record of the dead letter topics (30 days, as `topics apply` makes them).
    Events are kept for 7 days, after which an older dead letter that was not redriven is `forgotten`; with a view topic
    (`view.source: spark`) that is after 37 days. A stream has each dead letter as it is written.
    """
    source, bounds = reading(brokers, options), bounds_of(since, until)
    visible = look(spark, source, group)
    raw = read(spark, {**bounds.start(), **source, **dead_letter_topics(visible, group)}, stream=stream)
    letters = with_headers(raw, group).where(of_group("from_topic", group)).where(bounds.has("died_at"))
    if stream:
        return letters.select(*ORIGIN, *CAUSE, *COUNTS, "first_failed_at", "died_at", *CONTENT)
    event_rows = view.read_rows(spark, {**bounds.start(CLOCKS), **source}, visible, group)
    stated = with_states(letters, event_rows, is_whole=visible is not None and visible.is_whole)
    if visible is not None and visible.resets:
        is_superseded = fn.col("superseded") & ~fn.col("state").isin("dismissed", "unfit")
        state = fn.when(is_superseded, "superseded").otherwise(fn.col("state"))
        stated = view.with_superseded(stated, visible.resets).withColumn("state", state)
    return stated.select(*ORIGIN, *CAUSE, "state", *COUNTS, "first_failed_at", "died_at", *CONTENT)


def waiting(
    spark: SparkSession,
    brokers: str,
    group: str,
    *,
    since: Moment | None = None,
    until: Moment | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the records that wait for a retry, one row for each, as a batch. See the module, too.

    - `state` STRING: `waiting`, `redriven` (from the dead letters, and not done yet), or `parked` (until an operator
      settles it).
    - `due` TIMESTAMP: null for what is parked, so with `since` or `until` those are left out.
    - `key`, `value` BINARY, `headers` MAP<STRING, BINARY>: those of the copy that waits, as in `dead_letters`; null if
      no topic of the group has that copy, such as of a record that a relay's service has taken.

    A row is there for each record whose latest event says that it waits, as `retries list` has it, and which no reset
    has had delivered again since. Copies of earlier
    attempts, which stay in the topics for a week, are not in the table. It is complete since the oldest event (7 days,
    as `topics apply` makes the topic); with a view topic since the oldest row there (37 days). All events and copies
    are read whatever `since` is: they are not in the order of due times.
    """
    source, bounds = reading(brokers, options), bounds_of(since, until)
    visible = look(spark, source, group)
    rows = view.newest(view.read_rows(spark, source, visible, group))
    if visible is not None and visible.resets:
        rows = view.with_superseded(rows, visible.resets).where("not superseded")
    word = fn.when(fn.col("state") == State.REDRIVEN.value, "redriven").when(fn.col("due") == 0, "parked")
    rows = rows.where(fn.col("state").isin(*WAITING)).withColumn("state", word.otherwise("waiting"))
    rows = schema.with_timestamps(rows).where(bounds.has("due"))
    rows = rows.select(*ORIGIN, *CAUSE, "state", *COUNTS, "first_failed_at", "due")
    copies = with_headers(read(spark, {**source, **copy_topics(visible, group)}), group)
    copies = copies.where(fn.col("fault").isNull() & of_group("", group)).select(
        *ATTEMPT, "died_at", *POSITION, *CONTENT
    )
    newest = Window.partitionBy("id").orderBy(*(fn.desc(name) for name in ("died_at", *POSITION)))
    matched = rows.join(copies, list(ATTEMPT), "left").withColumn("nth", fn.row_number().over(newest))
    return matched.where("nth = 1").select(*rows.columns, *CONTENT)


def events(
    spark: SparkSession,
    brokers: str,
    group: str,
    *,
    since: Moment | None = None,
    until: Moment | None = None,
    stream: bool = False,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the group's events: one row for each change of a record's state. See the module, too.

    - `state` STRING: WAITING_RETRY, COMMIT, DLQ, REDRIVEN or DISMISSED, as `retries show` has it.
    - `at` TIMESTAMP: when it changed.

    Records that are not events are left out. The table is complete since the oldest event (7 days, as `topics apply`
    makes the topic).
    """
    source, bounds = reading(brokers, options), bounds_of(since, until)
    look(spark, source, group)
    raw = read(spark, {**bounds.start(), **source, "subscribe": Names(group).events}, stream=stream)
    good = schema.with_timestamps(schema.split_good_bad(schema.parse(raw, EVENTS_SUFFIX)).good)
    return good.where(bounds.has("at")).select(*ORIGIN, *CAUSE, "state", *COUNTS, "first_failed_at", "at")


class Bounds(NamedTuple):
    """The bounds of a table's time, in epoch ms; None for no bound."""

    since: int | None
    until: int | None

    def start(self, slack: int = 0) -> dict[str, str]:
        """Return the options of Spark's Kafka source that leave out what is certainly older. `slack`: ms.

        Kafka names the first record that is not older than a time, so whatever is before that one is older.
        """
        if self.since is None:
            return {}
        # An event may be ahead of the record that holds it by AHEAD.
        return {"startingTimestamp": str(max(0, self.since - slack - AHEAD))}

    def has(self, name: str) -> Column:
        """Return whether a TIMESTAMP is within the bounds; a null is so only where there are none."""
        condition = fn.lit(True)
        if self.since is not None:
            condition &= fn.col(name) >= fn.timestamp_millis(fn.lit(self.since))
        if self.until is not None:
            condition &= fn.col(name) < fn.timestamp_millis(fn.lit(self.until))
        return condition


def bounds_of(since: Moment | None, until: Moment | None) -> Bounds:
    """Return the bounds that a user has given, as of now. Raises ValueError, which names the argument."""
    now = datetime.now(UTC)
    return Bounds(
        *(
            None if moment is None else epoch_ms(name, moment, now)
            for name, moment in (("since", since), ("until", until))
        )
    )


def epoch_ms(name: str, moment: Moment, now: datetime) -> int:
    """Return a time in epoch ms. Raises ValueError, with the argument's name, if it is not one, or has no zone."""
    try:
        at = at_of(moment) if isinstance(moment, str) else moment
        at = now - at if isinstance(at, timedelta) else at
        if isinstance(at, datetime) and at.tzinfo is not None:
            return int(at.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{name}: {str(moment)[:40]!r} is not a time with a zone: {HOW}")


def at_of(text: str) -> timedelta | datetime:
    """Return the time that a text means. Raises ValueError or OverflowError if it means none."""
    try:
        return timedelta(milliseconds=parse_duration(text))
    except ValueError:
        return datetime.fromisoformat(text)


def read(spark: SparkSession, source: Mapping[str, str], *, stream: bool = False) -> DataFrame:
    """Return the records of the topics that `source` selects, with their headers, as a batch or a stream."""
    whole = {**source, "includeHeaders": "true"}
    return spark.readStream.format("kafka").options(**whole).load() if stream else read_batch(spark, whole)


def with_headers(raw: DataFrame, group: str) -> DataFrame:
    """Return records of our topics with what our headers say of them.

    The columns are those of PARSED, `key`, `value`, `died_at` (the time of the record, TIMESTAMP), and the position of
    the record, `from_topic`, `from_partition` and `from_offset`.
    """
    # Spark 4.2 takes the type hints of a function for those of columns, and warns of all others: a lambda has none.
    # Not deterministic for Spark: it would call the function for each of the columns.
    parsed = fn.udf(lambda headers: parse_headers(headers, group), PARSED, useArrow=False).asNondeterministic()
    position = [fn.col(name.removeprefix("from_")).alias(name) for name in POSITION]
    records = raw.select(
        "key", "value", fn.unix_millis("timestamp").alias("died_at"), *position, parsed("headers").alias("p")
    )
    own = fn.concat_ws(":", *POSITION)
    known = records.select("key", "value", "died_at", *POSITION, "p.*").withColumn("id", fn.coalesce("id", own))
    return known.withColumns({name: schema.moment(name) for name in ("died_at", "first_failed_at")})


def parse_headers(headers: Iterable[Any] | None, group: str) -> dict[str, Any]:
    """Return what the headers of a record say, by the names of PARSED; called on the executors. Never raises."""
    pairs = [(key, None if value is None else bytes(value)) for key, value in headers or ()]
    said: dict[str, Any] = {"headers": dict(pairs), "edits": sum(key == EDITED for key, _ in pairs)}
    if any(REPLACED in key for key, _ in pairs):
        why = "the name of a header is not UTF-8"
        return said | {"fault": why, "text": why}
    state = parse_retry_headers(pairs, LEGAL_NAMES, LARGEST_LONG)
    if isinstance(state, BadHeader):
        return said | {"fault": state.text, "text": state.text}
    topic, partition, offset = state.id.rsplit(":", 2)
    role = Names(group).role(topic, ())
    return said | {
        "id": state.id,
        "topic": topic,
        "partition": int(partition),
        "offset": int(offset),
        "reason": reason_class(state.reason),
        "text": text_of(state.reason) or None,
        "times": state.times,
        "redrives": state.redrives,
        "cycle": state.cycle,
        "first_failed_at": state.first_failed_at,
        "group": (said["headers"].get(RETRY_GROUP) or b"").decode(),
        "fault": None if role is None else f"it died with broken headers, as a record of {topic}",
    }


def of_group(own: str, group: str) -> Column:
    """Return whether a record is of the group: each one of its dead letter topic, and of others what names no other."""
    ours = fn.coalesce("group", fn.lit("")).isin("", group)
    return ours if not own else ours | (fn.col(own) == Names(group).dlq(""))


def with_states(letters: DataFrame, rows: DataFrame, *, is_whole: bool) -> DataFrame:
    """Return dead letters with their `state`. `rows`: of all events that are known. `is_whole`: none has left Kafka."""
    dismissed = fn.when(fn.col("state") == State.DISMISSED.value, fn.struct("redrives", "times"))
    ends = rows.groupBy("id", "cycle").agg(
        fn.max("redrives").alias("most_redrives"), fn.collect_set(dismissed).alias("dismissed")
    )
    is_redriven = fn.coalesce(fn.col("most_redrives") > fn.col("redrives"), fn.lit(False))
    failure = Window.partitionBy("id", "cycle", "redrives")
    by_age = ("died_at", "from_partition", "from_offset")
    oldest = fn.row_number().over(failure.orderBy(*by_age))
    newest = fn.row_number().over(failure.orderBy(fn.desc("edits"), *map(fn.desc, by_age)))
    counts = fn.when(is_redriven, oldest).otherwise(newest) == 1
    state = (
        fn.when(fn.array_contains("dismissed", fn.struct("redrives", "times")), "dismissed")
        .when(fn.col("fault").isNotNull(), "unfit")
        .when(~counts, "copy")
        .when(is_redriven, "redriven")
        .when(fn.col("redrives") >= MOST_REDRIVES, "quarantined")
        .when(fn.col("most_redrives").isNull() & fn.lit(not is_whole), "forgotten")
        .otherwise("ready")
    )
    return letters.join(ends, ["id", "cycle"], "left").withColumn("state", state)
