"""Hundreds of partitions whose positions the consumer's thread has to look up at one moment: it asks for all at once.

A real broker behind a proxy, which counts the requests, and leaves one without an answer. Asked partition by partition,
each waits behind a fetch for half a second, and nothing is polled meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.client_config import consumer_config
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.consumer import ConsumerThread
from tests.integration.kafka.test_consumer import SECONDS, Keeper
from tests.sim.twin_broker import unused_name
from tests.support.deadline import until
from tests.support.kafka.proxy_rules import Api, Fate, Moment, Rule
from tests.support.kafka.topic_io import Out, create_topic, produce
from tests.support.sidecar.scene import Proxied

COUNT = 120
FEW = 16
"""Requests: those of the assignment, of the first messages, and of a look or two."""
CLIENT = "many"


class Many:
    """A topic of many partitions with two records each, and a group that has read the first."""

    def __init__(self, proxied: Proxied, stack: ExitStack) -> None:
        self._proxied, self._stack = proxied, stack
        self.bootstrap = proxied.kafka.bootstrap
        self.topic, self.group = unused_name("many"), unused_name("many")
        create_topic(self.bootstrap, self.topic, COUNT, {"message.timestamp.type": "LogAppendTime"})
        produce(self.bootstrap, self.topic, [Out(b"x", partition=number % COUNT) for number in range(2 * COUNT)])

    def commit(self, last_at_ms: int | None) -> None:
        """The group's progress: the first record of each partition is done."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group, "enable.auto.commit": False})
        done = Progress(1, last_at_ms=last_at_ms)
        sources = [Partition(self.topic, number) for number in range(COUNT)]
        consumer.commit(offsets=[TopicPartition(*one, 1, encode(one, done)) for one in sources], asynchronous=False)
        consumer.close()

    def start(self, *rules: Rule) -> tuple[Keeper, ConsumerThread]:
        """A consumer that reads them, as a level, through the proxy."""
        for rule in rules:
            self._proxied.proxy.add(rule)
        keeper = Keeper()
        assignment = Assignment(keeper, start_at="earliest", lock_timeout=1.0)
        address = self._proxied.proxy.address
        config = consumer_config({"bootstrap.servers": address}, self.group, CLIENT)
        thread = ConsumerThread(config, [self.topic], keeper, assignment, None)
        thread.looks.due_offsets.waits = lambda: {self.topic: 1_000}
        thread.start()
        self._stack.callback(self._end, thread)
        return keeper, thread

    def _end(self, thread: ConsumerThread) -> None:
        thread.stop(1.0)
        thread.join(SECONDS)
        assert thread.failure is None


@pytest.fixture
def many(cleared: Proxied) -> Iterator[Many]:
    with ExitStack() as stack:
        yield Many(cleared, stack)


def listing(**more: object) -> Rule:
    """A rule about the consumer's requests for offsets, all of which it counts."""
    return Rule(Api.LIST_OFFSETS, CLIENT, Moment.ARRIVED, **more)  # type: ignore[arg-type]


def second_records(keeper: Keeper) -> bool:
    """Whether the second record of each partition was handed over, and no other."""
    records = [(run.partition.number, record.offset) for run in keeper.runs for record in run.records]
    return sorted(records) == [(number, 1) for number in range(COUNT)]


def test_one_request_without_an_answer_at_an_assignment_stays_one_request(many: Many) -> None:
    """It made one request of each partition, one after the other: for 18 levels of 12 the process ended for it."""
    many.commit(last_at_ms=int(time.time() * 1000))
    lost = listing(fate=Fate.DROP)
    keeper, thread = many.start(lost)
    until(lambda: second_records(keeper), SECONDS, "what was not read of each partition is read")
    assert lost.fired.is_set()
    assert lost.seen <= FEW
    assert [grant.progress.next for grant in keeper.grants] == [1] * COUNT
    assert thread.assignment.rebalances["lost"] == 0


def test_a_log_that_was_cut_in_many_partitions_at_once_is_taken_up_with_a_few_requests(many: Many) -> None:
    """Retention took what the group had not read yet, while it stood: two requests of each partition ended it."""
    many.commit(last_at_ms=None)
    produce(many.bootstrap, many.topic, [Out(b"left", partition=number) for number in range(COUNT)])
    gone = [TopicPartition(many.topic, number, 2) for number in range(COUNT)]
    admin = AdminClient({"bootstrap.servers": many.bootstrap})  # who lets go of it ends what it asks
    for future in admin.delete_records(gone).values():
        future.result(SECONDS)
    counted = listing()
    keeper, _ = many.start(counted)
    left = [Partition(many.topic, number) for number in range(COUNT)]
    until(lambda: sorted(run.partition for run in keeper.runs if run.records) == left, SECONDS, "what is left is read")
    assert sorted(keeper.cuts) == [(source, 1, 2) for source in left]
    assert counted.seen <= FEW
