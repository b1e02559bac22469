"""Write a batch's copies and events with its progress: one Kafka transaction for each source partition.

The committed offsets of the query's private group are the fence. Each is the next offset of a source partition whose
attempts are not counted yet, and it is committed in the transaction of the copies and events below it. So a batch that
Spark repeats, with the same range or another, writes nothing twice: rows below the fence are left out.

On the driver, `BatchWriter` says what a batch commits. A partition with records to write commits at once. All others
commit in the first batch, and then in every tenth one or once a minute; after an hour each offset is committed again,
because Kafka forgets those of a group without members after seven days. The rows are sent to tasks by their source
partition and sorted by offset. Before the rows of a partition comes its `End`, and only the task that has it may write.

On a worker, `write_partitions` writes the partitions of a task one after the other. A producer makes one transaction:

1. `init_transactions` ends what an earlier producer of this id has left open, on whatever executor, and fences it.
2. The fence is read. Nothing can change it any more: who wanted to is fenced.
3. Copies and events of the rows above the fence are produced, the offset is added, and the transaction is committed.

After an error nobody knows whether the transaction has happened. The next try does the same with a new producer, and
the fence says it. Nothing is kept for the next batch: Spark gives each task to any Python worker, so a kept producer
would mostly be fenced by then. A producer of one transaction also needs no guard against requests that arrive late
(`sidecar/kafka/committer/client_reports.py`): its successor has another epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from reconsume.sidecar.kafka.client_config import producer_config, reader_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.spark.consumer.brokers import CLIENT
from reconsume.spark.consumer.handling import Written
from reconsume.spark.consumer.rules import Rules
from reconsume.topics.names import canonical_delay

if TYPE_CHECKING:
    import pyarrow as pa

EVERY, EVERY_SECONDS, AGAIN_SECONDS = 10, 60.0, 3_600.0
"""Batches, and seconds, after which progress without records to write is committed, and seconds after which a committed
offset is committed again."""
TASKS = 8
"""Tasks that write a batch, at most."""
CHUNK = 4 * 1024 * 1024
"""Bytes of copies and events after which a transaction ends. It must end within 10 s."""
TRY_FOR, AGAIN_AFTER = 60.0, 2.0
"""Seconds for which a transaction is tried, and between two tries. A coordinator that has just taken the group over may
tell an older offset for a second (KIP-207): only what it says after that time is believed."""
LIMIT = 5.0
"""Seconds of one call to Kafka."""
LASTING = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError._INVALID_ARG,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Errors that no further try mends."""

AT_ONCE = {"enable.sparse.connections": False}
"""The client connects to every broker as soon as it is made. Otherwise a producer notices only after 500 ms that its
coordinator is there (librdkafka 2.16), and with this its `init_transactions` takes 14 ms."""

LINE = "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, until BIGINT, writes BINARY"
DONE = "topic STRING, partition INT, written BIGINT, repeated BIGINT"
Source: TypeAlias = tuple[str, int]
"""The topic and the number of a source partition."""
_UNPACK = msgspec.msgpack.Decoder(list[Written])


class WriteError(RuntimeError):
    """Copies, events and progress of a source partition could not be written. The batch fails, and can be repeated."""


class End(NamedTuple):
    """Where a batch ends in a source partition.

    - `topic`, `partition`: the source partition.
    - `until`: the offset after its last row.
    - `at`: the newest append time of its rows (epoch ms) for a level topic. A row below the fence that is younger than
      the fence's own time lies in another log of the same name: the topic was created again. None for other topics,
      whose times have no order.
    - `writes`: the number of records to write.
    """

    topic: str
    partition: int
    until: int
    at: int | None = None
    writes: int = 0


