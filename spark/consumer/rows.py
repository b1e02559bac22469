"""The DataFrame form beside `for_each_record`: a batch as a table, and what became of its rows.

For a job that handles a batch with joins and aggregates and has no call for each record. `due_rows` are the rows that
may be handled. The caller's own frames divide them into failed and taken ones, and `write_rows` writes the copies and
events of the whole batch with its progress. What follows from an outcome `handling.py` decides, as for a handler.

`parsed` and `split` divide a frame into good rows and failed ones, which have a `reason`. Both frames are evaluated
from the same rows, so each row is in exactly one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, LongType, ShortType, StringType, StructField, StructType

from reconsume.spark.consumer.client import native_client
from reconsume.spark.consumer.foreach import STOP_COUNT, STOP_SHARE, Counts, StopAt, settle
from reconsume.spark.consumer.handling import await_due, before_handling, read_of
from reconsume.spark.consumer.record import for_handler, parse
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.transactions import BatchWriter
from reconsume.spark.consumer.workers import (
    AT_ONCE,
    DUE,
    Row,
    columns,
    failure_of,
    on_workers,
    result_after,
    result_before,
)

PARSED, REASON = "parsed", "reason"
"""The columns that `parsed` and `split` add."""
NO_VALUE, BAD_VALUE = "no-value", "bad-value"
"""The reasons of `parsed`."""
CORRUPT = "_corrupt_record"
"""The field in which Spark's JSON functions keep a text that they cannot read by the schema."""
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
HANDLED = "handled"
"""The column that is 1 for the results of handled rows, and 0 for those of the batch."""


def due_rows(frame: DataFrame, rules: Rules) -> DataFrame:
    """Return the rows of a batch that may be handled, with `id`, `times`, `redrives` and `cycle` of `Record` added.

    `frame` is a batch of `read_relay`, `read_gated` or `with_batch_time`. Left out are
    records that have more than a second to wait, or that only another member of the group consumes, and those with
    malformed headers. `write_rows` passes them on.
    """

    def attempt(row: Row) -> tuple[str, int, int, int] | None:
        record = parse(read_of(row), rules, row["now"])
        if before_handling(record, rules, row["now"]) is not None:
            return None
        await_due(record)
        known = for_handler(record)
        return known.id, known.times, known.redrives, known.cycle

    # Spark 4.2 takes the type hints of a function for those of columns, and warns of all others: a lambda has none.
    # Not deterministic for Spark: else it would call the function once for each of the columns, and for the filter.
    parsed = f.udf(lambda row: attempt(row), ATTEMPT).asNondeterministic()
    rows = frame.withColumn("attempt", parsed(f.struct(*columns(frame))))
    return rows.where(f.col("attempt").isNotNull()).select(*frame.columns, "attempt.*")


def write_rows(
    batch: DataFrame,
    failed: DataFrame,
    taken: DataFrame,
    rules: Rules,
    kafka: Mapping[str, str],
    *,
    client: Mapping[str, str] | None = None,
    stop_share: float = STOP_SHARE,
    stop_count: int = STOP_COUNT,
) -> Counts:
    """Write the copies and events of a batch, and its progress, and return its counts.

    - `batch` is the DataFrame that `foreachBatch` gets.
    - `failed` and `taken` hold each row of `due_rows(batch, rules)` once, together; rows of `batch` that may not be
      handled are left out of both. Each has the columns of `batch`, and may have others.
    - `rules` are those in force, from `PolicyFollower.rules`.
    - `kafka`, `client`, `stop_share` and `stop_count` are those of `for_each_record`.

    Three more columns of `failed` may be there, and may be null:

    - `reason` STRING: a short class such as `out-of-stock`, for the header, the events and the view.
    - `delay` STRING: a duration such as `90s`. If it is none, or not allowed, the ladder decides.
    - `level` INT: −1 for the dead letters at once, 0 for the ladder, n > 0 for level n of the table.

    A repeated batch writes nothing twice. All source partitions of the batch commit their progress.

    Raises ValueError, before anything is written, if one of the three columns has another type, or if a row is missing
    in the two frames or is there more than once. Raises TooManyFailuresError and errors of Spark as `for_each_record`
    does.
    """
    write = BatchWriter(rules, native_client(kafka, client)).write
    results = all_results(batch, failed, taken, rules)
    counts, _ = settle(results, 0, write, StopAt(stop_share, stop_count), check=check_complete)
    return counts


