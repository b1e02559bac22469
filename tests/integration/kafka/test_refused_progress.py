"""Progress that brokers refuse for one topic: nothing else waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from reconsume.topics.acls import GroupShape, Operation, Permission, Resource, User, permissions_of
from reconsume.topics.names import Kind
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.guarded import GuardedKafka, guarded_kafka
from tests.support.kafka.topic_io import produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.service.behaviours import FAIL, OK, Answer, Request
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

DELAYS = (1_000, 2_000)
SECONDS = 20.0
PARTITIONS = 4


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedKafka]:
    with guarded_kafka() as kafka:
        yield kafka


@pytest.fixture
def group(guarded: GuardedKafka) -> GroupTopics:
    group = create_group(fresh_group(guarded.bootstrap, 2, DELAYS), PARTITIONS, also=(Kind.POLICY,))
    guarded.allow("sidecar", permissions_of(User.SIDECAR, GroupShape(group.names, group.mains, group.delays)))
    return group


def committed(group: GroupTopics, topic: str) -> int:
    """The sum of a main topic's committed offsets."""
    reader = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group})
    try:
        found = reader.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], timeout=SECONDS)
        return sum(max(0, place.offset) for place in found)
    finally:
        reader.close()


@pytest.mark.long
@pytest.mark.parametrize("outcome", [pytest.param(OK, id="done"), pytest.param(FAIL, id="failed")])
def test_progress_that_kafka_refuses_for_one_topic_holds_up_no_other(
    outcome: Answer, guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    """Once the client sees that the topic is denied it gives its partitions up: what was out comes again then."""
    held, free = group.mains
    answer = threading.Event()

    def script(request: Request) -> Answer:
        if request.times or request.value == b"free":
            return OK
        return Answer(outcome.status, until=answer)

    read = Permission(Resource.TOPIC, held, Operation.READ)
    with Service(tmp_path / "ledger", script) as service:
        overrides = {"kafka": guarded.login("sidecar"), "deliver": {"timeout": "60s"}}
        with SidecarProcess(group, service.url, tmp_path, overrides=overrides) as sidecar:
            sidecar.wait_ready()
            produce(guarded.bootstrap, held, [b"held"] * 20)
            sidecar.until(lambda: len(service.ledger.deliveries()) == 20, SECONDS, "they are at the service")
            guarded.forbid("sidecar", read)
            answer.set()
            produce(guarded.bootstrap, free, [b"free"] * 200)
            sidecar.until(lambda: committed(group, free) == 200, SECONDS, "the other topic's progress goes on")
            assert committed(group, held) == 0
            guarded.allow("sidecar", [read])
            sidecar.until(lambda: committed(group, held) == 20, SECONDS, "the right is back, and so is its progress")
            sidecar.until(lambda: len(service.ledger.taken()) == 220, SECONDS, "all are taken")
            assert sidecar.stop().code == 0
        report = check(collect(group, service.ledger))
    assert (report.committed, report.waiting) == (220, 0)
    assert report.duplicates <= 20
