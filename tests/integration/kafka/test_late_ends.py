"""The end of a transaction, and its offsets, reach Kafka a second time, late: in the midst of the next transaction.

A proxy keeps the request and cuts its client off, which sends it again on a new connection and goes on. The kept one is
delivered on its old connection, as a network would that had lost its packet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

from reconsume.sidecar.core.commit_batch import CommitBatch, PartitionCommit, SettledRecord
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.kafka.client_config import producer_config
from reconsume.sidecar.kafka.clients import unchanging
from reconsume.sidecar.kafka.committer.committer import offsets_of, written_progress
from reconsume.sidecar.kafka.committer.replaceable_producer import ReplaceableProducer
from reconsume.sidecar.kafka.committer.transaction import TransactionalProducer
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted, OutcomeUnknown
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Commit
from tests.support.deadline import until
from tests.support.kafka.proxy_frames import INVALID_PRODUCER_EPOCH, ends, error_of
from tests.support.kafka.proxy_rules import Api, Late, Moment, Rule
from tests.support.kafka.topic_io import SECONDS, create_topic, dump
from tests.support.sidecar.scene import Proxied

pytestmark = pytest.mark.usefixtures("cleared")

GROUP, SOURCE = "late-ends", "late-ends-source"
NAMES = count(1)


class Case(NamedTuple):
    """Which request of the first transaction is kept, and before which request of the second one Kafka gets it.

    `commits`: whether the transactions commit. One that does not is aborted, as its group has another generation.
    """

    kept: Api
    commits: tuple[bool, bool]
    before: Api

    def __str__(self) -> str:
        ways = ["commit" if way else "abort" for way in self.commits]
        return f"{self.kept.name} of {ways[0]}, before {self.before.name} of {ways[1]}"


ENDS = [
    Case(Api.END_TXN, (False, True), Api.TXN_OFFSET_COMMIT),
    Case(Api.END_TXN, (True, True), Api.TXN_OFFSET_COMMIT),
    Case(Api.END_TXN, (True, False), Api.TXN_OFFSET_COMMIT),
    Case(Api.END_TXN, (False, True), Api.ADD_OFFSETS_TO_TXN),
    Case(Api.END_TXN, (True, False), Api.ADD_OFFSETS_TO_TXN),
    Case(Api.END_TXN, (False, True), Api.END_TXN),
    Case(Api.END_TXN, (True, True), Api.END_TXN),
    Case(Api.TXN_OFFSET_COMMIT, (True, True), Api.END_TXN),
    Case(Api.TXN_OFFSET_COMMIT, (True, False), Api.END_TXN),
    Case(Api.ADD_OFFSETS_TO_TXN, (True, True), Api.END_TXN),
    Case(Api.ADD_PARTITIONS_TO_TXN, (True, True), Api.END_TXN),
]
HARMFUL = [
    (Case(Api.END_TXN, (False, True), Api.ADD_OFFSETS_TO_TXN), {"progress without its copy"}),
    (Case(Api.END_TXN, (True, False), Api.ADD_OFFSETS_TO_TXN), {"a copy without its progress"}),
    (Case(Api.TXN_OFFSET_COMMIT, (True, True), Api.END_TXN), {"progress goes back"}),
]


@pytest.fixture(scope="module")
def proxied(proxied: Proxied) -> Proxied:
    create_topic(proxied.kafka.bootstrap, SOURCE)
    return proxied


@pytest.fixture
def outsider(proxied: Proxied) -> Iterator[Any]:
    """The metadata of a consumer that never joined: whatever it commits is taken."""
    consumer = Consumer({"bootstrap.servers": proxied.kafka.bootstrap, "group.id": f"{GROUP}-{next(NAMES)}"})
    yield consumer
    consumer.close()


@pytest.fixture
def gone(proxied: Proxied) -> Any:
    """The metadata of a member that has left: whatever it commits is refused at once, and the transaction aborted."""
    consumer = Consumer({"bootstrap.servers": proxied.kafka.bootstrap, "group.id": f"{GROUP}-gone-{next(NAMES)}"})
    consumer.subscribe([SOURCE])
    until(lambda: consumer.consume(1, 0.1) or consumer.assignment(), SECONDS, "it is a member")
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    return metadata


def commit(producer: TransactionalProducer, batch: CommitBatch, metadata: Any, partitions: Mapping[str, int]) -> None:
    """Commit a batch, as a committer does."""
    producer.commit(batch.entries, offsets_of(written_progress(batch)), metadata, partitions)


class Story:
    """Two transactions of one producer, the first with the offset 1 and copy `a`, the second with 2 and `b`."""

    def __init__(self, proxied: Proxied, consumer: Consumer, gone: Any) -> None:
        self.topic = f"late-ends-{next(NAMES)}"
        create_topic(proxied.kafka.bootstrap, self.topic)
        self.client = self.topic
        config = producer_config({"bootstrap.servers": proxied.proxy.address}, self.topic, self.client)
        self.supply = ReplaceableProducer(config, threading.Event(), unchanging())
        self.supply.replace()
        self._proxied, self._consumer, self._gone = proxied, consumer, gone

    def run(self, case: Case, *, guarded: bool = True) -> Late:
        """Run both transactions, the late request between them. Return the late request, which is answered."""
        which = {"only": ends(commits=case.commits[0])} if case.kept is Api.END_TXN else {}
        late = self._proxied.proxy.add(Late(case.kept, self.client, cut=True, **which))
        self._end(1, commits=case.commits[0])
        assert late.fired.is_set()
        if not guarded:
            assert self.supply.producer is not None
            self.supply.producer.client_log.doubtful = False
        self._proxied.proxy.add(Rule(case.before, self.client, Moment.ARRIVED, behind=late))
        self._end(2, commits=case.commits[1])
        assert late.answered.wait(SECONDS)
        return late

    def _end(self, number: int, *, commits: bool) -> None:
        """Commit, or abort: again with a new producer, as the committer does, until the result is known."""
        producer = self.supply.usable()
        assert producer is not None
        metadata = self._consumer.consumer_group_metadata() if commits else self._gone
        try:
            commit(producer, batch(self.topic, number), metadata, {self.topic: 1})
        except Aborted:
            assert not commits
        except OutcomeUnknown:
            self.supply.replace()
            if commits and self.progress() != number:
                self._end(number, commits=commits)

    def progress(self) -> int:
        """Return the group's committed offset."""
        (found,) = self._consumer.committed([TopicPartition(SOURCE, 0)], timeout=SECONDS)
        return int(found.offset)

    def copies(self) -> list[bytes]:
        """Return the values of the copies that readers see."""
        return [row.value for row in dump(self._proxied.kafka.bootstrap, self.topic)]

    def faults(self, case: Case) -> set[str]:
        """Return what is wrong with copies and progress."""
        first, second = case.commits
        copies, progress = self.copies(), self.progress()
        found = set()
        if second and b"2" not in copies and progress == 2:
            found.add("progress without its copy")
        if not second and b"2" in copies:
            found.add("a copy without its progress")
        if progress < max((number for number, way in ((1, first), (2, second)) if way), default=progress):
            found.add("progress goes back")
        wanted = [b"%d" % number for number, way in ((1, first), (2, second)) if way]
        if not found and copies != wanted:
            found.add(f"{copies} instead of {wanted}")
        return found