class Line(NamedTuple):
    """A row of a task: an end (`until` is set, `offset` is −1), or records to write for the row at `offset`."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    until: int | None
    writes: bytes | None


class Done(NamedTuple):
    """What was written for a source partition: the number of records, and of rows that were below the fence."""

    topic: str
    partition: int
    written: int
    repeated: int


# --- on the driver ----------------------------------------------------------------------------------------------------


class BatchWriter:
    """Writes the results of one query's batches. It knows what each source partition has committed.

    `client` holds librdkafka's settings. `clock` tells seconds.
    """

    def __init__(self, rules: Rules, client: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._work = partial(write_partitions, dict(client), rules.private_group)
        self._prefixes = rules.level_prefixes
        self._clock = clock
        self._batches, self._next_turn = 0, clock()
        self._ends: dict[Source, End] = {}
        """The newest end of each partition."""
        self._committed: dict[Source, tuple[int, float]] = {}
        """The offset that each partition has committed last, and when."""

    def write(self, results: DataFrame, ends: Sequence[End]) -> list[Done]:
        """Write the records of a batch and commit what is due. `results` has the columns `workers.RESULTS`.

        Raises an error of Spark, with the text of a WriteError, if Kafka does not take them.
        """
        known = self._ends | {end[:2]: self._timed(end) for end in ends}
        due = self._due(known)
        done = write_results(results, due, self._work)
        now = self._clock()
        self._ends = {source: end._replace(writes=0) for source, end in known.items()}
        self._batches += 1
        self._committed.update((end[:2], (end.until, now)) for end in due)
        return done

    def _timed(self, end: End) -> End:
        """Return the end, with a time only if its topic is a level, whose times have an order."""
        is_level = any(canonical_delay(end.topic, prefix) is not None for prefix in self._prefixes)
        return end if is_level else end._replace(at=None)

    def _due(self, known: Mapping[Source, End]) -> list[End]:
        now = self._clock()
        is_turn = self._batches % EVERY == 0 or now >= self._next_turn
        if is_turn:
            self._next_turn = now + EVERY_SECONDS
        never = -1, now
        due = []
        for source, end in known.items():
            offset, at = self._committed.get(source, never)
            if end.writes or (is_turn and (offset != end.until or now >= at + AGAIN_SECONDS)):
                due.append(end)
        return due


def write_results(results: DataFrame, ends: Sequence[End], work: Callable[..., Iterator[pa.RecordBatch]]) -> list[Done]:
    """Write the records of these source partitions by `work`, which is `write_partitions` with its first arguments."""
    if not ends:
        return []
    rows = results.where(f.col("writes").isNotNull()).select(
        "topic", "partition", "offset", "timestamp", f.lit(None).cast("bigint").alias("until"), "writes"
    )
    begins = [Line(end.topic, end.partition, -1, end.at, end.until, None)._asdict() for end in ends]
    listed = f.from_json(f.lit(msgspec.json.encode(begins).decode()), f"ARRAY<STRUCT<{LINE}>>")
    rows = rows.unionByName(results.sparkSession.range(0, 1, 1, 1).select(f.inline(listed)))
    tasks = rows.repartition(min(len(ends), TASKS), "topic", "partition")
    done = tasks.sortWithinPartitions("topic", "partition", "offset").mapInArrow(work, DONE).collect()
    return [Done(*row) for row in done]


# --- on a worker ------------------------------------------------------------------------------------------------------


def write_partitions(
    client: Mapping[str, str], group: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the source partitions of a task (for `mapInArrow`): rows of LINE in, rows of DONE out.

    Raises WriteError, and KafkaException if no client can be made of `client`.
    """
    import pyarrow as pa

    reader: Consumer | None = None
    try:
        for source, lines in groupby(lines_of(batches), key=lambda line: (line.topic, line.partition)):
            reader = reader or make_client(Consumer, {**AT_ONCE, **reader_config(client, group, CLIENT)})
            done = PartitionWriter(client, group, source, reader).write(lines)
            yield pa.RecordBatch.from_pylist([done._asdict()], schema=_arrow_schema())
    finally:
        if reader is not None:
            reader.close()


def unpack(writes: bytes | None) -> list[Written]:
    """Return the records to write that `workers.results_of` has encoded."""
    return _UNPACK.decode(writes) if writes else []


