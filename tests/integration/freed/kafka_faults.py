"""Faults of Kafka and of its clients, each as a function that makes it once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from reconsume.sidecar.core.commit_batch import CommitBatch, PartitionCommit, SettledRecord
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.kafka.client_config import producer_config
from reconsume.sidecar.kafka.clients import unchanging
from reconsume.sidecar.kafka.committer.committer import offsets_of, written_progress
from reconsume.sidecar.kafka.committer.replaceable_producer import ReplaceableProducer
from reconsume.sidecar.kafka.committer.transaction import BlockingCalls, CallTimeoutError, TransactionalProducer
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Commit
from tests.support.deadline import until
from tests.support.kafka.proxy_rules import Api, Fate, Moment, Rule
from tests.support.kafka.topic_io import SECONDS, create_topic
from tests.support.sidecar.scene import Proxied

Once: TypeAlias = Callable[[int], None]
"""Makes the fault once; the number is that of the time."""
LARGE = 4_000_000
"""Bytes of a batch: more than the whole allowance of memory, if one in ten of 300 stays."""
NAMES = count(1)
TOO_LONG = KafkaError.INVALID_TRANSACTION_TIMEOUT
SMALL = {"max.message.bytes": 2_000}


def expect(kind: type[Exception], is_it: Callable[[Any], object], function: Callable[..., Any], *args: Any) -> None:
    """Call a function that must raise; keep nothing of what it raises."""
    try:
        function(*args)
    except kind as failure:
        if not is_it(failure):
            raise
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def large_batch(topic: str, number: int) -> CommitBatch:
    """A batch of LARGE bytes, in ten records."""
    place = Partition(topic, 0)
    value = bytes([number % 251]) * (LARGE // 10)
    records = [Record(place, 10 * number + n, 1, 0, None, value, [], None) for n in range(10)]
    entries = tuple(SettledRecord(record, Commit(None), (Copy(topic, None, value, []),)) for record in records)
    return CommitBatch(entries, {place: PartitionCommit(1, Progress(10 * number + 10))})


def config_of(kafka: Proxied, **more: Any) -> dict[str, Any]:
    """A producer's configuration with an id of its own."""
    name = f"freed-{next(NAMES)}"
    return {**producer_config({"bootstrap.servers": kafka.proxy.address}, name, name), **more}


@contextmanager
def supply_of(kafka: Proxied) -> Iterator[ReplaceableProducer]:
    """A producer that is replaced where it must be."""
    stopping = threading.Event()
    supply = ReplaceableProducer(config_of(kafka), stopping, unchanging())
    supply.replace()
    yield supply
    stopping.set()
    if supply.producer is not None:
        supply.producer.end()


@contextmanager
def a_stale_generation(kafka: Proxied) -> Iterator[Once]:
    """A member that has left commits a batch: its offsets are refused, and the batch is aborted."""
    topic = f"freed-{next(NAMES)}"
    create_topic(kafka.kafka.bootstrap, topic)
    consumer = Consumer({"bootstrap.servers": kafka.kafka.bootstrap, "group.id": topic})
    consumer.subscribe([topic])
    until(lambda: consumer.consume(1, 0.1) or consumer.assignment(), SECONDS, "it is a member")
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    with supply_of(kafka) as supply:

        def once(number: int) -> None:
            producer = supply.usable()
            assert producer is not None
            batch = large_batch(topic, number)
            offsets = offsets_of(written_progress(batch))
            wanted = (batch.entries, offsets, metadata, {topic: 1})
            expect(Aborted, lambda aborted: aborted.stale_member, producer.commit, *wanted)

        yield once


@contextmanager
def a_refused_batch(kafka: Proxied) -> Iterator[Once]:
    """Every record of a batch is too large for its topic: the batch is aborted, and the producer replaced."""
    topic = f"freed-{next(NAMES)}"
    create_topic(kafka.kafka.bootstrap, topic, config=SMALL)
    with supply_of(kafka) as supply:

        def once(number: int) -> None:
            producer = supply.usable()
            assert producer is not None
            entries = large_batch(topic, number).entries
            expect(Aborted, lambda aborted: aborted.refusals, producer.write, entries, {topic: 1})
            supply.replace()

        yield once


@contextmanager
def a_connection_that_breaks(kafka: Proxied) -> Iterator[Once]:
    """The end of each transaction is sent twice, so the producer is replaced."""
    topic = f"freed-{next(NAMES)}"
    create_topic(kafka.kafka.bootstrap, topic)
    with supply_of(kafka) as supply:

        def once(number: int) -> None:
            producer = supply.usable()
            assert producer is not None
            kafka.proxy.add(Rule(Api.END_TXN, f"{supply._config['client.id']}", Moment.ARRIVED, fate=Fate.CUT))
            producer.write(large_batch(topic, number).entries[:1], {topic: 1})
            assert producer.doubtful
            kafka.proxy.clear()

        yield once


@contextmanager
def a_refused_producer(kafka: Proxied) -> Iterator[Once]:
    """Kafka refuses the id for good at the start, as without a right: here its transactions would be too long."""
    config = config_of(kafka, **{"transaction.timeout.ms": 100_000_000, "message.timeout.ms": 10_000})

    def once(_number: int) -> None:
        producer = TransactionalProducer(config)
        expect(KafkaException, lambda failure: failure.args[0].code() == TOO_LONG, producer.prepare)
        producer.end()

    yield once


@contextmanager
def a_call_that_hangs(kafka: Proxied) -> Iterator[Once]:
    """A call does not come back in time, so its client is given up. Later it comes back."""
    config = config_of(kafka)

    def once(_number: int) -> None:
        client, back = Producer(config), threading.Event()
        calls = BlockingCalls("freed")
        expect(CallTimeoutError, bool, calls.call, 0.01, lambda: (back.wait(SECONDS), client))
        calls.end([client])
        back.set()

    yield once


@contextmanager
def a_call_that_fails(_kafka: Proxied) -> Iterator[Once]:
    """What a call raises holds the frames that it passed, with all that these hold."""
    calls = BlockingCalls("freed")

    def fail(batch: bytes) -> None:
        raise ValueError(len(batch))

    def once(number: int) -> None:
        expect(ValueError, bool, calls.call, SECONDS, fail, bytes([number % 251]) * LARGE)

    yield once
    calls.end([])


KAFKA_FAULTS = (
    a_stale_generation,
    a_refused_batch,
    a_connection_that_breaks,
    a_refused_producer,
    a_call_that_hangs,
    a_call_that_fails,
)
