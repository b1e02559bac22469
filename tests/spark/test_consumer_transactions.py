"""The copies, events and progress of a source partition are one transaction: nothing is written twice or lost.

Most of it without Spark: `write_partitions` is what a task calls, here in this process or in one that dies on the way.
Then batches as Spark repeats them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from reconsume.spark.consumer import (
    Counts,
    Record,
    TooManyFailuresError,
    build_rules,
    due_rows,
    for_each_record,
    transactions,
    with_batch_time,
    write_rows,
)
from reconsume.spark.consumer.transactions import BatchWriter, Done, End, Line, write_partitions
from reconsume.topics.names import Kind
from tests.conftest import MakeTopic
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.topic_io import SECONDS, create_topic, delete_topics, dump, open_topics

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("until", pa.int64()),
        ("writes", pa.binary()),
    ]
)


class Task:
    """A task with rows of one source partition, whose copies go to `out`. A row's copy has its offset as value."""

    def __init__(self, kafka: Broker, source: str, out: str, group: str) -> None:
        self.client = {"bootstrap.servers": kafka.bootstrap}
        self.source, self.out, self.group = source, out, group

    def lines(self, offsets: Iterable[int], until: int, at: int | None = None, size: int = 0) -> list[Line]:
        """The task's rows: of these offsets, each appended at the time `at`."""
        begin = Line(self.source, 0, -1, at, until, None)
        rows = [
            Line(self.source, 0, offset, at, None, msgspec.msgpack.encode([self.copy(offset, size)]))
            for offset in offsets
        ]
        return [begin, *rows]

    def copy(self, offset: int, size: int = 0) -> Any:
        return (self.out, b"k", b"%d" % offset + b" " * size, [("id", b"%d" % offset), ("none", None)])

    def run(self, lines: list[Line]) -> list[Done]:
        """Run the task in this process."""
        batches = [pa.RecordBatch.from_pylist([line._asdict() for line in lines], schema=SCHEMA)]
        return [
            Done(**row)
            for batch in write_partitions(self.client, self.group, iter(batches))
            for row in batch.to_pylist()
        ]

    def run_until(self, call: str, lines: list[Line], *, after: bool, skip: int = 0) -> None:
        """Run the task in a process that is killed before or after a call of its producer, `skip` of which are made."""
        process = multiprocessing.get_context("fork").Process(target=self._die, args=(call, lines, after, skip))
        process.start()
        process.join(SECONDS)
        assert process.exitcode == DEAD

    def _die(self, call: str, lines: list[Line], after: bool, skip: int) -> None:
        left = [skip]

        class Dying(Producer):
            pass

        def dying(self: Producer, *args: Any) -> Any:
            left[0] -= 1
            if left[0] >= 0:
                return getattr(Producer, call)(self, *args)
            if after:
                getattr(Producer, call)(self, *args)
            os._exit(DEAD)

        setattr(Dying, call, dying)
        transactions.Producer = Dying  # type: ignore[misc, attr-defined]
        self.run(lines)

    def copies(self) -> list[bytes]:
        """The values of the committed copies, in order."""
        return [(row.value or b"").strip() for row in dump(self.client["bootstrap.servers"], self.out)]

    def progress(self) -> tuple[int, str | None]:
        """The offset that the source partition has committed in the private group, and its metadata."""
        consumer = Consumer({**self.client, "group.id": self.group})
        [found] = consumer.committed([TopicPartition(self.source, 0)], timeout=SECONDS)
        consumer.close()
        return found.offset, found.metadata or None


DEAD = 9


@pytest.fixture
def task(kafka: Broker, make_topic: MakeTopic, group: str) -> Task:
    return Task(kafka, make_topic(), make_topic(), group)


def test_a_repeated_task_writes_nothing_twice_whatever_its_range(task: Task) -> None:
    assert task.run(task.lines([0, 2, 3], until=5)) == [Done(task.source, 0, 3, 0)]
    assert task.progress() == (5, None)
    assert task.run(task.lines([0, 2, 3], until=5)) == [Done(task.source, 0, 0, 3)]
    assert task.run(task.lines([2, 3, 6, 8], until=10)) == [Done(task.source, 0, 2, 2)]
    assert task.run(task.lines([0], until=1)) == [Done(task.source, 0, 0, 1)]
    assert (task.copies(), task.progress()) == ([b"0", b"2", b"3", b"6", b"8"], (10, None))
    [row, *_] = dump(task.client["bootstrap.servers"], task.out)
    assert (row.key, row.headers) == (b"k", (("id", b"0"), ("none", None)))


