"""The form of the documented topics, and a strict parser of event topics: good events, and bad ones with the reason.

EVENT and VIEW_ROW are the values of records of `<group>-RETRY-EVENTS` and `<group>-RETRY-VIEW`, for
`from_json(col("value").cast("string"), schema.EVENT)`. They say what a value has, and check nothing; `events` and
`view_rows` do. All functions are pure and use Spark's built-ins only.

A record is good if writing what was read from it gives the same bytes, as all of Reconsume write events alike. More
fields may follow, as a newer release may have them, if they are plain values. So every record that
`topics.events.decode_event` refuses is refused here too; that function decides the form of an event. In addition, an
event is bad in these cases:

- It has other white space, another order of fields, or other escapes.
- Its group is not the one whose topic it is in. Its group names the topic that the job writes to.
- It is longer than LONGEST.
- Its clock is ahead by more than AHEAD: it would move the watermark of all groups. It is compared with the time when
  the broker appended the record. On a topic with CreateTime it is compared with the producer's and the batch's time.

No function here raises at run time, whatever a record holds: every number is compared before it is used.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from reconsume.spark.names import EVENTS_SUFFIX, VIEW_SUFFIX
from reconsume.topics.events import AHEAD, LARGEST, RANKS

LONGEST = LARGEST
"""Bytes of an event. An event has some 400; a row of the view is a little larger than its event, and must fit its
topic."""
JSON = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
"""Options of Spark's parser. By default it takes more than JSON."""
LOG_APPEND_TIME = 1
"""The `timestampType` of a record whose timestamp is the broker's."""
OBSERVED = "events"
"""The name of the metrics (`read`, `bad`) that each query over good events reports in its progress."""

TEXTS = ("group", "id", "reason", "topic", "instance")
COUNTS = ("times", "redrives", "partition")
LONGS = ("due", "at", "offset", "first_failed_at")
HISTORY = ("last_failed_at", "retries")
"""The columns that a row of the view always has, and an event only where its other fields do not say them. BIGINT; the
time is epoch ms."""
ROW_ONLY = ("updated_at",)
"""The column of a row of the view that no event has. BIGINT, epoch ms."""
FIELDS = (
    *("group", "id", "state", "times", "redrives", "level", "due", "at", "reason"),
    *("topic", "partition", "offset", "timestamp", "first_failed_at", "instance"),
)
"""An event's fields, in the order in which the sidecar writes them."""
CYCLE = "cycle"
"""The column that neither an event nor a row has if it is 0. BIGINT."""
OPTIONAL = ("text", "retries", "last_failed_at", "parked", CYCLE)
"""Fields that an event may have behind `v`, or null, in the order in which the sidecar writes them. Rows do not carry
the text, nor `parked`: of such a record nothing is due."""
TIMES = ("due", "at", "timestamp", "first_failed_at", "last_failed_at", "updated_at")
"""The columns that are times. In the topics they are BIGINT, in epoch ms."""
LATEST_TIME = 253_370_764_800_000
"""Epoch ms of 9999-01-01. A later time is null in a TIMESTAMP: Python and SQL cannot show it in every zone."""
POSITION = ("topic", "partition", "offset")
ORIGIN = (*(f"from_{name}" for name in POSITION), "written_at")
"""The position of an event's own record, and the time when it was written there (epoch ms)."""


def kind(name: str) -> str:
    """Return the type that a field must have, in SQL."""
    if name == "parked":
        return "BOOLEAN"
    return "STRING" if name in (*TEXTS, "state", "level", "text") else "BIGINT"


def struct_of(fields: Sequence[str]) -> StructType:
    """Return the type of a JSON object with these fields, all of which may be null."""
    types: dict[str, DataType] = {"STRING": StringType(), "BOOLEAN": BooleanType(), "BIGINT": LongType()}
    return StructType([StructField(name, types[kind(name)]) for name in fields])


EVENT = struct_of((*FIELDS, "v", *OPTIONAL))
"""The value of a record of `<group>-RETRY-EVENTS`, in the order in which the sidecar writes its fields.

All times are BIGINT, in epoch ms. The fields behind `v` may be missing.
"""
VIEW_ROW = struct_of(("v", *FIELDS, *HISTORY, *ROW_ONLY, CYCLE))
"""The value of a record of `<group>-RETRY-VIEW`. All times are BIGINT, in epoch ms. `cycle` is missing where it is 0.

A topic has several rows of a record: `view.present` keeps the one that counts.
"""
NEWER_FIELDS = rf'^,(?!.*"(?:{"|".join(sorted({*EVENT.names, *VIEW_ROW.names}))})":)[^\[}}\\]*\}}\z'
"""What may follow the known fields of an event: others. With no other `}` than the last character, the JSON that Spark
has read ends there, and nothing is nested."""
NULLS = rf',"(?:{"|".join(name for name in OPTIONAL if name != CYCLE)})":null'
"""A field that a writer may leave out, as null."""


