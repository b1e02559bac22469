"""Clients that are of no more use on a real broker: the consumer's thread finds out, and takes a new one, or asks for a
restart in place.

Without that, one read nothing of a topic until its process ended, and another read on what others owned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import cast

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.kafka.client_config import consumer_config, view_config, whole_fetches
from reconsume.sidecar.kafka.clients import CredentialRegistry, answers
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.client_watch import Useless
from reconsume.sidecar.kafka.consumer.consumer import ConsumerThread
from reconsume.sidecar.kafka.consumer.looks import Looks
from reconsume.sidecar.kafka.listeners import AskRestart, QueueListener, RestartCause, RestartReason, no_restart
from reconsume.sidecar.kafka.queues import queue_clients
from reconsume.sidecar.kafka.queues.queue_thread import QueueHelp, QueueThread
from tests.conftest import MakeTopic
from tests.integration.kafka.test_consumer import SECONDS, Keeper
from tests.sim.ladder_rig import rules
from tests.support.deadline import until
from tests.support.kafka.broker import Broker, embedded
from tests.support.kafka.topic_io import Out, create_topic, delete_topics, produce
from tests.support.sidecar.scene import Proxied, proxied_kafka

OFTEN = 0.9
"""Seconds between two looks at the ends."""
TRIES = 4
"""Times that the fault is repeated until it has cut a client off."""
LATER = 60.0
WAITED_FOR = 12_000
"""ms for which a rebalance waits for a member."""
QUICK = 500
"""ms between two looks of the client at the topics."""


@pytest.fixture
def own_kafka() -> Iterator[EmbeddedKafka]:
    with embedded() as kafka:
        yield kafka


@pytest.fixture
def own_proxied() -> Iterator[Proxied]:
    with proxied_kafka() as proxied:
        yield proxied
        assert proxied.proxy.problems == []


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def started(
    stack: ExitStack,
    bootstrap: str,
    group: str,
    topic: str,
    keeper: Keeper,
    *,
    counts: bool = True,
    ask: AskRestart = no_restart,
) -> ConsumerThread:
    """A running consumer, which looks often. `counts`: whether it counts the group's rebalances."""
    assignment = Assignment(keeper, start_at="earliest", lock_timeout=LATER, stepwise=counts)
    config = {**consumer_config({"bootstrap.servers": bootstrap}, group, "test"), "metadata.max.age.ms": 2 * QUICK}
    config |= {"topic.metadata.refresh.interval.ms": QUICK, "max.poll.interval.ms": WAITED_FOR}
    thread = ConsumerThread(config, [topic], keeper, assignment, None, ask_restart=ask)
    thread.looks = Looks(OFTEN)
    thread.start()
    stack.callback(stop, thread)
    return thread


def stop(thread: ConsumerThread) -> None:
    thread.stop(1.0)
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert thread.failure is None


@pytest.mark.parametrize(
    ("times", "before", "after"),
    [("LogAppendTime", 3, 5), pytest.param("CreateTime", 3, 6, marks=pytest.mark.long), ("CreateTime", 5, 3)],
)
def test_a_client_that_is_deaf_to_a_recreated_topic_asks_for_a_restart_and_a_new_one_reads_it(
    own_kafka: EmbeddedKafka, stack: ExitStack, times: str, before: int, after: int
) -> None:
    """A level was stuck at offset 0 until each pod was started anew: the client held the new epochs for old ones."""
    bootstrap, keeper, asked = own_kafka.bootstrap, Keeper(), list[RestartCause]()

    def ask(cause: RestartCause) -> bool:
        asked.append(cause)
        return True

    config = {"message.timestamp.type": times}
    create_topic(bootstrap, "orders", 1, config)
    thread = started(stack, bootstrap, "billing", "orders", keeper, ask=ask)
    if times == "LogAppendTime":
        thread.looks.due_offsets.waits = lambda: {"orders": 1_000}
    produce(bootstrap, "orders", [b"old"] * before)
    until(lambda: len(keeper.offsets()) == before, SECONDS, "the first topic is read")
    own_kafka.node(0).restart()
    produce(bootstrap, "orders", [b"old"])
    until(lambda: keeper.offsets()[-1] == before, SECONDS, "it is read by its next leader")
    delete_topics(bootstrap, "orders")
    create_topic(bootstrap, "orders", 1, config)
    produce(bootstrap, "orders", [b"new"] * after)
    until(lambda: bool(asked), LATER, "a restart is asked for")
    assert {(cause.reason, cause.topic) for cause in asked} == {(RestartReason.CLIENT_DEAF, "orders")}
    assert news(keeper) == []
    stop(thread)
    started(stack, bootstrap, "billing", "orders", keeper)
    until(lambda: news(keeper) == list(range(after)), LATER, "the second topic is read")


