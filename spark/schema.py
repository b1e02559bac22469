"""A record of an event topic to columns, strictly: good events, and bad ones with the reason. Pure, built-ins only.

Whatever `topics.events.decode_event` refuses is refused here too; the shape of an event is decided there. Beyond it, an
event is bad that is not of the group whose topic it is in (its group names the topic that we write to), that is longer
than LONGEST or nested, that says one thing twice, that is not UTF-8 anywhere, or whose clock is ahead: it would move
all groups' watermark. Nothing here raises at run time, whatever the record holds: every number is compared before it is
used.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from spark.names import EVENTS_SUFFIX, VIEW_SUFFIX
from topics.events import LARGEST, RANKS
from topics.json_bounds import DEEPEST

LONGEST = LARGEST
"""Bytes. An event has some 400; a row of the view is a little larger than its event, and must fit its topic."""
MOST_BRACKETS = 100
"""`{` and `[` in a record; an event has one. Spark's functions recurse, and a stack that overflows ends the driver."""
AHEAD = 5 * 60_000
"""ms that an event may be ahead of its record's timestamp, or of this machine's clock."""
OBSERVED = "events"
"""The name of the metrics (`read`, `bad`) that each query over good events reports in its progress."""

TEXTS = ("group", "id", "reason", "topic", "instance")
COUNTS = ("times", "redrives", "partition")
LONGS = ("due", "at", "offset", "first_failed_at")
SUMMED = ("last_failed_at", "retries", "updated_at")
"""What a row of the view says beside the fields of an event."""
FIELDS = (
    *("group", "id", "state", "times", "redrives", "level", "due", "at", "reason"),
    *("topic", "partition", "offset", "timestamp", "first_failed_at", "instance"),
)
"""An event's fields, in the order in which they are written."""
POSITION = ("topic", "partition", "offset")
ORIGIN = (*(f"from_{name}" for name in POSITION), "written_at")
"""Where an event's own record is, and when it was written there (epoch ms)."""

TEXT = r'"[^"]*"'
NO_BRACKET = r"[^\[\]{}]"
INNERMOST = r"\[\]|\{\}"

SURROGATE_PAIR = r"(?i)\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}"
SURROGATE = r"(?i)\\ud[89a-f]"


class Parsed(NamedTuple):
    """Records of event topics, told apart.

    `good` has the columns FIELDS and ORIGIN and reports OBSERVED; `bad` has topic, partition, offset, timestamp of the
    record, and `fault`, a short sentence.
    """

    good: DataFrame
    bad: DataFrame


def events(raw: DataFrame) -> Parsed:
    """Events from records with the columns of Spark's Kafka source."""
    counts = (fn.count("*").alias("read"), fn.count("fault").alias("bad"))
    # The metrics also keep the optimizer from pushing the filter down, which would parse each record twice.
    return split_good_bad(parse(raw, EVENTS_SUFFIX).observe(OBSERVED, *counts))


def view_rows(raw: DataFrame) -> Parsed:
    """The same for records of view topics, whose good rows also have the columns SUMMED."""
    return split_good_bad(parse(raw, VIEW_SUFFIX, SUMMED), SUMMED)


def split_good_bad(parsed: DataFrame, more: tuple[str, ...] = ()) -> Parsed:
    """Good and bad by `fault`."""
    place = (fn.col(f"from_{name}").alias(name) for name in POSITION)
    bad = parsed.where(fn.col("fault").isNotNull()).select(*place, fn.col("record_time").alias("timestamp"), "fault")
    return Parsed(parsed.where(fn.col("fault").isNull()).select(*FIELDS, *more, *ORIGIN), bad)


def parse(raw: DataFrame, suffix: str, more: tuple[str, ...] = ()) -> DataFrame:
    """Every record with FIELDS, `more` (longs), ORIGIN, `record_time`, and `fault`, null when it is good.

    What is read and written again and is the same, byte by byte, was JSON of these types and no other: nearly every
    record, for a third of what the questions to all others cost.
    """
    fields = (*FIELDS, *more)
    order = ("v", *fields) if more else (*fields, "v")  # as the view writes it, and as the sidecar does
    read = raw.select(
        *(fn.col(name).alias(f"from_{name}") for name in POSITION),
        fn.col("timestamp").alias("record_time"),
        fn.unix_millis("timestamp").alias("record_ms"),
        batch_time().alias("now"),
        "value",
        fn.col("value").cast("string").alias("text"),
        fn.from_json(fn.col("value").cast("string"), types(order)).alias("event"),
    )
    same = fn.to_json("event", {"ignoreNullFields": "false"}) == fn.col("text")
    event = read.select("*", "event.*", fn.coalesce(same, fn.lit(False)).alias("usual"))
    written = fn.greatest(fn.col("at"), fn.least(fn.col("record_ms"), fn.col("now")))
    fault = fn.coalesce(*(fn.when(bad, fn.lit(sentence)) for sentence, bad in faults(suffix, more)))
    return event.select(*fields, *ORIGIN[:3], written.alias("written_at"), "record_time", fault.alias("fault"))


def types(fields: Sequence[str]) -> str:
    """The fields' types, as DDL."""
    return ", ".join(f"`{name}` {kind(name)}" for name in fields)


def kind(name: str) -> str:
    """The type that a field must have, as `schema_of_variant` writes it."""
    return "STRING" if name in (*TEXTS, "state", "level") else "BIGINT"


def parsed() -> Column:
    """The record and its hash as a variant; null when it cannot be one."""
    text = fn.col("text")
    # Of a name that has half a character Spark makes a value that it then calls malformed, and ends the query.
    safe = (brackets(text) <= MOST_BRACKETS) & ~half_a_character(text)
    return fn.when(safe, fn.try_parse_json(wrapped(text)))