class Parsed(NamedTuple):
    """Records of event topics, split into good events and bad ones.

    `good` has the columns FIELDS, HISTORY, CYCLE and `text`, with the types of EVENT, and ORIGIN: `from_topic` STRING,
    `from_partition` INT, `from_offset` BIGINT, `written_at` BIGINT (epoch ms). HISTORY and `text` are null where an
    event leaves them out, and `text` in rows of the view. A query over it reports OBSERVED. `bad` has `topic`,
    `partition`, `offset` and `timestamp` of the record as Spark's Kafka source gives them, and `fault` STRING, a short
    sentence.
    """

    good: DataFrame
    bad: DataFrame


def events(raw: DataFrame) -> Parsed:
    """Split the records of event topics into good events and bad ones.

    `raw` has the columns of Spark's Kafka source, from a batch or a stream; `timestampType` may be missing. Raises
    pyspark.errors.PySparkException if `raw` lacks another column.
    """
    return split_good_bad(parsed(raw))


def parsed(raw: DataFrame) -> DataFrame:
    """Return each record of event topics, parsed as by `parse`. A query over it reports OBSERVED.

    OBSERVED has the numbers of records (`read`) and of bad ones (`bad`), and one bad record as JSON (`first`): the
    columns of `Parsed.bad`.
    """
    first = fn.min(fn.when(fn.col("fault").isNotNull(), fn.to_json(fn.struct(*bad_columns()))))
    counts = (fn.count("*").alias("read"), fn.count("fault").alias("bad"), first.alias("first"))
    # The metrics also stop the optimizer from pushing the filter down, which would parse each record twice.
    return parse(raw, EVENTS_SUFFIX).observe(OBSERVED, *counts)


def bad_columns() -> list[Column]:
    """Return the columns of `Parsed.bad`, of a parsed record."""
    position = (fn.col(f"from_{name}").alias(name) for name in POSITION)
    return [*position, fn.col("record_time").alias("timestamp"), fn.col("fault")]


def view_rows(raw: DataFrame) -> Parsed:
    """Split the records of view topics into good rows and bad ones, as `events` does.

    A good row also has the columns ROW_ONLY, and no null in HISTORY. Raises pyspark.errors.PySparkException if `raw`
    lacks a column.
    """
    return split_good_bad(parse(raw, VIEW_SUFFIX, ROW_ONLY), ROW_ONLY)


def split_good_bad(records: DataFrame, more: tuple[str, ...] = ()) -> Parsed:
    """Split parsed records by their `fault`."""
    bad = records.where(fn.col("fault").isNotNull()).select(*bad_columns())
    return Parsed(records.where(fn.col("fault").isNull()).select(*FIELDS, *HISTORY, *more, CYCLE, "text", *ORIGIN), bad)


def parse(raw: DataFrame, suffix: str, more: tuple[str, ...] = ()) -> DataFrame:
    """Parse each record into the columns FIELDS, HISTORY, `more`, CYCLE, `text`, ORIGIN, `record_time` and `fault`.

    With `more` it is a row of the view, else an event. `fault` is null if the record is good.
    """
    needed = (*FIELDS, *HISTORY, *more) if more else FIELDS
    # The order of the view's rows, and of the sidecar's events.
    order = ("v", *needed, CYCLE) if more else (*needed, "v", *OPTIONAL)
    read = raw.select(
        *(fn.col(name).alias(f"from_{name}") for name in POSITION),
        fn.col("timestamp").alias("record_time"),
        fn.unix_millis("timestamp").alias("record_ms"),
        clock(raw).alias("now"),
        "value",
        fn.col("value").cast("string").alias("record_text"),
        fn.from_json(fn.col("value").cast("string"), struct_of(order), JSON).alias("event"),
    )
    # `from_json` alone takes numbers as text, a name that is there twice, and JSON that goes on after its end.
    known = is_written_alike(fn.col("record_text"), written_again(fn.col("event"), (CYCLE,) if more else OPTIONAL))
    event = read.select("*", "event.*", known.alias("known"))
    written = fn.greatest(fn.col("at"), fn.least(fn.col("record_ms"), fn.col("now")))
    fault = fn.coalesce(*(fn.when(bad, fn.lit(sentence)) for sentence, bad in faults(suffix, needed)))
    source = (written.alias("written_at"), fn.col("record_time"), fault.alias("fault"))
    cycle = fn.coalesce(CYCLE, fn.lit(0)).alias(CYCLE)
    text = (fn.lit(None).cast("string") if more else fn.col("text")).alias("text")
    return event.select(*FIELDS, *HISTORY, *more, cycle, text, *ORIGIN[:3], *source)


