"""Run handlers on Spark's workers: a batch's frame in, a frame of results out.

`works_of` says how. `usual` calls the handler in Spark's Python worker: a handler for each row, a batch handler for
each Arrow batch. `isolated` calls it in a child process, one record at a time, and is used for a batch in which a
worker has ended: by the handler's `os._exit`, a crash in a C library, or a lack of memory. In the worker itself the
same record would end it again at each repetition, and the batch would never end. In a child it ends nothing else, and
is known afterwards.

Only this module converts between Spark's rows and `handling.py`, which says what a record comes to. The records to
write are packed into one binary value: for Spark they are opaque, and a thousand headers cost it nothing.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from reconsume.spark.consumer.handling import (
    Ask,
    BatchHandler,
    Failed,
    Handler,
    Judge,
    Note,
    Outcome,
    Result,
    answers_of,
    ask_all,
    ask_each,
    handle_rows,
)
from reconsume.spark.consumer.record import Record
from reconsume.spark.consumer.rules import Rules

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql._typing import UserDefinedFunctionLike

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "now")
"""The fields of a row. `timestamp` and `now`, the batch's time, are epoch ms."""
BATCH_TIME = "batch_time"
"""The column of `current_timestamp()` on the streaming DataFrame (TIMESTAMP).

Spark keeps its value in the offset log, so a repeated batch writes the same due times. A clock that is read in the
batch would not.
"""
SOURCE = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", LongType()),
    ]
)
"""The columns that tell where a row was read."""
RESULT = StructType(
    [
        StructField("outcome", StringType()),
        StructField("failed", BooleanType()),
        StructField("odd", StringType()),
        StructField("fresh", BooleanType()),
        StructField("waited", LongType()),
        StructField("late", LongType()),
        StructField("note", StructType([StructField("key", StringType()), StructField("text", StringType())])),
        StructField("number", IntegerType()),
        StructField("writes", BinaryType()),
    ]
)
"""The fields of `handling.Result`, with the number of records to write, and these as `pack` encodes them."""

MAX_DEATHS: Final = 3
"""How many times a record may end its process before it is dead-lettered: the sidecar's `retry.max_deaths`."""
CRASHED: Final = "crashed-service"
"""The sidecar's reason for a record that crashes its service."""
DIED: Final = "Python worker exited unexpectedly"
"""The message by which Spark reports that a Python worker has ended. An executor that is lost says nothing about a
record: its machine was taken away, or it was asked for too much memory by anyone."""

Packed: TypeAlias = tuple[Any, ...]
"""The fields of RESULT."""
Work: TypeAlias = Callable[[DataFrame], DataFrame]
"""A function of a batch's frame. It returns a frame with the columns of SOURCE and `r`, the result of each row."""

_PACK = msgspec.msgpack.Encoder()
END_SECONDS = 1.0
"""Seconds that a child may take to end once its pipe is closed."""

_FORK = multiprocessing.get_context("fork")


class Works(NamedTuple):
    """The two ways to handle a batch: `usual`, and `isolated`, in which a handler runs in a process of its own."""

    usual: Work
    isolated: Work


def works_of(handler: Handler | None, batch_handler: BatchHandler | None, rules: Rules) -> Works:
    """Return how a batch is handled by one of the two handlers. Raises ValueError unless there is exactly one."""
    if batch_handler is not None and handler is None:
        # Isolated, each row has a call of its own: what ends the process is then one record.
        ask_one = ask_each(lambda record: answers_of(batch_handler, [record])[0], Judge(rules))
        return Works(_by_batch(batch_handler, rules), _by_row(row_handling(ChildProcess(ask_one), rules)))
    if handler is None or batch_handler is not None:
        raise ValueError("give either a handler or a batch_handler")
    ask = ask_each(handler, Judge(rules))
    return Works(_by_row(row_handling(ask, rules)), _by_row(row_handling(ChildProcess(ask), rules)))


def row_handling(ask: Ask, rules: Rules) -> Callable[[Row], Packed]:
    """Return the function that Spark calls for each row."""
    return lambda row: pack(handle_rows(ask, [row], rules)[0])