def test_a_client_that_is_told_of_no_broker_while_its_connection_ends_is_replaced_and_reads_on(
    own_proxied: Proxied, stack: ExitStack
) -> None:
    """Of a node that stops, one client in fifty read nothing any more, until its pod was started anew."""
    bootstrap, proxy, keeper = own_proxied.kafka.bootstrap, own_proxied.proxy, Keeper()
    create_topic(bootstrap, "orders", 1)
    thread = started(stack, proxy.address, "billing", "orders", keeper)
    produce(bootstrap, "orders", [b"old"])
    until(lambda: keeper.offsets() == [0], SECONDS, "the first record is read")
    for count in range(1, TRIES + 1):  # a client that asks once more just in time is not cut off
        with proxy.brokers_forgotten("test"):
            until(lambda: thread.assignment.rebalances["lost"] == count, SECONDS, "the group is lost")  # noqa: B023
        produce(bootstrap, "orders", [b"new"])
        until(lambda: news(keeper) == list(range(1, count + 1)), LATER, "it is read, by this client or another")  # noqa: B023
        if thread.client_watch.replaced:
            break
    assert thread.client_watch.replaced == {Useless.CUT_OFF: 1}


class Queue:
    """Hears of one queue."""

    def __init__(self) -> None:
        self.is_open = False
        self.handed: list[int] = []
        self.fetched: list[int] = []

    def queue_opened(self, _grant: AssignedPartition) -> None:
        self.is_open = True

    def queue_read(self, run: FetchedRecords, _caught_up: bool) -> None:
        self.handed += [record.offset for record in run.records]

    def queue_fetched(self, _queue: Partition, _epoch: int, offset: int, record: Record | None) -> None:
        self.fetched += [offset] if record is not None else []

    def queue_absent(self, _queue: Partition, _epoch: int) -> None:
        """An outage says nothing about what exists."""

    dropped = queue_cut = queue_absent

    def queue_full(self) -> bool:
        return False


def test_clients_that_read_queues_are_replaced_once_they_know_no_broker(
    own_proxied: Proxied, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_clients, "LOOK_EVERY", OFTEN)
    bootstrap, proxy, queue, policy = own_proxied.kafka.bootstrap, own_proxied.proxy, Queue(), rules()
    create_topic(bootstrap, "queue", 1, {"message.timestamp.type": "LogAppendTime"})
    config = whole_fetches(view_config({"bootstrap.servers": proxy.address}, "billing", "test"))
    config |= {"topic.metadata.refresh.interval.ms": QUICK, "metadata.max.age.ms": 2 * QUICK}
    ask = QueueHelp(lambda: policy, lambda _: frozenset())
    thread = QueueThread(config, cast("QueueListener", queue), CredentialRegistry(), 0, ask)
    thread.start()
    stack.callback(thread.join, SECONDS)
    stack.callback(thread.stop)
    thread.open(Partition("queue", 0), 1)
    produce(bootstrap, "queue", [b"old"])
    until(lambda: queue.handed == [0], SECONDS, "the first record is read")
    with proxy.brokers_forgotten("test"):
        clients = thread._clients.following, thread._clients.reader
        until(lambda: not any(map(answers, clients)), SECONDS, "both are cut off")
    produce(bootstrap, "queue", [b"new"])
    until(lambda: queue.handed == [0, 1], LATER, "it is read by another client")
    thread.fetch(Partition("queue", 0), 1, 0)
    until(lambda: queue.fetched == [0], LATER, "it is read again by another client")
    assert (thread._clients.following, thread._clients.reader) != clients


