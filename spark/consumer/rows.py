"""The DataFrame form beside `for_each_record`: the rows to write for records that the caller's own frames have handled.

For a job that handles a batch as a table, with joins and aggregates and no call for each record. Each function is
DataFrame to DataFrame and evaluates nothing. What follows from an outcome `handling.py` decides, as for a handler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, IntegerType, LongType, Row, ShortType, StringType, StructField, StructType

from reconsume.spark.consumer.handling import (
    Failed,
    Outcome,
    Written,
    after_handling,
    await_due,
    before_handling,
    class_and_text,
    read_of,
)
from reconsume.spark.consumer.record import for_handler, parse
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.verdict import USUAL_RETRY
from reconsume.spark.consumer.workers import WRITE, column_of, columns
from reconsume.topics.durations import parse_duration

ATTEMPT = StructType(
    [
        StructField("id", StringType(), nullable=False),
        StructField("times", LongType(), nullable=False),
        StructField("redrives", LongType(), nullable=False),
        StructField("cycle", LongType(), nullable=False),
    ]
)
"""What tells one attempt at a record from another."""
OPTIONAL = {"reason": (StringType,), "delay": (StringType,), "level": (ShortType, IntegerType, LongType)}
"""The columns by which a failed row asks for a retry, each with the types that it may have."""
WRITES = ArrayType(WRITE)

Writes: TypeAlias = Callable[[Row], Sequence[Written]]
"""A function that returns the records to write for a row."""


def due_rows(frame: DataFrame, rules: Rules) -> DataFrame:
    """Return the rows of a batch that may be handled, with `id`, `times`, `redrives` and `cycle` of `Record` added.

    `frame` is a batch of `read_relay`, `read_gated` or `with_batch_time`. Left out is what `passed_rows` writes.
    """

    def attempt(row: Row) -> tuple[str, int, int, int] | None:
        record = parse(read_of(row), rules, row["now"])
        if before_handling(record, rules, row["now"]) is not None:
            return None
        await_due(record)
        known = for_handler(record)
        return known.id, known.times, known.redrives, known.cycle

    # Not deterministic for Spark: else it would call the function once for each of the columns, and for the filter.
    parsed = column_of(attempt, ATTEMPT).asNondeterministic()
    rows = frame.withColumn("attempt", parsed(f.struct(*columns(frame))))
    return rows.where(f.col("attempt").isNotNull()).select(*frame.columns, "attempt.*")


def passed_rows(frame: DataFrame, rules: Rules) -> DataFrame:
    """Return the records to write for the rows of a batch that may not be handled.

    Those are copies of records that have more than a second to wait, or that only another member of the group
    consumes, and dead letters of records with malformed headers, with their events.
    """

    def writes(row: Row) -> Sequence[Written]:
        result = before_handling(parse(read_of(row), rules, row["now"]), rules, row["now"])
        return [] if result is None else result.writes

    return _written(frame, columns(frame), writes)


def retry_rows(failed: DataFrame, rules: Rules) -> DataFrame:
    """Return the copies and events of rows that failed, for `write.format("kafka")`.

    `failed` has the columns of a batch. Three more columns may be there, and may be null:

    - `reason` STRING: a short class such as `out-of-stock`, for the header, the events and the view.
    - `delay` STRING: a duration such as `90s`. If it is none, or not allowed, the ladder decides.
    - `level` INT: −1 for the dead letters at once, 0 for the ladder, n > 0 for level n of the table.

    Rows that may not be handled are left out; `passed_rows` has them.

    The columns are topic STRING, key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>. Raises
    ValueError if one of the three columns has another type.
    """
    row = [*columns(failed), *(_optional(failed, name) for name in OPTIONAL)]
    return _written(failed, row, writes_after(rules, failure_of))


def done_rows(taken: DataFrame, rules: Rules) -> DataFrame:
    """Return the events of rows that were taken: a COMMIT for each that had been retried, and nothing for the others.

    The columns are those of `retry_rows`. `taken` has the columns of a batch. Rows that may not be
    handled are left out.
    """
    return _written(taken, columns(taken), writes_after(rules, lambda _row: None))


def failure_of(row: Row) -> Failed:
    """Return the failure that a row tells of."""
    return Failed(*class_and_text(row["reason"] or "", USUAL_RETRY), _delay(row["delay"]), row["level"])


def _delay(text: str | None) -> int | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError:  # data of a record may be anything, and must not end the batch
        return None


def writes_after(rules: Rules, outcome_of: Callable[[Row], Outcome]) -> Writes:
    """Return the function that gives the records to write for a handled row; none for one that may not be handled."""

    def writes(row: Row) -> Sequence[Written]:
        now: int = row["now"]
        record = parse(read_of(row), rules, now)
        if before_handling(record, rules, now) is not None:
            return []
        return after_handling(record, outcome_of(row), rules, now).writes

    return writes


def _optional(frame: DataFrame, name: str) -> Column:
    """Return a column of OPTIONAL, null if the frame lacks it. Raises ValueError if it has another type."""
    if name not in frame.columns:
        return f.lit(None).cast("int" if name == "level" else "string").alias(name)
    if not isinstance(kind := frame.schema[name].dataType, OPTIONAL[name]):
        raise ValueError(
            f"the column {name} must be {OPTIONAL[name][-1]().simpleString()}, and it is {kind.simpleString()}"
        )
    return f.col(name)


def _written(frame: DataFrame, row: list[Column], writes: Writes) -> DataFrame:
    work = column_of(writes, WRITES)
    return frame.select(f.explode(work(f.struct(*row))).alias("w")).select("w.*")
