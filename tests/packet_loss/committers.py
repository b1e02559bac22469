"""Committers whose transactions end while packets are lost: is each record in its topic once, and the offset the last?

Each committer has one partition to itself. A transaction that a stale generation aborts is made again, as in a
rebalance, so in the end every record must be there exactly once.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from reconsume.sidecar.core.commit_batch import CommitBatch, CommitResult, PartitionCommit, SettledRecord
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.kafka.client_config import producer_config, reader_config
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.committer.committer import Committer
from reconsume.sidecar.kafka.consumer.membership import Membership
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Commit
from tests.packet_loss.late_frames import LateFrames
from tests.support.deadline import until
from tests.support.kafka.broker import UNFENCED
from tests.support.kafka.proxy import KafkaProxy
from tests.support.kafka.proxy_rules import Api, Gate, Moment, Rule
from tests.support.kafka.topic_io import SECONDS, create_topic, dump

SOURCE, TARGET, GROUP = "source", "target", "group"
MANY = 20
"""Committers, and so transactions that one loss meets."""
EACH = 20
"""Records of a transaction: while the broker takes them the transaction can be ended too early."""
AFTER = 24
"""Transactions that follow the one that a loss has met, one after the other."""
ABORTED = 4
"""Of so many transactions one is aborted first."""
LONGEST = 120.0
"""Seconds that a committer may need for a transaction, whatever is lost."""


class Ends(NamedTuple):
    """What a run came to."""

    ends: int
    aborts: int
    """Transactions that were begun under a stale generation."""
    lost: list[str]
    """Records whose transaction was committed, by the committer's word, and that are not in the topic."""
    twice: list[str]
    astray: list[str]
    """Partitions whose committed offset is not the last one."""
    late: LateFrames

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.twice or self.astray)

    def __str__(self) -> str:
        return (
            f"{self.ends} ends met by losses, {self.aborts} transactions aborted: {len(self.lost)} records lost "
            f"{self.lost[:5]}, {len(self.twice)} twice {self.twice[:5]}, {len(self.astray)} offsets astray "
            f"{self.astray[:3]}; {self.late}"
        )


class Generation:
    """Stands for the consumer: a membership that becomes stale when a test says so, until the committer asks."""

    def __init__(self, place: Partition, outsider: Any, gone: Any) -> None:
        self._good, self._stale = Membership(outsider, {place: 1}), Membership(gone, {place: 1})
        self.membership = self._good

    def age(self) -> None:
        """Be stale from now on."""
        self.membership = self._stale

    def ask_membership(self) -> None:
        """Be good again."""
        self.membership = self._good


class Worker:
    """One committer, and what it has been given so far."""

    def __init__(self, number: int, address: str, generation: Generation) -> None:
        self.place, self.offset, self.aborts = Partition(SOURCE, number), 0, 0
        self.expected: list[bytes] = []
        self._generation = generation
        self._results: SimpleQueue[CommitResult] = SimpleQueue()
        kafka, client = {"bootstrap.servers": address}, f"committer-{number}-"
        assignment: Any = generation
        self._committer = Committer(
            producer_config(kafka, client, client),
            reader_config(kafka, GROUP, client),
            assignment,
            self._results.put,
            lambda _label, _seconds: None,
            CredentialRegistry(),
        )
        self._committer.start()
        assert self._committer.ready.wait(SECONDS)

    def transact(self, *, aborted: bool) -> None:
        """Commit the next records, perhaps after an abort; return when the committer says that they are in."""
        if aborted:
            self.aborts += 1
            self._generation.age()
        entries = tuple(self._entry(offset) for offset in range(self.offset, self.offset + EACH))
        self.offset += EACH
        while entries:
            self._committer.submit(CommitBatch(entries, {self.place: PartitionCommit(1, Progress(self.offset))}))
            result = self._results.get(timeout=LONGEST)
            entries = () if result.committed else (*result.again, *(refusal.entry for refusal in result.refused))

    def _entry(self, offset: int) -> SettledRecord:
        value = b"%d/%d" % (self.place.number, offset)
        self.expected.append(value)
        record = Record(self.place, offset, 1, 0, None, b"", [], None)
        return SettledRecord(record, Commit(None), (Copy(TARGET, None, value, [], offset),))

    def end(self) -> None:
        """End the committer."""
        self._committer.stop()
        self._committer.join(SECONDS)