def lines_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Line]:
    """Yield the rows of Arrow batches."""
    for batch in batches:
        yield from map(Line._make, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _arrow_schema() -> pa.Schema:
    import pyarrow as pa

    numbers = [(name, pa.int64()) for name in ("written", "repeated")]
    return pa.schema([("topic", pa.string()), ("partition", pa.int32()), *numbers])


class Fence(NamedTuple):
    """What a source partition has committed: the next offset that is not counted, and `End.at` of that time."""

    offset: int
    at: int | None

    def covers(self, line: Line) -> bool:
        """Whether the attempt of a row is counted already."""
        is_of_this_log = self.at is None or line.timestamp is None or line.timestamp <= self.at
        return line.offset < self.offset and is_of_this_log


class PartitionWriter:
    """Writes the rows of one source partition in transactions. `reader` reads the offsets of the private group."""

    def __init__(self, client: Mapping[str, str], group: str, source: Source, reader: Consumer) -> None:
        self._source, self._reader = source, reader
        self._name = f"{source[0]}[{source[1]}]"
        self._config = {**AT_ONCE, **producer_config(client, f"{group}-{source[0]}-{source[1]}", CLIENT)}
        self._written = self._repeated = 0

    def write(self, lines: Iterator[Line]) -> Done:
        """Write rows that are sorted by offset, the end before them. Raises WriteError."""
        end = next(lines)
        if end.until is None:
            raise WriteError(f"{self._name}: two tasks have rows of it, and only one may write; nothing was written")
        chunk, size = [], 0
        for line in lines:
            chunk.append(line)
            size += len(line.writes or b"")
            if size >= CHUNK:
                self._commit(chunk, line.offset + 1, None if end.timestamp is None else line.timestamp)
                chunk, size = [], 0
        self._commit(chunk, end.until, end.timestamp)
        return Done(*self._source, self._written, self._repeated)

    def _commit(self, lines: Sequence[Line], until: int, at: int | None) -> None:
        """Make one transaction, and try again until it is known to have happened. Raises WriteError."""
        deadline = time.monotonic() + TRY_FOR
        while (failure := self._failure(lines, until, at)) is not None:
            if failure.code() in LASTING or time.monotonic() > deadline:
                raise WriteError(f"{self._name}: its copies, events and progress cannot be written: {failure.str()}")
            time.sleep(AGAIN_AFTER)

    def _failure(self, lines: Sequence[Line], until: int, at: int | None) -> KafkaError | None:
        """Try once. Return what failed; None if all rows are counted now."""
        refused: list[KafkaError] = []

        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                refused.append(KafkaError(error.code(), f"{message.topic()}: {error.str()}"))

        producer = make_client(Producer, {**self._config, "on_delivery": note})
        try:
            producer.init_transactions(2 * LIMIT)
            fence = self._fence()
            fresh = [line for line in lines if not fence.covers(line)]
            if fresh or until > fence.offset:
                self._written += self._transact(producer, fresh, until, at)
        except KafkaException as error:
            failure: KafkaError = error.args[0]
        else:
            self._repeated += len(lines) - len(fresh)
            return None
        # Not in the handler: a request that fails there keeps the client for ever (`sidecar/kafka/errors.py`).
        with suppress(KafkaException):
            producer.abort_transaction(LIMIT)
        # Of a transaction that fails, some records are refused for its cause, and the others only purged.
        return next((error for error in (*refused, failure) if error.code() in LASTING), failure)

    def _fence(self) -> Fence:
        try:
            [committed] = self._reader.committed([TopicPartition(*self._source)], timeout=LIMIT)
            failure = committed.error
        except KafkaException as error:
            failure = error.args[0]
        if failure is not None:
            # A missing right to the group is told by an event alone; the call runs into its timeout.
            event = self._reader.poll(0)
            raise KafkaException((event and event.error()) or failure)
        text = committed.metadata or ""
        return Fence(max(committed.offset, 0), int(text) if text.isdecimal() else None)

    def _transact(self, producer: Producer, lines: Sequence[Line], until: int, at: int | None) -> int:
        """Make the transaction and return the number of records in it. Raises KafkaException."""
        producer.begin_transaction()
        number = 0
        for line in lines:
            for topic, key, value, headers in unpack(line.writes):
                number += 1
                while not _is_taken(producer, topic, key, value, headers):
                    producer.poll(0.05)
        # Before the offsets, so that an error of theirs finds no record on its way.
        producer.flush(LIMIT)
        offset = TopicPartition(*self._source, until, "" if at is None else str(at))
        producer.send_offsets_to_transaction([offset], self._reader.consumer_group_metadata(), LIMIT)
        producer.commit_transaction(LIMIT)
        return number


def _is_taken(
    producer: Producer,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> bool:
    """Give a record to the client. False: its queue is full."""
    try:
        producer.produce(topic, value, key, headers=headers)  # type: ignore[arg-type]
    except BufferError:
        return False
    return True
