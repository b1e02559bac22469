"""On the workers: one row to one result, with one call of the handler. Only here our values meet Spark's rows."""

from __future__ import annotations

import time
from collections.abc import Callable
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

from spark.consumer.isolation import CRASHED, Apart, Ask
from spark.consumer.record import ParsedRecord, Read, Record, for_handler, parse
from spark.consumer.routing import NEAR, Outcome, Routed, after_handling, before_handling
from spark.consumer.rules import Rules
from spark.consumer.verdict import DeadLetter, Retry

Handler: TypeAlias = Callable[[Record], object]
"""Takes a record, or says otherwise (`verdict`): what it returns counts only if it is a verdict."""

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "now")
"""What a row has: `timestamp` and `now`, the batch's time, are epoch ms."""

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


class Result(NamedTuple):
    """What is kept of a row. `failed`: the handler raised, asked for a retry, or ended its process; `odd`: for a retry
    that is not allowed.

    `fresh`: it was handled, and came from a main topic.
    """

    outcome: str
    failed: bool
    odd: bool
    fresh: bool
    writes: list[tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]


def handling(handler: Handler, rules: Rules, *, apart: bool = False) -> Callable[[Row], Result]:
    """The function that Spark calls for each row; `apart`: it calls the handler in a process of its own."""
    # Made on the worker, as the function is sent there.
    asks: list[Ask] = []

    def ask(record: Record) -> Outcome:
        return call(handler, record)

    def handle(row: Row) -> Result:
        if not asks:
            asks.append(Apart(ask) if apart else ask)
        now = row["now"]
        taken = parse(read_of(row), rules, now)
        routed = before_handling(taken, rules, now)
        if routed is not None:
            return result_of(routed)
        await_due(taken)
        outcome = asks[0](for_handler(taken))
        routed = after_handling(taken, outcome, rules, now)
        # Where most records end their process, something else is wrong: that stops the batch, as an outage does.
        failed = isinstance(outcome, Retry) or (isinstance(outcome, DeadLetter) and outcome.reason == CRASHED)
        odd = isinstance(outcome, Retry) and not rules.understands(outcome.delay, outcome.level)
        return result_of(routed)._replace(failed=failed, odd=odd, fresh=taken.life is None)

    return handle


def call(handler: Handler, record: Record) -> Outcome:
    """Call the handler once; whatever it raises is an outcome."""
    try:
        answer = handler(record)
    except (Retry, DeadLetter) as verdict:
        return verdict
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - any failure of the user's code is what retries are for
        # The class alone: an exception's text may hold what is in the record (contract §3).
        return Retry(None, None, type(failure).__name__)
    return answer if isinstance(answer, Retry | DeadLetter) else None


def await_due(taken: ParsedRecord) -> None:
    """Wait out the little that is left of a record's wait: the clocks of two machines differ by so much."""
    if taken.life is not None:
        left = taken.life.due_at - time.time_ns() // 1_000_000
        if left > 0:
            time.sleep(min(left, NEAR) / 1_000)


def read_of(row: Row) -> Read:
    """A row of Spark's as our own value; Spark gives no headers as null, and bytes as bytearrays."""
    headers = [(header["key"], _bytes(header["value"])) for header in row["headers"] or ()]
    place = (row["topic"], row["partition"], row["offset"], row["timestamp"])
    return Read(*place, _bytes(row["key"]), _bytes(row["value"]), headers)


def result_of(routed: Routed) -> Result:
    """What became of a row as Spark takes it; of one that was not handled, if nothing is added."""
    writes = [(out.topic, out.key, out.value, out.headers) for out in routed.writes]
    return Result(routed.outcome, False, False, False, writes)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
