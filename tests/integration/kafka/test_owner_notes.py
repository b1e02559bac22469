"""Notes of owners on a broker: written with progress, refused with it, and read up to the end of what is open."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer

from reconsume.sidecar.core.commit_batch import CommitBatch, PartitionCommit
from reconsume.sidecar.core.ports import ScannedRange
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.client_config import producer_config
from reconsume.sidecar.kafka.committer.committer import offsets_of, written_progress
from reconsume.sidecar.kafka.committer.transaction import TransactionalProducer
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted
from reconsume.sidecar.kafka.owner_reader import OwnerReader
from reconsume.topics.owner_notes import PARTITION, DoneNote, OwnerNotes, done_key, render_note
from reconsume.topics.transition_records import Copy
from tests.sim.twin_broker import unused_name
from tests.support.deadline import until
from tests.support.kafka.broker import Broker as Kafka
from tests.support.kafka.topic_io import SECONDS, create_topic, produce

SOURCE = unused_name("source")


class Answers:
    """Who reads, and what came of it."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.notes: list[OwnerNotes] = []
        self.ranges: list[ScannedRange] = []
        self.came = threading.Event()
        config = {"bootstrap.servers": kafka.bootstrap}
        self.reader = OwnerReader(lambda: config, "any", "reader", lambda: topic, lambda: None, self)

    def notes_read(self, wanted: Mapping[Partition, int], notes: OwnerNotes) -> None:
        self.notes.append(notes)
        self.came.set()

    def scanned(self, scanned: ScannedRange) -> None:
        self.ranges.append(scanned)
        self.came.set()

    def read(self, *sources: Partition) -> OwnerNotes:
        self.came.clear()
        self.reader.read_notes(dict.fromkeys(sources, 1))
        assert self.came.wait(SECONDS)
        return self.notes[-1]

    def scan(self, source: Partition, begin: int, end: int) -> ScannedRange:
        self.came.clear()
        self.reader.scan(source, 1, begin, end)
        assert self.came.wait(SECONDS)
        return self.ranges[-1]


@pytest.fixture(scope="module", autouse=True)
def source_topic(kafka: Kafka) -> None:
    create_topic(kafka.bootstrap, SOURCE)


@pytest.fixture
def policy_topic(kafka: Kafka) -> str:
    topic = unused_name("policy")
    create_topic(kafka.bootstrap, topic, 2, {"cleanup.policy": "compact"})
    return topic


@pytest.fixture
def answers(kafka: Kafka, policy_topic: str) -> Iterator[Answers]:
    answers = Answers(kafka, policy_topic)
    yield answers
    answers.reader.stop()
    answers.reader.join(SECONDS)
    assert answers.reader.failure is None


def producer_of(kafka: Kafka) -> TransactionalProducer:
    user = {"bootstrap.servers": kafka.bootstrap}
    producer = TransactionalProducer(producer_config(user, unused_name("id"), "notes"))
    producer.prepare()
    return producer


def commit(producer: TransactionalProducer, topic: str, source: Partition, done: int, metadata: Any) -> None:
    """Commit a note, with the progress of its partition."""
    batch = CommitBatch((), {source: PartitionCommit(1, Progress(0, unique=f"{done:08x}"))})
    note = Copy(topic, done_key("d", source), render_note(DoneNote("", done=done)), [], PARTITION, scattered=True)
    producer.commit((), offsets_of(written_progress(batch)), metadata, {topic: 2}, [note])


def member_of(kafka: Kafka, group: str) -> Consumer:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "session.timeout.ms": 6_000})
    consumer.subscribe([SOURCE])
    until(lambda: consumer.consume(1, 0.1) or consumer.assignment(), SECONDS, "it is a member")
    return consumer


def test_a_note_is_read_as_soon_as_it_is_committed_and_the_last_one_counts(
    kafka: Kafka, policy_topic: str, answers: Answers
) -> None:
    source, consumer = Partition(SOURCE, 0), Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "outside"})
    producer = producer_of(kafka)
    assert answers.read(source).of(source).done == {}
    for done in (1, 2):
        commit(producer, policy_topic, source, done, consumer.consumer_group_metadata())
        assert answers.read(source).of(source).done["d"].done == done
    producer.end()
    consumer.close()


def test_a_note_of_a_former_member_is_refused_with_its_progress(
    kafka: Kafka, policy_topic: str, answers: Answers
) -> None:
    source, group = Partition(SOURCE, 0), unused_name("group")
    former = member_of(kafka, group)
    metadata, producer = former.consumer_group_metadata(), producer_of(kafka)
    commit(producer, policy_topic, source, 1, metadata)
    former.close()
    present = member_of(kafka, group)
    with pytest.raises(Aborted):
        commit(producer, policy_topic, source, 2, metadata)
    assert answers.read(source).of(source).done["d"].done == 1
    producer.end()
    present.close()


def test_the_reading_waits_for_the_end_of_a_transaction_that_is_open(
    kafka: Kafka, policy_topic: str, answers: Answers
) -> None:
    source, consumer = Partition(SOURCE, 0), Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "open"})
    producer = producer_of(kafka)
    inner = producer._producer
    inner.begin_transaction()
    inner.produce(policy_topic, render_note(DoneNote("", done=7)), done_key("d", source), PARTITION)
    inner.flush(SECONDS)
    answers.came.clear()
    answers.reader.read_notes({source: 1})
    assert not answers.came.wait(1.5), "what is open is not decided"
    inner.commit_transaction(SECONDS)
    assert answers.came.wait(SECONDS)
    assert answers.notes[-1].of(source).done["d"].done == 7
    producer.end()
    consumer.close()


def test_a_topic_that_is_missing_has_no_notes(kafka: Kafka) -> None:
    answers = Answers(kafka, unused_name("nowhere"))
    source = Partition(SOURCE, 0)
    assert answers.read(source).of(source).is_empty
    answers.reader.stop()
    answers.reader.join(SECONDS)


def test_a_scan_brings_the_committed_records_of_a_range_and_says_where_the_next_one_begins(
    kafka: Kafka, answers: Answers
) -> None:
    topic = unused_name("level")
    create_topic(kafka.bootstrap, topic)
    produce(kafka.bootstrap, topic, [b"%d" % n for n in range(1_200)])
    source, at, values = Partition(topic, 0), 100, list[bytes | None]()
    while at < 1_100:
        scanned = answers.scan(source, at, 1_100)
        assert (scanned.begin, scanned.next > at) == (at, True)
        values += [record.value for record in scanned.records]
        at = scanned.next
    assert values == [b"%d" % n for n in range(100, 1_100)]
    assert answers.scan(source, 1_100, 1_100).records == ()
