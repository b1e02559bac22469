"""Handle one row on a worker: one call of the handler, one result. Only this module converts Spark's rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    Row,
    StringType,
    StructField,
    StructType,
)

from reconsume.spark.consumer.isolation import CRASHED, Ask, ChildProcess
from reconsume.spark.consumer.record import ParsedRecord, Read, Record, for_handler, parse
from reconsume.spark.consumer.routing import NEAR, Outcome, Routed, after_handling, before_handling
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.verdict import DeadLetter, Retry

Handler: TypeAlias = Callable[[Record], object]
"""A function that takes a record. Its return value counts only if it is a verdict (`verdict`): the record was not
taken."""

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "now")
"""The fields of a row. `timestamp` and `now`, the batch's time, are epoch ms."""

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
WRITE = StructType(
    [
        StructField("topic", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
    ]
)
RESULT = StructType(
    [
        StructField("outcome", StringType()),
        StructField("failed", BooleanType()),
        StructField("odd", BooleanType()),
        StructField("fresh", BooleanType()),
        StructField("writes", ArrayType(WRITE)),
    ]
)


Written: TypeAlias = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""A row of WRITE: topic, key, value and headers."""


class Result(NamedTuple):
    """The result of handling one row; `failed`, `odd` and `fresh` mean for it what they count in `foreach.Counts`.

    `outcome` is one of `foreach.OUTCOMES`.
    """

    outcome: str
    failed: bool
    odd: bool
    fresh: bool
    writes: list[Written]


def handling(handler: Handler, rules: Rules, *, isolated: bool = False) -> Callable[[Row], Result]:
    """Return the function that Spark calls for each row; with `isolated` it calls the handler in a child process."""
    # Filled on the worker, because Spark sends this function there.
    asks: list[Ask] = []

    def ask(record: Record) -> Outcome:
        return call(handler, record)

    def handle(row: Row) -> Result:
        if not asks:
            asks.append(ChildProcess(ask) if isolated else ask)
        now = row["now"]
        taken = parse(read_of(row), rules, now)
        routed = before_handling(taken, rules, now)
        if routed is not None:
            return result_of(routed)
        await_due(taken)
        return handled(taken, asks[0](for_handler(taken)), rules, now)

    return handle


def handled(taken: ParsedRecord, outcome: Outcome, rules: Rules, now: int) -> Result:
    """Return the result of a record that was handled; `now` (epoch ms) is the batch's time."""
    routed = after_handling(taken, outcome, rules, now)
    # If most records end their process, the fault is not in the records. Then the batch must stop, as in an outage.
    failed = isinstance(outcome, Retry) or (isinstance(outcome, DeadLetter) and outcome.reason == CRASHED)
    odd = isinstance(outcome, Retry) and not rules.understands(outcome.delay, outcome.level)
    return result_of(routed)._replace(failed=failed, odd=odd, fresh=taken.retry_state is None)


def call(handler: Handler, record: Record) -> Outcome:
    """Call the handler once and return the outcome; an exception of the handler becomes an outcome."""
    try:
        answer = handler(record)
    except (Retry, DeadLetter) as verdict:
        return verdict
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - any failure of the user's code is retried
        # Only the class: an exception's text may contain data of the record (contract 6.13).
        return Retry(None, None, type(failure).__name__)
    return outcome_of(answer)


def outcome_of(answer: object) -> Outcome:
    """Return the outcome that a handler's answer means: whatever is no verdict is a success."""
    return answer if isinstance(answer, Retry | DeadLetter) else None


def await_due(taken: ParsedRecord) -> None:
    """Sleep until the record is due, for at most NEAR ms. The clocks of two machines differ by about this much."""
    if taken.retry_state is not None:
        remaining = taken.retry_state.due_at - time.time_ns() // 1_000_000
        if remaining > 0:
            time.sleep(min(remaining, NEAR) / 1_000)


def read_of(row: Row | Mapping[str, Any]) -> Read:
    """Return Spark's row, or Arrow's, as a `Read`. There is null where there are no headers; Spark's bytes are
    bytearrays."""
    headers = [(header["key"], _bytes(header["value"])) for header in row["headers"] or ()]
    position = (row["topic"], row["partition"], row["offset"], row["timestamp"])
    return Read(*position, _bytes(row["key"]), _bytes(row["value"]), headers)


def result_of(routed: Routed) -> Result:
    """Return the result of a row for Spark; the flags are those of a row that was not handled."""
    return Result(routed.outcome, False, False, False, writes_of_routed(routed))


def writes_of_routed(routed: Routed) -> list[Written]:
    """Return the records to write as rows of WRITE."""
    return [(out.topic, out.key, out.value, out.headers) for out in routed.writes]


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