def with_timestamps(frame: DataFrame) -> DataFrame:
    """Return the frame with each of its columns TIMES as TIMESTAMP in place of BIGINT.

    A time that a record does not have (0, and −1 for a Kafka timestamp), or of the year 9999 or later, is null.
    """
    return frame.withColumns({name: moment(name) for name in TIMES if name in frame.columns})


def moment(ms: str) -> Column:
    """Return a column of epoch ms as TIMESTAMP; null if it is no time that a person can read."""
    # The condition is inside: outside, Spark may compute what overflows before it looks at the condition.
    return fn.timestamp_millis(fn.when(fn.col(ms).between(1, LATEST_TIME - 1), fn.col(ms)))


def written_again(event: Column, optional: Sequence[str]) -> Column:
    """Return the event as the sidecar writes it: its level also if it is null, and of `optional` only what is there."""
    whole = {"ignoreNullFields": "false"}
    # The fields that are there follow the needed ones: `{…,"v":1` and `,"text":"…"}`, or `}` if there are none.
    needed = fn.to_json(event.dropFields(*optional), whole)
    there = fn.to_json(fn.struct(*(event[name].alias(name) for name in optional)))
    behind = fn.when(there == "{}", "}").otherwise(fn.concat(fn.lit(","), fn.substr(there, fn.lit(2))))
    return fn.concat(fn.substr(needed, fn.lit(1), fn.length(needed) - 1), behind)


def is_written_alike(text: Column, rendered: Column) -> Column:
    """Return whether a record's text is `rendered`, but for nulls, and newer fields at its end."""
    whole = fn.regexp_replace(text, NULLS, "")
    fields = fn.substr(rendered, fn.lit(1), fn.length(rendered) - 1)
    is_newer = fn.startswith(whole, fields) & fn.rlike(fn.substr(whole, fn.length(rendered)), fn.lit(NEWER_FIELDS))
    return fn.coalesce(fn.is_valid_utf8(text) & ((whole == rendered) | is_newer), fn.lit(False))


def faults(suffix: str, needed: Sequence[str]) -> Iterator[tuple[str, Column]]:
    """Yield each fault as a sentence and its condition, in the order in which they are checked."""
    yield "the value is null", fn.col("value").isNull()
    yield f"longer than {LONGEST} bytes", fn.octet_length("value") > LONGEST
    yield "not version 1", fn.coalesce(fn.col("v") != 1, fn.lit(False))
    lacks = functools.reduce(operator.or_, (fn.col(name).isNull() for name in (*needed, "v") if name != "level"))
    yield "not an event as Reconsume writes it", ~fn.col("known") | lacks
    yield "not a state", ~fn.col("state").isin([state.value for state in RANKS])
    yield "a count out of range", fn.greatest(*COUNTS, "retries", CYCLE) > 2**31 - 1
    yield (
        "a number below 0",
        fn.least(*COUNTS, *LONGS, *HISTORY, CYCLE, *(name for name in needed if name in ROW_ONLY)) < 0,
    )
    yield "not of this topic's group", fn.col("from_topic") != fn.concat(fn.col("group"), fn.lit(suffix))
    # A negative timestamp means that the record has none. `now` is the batch's time, so that a replayed batch decides
    # in the same way.
    limit = fn.least(fn.when(fn.col("record_ms") >= 0, fn.col("record_ms")), fn.col("now")) + AHEAD
    yield "its clock is ahead", fn.greatest(fn.col("at"), fn.col("first_failed_at")) > limit


def batch_time() -> Column:
    """Return the batch's time in epoch ms, as a column that keeps the generated Java code equal from batch to batch."""
    # Spark puts a constant into the text of the code that it generates, and Java would compile each batch's code again.
    # For a higher-order function Spark generates no code: it passes the function to the generated code as an object.
    now = fn.unix_millis(fn.current_timestamp())
    return fn.get(fn.transform(fn.array(fn.lit(0)), lambda _: now), fn.lit(0))


def clock(raw: DataFrame) -> Column:
    """Return the time (epoch ms) that no event may be ahead of, beside its record's: the brokers', or the batch's.

    The brokers' time is the record's own, on a topic with LogAppendTime. A driver whose clock is minutes behind then
    takes no good event for a bad one.
    """
    if "timestampType" not in raw.columns:
        return batch_time()
    return fn.when(fn.col("timestampType") == LOG_APPEND_TIME, fn.unix_millis("timestamp")).otherwise(batch_time())
