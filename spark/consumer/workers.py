"""Run handlers on Spark's workers: a batch's frame in, a frame of results out.

`works_of` says how. `usual` calls the handler in Spark's Python worker: a handler for each row, a batch handler for
each Arrow batch. `isolated` calls it in a child process, one record at a time, and is used for a batch in which a
worker has ended: by the handler's `os._exit`, a crash in a C library, or a lack of memory. In the worker itself the
same record would end it again at each repetition, and the batch would never end. In a child it ends nothing else, and
is known afterwards.

Only this module converts between Spark's rows and `handling.py`, which says what a record comes to. A row without
records to write has no result of its own: each task sums up its rows in one `Tally` for each source partition, because
sums by Spark need a shuffle, which costs a batch of 10 000 rows a third of its time. The records to write are packed
into one binary value: for Spark they are opaque, and a thousand headers cost it nothing.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import TimestampType

from reconsume.spark.consumer.handling import (
    CRASHED,
    Ask,
    BatchHandler,
    Failed,
    Handler,
    Judge,
    Note,
    Outcome,
    Result,
    after_handling,
    ask_all,
    ask_each,
    before_handling,
    class_and_text,
    handle_rows,
    read_of,
)
from reconsume.spark.consumer.record import Record, parse
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.verdict import USUAL_RETRY
from reconsume.topics.durations import parse_duration

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "now")
"""The fields of a row. `timestamp` and `now`, the batch's time, are epoch ms."""
BATCH_TIME = "batch_time"
"""The column of `current_timestamp()` on the streaming DataFrame (TIMESTAMP).

Spark keeps its value in the offset log, so a repeated batch writes the same due times. A clock that is read in the
batch would not.
"""
RESULTS = "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, outcome STRING, writes BINARY, tally BINARY"
"""The columns of a batch's results: where a row was read, its `handling.Result.outcome`, and the records to write; null
if there are none. In the last rows of a task only `tally` is set."""
AT_ONCE = 100
"""Rows that a task turns into records at a time. A batch handler gets all rows of an Arrow batch."""

DUE = "due"
"""The outcome of a batch's row that may be handled, which `foreach.Counts` leaves out."""

MAX_DEATHS: Final = 3
"""How many times a record may end its process before it is dead-lettered: the sidecar's `retry.max_deaths`."""
DIED: Final = "Python worker exited unexpectedly"
"""The message by which Spark reports that a Python worker has ended. An executor that is lost says nothing about a
record: its machine was taken away, or it was asked for too much memory by anyone."""

Row: TypeAlias = Mapping[str, Any]
"""A row of the columns COLUMNS."""
Handle: TypeAlias = Callable[[Sequence[Row]], Iterable[Result | None]]
"""A function that returns the result of each row; None: the row is none of the batch's."""
Work: TypeAlias = Callable[[DataFrame], DataFrame]
"""A function of a batch's frame. It returns a frame with the columns RESULTS."""

END_SECONDS = 1.0
"""Seconds that a child may take to end once its pipe is closed."""

_FORK = multiprocessing.get_context("fork")


class Works(NamedTuple):
    """The two ways to handle a batch: `usual`, and `isolated`, in which a handler runs in a process of its own."""

    usual: Work
    isolated: Work


class Tally(msgspec.Struct):
    """What the rows of a source partition come to in one task.

    - `topic`, `partition`: the source partition.
    - `until`: the offset after its last row. `at`: the newest time of its rows (epoch ms), −1 if none has one.
    - `writes`: the number of records to write.
    - `outcomes`: rows by outcome and `Result.labels`.
    - `numbers`: rows by kind of odd answers, and those that are `failed`, `fresh` and both, `fresh_failed`.
    - `waited`, `late`: the greatest of the rows' (ms).
    - `notes`: texts for the driver's log.
    """

    topic: str
    partition: int
    until: int = 0
    at: int = -1
    writes: int = 0
    outcomes: dict[tuple[str, str, str], int] = msgspec.field(default_factory=Counter)
    numbers: dict[str, int] = msgspec.field(default_factory=Counter)
    waited: int = 0
    late: int = 0
    notes: list[Note] = []

    def add(self, row: Row, result: Result) -> None:
        """Count one more row."""
        self.until = max(self.until, row["offset"] + 1)
        self.at = max(self.at, row["timestamp"] if row["timestamp"] is not None else -1)
        self.writes += len(result.writes)
        self.waited, self.late = max(self.waited, result.waited), max(self.late, result.late)
        self.outcomes[result.outcome, *result.labels] += 1
        if result.fresh:
            self.numbers["fresh"] += 1
        if result.failed:
            self.numbers["failed"] += 1
            self.numbers["fresh_failed"] += result.fresh
        if result.odd:
            self.numbers[result.odd] += 1
        if result.note is not None:
            self.notes.append(result.note)


