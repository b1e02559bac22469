"""Handle many rows by one call of a handler, which takes a pandas DataFrame of records. This runs on a worker.

It is for effects that are cheap together: one statement for a thousand rows, a model that scores a table. Each row has
its own verdict, and its own copies and events, as if it had been handled alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from reconsume.spark.consumer.handling import (
    RESULT,
    WRITE,
    Handler,
    Result,
    await_due,
    call,
    handled,
    outcome_of,
    read_of,
    result_of,
)
from reconsume.spark.consumer.record import Record, for_handler, parse
from reconsume.spark.consumer.routing import Outcome, before_handling
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.verdict import DeadLetter, Retry

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

BatchHandler: TypeAlias = "Callable[[pd.DataFrame], Iterable[object] | None]"
"""A function that takes records as a pandas DataFrame, whose columns are the fields of `Record`, one row each. It
returns one answer for each row, in their order, or None if it took all of them. An answer counts only if it is a
verdict (`verdict`)."""


class VerdictsError(ValueError):
    """A handler has not returned one answer for each row. Nothing says which rows it meant, so all of them failed."""


def batch_handling(
    handler: BatchHandler, rules: Rules
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that handles the rows of each Arrow batch by one call."""

    def handle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield arrow_of(handle_rows(handler, batch.to_pylist(), rules))

    return handle


def handle_rows(handler: BatchHandler, rows: Sequence[Mapping[str, Any]], rules: Rules) -> list[Result]:
    """Return the result of each row. Those that may be handled are handled by one call, once all of them are due."""
    parsed = [parse(read_of(row), rules, row["now"]) for row in rows]
    early = [before_handling(record, rules, row["now"]) for record, row in zip(parsed, rows, strict=True)]
    ready = [record for record, routed in zip(parsed, early, strict=True) if routed is None]
    for record in ready:
        await_due(record)
    outcomes = iter(call_batch(handler, [for_handler(record) for record in ready]))
    return [
        handled(record, next(outcomes), rules, row["now"]) if routed is None else result_of(routed)
        for record, routed, row in zip(parsed, early, rows, strict=True)
    ]


def call_batch(handler: BatchHandler, records: Sequence[Record]) -> list[Outcome]:
    """Call the handler and return an outcome for each record.

    If it raises, it is called again with each record alone: only the bad ones fail. A verdict that it raises is that of
    all records.
    """
    if len(records) == 1:
        return [call(one_by_one(handler), records[0])]
    try:
        return [outcome_of(answer) for answer in answers_of(handler, records)]
    except (Retry, DeadLetter) as verdict:
        return [verdict] * len(records)
    except VerdictsError as fault:
        return [Retry(None, None, type(fault).__name__)] * len(records)
    except (Exception, SystemExit):  # noqa: BLE001 - any failure of the user's code is retried, record by record
        return [call(one_by_one(handler), record) for record in records]


def one_by_one(handler: BatchHandler) -> Handler:
    """Return the handler for one record at a time."""
    return lambda record: answers_of(handler, [record])[0]


def answers_of(handler: BatchHandler, records: Sequence[Record]) -> list[object]:
    """Call the handler and return its answers. Raises VerdictsError, or what it raises."""
    if not records:
        return []
    answers = handler(table_of(records))
    if answers is None:
        return [None] * len(records)
    if len(listed := list(answers)) != len(records):
        raise VerdictsError(f"{len(listed)} answers for {len(records)} rows")
    return listed


def table_of(records: Sequence[Record]) -> pd.DataFrame:
    """Return the records as a DataFrame; `key` and `value` are bytes or None."""
    import pandas as pd  # here only: a job without a batch handler needs none

    return pd.DataFrame.from_records(records, columns=list(Record._fields))


def arrow_of(results: Sequence[Result]) -> pa.RecordBatch:
    """Return results as Arrow's rows of RESULT."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    rows = [result._asdict() | {"writes": [_write(write) for write in result.writes]} for result in results]
    return pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(RESULT))


def _write(write: tuple[Any, ...]) -> dict[str, Any]:
    named = dict(zip(WRITE.names, write, strict=True))
    return named | {"headers": [{"key": key, "value": value} for key, value in named["headers"]]}
