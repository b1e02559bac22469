"""The doctor on a level whose records are due and not done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition

from reconsume.sidecar.doctor.checks.progress import LONG, SLACK, overdue
from reconsume.sidecar.doctor.findings import Status
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.acls import GroupShape
from reconsume.topics.retry_headers import RETRY_DUE_AT
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import SECONDS, Out, dump, produce
from tests.support.sidecar.doctoring import DELAYS, now, worst

NOTHING = (Status.OK, "nothing is due for longer than 1m")
(DELAY,) = DELAYS
NOBODY = "nobody reads the partition: start an instance, or the Spark job that consumes the group"


def level(topics: GroupTopics) -> str:
    return next(iter(topics.levels))


def commit(topics: GroupTopics, topic: str, offset: int) -> None:
    """Leave progress of the retry group, without members."""
    config = {"bootstrap.servers": topics.bootstrap, "group.id": topics.names.retry_group}
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def transacted(topics: GroupTopics, topic: str, *records: Out) -> None:
    """Write records, each in a transaction: a marker lies behind it."""
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": f"{topics.group}-t"})
    producer.init_transactions(SECONDS)
    for record in records:
        producer.begin_transaction()
        producer.produce(topic, record.value, headers=list(record.headers), partition=0)
        producer.commit_transaction(SECONDS)


@contextmanager
def reader(topics: GroupTopics) -> Iterator[None]:
    """A member of the retry group that has the level's partitions, and does nothing with them."""
    config = {
        "bootstrap.servers": topics.bootstrap,
        "group.id": topics.names.retry_group,
        "client.id": "reconsume-pod-7",
    }
    consumer = Consumer({**config, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    consumer.subscribe([level(topics)])
    until(lambda: consumer.poll(0.1) is not None or len(consumer.assignment()) == 2, SECONDS, "it has the partitions")
    yield
    consumer.close()


def test_records_that_wait_for_their_time_are_no_finding(
    cluster: Cluster, topics: GroupTopics, group: GroupShape
) -> None:
    assert worst(overdue(cluster, group)) == NOTHING
    transacted(topics, level(topics), Out(b"waits", partition=0))
    assert worst(overdue(cluster, group)) == NOTHING
    assert worst(overdue(cluster, group, now() + DELAY + SLACK - 1_000)) == NOTHING


def test_a_head_that_is_overdue_is_told_with_its_partition_its_offsets_and_its_time(
    cluster: Cluster, topics: GroupTopics, group: GroupShape
) -> None:
    transacted(topics, level(topics), *(Out(b"%d" % number, partition=0) for number in range(3)))
    commit(topics, level(topics), 2)
    second = dump(topics.bootstrap, level(topics))[1]
    assert second.offset == 2
    status, text = worst(overdue(cluster, group, second.timestamp + DELAY + 90_000))
    place = f"{level(topics)}[0]"
    assert (status, text) == (
        Status.WARN,
        f"{place}: the record at 2 was due 1m30s ago and is not done; due there: at most 4 offsets",
    )
    (finding,) = overdue(cluster, group, second.timestamp + DELAY + LONG)
    assert (finding.status, finding.mend) == (
        Status.FAIL,
        NOBODY,
    )


def test_the_instance_that_has_the_partition_is_named(cluster: Cluster, topics: GroupTopics, group: GroupShape) -> None:
    produce(topics.bootstrap, level(topics), [Out(b"v", partition=0)])
    with reader(topics):
        (finding,) = overdue(cluster, group, now() + LONG + SLACK)
    assert finding.mend.startswith("reconsume-pod-7 has it: ")


def test_markers_behind_what_is_done_are_not_overdue(cluster: Cluster, topics: GroupTopics, group: GroupShape) -> None:
    """Given progress up to the last record, then what lies behind it is only its transaction's end."""
    transacted(topics, level(topics), Out(b"done", partition=0))
    commit(topics, level(topics), 1)
    assert worst(overdue(cluster, group, now() + LONG)) == NOTHING


def test_a_record_that_asked_for_a_longer_wait_is_due_when_it_says(
    cluster: Cluster, topics: GroupTopics, group: GroupShape
) -> None:
    later = now() + 5 * LONG
    record = Out(b"v", headers=((RETRY_DUE_AT, b"%d" % later),), partition=0)
    produce(topics.bootstrap, topics.names.ready, [record])
    assert worst(overdue(cluster, group, later - 1_000)) == NOTHING
    assert worst(overdue(cluster, group, later + SLACK))[0] is Status.WARN