_PACK = msgspec.msgpack.Encoder()
_UNPACK = msgspec.msgpack.Decoder(Tally)


def works_of(handler: Handler | None, batch_handler: BatchHandler | None, rules: Rules) -> Works:
    """Return how a batch is handled by one of the two handlers. Raises ValueError unless there is exactly one."""
    judge = Judge(rules)
    if handler is not None and batch_handler is None:
        ask, at_once = ask_each(handler, judge), AT_ONCE
    elif batch_handler is not None and handler is None:
        ask, at_once = ask_all(batch_handler, judge), None
    else:
        raise ValueError("give either a handler or a batch_handler")
    # Isolated, each record has a call of its own: what ends the process is then one record.
    child = ChildProcess(ask)
    return Works(
        lambda frame: on_workers(frame, lambda rows: handle_rows(ask, rows, rules), at_once),
        lambda frame: on_workers(frame, lambda rows: handle_rows(child, rows, rules)),
    )


def on_workers(
    frame: DataFrame, handle: Handle, at_once: int | None = AT_ONCE, *more: Column, keeps_all: bool = False
) -> DataFrame:
    """Return the results of a batch's rows: `handle` gets `at_once` rows at a time, or an Arrow batch if that is None.

    `more` are columns that `handle` needs next to COLUMNS. `keeps_all`: rows without records to write are results too.
    """
    rows = frame.select(*columns(frame), *more)
    return rows.mapInArrow(lambda batches: results_of(handle, at_once, keeps_all, batches), RESULTS)


def results_of(
    handle: Handle, at_once: int | None, keeps_all: bool, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Handle the rows of a task (for `mapInArrow`). Its tallies come last."""
    tallies: dict[tuple[str, int], Tally] = {}
    for batch in batches:
        for begin in range(0, batch.num_rows, at_once or batch.num_rows or 1):
            rows = batch.slice(begin, at_once).to_pylist()
            results = []
            for row, result in zip(rows, handle(rows), strict=True):
                if result is None:
                    continue
                source = row["topic"], row["partition"]
                if source not in tallies:
                    tallies[source] = Tally(*source)
                tallies[source].add(row, result)
                if result.writes or keeps_all:
                    packed = _PACK.encode(result.writes) if result.writes else None
                    results.append((*source, row["offset"], row["timestamp"], result.outcome, packed, None))
            if results:
                yield arrow_of(results)
    if tallies:
        yield arrow_of([(*source, None, None, None, None, _PACK.encode(one)) for source, one in tallies.items()])


def tallies_in(results: DataFrame) -> list[Tally]:
    """Handle all rows of a batch, and return what they come to: one tally for each task and source partition."""
    rows = results.where(f.col("tally").isNotNull()).select("tally").collect()
    return [_UNPACK.decode(row["tally"]) for row in rows]


def columns(frame: DataFrame) -> list[Column]:
    """Return the columns that a row for the handler is made of, with times as epoch ms."""
    stamp = frame.schema["timestamp"].dataType
    replaced = {
        "timestamp": f.unix_millis("timestamp") if isinstance(stamp, TimestampType) else f.col("timestamp"),
        "now": f.unix_millis(BATCH_TIME),
    }
    return [replaced.get(name, f.col(name)).alias(name) for name in COLUMNS]


def arrow_of(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows of RESULTS for Arrow."""
    import pyarrow as pa

    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.string(), pa.binary(), pa.binary())
    names = [column.split()[0] for column in RESULTS.split(", ")]
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names)


# --- the rows of a job without a handler ------------------------------------------------------------------------------


def failure_of(row: Row) -> Failed:
    """Return the failure that a row tells of."""
    return Failed(*class_and_text(row["reason"] or "", USUAL_RETRY), _delay(row["delay"]), row["level"])


def _delay(text: str | None) -> int | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError:  # data of a record may be anything, and must not end the batch
        return None


def result_before(rules: Rules) -> Handle:
    """Return the function that gives the result of a batch's row: what is written, or DUE if it may be handled."""

    def result(row: Row) -> Result:
        now: int = row["now"]
        return before_handling(parse(read_of(row), rules, now), rules, now) or Result(DUE)

    return lambda rows: map(result, rows)


def result_after(rules: Rules, outcome_of: Callable[[Row], Outcome]) -> Handle:
    """Return the function that gives the result of a handled row; None for one that may not be handled."""

    def result(row: Row) -> Result | None:
        now: int = row["now"]
        record = parse(read_of(row), rules, now)
        if before_handling(record, rules, now) is not None:
            return None
        return after_handling(record, outcome_of(row), rules, now)

    return lambda rows: map(result, rows)


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