def test_an_outage_replaces_no_client(own_kafka: EmbeddedKafka, stack: ExitStack) -> None:
    keeper = Keeper()
    create_topic(own_kafka.bootstrap, "orders", 1)
    thread = started(stack, own_kafka.bootstrap, "billing", "orders", keeper)
    produce(own_kafka.bootstrap, "orders", [b"old"])
    until(lambda: keeper.offsets() == [0], SECONDS, "the first record is read")
    own_kafka.node(0).kill()  # a clean stop could cut the client off
    until(lambda: thread.assignment.rebalances["lost"] == 1, SECONDS, "the group is lost")
    own_kafka.node(0).start()
    produce(own_kafka.bootstrap, "orders", [b"new"])
    until(lambda: news(keeper) == [1], LATER, "it is read by the same client")
    assert thread.client_watch.replaced == {}


def news(keeper: Keeper) -> list[int]:
    """The offsets of the new records that were handed over."""
    return [record.offset for run in keeper.runs for record in run.records if record.value == b"new"]


def read_of(keepers: Sequence[Keeper]) -> set[int]:
    """The partitions of which records were handed over."""
    return {run.partition.number for keeper in keepers for run in list(keeper.runs) if run.records}


class Reluctant(Keeper):
    """Gives nothing up before it is told to; `during` is called once it is asked to."""

    def __init__(self, during: Callable[[], None]) -> None:
        super().__init__()
        self._during: Callable[[], None] | None = during

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        during, self._during = self._during, None
        if during is None:
            super().release(partitions, done)
            return
        self.gone += partitions
        during()


@pytest.mark.parametrize("sign", [Useless.OVERTAKEN, Useless.UNKNOWN])
def test_a_member_whose_topic_grows_while_it_gives_partitions_up_takes_part_in_later_rebalances(
    kafka: Broker, make_topic: MakeTopic, group: str, stack: ExitStack, sign: Useless
) -> None:
    """Its client stood for ever in the first of two rebalances, and ignored even that the group put it out.

    It is found out as soon as the rebalance is over; where that is missed, as soon as it is no member any more.
    """
    topic = make_topic(4)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def grow() -> None:
        admin.create_partitions([NewPartitions(topic, 6)])[topic].result(SECONDS)

    keepers = [Reluctant(grow), Keeper(), Keeper()]
    first = started(stack, kafka.bootstrap, group, topic, keepers[0], counts=sign is Useless.OVERTAKEN)
    until(lambda: len(first.assignment.owned_partitions) == 4, SECONDS, "the first has all")
    if sign is Useless.UNKNOWN:  # it does not see that the group moves on, so it gives up by itself
        first.assignment.lock_timeout = 4.0
    second = started(stack, kafka.bootstrap, group, topic, keepers[1])
    until(lambda: len(second.assignment.owned_partitions) >= 2, SECONDS, "the second has some")
    third = started(stack, kafka.bootstrap, group, topic, keepers[2])
    threads = (first, second, third)
    until(
        lambda: [len(thread.assignment.owned_partitions) for thread in threads] == [2, 2, 2],
        LATER,
        "each has its share",
    )
    numbers = [
        owned.partition.number for thread in threads for owned in list(thread.assignment.owned_partitions.values())
    ]
    assert sorted(numbers) == list(range(6)), "nobody reads what another one owns"
    produce(kafka.bootstrap, topic, [Out(b"x", partition=number) for number in range(6)])
    until(lambda: read_of(keepers) == set(range(6)), SECONDS, "all are read")
    assert first.client_watch.replaced == {sign: 1}  # another one may be overtaken in the rebalances for it