def committers_under_loss(release: str, rounds: int, seed: int) -> Ends:
    """So many losses, each of which meets an end of every committer; each other end is an abort."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        proxy = stack.enter_context(KafkaProxy())
        kafka = stack.enter_context(
            EmbeddedKafka.start(
                release=release, advertised=lambda _node: proxy.address, properties=UNFENCED, seconds=240
            )
        )
        proxy.target(kafka.node(0).plan.proxied_port)
        create_topic(kafka.bootstrap, SOURCE, MANY)
        create_topic(kafka.bootstrap, TARGET, 4)
        late = LateFrames([proxy])
        outsider, gone = stack.enter_context(_outsider(kafka.bootstrap)), _gone(kafka.bootstrap)
        metadata = outsider.consumer_group_metadata()
        generations = [Generation(Partition(SOURCE, number), metadata, gone) for number in range(MANY)]
        workers = [Worker(number, proxy.address, each) for number, each in enumerate(generations)]
        for number in range(rounds):
            _round(proxy, workers, number, chance.uniform(2.5, 8.0))
        for worker in workers:
            worker.end()
        return _judge(kafka.bootstrap, outsider, workers, rounds * MANY, late)


def _round(proxy: KafkaProxy, workers: list[Worker], number: int, seconds: float) -> None:
    """Let every committer come to the end of a transaction, lose it, and let others follow; in each fourth round what
    is lost are the offsets instead."""
    gate = Gate()
    before = Api.ADD_OFFSETS_TO_TXN if number % 4 == 3 else Api.TXN_OFFSET_COMMIT
    held = proxy.add(Rule(before, "committer-", Moment.ANSWERED, times=len(workers), gate=gate))
    failures: list[BaseException] = []

    def work(worker: Worker) -> None:
        try:
            for n in range(1 + AFTER):
                aborted = (worker.place.number + number) % 2 == 0 if n == 0 else n % ABORTED == 0
                worker.transact(aborted=aborted)
        except BaseException as failure:  # noqa: BLE001 - raised below, on the thread of the test
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    until(lambda: held.seen >= len(workers), SECONDS, "every committer waits for the answer to its offsets")
    with proxy.packets_lost():
        gate.open()
        threading.Event().wait(seconds)
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure


@contextmanager
def _outsider(bootstrap: str) -> Iterator[Consumer]:
    """A consumer that never joins the group: whatever is committed with its metadata is taken."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 2})
    yield consumer
    consumer.close()


def _gone(bootstrap: str) -> Any:
    """The metadata of a member that has left: whatever it commits is refused."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 2})
    consumer.subscribe([SOURCE])
    until(lambda: consumer.consume(1, 0.1) or consumer.assignment(), SECONDS, "it is a member")
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    return metadata


def _judge(bootstrap: str, outsider: Consumer, workers: list[Worker], ends: int, late: LateFrames) -> Ends:
    found = Counter(row.value for row in dump(bootstrap, TARGET))
    expected = [value for worker in workers for value in worker.expected]
    places = outsider.committed([TopicPartition(*worker.place) for worker in workers], timeout=SECONDS)
    return Ends(
        ends=ends,
        aborts=sum(worker.aborts for worker in workers),
        lost=[value.decode() for value in expected if not found[value]],
        twice=[value.decode() for value in expected if found[value] > 1],
        astray=[
            f"{worker.place}: {place.offset}, not {worker.offset}"
            for worker, place in zip(workers, places, strict=True)
            if place.offset != worker.offset
        ],
        late=late,
    )
