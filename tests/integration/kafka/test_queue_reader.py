"""What the lane relies on of the reader of its queues, on a broker, whatever comes in which order (port `QueueReads`).

The stories have a model of the reader (`tests/sim/queue_model.py`), which may do nothing that is refuted here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition

from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.kafka.client_config import view_config, whole_fetches
from reconsume.sidecar.kafka.clients import CredentialRegistry, Credentials
from reconsume.sidecar.kafka.queues.queue_thread import QueueHelp, QueueThread
from tests.sim.ladder_rig import rules
from tests.sim.twin_broker import SECONDS, Broker, unused_name
from tests.support.deadline import until
from tests.support.kafka.broker import Broker as Kafka
from tests.support.kafka.topic_io import create_topic

QUEUES, STEPS = 2, 40
MASS = 64
"""Copies of the lane's own that a large transaction has at least."""
FILLED = 1_200
"""Records that lie in the first queue before it is opened: more than one turn takes."""
AHEAD = 4
AT_HAND = 600
"""Bytes of the cache: a few records, so that most are read again."""


class Life:
    """What the lane has heard of one assignment of a queue."""

    def __init__(self, there: int) -> None:
        self.there = there
        """Behind the last record that was committed when it was assigned: the lane must know it before all else."""
        self.start: Progress | None = None
        self.handed: list[int] = []
        self.known_to, self.end, self.cut_to = 0, -1, 0
        self.caught_up_at: int | None = None
        """Up to where the lane knew the queue when it was first said to be read."""
        self.wanted: list[int] = []
        self.fetched: list[tuple[int, Record | None]] = []

    @property
    def knows_to(self) -> int:
        """Below this offset the lane knows the queue."""
        assert self.start is not None
        return max(self.start.next, self.known_to, self.cut_to, self.end, *(at + 1 for at in self.handed[-1:]))


