"""How soon the lane hears what others write into a queue between the masses of copies that it writes there itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import pytest

from reconsume.sidecar.core.ledger import QueuedCopy
from reconsume.sidecar.core.owned_queue import LocatedCopies
from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.client_config import view_config, whole_fetches
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.queues.queue_thread import FAR_AHEAD, REST, QueueHelp, QueueThread
from reconsume.topics.attempt import Attempt
from reconsume.topics.retry_order import Order
from tests.sim.ladder_rig import rules
from tests.sim.twin_broker import SECONDS, Broker, unused_name
from tests.support.deadline import until
from tests.support.kafka.broker import Broker as Kafka
from tests.support.kafka.topic_io import create_topic

OTHERS = 100
"""Records of others, each behind a transaction of our own."""


class Owner:
    """The lane of one queue: it goes on behind copies of its own once it knows all before them."""

    def __init__(self, kafka: Kafka) -> None:
        self.queue, self.next, self.own, self.transaction = Partition(unused_name("queue"), 0), 0, LocatedCopies(), 0
        self.heard: dict[int, float] = {}
        create_topic(kafka.bootstrap, self.queue.topic, 1)
        policy, bootstrap = rules(), {"bootstrap.servers": kafka.bootstrap}
        config = whole_fetches(view_config(bootstrap, unused_name("group"), "test"))
        ask = QueueHelp(lambda: policy, lambda _: None)
        self.thread = QueueThread(config, self, CredentialRegistry(), 1 << 20, ask)
        self.is_open = False

    def queue_opened(self, grant: AssignedPartition) -> None:
        pass

    def queue_absent(self, queue: Partition, epoch: int) -> None:
        raise AssertionError(f"{queue} is there")

    def queue_cut(self, queue: Partition, epoch: int, end: int) -> None:
        raise AssertionError(f"{queue} is whole")

    def queue_fetched(self, queue: Partition, epoch: int, offset: int, record: object) -> None:
        raise AssertionError("nothing was asked for")

    def dropped(self, partitions: Sequence[Partition]) -> None:
        raise AssertionError(f"{partitions} are the same logs")

    def queue_full(self) -> bool:
        return False

    def queue_read(self, run: FetchedRecords, caught_up: bool) -> None:
        self.is_open |= caught_up
        for record in run.records:
            if record.offset >= self.next:
                self.heard[record.offset], self.next = time.monotonic(), record.offset + 1
        self._go_on()

    def _go_on(self) -> None:
        while (copy := self.own.take(self.next)) is not None:
            self.next = copy.offset + 1

    def wrote(self, begin: int, count: int) -> None:
        """Know where the copies of a transaction of our own lie, and tell the reader what a lane does."""
        self.transaction += 1
        for offset in range(begin, begin + count):
            self.own.add(
                (0, self.transaction), QueuedCopy(offset, (offset, 0), b"k", Order(offset), Attempt(0, 0, 1), 0)
            )
        self._go_on()
        self.thread.known(self.queue, 1, self.next, [], awaited=self.own.are_waiting)


@pytest.mark.long
def test_what_others_write_is_heard_without_a_rest_though_each_lies_between_masses_of_our_own(kafka: Kafka) -> None:
    """With a rest for each, half of them came after half a second and more, and so did our own copies behind them."""
    broker, owner = Broker(kafka.bootstrap), Owner(kafka)
    owner.thread.start()
    owner.thread.open(owner.queue, 1)
    until(lambda: owner.is_open, SECONDS, "it is read")
    end, written = 0, dict[int, float]()
    for _ in range(OTHERS):
        broker.transact(owner.queue, 2 * FAR_AHEAD, True, [], None)
        owner.wrote(end, 2 * FAR_AHEAD)
        end += 2 * FAR_AHEAD + 1
        broker.await_end(owner.queue, end)
        broker.append(owner.queue, 1)
        written[end] = time.monotonic()
        end += 1
    until(lambda: owner.heard.keys() >= written.keys(), SECONDS, "all of them are heard of")
    assert median(owner.heard[offset] - at for offset, at in written.items()) < REST
    owner.thread.stop()
    owner.thread.join(SECONDS)
    assert owner.thread.failure is None
    broker.close()