@pytest.mark.parametrize(
    ("call", "after", "is_written"),
    [
        ("init_transactions", True, False),
        ("flush", True, False),
        ("send_offsets_to_transaction", True, False),
        ("commit_transaction", False, False),
        ("commit_transaction", True, True),
    ],
)
def test_a_killed_task_is_repeated_without_a_copy_more_or_less(
    task: Task, call: str, after: bool, is_written: bool
) -> None:
    task.run_until(call, task.lines([0, 1], until=2), after=after)
    begun = time.monotonic()
    assert task.run(task.lines([0, 1, 2], until=3)) == [Done(task.source, 0, *((1, 2) if is_written else (3, 0)))]
    assert time.monotonic() - begun < 8, "what the killed task left open has ended by its timeout"
    assert (task.copies(), task.progress()[0]) == ([b"0", b"1", b"2"], 3)
    assert open_topics(task.client["bootstrap.servers"], task.out) == []


def test_a_large_batch_is_several_transactions_and_a_repetition_goes_on_behind_the_last(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "CHUNK", 2_000)
    lines = task.lines(range(10), until=10, size=990)
    task.run_until("commit_transaction", lines, after=False, skip=2)
    assert (task.copies(), task.progress()[0]) == ([b"0", b"1", b"2", b"3"], 4)
    assert task.run(lines) == [Done(task.source, 0, 6, 4)]
    assert (task.copies(), task.progress()[0]) == ([b"%d" % number for number in range(10)], 10)