class Play:
    """The reader of two queues; it is the lane's other side of the port."""

    def __init__(self, broker: Broker, random: Random) -> None:
        self.broker, self.random = broker, random
        self.topic, self.group = unused_name("queue"), unused_name("group")
        create_topic(broker.bootstrap, self.topic, QUEUES, {"message.timestamp.type": "LogAppendTime"})
        self.queues = [Partition(self.topic, number) for number in range(QUEUES)]
        self.committed: dict[Partition, list[int]] = {queue: [] for queue in self.queues}
        """The offsets of records in the log; the rest are markers and what was aborted."""
        self.ends = dict.fromkeys(self.queues, 0)
        self.starts = dict.fromkeys(self.queues, 0)
        self.fill(self.queues[0])
        self.progress: dict[Partition, Progress] = {}
        self.epochs = dict.fromkeys(self.queues, 0)
        self.lives: dict[tuple[Partition, int], Life] = {}
        policy, kafka = rules(), {"bootstrap.servers": broker.bootstrap}
        config = whole_fetches(view_config(kafka, self.group, "test"))
        self.member = Consumer({**kafka, "group.id": self.group})
        self.registry = CredentialRegistry()
        ask = QueueHelp(lambda: policy, lambda _: None)
        self.thread = QueueThread(config, self, self.registry, AT_HAND, ask)
        self.thread.start()

    def end(self) -> None:
        self.member.close()
        self.thread.stop()
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()
        assert self.thread.failure is None

    # --- what the reader says ----------------------------------------------------------------------------------------

    def queue_opened(self, grant: AssignedPartition) -> None:
        life = self.lives[grant.partition, grant.epoch]
        assert life.start is None, "a queue is opened once"
        life.start = grant.progress

    def queue_absent(self, queue: Partition, epoch: int) -> None:
        raise AssertionError(f"{queue} is there")

    def queue_cut(self, queue: Partition, epoch: int, end: int) -> None:
        life = self.lives[queue, epoch]
        life.cut_to = max(life.cut_to, self.starts[queue])

    def queue_read(self, run: FetchedRecords, caught_up: bool) -> None:
        life = self.lives[run.partition, run.epoch]
        life.handed += [record.offset for record in run.records]
        if run.end is not None:
            assert run.end >= life.end, "an end is never taken back; new clients, and those that rested, tell it again"
            life.end = run.end
        if caught_up and life.caught_up_at is None:
            life.caught_up_at = life.knows_to

    def queue_fetched(self, queue: Partition, epoch: int, offset: int, record: Record | None) -> None:
        self.lives[queue, epoch].fetched.append((offset, record))

    def dropped(self, partitions: Sequence[Partition]) -> None:
        raise AssertionError(f"{partitions} are the same logs")

    def queue_full(self) -> bool:
        return self.random.random() < 0.1

    # --- what happens ------------------------------------------------------------------------------------------------

    def open(self, queue: Partition) -> None:
        """The partition is assigned anew."""
        if self.epochs[queue]:
            self.thread.close(queue)
        self.epochs[queue] += 1
        self.lives[queue, self.epochs[queue]] = Life(max(self.committed[queue], default=-1) + 1)
        self.thread.open(queue, self.epochs[queue])

    def fill(self, queue: Partition) -> None:
        """Plain records, as of a redrive of another version."""
        self.broker.append(queue, FILLED)
        self.committed[queue] += range(FILLED)
        self.ends[queue] += FILLED

    def write(self, queue: Partition) -> None:
        """A transaction of some copies; half of the time they are the lane's own, which it tells of at once."""
        self.transact(queue, self.random.randint(1, 6), is_own=self.random.random() < 0.5)

    def write_many(self, queue: Partition) -> None:
        """A transaction of many copies of the lane's own, which the reader passes."""
        self.transact(queue, self.random.randint(MASS, 3 * MASS), is_own=True)

    def transact(self, queue: Partition, count: int, *, is_own: bool) -> None:
        is_committed = self.random.random() < 0.8
        life, begin = self.lives[queue, self.epochs[queue]], self.ends[queue]
        if is_own:  # a lane writes only what belongs to a partition whose queue it knows
            self.settle(queue)
        self.broker.transact(queue, count, is_committed, [], None)
        self.ends[queue] += count + 1
        if is_committed:
            self.committed[queue] += range(begin, begin + count)
        if is_own and is_committed:
            life.known_to = begin + count
            self.thread.known(queue, self.epochs[queue], begin + count, [])

    def fetch(self, queue: Partition) -> None:
        """A record is due that the lane knows."""
        life = self.lives[queue, self.epochs[queue]]
        if life.start is not None:
            for offset in self.random.choices(self.log_between(queue, life.start.next, life.knows_to) or [-1], k=2):
                if offset >= 0 and offset not in life.wanted:
                    life.wanted.append(offset)
                    self.thread.fetch(queue, self.epochs[queue], offset)

    def read_ahead(self, queue: Partition) -> None:
        """Some records that the lane knows are due soon; no wish waits for that, or is answered by it."""
        life = self.lives[queue, self.epochs[queue]]
        if life.start is not None:
            log = self.log_between(queue, life.start.next, life.knows_to)
            self.thread.read_ahead(queue, self.epochs[queue], self.random.sample(log, min(len(log), AHEAD)))

    def commit(self, queue: Partition) -> None:
        """The group's progress on it, with some done beyond the next one."""
        log = self.committed[queue]
        if log and queue not in self.progress:
            at = self.random.choice(log)
            done = frozenset(offset for offset in log if offset > at and self.random.random() < 0.3)
            self.progress[queue] = progress = Progress(at, done)
            offset = TopicPartition(*queue, at, metadata=encode(queue, progress))
            self.broker.transact(queue, 0, True, [offset], self.member.consumer_group_metadata())

    def cut(self, queue: Partition) -> None:
        """Retention."""
        before = self.random.randint(self.starts[queue], self.ends[queue])
        self.starts[queue] = max(self.starts[queue], before)
        self.broker.await_end(queue, self.ends[queue])
        self.broker.cut(queue, before)

    def renew(self, _queue: Partition) -> None:
        """There is another certificate, so other clients are made."""
        number = self.registry.newest.number + 1
        self.registry.newest = Credentials(number, number, {})
        for client in self.registry.clients:
            client.offer(self.registry.newest)

    def log_between(self, queue: Partition, low: int, high: int) -> list[int]:
        return [offset for offset in self.committed[queue] if max(low, self.starts[queue]) <= offset < high]

    # --- what must hold ----------------------------------------------------------------------------------------------

    def settle(self, queue: Partition) -> None:
        """Wait until the lane knows all, and has what it wanted."""
        key = queue, self.epochs[queue]
        until(lambda: self.lives[key].start is not None, SECONDS, "it is opened")
        life = self.lives[key]
        last = max(self.log_between(queue, life.start.next if life.start else 0, self.ends[queue]), default=-1)
        until(lambda: life.knows_to > last and life.caught_up_at is not None, SECONDS, f"{queue} is read")
        until(lambda: len(life.fetched) >= len(life.wanted), SECONDS, "what was wanted has come")

    def check(self, key: tuple[Partition, int]) -> None:
        queue, life = key[0], self.lives[key]
        if (start := life.start) is None:
            return
        assert life.handed == sorted(set(life.handed)), "in order, and once"
        assert set(life.handed) <= {at for at in self.committed[queue] if at >= start.next}, "what is committed, alone"
        told = set(life.handed) | {at for at in self.committed[queue] if at < max(life.known_to, life.cut_to)}
        assert not [at for at in self.log_between(queue, start.next, life.knows_to) if at not in told], "all of it"
        if life.caught_up_at is not None:
            unknown = self.log_between(queue, life.caught_up_at, life.there)
            assert unknown == [], "it was known up to where it ended"
        assert len(life.fetched) <= len(life.wanted)
        assert len({at for at, _ in life.fetched}) == len(life.fetched), "one answer to each wish"
        for offset, record in life.fetched:
            assert record is not None or offset < self.starts[queue], f"{offset} is there, and was said to be gone"
            assert record is None or record.offset == offset


@pytest.fixture(scope="module")
def broker(kafka: Kafka) -> Iterator[Broker]:
    broker = Broker(kafka.bootstrap)
    yield broker
    broker.close()


def run(play: Play, steps: Sequence[str]) -> None:
    for queue in play.queues:
        play.open(queue)
    for step in steps:
        queue = play.random.choice(play.queues)
        getattr(play, step)(queue)
        time.sleep(play.random.choice((0.0, 0.0, 0.01, 0.1)))  # where things fall in time, and no proof of anything
        assert play.thread.failure is None
    for queue in play.queues:
        play.settle(queue)
    for key in list(play.lives):
        play.check(key)


WEIGHTS = {"write": 10, "write_many": 2, "fetch": 8, "read_ahead": 4, "open": 2, "commit": 1, "cut": 1, "renew": 1}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 30))])
def test_the_lane_hears_all_that_is_committed_once_and_in_order_and_gets_what_it_asks_for(
    broker: Broker, seed: int
) -> None:
    random = Random(seed)
    play = Play(broker, random)
    try:
        run(play, random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS))
    finally:
        play.end()