def all_results(batch: DataFrame, failed: DataFrame, taken: DataFrame, rules: Rules) -> DataFrame:
    """Return the results of a batch's rows (HANDLED is 0) and those of failed and taken rows (1)."""
    asked = [_optional(failed, name) for name in OPTIONAL]
    results = [
        on_workers(batch, result_before(rules), keeps_all=True).withColumn(HANDLED, f.lit(0)),
        on_workers(failed, result_after(rules, failure_of), AT_ONCE, *asked, keeps_all=True).withColumn(
            HANDLED, f.lit(1)
        ),
        on_workers(taken, result_after(rules, lambda _row: None), keeps_all=True).withColumn(HANDLED, f.lit(1)),
    ]
    return reduce(DataFrame.unionByName, results)


def check_complete(results: DataFrame) -> None:
    """Raise ValueError unless each row that may be handled was handled once."""
    due = f.when(f.col("outcome") == DUE, 1).otherwise(0).alias("due")
    rows = results.where("tally is null").select("topic", "partition", "offset", HANDLED, due).repartition(1)
    times = rows.groupBy("topic", "partition", "offset").agg(f.sum("due").alias("due"), f.sum(HANDLED).alias(HANDLED))
    first = f.min(f.struct("topic", "partition", "offset", HANDLED))
    [(number, one)] = times.where(f.col("due") != f.col(HANDLED)).agg(f.count(f.lit(1)), first).collect()
    if number:
        raise ValueError(
            f"{number} of the batch's rows are not in failed and taken exactly once, so nothing was written; the first "
            f"one, {one['topic']}:{one['partition']}:{one['offset']}, is there {one[HANDLED]} times"
        )


def parsed(frame: DataFrame, schema: StructType | str) -> tuple[DataFrame, DataFrame]:
    """Return the rows whose `value` is a JSON object of a schema, and those that failed.

    `schema` is a StructType, or DDL such as `id BIGINT, customer STRING`. The good rows have the columns of `frame` and
    `parsed`, a struct; a field that is missing, or null, is null. The failed rows have the columns of `frame` and
    `reason`: `no-value` for null, and `bad-value` for what is not UTF-8, not a JSON object, or has a field of another
    type. Spark ignores what follows a whole object.

    Raises ValueError if the frame has a column `parsed` or `reason`, or if the schema has a field `_corrupt_record` or
    is a type without fields.
    """
    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    _check_new(frame, PARSED, REASON)
    if not isinstance(fields, StructType) or CORRUPT in fields.names:
        raise ValueError(f"a schema has fields, such as `id BIGINT, customer STRING`, and none of them is {CORRUPT}")
    text = f.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    json = f.from_json(text, StructType([*fields.fields, StructField(CORRUPT, StringType())]), options)
    # Null, too, for a value of nothing but spaces.
    is_bad = json.isNull() | json[CORRUPT].isNotNull() | ~f.is_valid_utf8(text)
    reason = f.when(text.isNull(), NO_VALUE).when(is_bad, BAD_VALUE)
    good = frame.where(reason.isNull()).withColumn(PARSED, f.struct(*[json[name].alias(name) for name in fields.names]))
    return good, frame.withColumn(REASON, reason).where(f.col(REASON).isNotNull())


def split(frame: DataFrame, expectations: Mapping[str, Column | str]) -> tuple[DataFrame, DataFrame]:
    """Return the rows that meet all expectations, and those that do not.

    `expectations` are conditions, as SQL or columns, by name: `{"has-customer": "customer is not null"}`. A condition
    that is null is not met. The good rows have the columns of `frame`; the failed rows have them and `reason`, the name
    of the first expectation, in the mapping's order, that is not met.

    A condition must give the same each time (no `rand()`). One that raises ends the query: `try_cast` never does.
    Raises ValueError if there is no expectation, or the frame has a column `reason`.
    """
    if not expectations:
        raise ValueError("name at least one expectation")
    _check_new(frame, REASON)
    conditions = ((name, f.expr(one) if isinstance(one, str) else one) for name, one in expectations.items())
    unmet = [f.when(~f.coalesce(condition, f.lit(False)), f.lit(name)) for name, condition in conditions]
    reason = f.coalesce(*unmet)
    return frame.where(reason.isNull()), frame.withColumn(REASON, reason).where(f.col(REASON).isNotNull())


def _check_new(frame: DataFrame, *names: str) -> None:
    """Raise ValueError if the frame has one of the columns already."""
    if there := [name for name in names if name in frame.columns]:
        raise ValueError(f"the frame has a column {there[0]} already: rename it first")


def _optional(frame: DataFrame, name: str) -> Column:
    """Return a column of OPTIONAL, null if the frame lacks it. Raises ValueError if it has another type."""
    if name not in frame.columns:
        return f.lit(None).cast("int" if name == "level" else "string").alias(name)
    if not isinstance(kind := frame.schema[name].dataType, OPTIONAL[name]):
        raise ValueError(
            f"the column {name} must be {OPTIONAL[name][-1]().simpleString()}, and it is {kind.simpleString()}"
        )
    return f.col(name)
