"""How a batch's frame is handled on the workers: a frame of results, by one row at a time or by many."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, Row, TimestampType

from reconsume.spark.consumer.batches import BatchHandler, batch_handling, one_by_one
from reconsume.spark.consumer.handling import COLUMNS, RESULT, Handler, Result, handling
from reconsume.spark.consumer.rules import Rules

if TYPE_CHECKING:
    from pyspark.sql._typing import UserDefinedFunctionLike

BATCH_TIME = "batch_time"
"""The column of `current_timestamp()` on the streaming DataFrame (TIMESTAMP).

Spark keeps its value in the offset log, so a repeated batch writes the same due times. A clock that is read in the
batch would not.
"""

Work: TypeAlias = Callable[[DataFrame], DataFrame]
"""A function of a batch's frame. It returns a frame with one column `r`, the result of each row."""


class Works(NamedTuple):
    """The two ways to handle a batch: `usual`, and `isolated`, in which a handler runs in a process of its own."""

    usual: Work
    isolated: Work


def works_of(handler: Handler | None, batch_handler: BatchHandler | None, rules: Rules) -> Works:
    """Return how a batch is handled by one of the two handlers. Raises ValueError unless there is exactly one."""
    if batch_handler is not None and handler is None:
        # Isolated, each row has a call of its own: what ends the process is then one record.
        return Works(
            _by_batch(batch_handler, rules), _by_row(handling(one_by_one(batch_handler), rules, isolated=True))
        )
    if handler is None or batch_handler is not None:
        raise ValueError("give either a handler or a batch_handler")
    return Works(_by_row(handling(handler, rules)), _by_row(handling(handler, rules, isolated=True)))


def _by_row(function: Callable[[Row], Result]) -> Work:
    work = column_of(function, RESULT).asNondeterministic()
    return lambda frame: frame.select(work(f.struct(*columns(frame))).alias("r"))


def column_of(function: Callable[[Row], Any], returns: DataType) -> UserDefinedFunctionLike:
    """Return a column's function that calls `function` for each row."""
    # Spark 4.2 takes the type hints of a function for those of columns, and warns of all others: a lambda has none.
    return f.udf(lambda row: function(row), returns)


def _by_batch(handler: BatchHandler, rules: Rules) -> Work:
    work = batch_handling(handler, rules)

    def handle(frame: DataFrame) -> DataFrame:
        results = frame.select(*columns(frame)).mapInArrow(work, RESULT)
        return results.select(f.struct(*RESULT.names).alias("r"))

    return handle


def columns(frame: DataFrame) -> list[Column]:
    """Return the columns that a row for the handler is made of, with times as epoch ms."""
    stamp = frame.schema["timestamp"].dataType
    replaced = {
        "timestamp": f.unix_millis("timestamp") if isinstance(stamp, TimestampType) else f.col("timestamp"),
        "now": f.unix_millis(BATCH_TIME),
    }
    return [replaced.get(name, f.col(name)).alias(name) for name in COLUMNS]
