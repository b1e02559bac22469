"""Progress that brokers refuse: for one topic, nothing else waits for it; for its length, it is shortened."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_stamp import encode_at
from reconsume.sidecar.core.record import Partition
from reconsume.topics.acls import GroupShape, Operation, Permission, Resource, User, permissions_of
from reconsume.topics.names import Kind
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.guarded import GuardedKafka, guarded_kafka
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.service.behaviours import FAIL, OK, Answer, Request
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

DELAYS = (1_000, 2_000)
SECONDS = 20.0
PARTITIONS = 4
SHORT = 100
"""Characters of metadata that the brokers take; 4 096 by default."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedKafka]:
    with guarded_kafka({"offset.metadata.max.bytes": SHORT}) as kafka:
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


def test_brokers_that_take_little_metadata_get_shorter_progress_and_every_done_record_is_committed(
    guarded: GuardedKafka, group: GroupTopics, tmp_path: Path
) -> None:
    """Given open records among done ones: nothing was ever committed, while each commit was refused for its length."""
    [topic, _], answer = group.mains, threading.Event()
    count = 600
    open_ = {0, *random.Random(1).sample(range(count), 100)}
    whole = encode_at(Partition(topic, 0), Progress(0, frozenset(range(count)) - open_))
    assert len(whole) > SHORT

    def script(request: Request) -> Answer:
        return Answer(until=answer) if int(request.value or b"") in open_ else OK

    with Service(tmp_path / "ledger", script) as service:
        overrides = {"kafka": guarded.login("sidecar"), "deliver": {"timeout": "10m", "concurrency": 256}}
        with SidecarProcess(group, service.url, tmp_path, overrides=overrides) as sidecar:
            sidecar.wait_ready()
            produce(guarded.bootstrap, topic, [Out(b"%d" % number, partition=0) for number in range(count)])
            sidecar.until(lambda: len(service.ledger.taken()) == count - len(open_), SECONDS, "all others are done")
            sidecar.wait_log("progress-shortened")
            assert committed(group, topic) == 0
            answer.set()
            sidecar.until(lambda: committed(group, topic) == count, SECONDS, "all are committed")
            assert sidecar.metric('reconsume_transactions_total{result="aborted"}') < 20
            assert sidecar.stop().code == 0
    assert len(service.ledger.deliveries()) == count