def wrapped(text: Column) -> Column:
    """The record as a field of an object whose last field is the record's hash.

    Spark's parser takes JSON that goes on behind its end. Here the hash is found only where the record ends where its
    bytes do; and an object that says one thing twice is not parsed at all, so a record cannot bring a hash of its own.
    """
    return fn.concat(fn.lit('{"e":'), text, fn.lit(',"z":'), fn.xxhash64("value").cast("string"), fn.lit("}"))


def brackets(text: Column) -> Column:
    """How many `{` and `[` there are; no nesting is deeper."""
    without = (fn.octet_length(fn.replace(text, fn.lit(bracket), fn.lit(""))) for bracket in "{[")
    return fn.octet_length(text) * 2 - next(without) - next(without)


def nests_beyond(text: Column, most: int) -> Column:
    """True when objects and lists stand in each other more than `most` deep. Of broken JSON it says nothing."""
    plain = fn.replace(fn.replace(text, fn.lit("\\\\"), fn.lit("")), fn.lit('\\"'), fn.lit(""))
    left = fn.regexp_replace(fn.regexp_replace(plain, TEXT, ""), NO_BRACKET, "")
    for _ in range(most):
        left = fn.regexp_replace(left, INNERMOST, "")
    return fn.rlike(left, fn.lit(INNERMOST))


def wrong_kinds(fields: Sequence[str]) -> Column:
    """The names of fields that are missing or of another type.

    By functions over a map, not by field: code for each field would be more than the JVM takes in one method.
    """
    told = fn.try_variant_get(parsed(), "$.e", "map<string,variant>")
    kinds = fn.transform_values(told, lambda name, value: given_kind(name, fn.schema_of_variant(value)))
    wanted = fn.array(*(fn.struct(fn.lit(name).alias("name"), fn.lit(kind(name)).alias("kind")) for name in fields))

    def wrong(field: Column) -> Column:
        unsaid = fn.when(field["name"] == "v", "BIGINT")  # the version alone may be left out
        return absent(fn.coalesce(fn.try_element_at(kinds, field["name"]), unsaid) == field["kind"])

    return fn.transform(fn.filter(wanted, wrong), lambda field: field["name"])


def given_kind(name: Column, found: Column) -> Column:
    """The type of a field; no level is as good as one."""
    return fn.when((name == "level") & (found == "VOID"), "STRING").otherwise(found)


def faults(suffix: str, more: tuple[str, ...]) -> Iterator[tuple[str, Column]]:
    """Each way to be bad, as a sentence and its condition, in the order in which they are told."""
    yield "the value is null", fn.col("value").isNull()
    yield f"longer than {LONGEST} bytes", fn.octet_length("value") > LONGEST
    unusual, text = ~fn.col("usual"), fn.col("text")
    yield "nested too deep", unusual & ((brackets(text) > MOST_BRACKETS) | nests_beyond(text, DEEPEST))
    yield "not UTF-8", unusual & ~fn.is_valid_utf8(text)
    ends = fn.try_variant_get(parsed(), "$.z", "bigint") == fn.xxhash64("value")
    alone = fn.size(fn.json_object_keys(wrapped(text))) == 2
    yield "not JSON, or a name is in it twice", unusual & (absent(ends) | absent(alone))
    names = [*FIELDS, *more, "v"]
    empty = functools.reduce(operator.or_, (fn.col(name).isNull() for name in names if name != "level"))
    wrong = fn.when(fn.col("usual"), empty).otherwise(fn.size(wrong_kinds(names)) > 0)
    yield "a field is missing or of another type", wrong
    yield "not version 1", ~fn.coalesce(fn.col("v") == 1, fn.lit(True))
    yield "not a state", ~fn.col("state").isin([state.value for state in RANKS])
    yield "a count out of range", fn.greatest(*COUNTS) > 2**31 - 1
    yield "a number below 0", fn.least(*COUNTS, *LONGS, *more) < 0
    yield "not of this topic's group", fn.col("from_topic") != fn.concat(fn.col("group"), fn.lit(suffix))
    # A negative timestamp is none. `now` is the batch's, so that a replayed batch judges alike.
    limit = fn.least(fn.when(fn.col("record_ms") >= 0, fn.col("record_ms")), fn.col("now")) + AHEAD
    yield "its clock is ahead", fn.greatest(fn.col("at"), fn.col("first_failed_at")) > limit


def batch_time() -> Column:
    """The batch's time in epoch ms.

    Out of a higher-order function, of which Spark generates no code but hands it to what it generates: a number would
    stand in the text of that, and Java would have each batch's code to compile anew.
    """
    now = fn.unix_millis(fn.current_timestamp())
    return fn.get(fn.transform(fn.array(fn.lit(0)), lambda _: now), fn.lit(0))


def absent(claim: Column) -> Column:
    """True when the claim is false or null."""
    return ~fn.coalesce(claim, fn.lit(False))


def half_a_character(text: Column) -> Column:
    r"""True when an escape stands for half a character (a lone surrogate): Spark would read it as `?`."""
    # Escaped backslashes first, so that the next backslash begins an escape. No regular expression with repeated
    # groups: Java's recurse, and a long hostile text would overflow the stack.
    escapes = fn.replace(text, fn.lit("\\\\"), fn.lit("__"))
    lone = fn.rlike(fn.regexp_replace(escapes, SURROGATE_PAIR, ""), fn.lit(SURROGATE))
    return fn.contains(text, fn.lit("\\u")) & lone