def test_of_two_tasks_at_once_the_later_writes_and_the_earlier_finds_that_all_is_written(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[list[Done]] = []

    class Overtaken(Producer):
        """Another task with the same rows runs just before the first commit."""

        def commit_transaction(self, *args: Any) -> None:
            if not later:
                later.append([])
                later[0] = task.run(task.lines([0, 1], until=2))
            super().commit_transaction(*args)

    monkeypatch.setattr(transactions, "Producer", Overtaken)
    assert task.run(task.lines([0, 1], until=2)) == [Done(task.source, 0, 0, 2)]
    assert later == [[Done(task.source, 0, 2, 0)]]
    assert (task.copies(), task.progress()[0]) == ([b"0", b"1"], 2)


def test_progress_without_copies_is_committed_and_never_goes_back(task: Task) -> None:
    assert task.run(task.lines([], until=7)) == [Done(task.source, 0, 0, 0)]
    assert task.run(task.lines([], until=5)) == [Done(task.source, 0, 0, 0)]
    assert (task.copies(), task.progress()[0]) == ([], 7)
    assert task.run([]) == []


def test_a_level_that_was_created_again_is_counted_from_its_first_record(kafka: Broker, task: Task) -> None:
    task.run(task.lines([0, 1, 2], until=3, at=1_000))
    assert task.progress() == (3, "1000")
    # Kafka forgets the offsets of a deleted topic; those that a late task commits are of the former log.
    delete_topics(kafka.bootstrap, task.source)
    create_topic(kafka.bootstrap, task.source)
    task.run(task.lines([3], until=4, at=1_000))
    assert task.run(task.lines([0, 1], until=2, at=2_000)) == [Done(task.source, 0, 2, 0)]
    assert task.run(task.lines([0, 1], until=2, at=2_000)) == [Done(task.source, 0, 0, 2)]
    assert task.progress() == (2, "2000")


def test_a_task_without_the_end_of_a_partition_is_refused_by_its_name(task: Task) -> None:
    with pytest.raises(transactions.WriteError, match=rf"{task.source}\[0\]: two tasks have rows"):
        task.run(task.lines([0], until=1)[1:])
    assert (task.copies(), task.progress()[0]) == ([], -1001)


def test_a_record_that_kafka_does_not_take_fails_the_task_and_names_its_topic(
    kafka: Broker, task: Task, make_topic: MakeTopic
) -> None:
    narrow = make_topic(max_message_bytes=1_000)
    task.run(task.lines([0], until=1))
    wide, task.out = task.out, narrow
    with pytest.raises(
        transactions.WriteError, match=rf"{task.source}\[0\].* cannot be written: {narrow}: .*too large"
    ):
        task.run(task.lines([1], until=2, size=2_000))
    assert open_topics(kafka.bootstrap, narrow) == []
    task.out = wide
    assert (task.copies(), task.progress()[0]) == ([b"0"], 1)


def test_what_cannot_be_written_for_a_while_is_tried_again(
    kafka: Broker, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    class Refused(Producer):
        """The first transaction is ended by somebody else's."""

        def send_offsets_to_transaction(self, *args: Any) -> None:
            tries.append(1)
            if len(tries) == 1:
                other = Producer({**task.client, "transactional.id": f"{task.group}-{task.source}-0"})
                other.init_transactions(SECONDS)
            super().send_offsets_to_transaction(*args)

    monkeypatch.setattr(transactions, "Producer", Refused)
    assert task.run(task.lines([0], until=1)) == [Done(task.source, 0, 1, 0)]
    assert (len(tries), task.copies()) == (2, [b"0"])


# --- which progress is committed when -------------------------------------------------------------------------------


class Batches:
    """The batches of a query, and what of them is committed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.fails = False
        self._due: list[End] = []
        monkeypatch.setattr(transactions, "write_results", self._write)
        self._writer = BatchWriter(build_rules("billing", ["orders"], name="ship"), {}, lambda: self.now)

    def _write(self, _results: object, ends: list[End], _work: object) -> list[Done]:
        self._due = ends
        if self.fails:
            raise OSError("no broker")
        return []

    def committed(self, *ends: End) -> list[tuple[int, int]]:
        """The partitions and offsets that the next batch commits; it ends so."""
        self.now += 1
        self._writer.write(None, ends)  # type: ignore[arg-type]
        return [(end.partition, end.until) for end in self._due]


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Batches:
    return Batches(monkeypatch)


def end(partition: int, until: int, writes: int = 0) -> End:
    return End("orders", partition, until, writes=writes)


def test_a_partition_with_copies_commits_at_once_and_the_others_in_each_tenth_batch(batches: Batches) -> None:
    assert batches.committed(end(0, 10), end(1, 20, 3)) == [(0, 10), (1, 20)]
    for number in range(1, 10):
        assert batches.committed(end(0, 10 + number), end(1, 20 + number, 3)) == [(1, 20 + number)]
    assert batches.committed() == [(0, 19)], "what an earlier batch has left is committed, too"
    assert batches.committed() == []


def test_a_slow_query_commits_each_minute_and_a_quiet_partition_each_hour(batches: Batches) -> None:
    assert batches.committed(end(0, 10), end(1, 5)) == [(0, 10), (1, 5)]
    assert batches.committed(end(0, 11)) == []
    batches.now += 60
    assert batches.committed(end(0, 12)) == [(0, 12)]
    batches.now += 3_600
    assert batches.committed() == [(0, 12), (1, 5)]


def test_a_batch_that_failed_commits_nothing_later(batches: Batches) -> None:
    assert batches.committed(end(0, 10)) == [(0, 10)]
    batches.fails = True
    with pytest.raises(OSError, match="no broker"):
        batches.committed(end(0, 20, 1), end(1, 5))
    batches.fails = False
    batches.now += 100
    assert batches.committed() == []


def test_only_levels_have_a_time(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[End] = []

    def write(_results: object, ends: list[End], _work: object) -> list[Done]:
        found.extend(ends)
        return []

    monkeypatch.setattr(transactions, "write_results", write)
    batches.committed(*(End(topic, 0, 1, 5) for topic in ("orders", "billing-RETRY", "billing-RETRY-7m")))
    assert [(one.topic, one.at) for one in found] == [
        ("orders", None),
        ("billing-RETRY", None),
        ("billing-RETRY-7m", 5),
    ]


# --- with Spark -------------------------------------------------------------------------------------------------------


class Story:
    """A group whose records all fail, and what its topics hold."""

    def __init__(self, spark: SparkSession, kafka: Broker) -> None:
        self._spark = spark
        self.group = create_group(fresh_group(kafka.bootstrap, delays=(1_000,)), also=(Kind.POLICY,))
        self.rules = build_rules(self.group.group, self.group.mains, ladder=["1s"], name="ship")
        self.kafka = {"bootstrap.servers": kafka.bootstrap}
        self.counts: list[Counts] = []

    def batch(self, offsets: range) -> DataFrame:
        """A batch of these offsets of two partitions."""
        rows = [(self.group.main, number, offset, 1, b"k", b"v", None) for offset in offsets for number in (0, 1)]
        columns = "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key BINARY, value BINARY, "
        frame = self._spark.createDataFrame(rows, columns + "headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
        return with_batch_time(frame.repartition(2))

    def driver(self, handler: Callable[[Record], object]) -> Callable[[DataFrame, int], None]:
        """What a driver that has just started calls for each batch."""
        return for_each_record(handler, self.rules, self.kafka, stop_share=1, report=self.counts.append)

    def attempts(self) -> list[str]:
        """The records of which a copy and an event were written, as often as they were."""
        events = [json.loads(row.value or b"")["id"] for row in dump(self.group.bootstrap, self.group.names.events)]
        [level] = self.group.levels
        copies = [(dict(row.headers)["ORIGIN_MESSAGE_ID"] or b"").decode() for row in dump(self.group.bootstrap, level)]
        assert sorted(events) == sorted(copies)
        return sorted(copies)

    def ids(self, offsets: range) -> list[str]:
        return sorted(f"{self.group.main}:{number}:{offset}" for offset in offsets for number in (0, 1))

    def progress(self) -> list[int]:
        consumer = Consumer({**self.kafka, "group.id": self.rules.private_group})
        found = consumer.committed([TopicPartition(self.group.main, number) for number in (0, 1)], timeout=SECONDS)
        consumer.close()
        return [one.offset for one in found]


@pytest.fixture
def story(spark: SparkSession, kafka: Broker) -> Story:
    return Story(spark, kafka)


def fail(_record: Record) -> object:
    raise LookupError


def test_a_batch_that_is_repeated_with_another_range_counts_no_attempt_twice(story: Story) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    story.driver(fail)(story.batch(range(6)), 0)
    assert (story.attempts(), story.progress()) == (story.ids(range(6)), [6, 6])
    after_restart = story.driver(fail)
    after_restart(story.batch(range(6)), 0)
    after_restart(story.batch(range(3, 9)), 1)
    assert (story.attempts(), story.progress()) == (story.ids(range(9)), [9, 9])
    assert [(counts.retry, counts.writes, counts.repeated) for counts in story.counts] == [
        (12, 24, 0),
        (12, 0, 12),
        (12, 12, 6),
    ]


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before its commit", "after its commit"])
def test_a_python_worker_that_is_killed_costs_no_attempt_and_counts_none_twice(
    story: Story, tmp_path: Path, after: bool
) -> None:
    killed = tmp_path / "killed"

    def handle(_record: Record) -> object:
        import os
        import signal

        import confluent_kafka

        from reconsume.spark.consumer import transactions

        class Dying(confluent_kafka.Producer):
            def commit_transaction(self, *args: Any) -> None:
                if after:
                    super().commit_transaction(*args)
                if not killed.exists():
                    killed.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                if not after:
                    super().commit_transaction(*args)

        transactions.Producer = Dying  # type: ignore[misc, attr-defined]
        raise LookupError

    run = story.driver(handle)
    numbers = iter(range(40))

    def is_killed() -> bool:
        number = next(numbers)
        run(story.batch(range(3 * number, 3 * number + 3)), number)
        return killed.exists()

    until(is_killed, SECONDS, "a worker that has handled records gets a task that writes")
    done = range(3 * next(numbers))
    assert (story.attempts(), story.progress()) == (story.ids(done), [done.stop] * 2)


@pytest.mark.long
def test_frames_are_written_by_the_same_transactions(story: Story) -> None:
    for offsets in (range(4), range(4), range(2, 8)):
        batch = story.batch(offsets)
        due = due_rows(batch, story.rules)
        failed = due.where("offset % 2 = 0").withColumn("reason", f.lit("even"))
        story.counts.append(
            write_rows(batch, failed, due.where("offset % 2 = 1"), story.rules, story.kafka, stop_share=1)
        )
    assert story.attempts() == sorted({*story.ids(range(0, 8, 2))})
    assert story.progress() == [8, 8]
    assert [(one.commit, one.retry, one.writes, one.repeated) for one in story.counts] == [
        (4, 4, 8, 0),
        (4, 4, 0, 4),
        (6, 6, 8, 2),
    ]
    with pytest.raises(TooManyFailuresError):
        write_rows(batch, due, due.limit(0), story.rules, story.kafka, stop_count=1)
    assert story.progress() == [8, 8]
