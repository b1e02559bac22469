"""The model of a transactional id against the real broker, when a request of a transaction comes late."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.client_config import producer_config
from reconsume.topics.transition_records import Copy
from tests.sim.kafka_model import KafkaModel
from tests.sim.transactions import FENCED, WRONG_STATE, LateEnd, LateOffsets, TransactionalId
from tests.sim.twin_broker import unused_name
from tests.support.kafka.broker import RELEASE
from tests.support.kafka.proxy_frames import error_of
from tests.support.kafka.proxy_rules import Api, Late, Moment, Rule
from tests.support.kafka.topic_io import SECONDS, create_topic, dump
from tests.support.sidecar.scene import Proxied

ERRORS = {0: "", 47: FENCED, 48: WRONG_STATE, 51: WRONG_STATE}
"""51, CONCURRENT_TRANSACTIONS: the marks of the first end are still being written."""
POINTS = ("between", "behind the copies", "behind the offsets")
"""Where in the second transaction the late request of the first arrives: before it begins, or before or after the
group's offsets are part of it."""


class Case(NamedTuple):
    """A first transaction of which a request is late, and a second one."""

    late: Api
    commits: bool
    point: str
    then_commits: bool = True
    renewed: bool = False
    """Whether a new producer of the id makes the second one."""

    def __str__(self) -> str:
        words = ["commits" if self.commits else "aborts", self.late.name, self.point]
        words.append("commits" if self.then_commits else "aborts")
        return " ".join([*words, *(["renewed"] if self.renewed else [])])


class Came(NamedTuple):
    """What came of it."""

    late: str
    """The broker's error to the late request. Between two transactions only whether it is fenced."""
    refused: bool
    """Whether the end of the second transaction was refused."""
    copies: tuple[bytes, ...]
    offset: int


CASES = [
    *(
        Case(Api.END_TXN, commits, point, then, renewed)
        for commits in (True, False)
        for point in POINTS
        for then, renewed in ((True, False), (False, False), (True, True))
    ),
    *(Case(Api.TXN_OFFSET_COMMIT, True, point, renewed=renewed) for point in POINTS for renewed in (False, True)),
]


@pytest.fixture(scope="module")
def topics(proxied: Proxied) -> tuple[str, str]:
    """Where offsets are committed, and where copies go: a partition for each case."""
    source, target = unused_name("late-source"), unused_name("late-target")
    for topic in (source, target):
        create_topic(proxied.kafka.bootstrap, topic, len(CASES))
    return source, target


@pytest.fixture
def outsider(proxied: Proxied) -> Iterator[Consumer]:
    """A consumer that never joined its group: whatever is committed with its metadata is taken."""
    consumer = Consumer({"bootstrap.servers": proxied.kafka.bootstrap, "group.id": unused_name("late")})
    yield consumer
    consumer.close()


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(case) for case in CASES])
def test_a_late_request_does_what_the_model_says(
    cleared: Proxied, topics: tuple[str, str], outsider: Consumer, number: int
) -> None:
    case, source, target = CASES[number], Partition(topics[0], number), Partition(topics[1], number)
    assert real(cleared, case, source, target, outsider) == modelled(case)


def real(proxied: Proxied, case: Case, source: Partition, target: Partition, outsider: Consumer) -> Came:
    """The case with a bare client."""
    client, metadata = unused_name("late-client"), outsider.consumer_group_metadata()
    late = proxied.proxy.add(Late(case.late, client, cut=True))
    producer = prepared(proxied, client)
    transact(producer, target, source, 1, metadata)
    end(producer, commits=case.commits)
    if case.renewed:
        producer = prepared(proxied, client)
    if case.point == POINTS[0]:
        late.deliver()
        assert late.answered.wait(SECONDS)
    else:
        next_one = Api.ADD_OFFSETS_TO_TXN if case.point == POINTS[1] else Api.END_TXN
        proxied.proxy.add(Rule(next_one, client, Moment.ARRIVED, behind=late))
    transact(producer, target, source, 2, metadata)
    refused = not end(producer, commits=case.then_commits)
    rows = [row.value or b"" for row in dump(proxied.kafka.bootstrap, target.topic) if row.partition == target.number]
    (place,) = outsider.committed([TopicPartition(*source)], timeout=SECONDS)
    return came(case, ERRORS[error_of(late)], refused, rows, max(0, place.offset))


def prepared(proxied: Proxied, client: str) -> Producer:
    producer = Producer(producer_config({"bootstrap.servers": proxied.proxy.address}, client, client))
    producer.init_transactions(SECONDS)
    return producer


def transact(producer: Producer, target: Partition, source: Partition, number: int, metadata: Any) -> None:
    """All of a transaction but its end: a copy, and then the offset."""
    producer.begin_transaction()
    producer.produce(target.topic, b"copy %d" % number, partition=target.number)
    assert producer.flush(SECONDS) == 0
    producer.send_offsets_to_transaction([TopicPartition(*source, number)], metadata, SECONDS)


def end(producer: Producer, *, commits: bool) -> bool:
    """Whether the broker takes it."""
    try:
        (producer.commit_transaction if commits else producer.abort_transaction)(SECONDS)
    except KafkaException as failure:
        if not failure.args[0].fatal():
            raise
        return False
    return True


def modelled(case: Case) -> Came:
    """The same in the model."""
    kafka, source, target = KafkaModel(lambda: 0, 1), Partition("source", 0), Partition("target", 0)
    kafka.create("target")
    said, identity = "", TransactionalId(kafka, "group", forgetful=os.environ[RELEASE] == "3.9")
    identity.prepare()
    identity.write([Copy("target", None, b"copy 1", [])])
    identity.add_group()
    identity.take_offsets(identity.epoch, {source: Progress(1)})
    identity.end(identity.epoch, commits=case.commits)
    end_of_first = LateEnd(identity.epoch, case.commits)
    offsets_of_first = LateOffsets(identity.epoch, {source: Progress(1)}, lambda: "")
    late = end_of_first if case.late is Api.END_TXN else offsets_of_first
    if case.renewed:
        identity.prepare()
    if case.point == POINTS[0]:
        said = identity.come(late)
    identity.write([Copy("target", None, b"copy 2", [])])
    if case.point == POINTS[1]:
        said = identity.come(late)
    identity.add_group()
    identity.take_offsets(identity.epoch, {source: Progress(2)})
    if case.point == POINTS[2]:
        said = identity.come(late)
    refused = bool(identity.end(identity.epoch, commits=case.then_commits))
    rows = [stored.value or b"" for stored in kafka.logs[target].records]
    return came(case, said, refused, rows, kafka.progress("group", source).next)


def came(case: Case, late: str, refused: bool, rows: list[bytes], offset: int) -> Came:
    """Without what depends on how fast the first transaction's marks are written."""
    return Came(late if case.point != POINTS[0] or late == FENCED else "", refused, tuple(rows), offset)