def batch_handling(ask: Ask, rules: Rules) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that handles the rows of each Arrow batch by one call.

    It returns the columns of SOURCE and the fields of RESULT.
    """

    def handle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = batch.to_pylist()
            yield arrow_of(rows, handle_rows(ask, rows, rules))

    return handle


def _by_row(function: Callable[[Row], Packed]) -> Work:
    return lambda frame: results_of(frame.select(*columns(frame)), function)


def _by_batch(handler: BatchHandler, rules: Rules) -> Work:
    work = batch_handling(ask_all(handler, Judge(rules)), rules)

    def handle(frame: DataFrame) -> DataFrame:
        results = frame.select(*columns(frame)).mapInArrow(work, StructType(SOURCE.fields + RESULT.fields))
        return results.select(*SOURCE.names, f.struct(*RESULT.names).alias("r"))

    return handle


def results_of(rows: DataFrame, function: Callable[[Row], Packed | None]) -> DataFrame:
    """Return the columns of SOURCE and `r`, what `function` returns for each row."""
    # Not deterministic for Spark: else it would call the function again for each use of the results.
    work = column_of(function, RESULT).asNondeterministic()
    return rows.select(*SOURCE.names, work(f.struct(*rows.columns)).alias("r"))


def column_of(function: Callable[[Row], Any], returns: DataType) -> UserDefinedFunctionLike:
    """Return a column's function that calls `function` for each row."""
    # Spark 4.2 takes the type hints of a function for those of columns, and warns of all others: a lambda has none.
    return f.udf(lambda row: function(row), returns)


def columns(frame: DataFrame) -> list[Column]:
    """Return the columns that a row for the handler is made of, with times as epoch ms."""
    stamp = frame.schema["timestamp"].dataType
    replaced = {
        "timestamp": f.unix_millis("timestamp") if isinstance(stamp, TimestampType) else f.col("timestamp"),
        "now": f.unix_millis(BATCH_TIME),
    }
    return [replaced.get(name, f.col(name)).alias(name) for name in COLUMNS]


def pack(result: Result) -> Packed:
    """Return a result as the fields of RESULT."""
    *fields, writes = result
    return (*fields, len(writes), _PACK.encode(writes) if writes else None)


def arrow_of(rows: Sequence[Mapping[str, Any]], results: Sequence[Result]) -> pa.RecordBatch:
    """Return the results of rows as Arrow's columns of SOURCE and RESULT."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    named = [
        {name: row[name] for name in SOURCE.names}
        | dict(zip(RESULT.names, pack(result), strict=True))
        | {"note": result.note and result.note._asdict()}
        for row, result in zip(rows, results, strict=True)
    ]
    return pa.RecordBatch.from_pylist(named, schema=to_arrow_schema(StructType(SOURCE.fields + RESULT.fields)))


# --- a process of its own ---------------------------------------------------------------------------------------------


def died(error: BaseException) -> bool:
    """Whether a batch failed because a Python worker, which is a process with handlers, has ended."""
    return DIED in str(error)


class ChildProcess:
    """Asks about records in a child process, one at a time. It replaces a child that has ended by a new one.

    The child ends when this object or its process ends. Spark sends this object to workers before it has a child.
    """

    def __init__(self, ask: Ask, max_deaths: int = MAX_DEATHS) -> None:
        self._ask, self._max_deaths = ask, max_deaths
        self._child: ForkProcess | None = None
        self._line: Connection | None = None

    def __call__(self, records: Sequence[Record]) -> list[Outcome]:
        """Return the outcome of each record; a dead letter for one that has ended its process `max_deaths` times."""
        return [self._outcome(record) for record in records]

    def _outcome(self, record: Record) -> Outcome:
        for _ in range(self._max_deaths):
            line = self._line or self._begin()
            try:
                line.send(record)
                outcome: Outcome = line.recv()
            except (EOFError, OSError):
                self._end()
            else:
                return outcome
        note = Note(CRASHED, f"{record.id} (attempt {record.times + 1}): ended its process {self._max_deaths} times")
        return Failed(CRASHED, level=-1, note=note)

    def __del__(self) -> None:
        self._end()

    def _begin(self) -> Connection:
        # The child holds the worker's sockets too, so it must end when its pipe does.
        self._line, theirs = _FORK.Pipe()
        self._child = _FORK.Process(target=serve, args=(self._ask, theirs, self._line), daemon=True)
        self._child.start()
        theirs.close()  # an open copy here would hide the end of the child
        return self._line

    def _end(self) -> None:
        child, line, self._child, self._line = self._child, self._line, None, None
        if line is not None:
            line.close()
        if child is not None:
            child.join(END_SECONDS)
            child.kill()  # it may hang in its handler, or another process may hold its pipe open
            child.join()


def serve(ask: Ask, line: Connection, parents: Connection) -> None:
    """Run the child process: answer records until the parent closes the connection."""
    parents.close()
    while True:
        try:
            record = line.recv()
        except EOFError:
            return
        line.send(ask([record])[0])