def batch(topic: str, number: int) -> CommitBatch:
    """One copy, named by the number, and the progress up to it."""
    place = Partition(SOURCE, 0)
    record = Record(place, number - 1, 1, 0, None, b"", [], None)
    entry = SettledRecord(record, Commit(None), (Copy(topic, None, b"%d" % number, []),))
    return CommitBatch((entry,), {place: PartitionCommit(1, Progress(number))})


@pytest.mark.parametrize("case", ENDS, ids=str)
def test_a_late_request_of_a_transaction_changes_nothing_of_the_next(
    case: Case, proxied: Proxied, outsider: Consumer, gone: Any
) -> None:
    story = Story(proxied, outsider, gone)
    late = story.run(case)
    assert story.faults(case) == set()
    assert story.supply.replaced >= 1
    if case.kept is Api.END_TXN:
        assert error_of(late) == INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(("case", "harm"), HARMFUL, ids=[str(case) for case, _ in HARMFUL])
def test_without_a_new_producer_it_would(
    case: Case, harm: set[str], proxied: Proxied, outsider: Consumer, gone: Any
) -> None:
    """The fault is the client's (librdkafka 2.16). Once it has none of its own, the guard can go."""
    story = Story(proxied, outsider, gone)
    story.run(case, guarded=False)
    assert story.faults(case) == harm


def test_a_producer_whose_connections_hold_is_not_replaced(proxied: Proxied, outsider: Consumer, gone: Any) -> None:
    story = Story(proxied, outsider, gone)
    for number in range(1, 30):
        story._end(number, commits=number % 5 != 0)
    assert story.supply.replaced == 0
