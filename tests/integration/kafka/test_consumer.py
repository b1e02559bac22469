"""The consumer's thread against a real broker: where a partition starts, and what becomes of offsets that are gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords, WantedFetch
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.client_config import consumer_config
from reconsume.sidecar.kafka.consumer.assignment import Assignment
from reconsume.sidecar.kafka.consumer.consumer import ConsumerThread
from reconsume.sidecar.kafka.consumer.log_checks import untouched
from tests.conftest import MakeTopic
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import Out, create_topic, delete_topics, dump, produce

SECONDS = 20.0


class Keeper:
    """Takes everything that the consumer hands over; `room` False holds it back."""

    def __init__(self) -> None:
        self.grants: list[AssignedPartition] = []
        self.runs: list[FetchedRecords] = []
        self.gone: list[Partition] = []
        self.cuts: list[tuple[Partition, int, int]] = []
        self.shorter: list[tuple[Partition, int]] = []
        self.room = True

    def assigned(self, grants: Sequence[AssignedPartition]) -> None:
        self.grants += grants

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        self.gone += partitions
        done()

    def dropped(self, partitions: Sequence[Partition]) -> None:
        self.gone += partitions

    def cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None:
        self.cuts.append((partition, wanted, low))

    def truncated(self, partition: Partition, high: int) -> None:
        self.shorter.append((partition, high))

    def received(self, runs: Sequence[FetchedRecords], weight: int) -> None:
        self.runs += runs

    def full(self) -> bool:
        return not self.room

    def offsets(self, partition: int = 0) -> list[int]:
        """The offsets that were handed over, in order."""
        return [record.offset for run in self.runs if run.partition.number == partition for record in run.records]


Start = Callable[..., tuple[Keeper, ConsumerThread]]


@pytest.fixture
def start(kafka: Broker, group: str) -> Iterator[Start]:
    """`start(topic, start_at="earliest")`: a running consumer, stopped at the end."""
    threads: list[ConsumerThread] = []

    def begin(topic: str, start_at: str = "earliest") -> tuple[Keeper, ConsumerThread]:
        keeper = Keeper()
        assignment = Assignment(keeper, start_at=start_at, lock_timeout=1.0)
        config = consumer_config({"bootstrap.servers": kafka.bootstrap}, group, "test")
        thread = ConsumerThread(config, [topic], keeper, assignment, None)
        thread.start()
        threads.append(thread)
        return keeper, thread

    yield begin
    for thread in threads:
        thread.stop(1.0)
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert thread.failure is None


def commit(bootstrap: str, group: str, place: TopicPartition) -> None:
    """Commit one offset for a group that nobody is in."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    """Delete what lies before an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(SECONDS)


def partitions_of(bootstrap: str, topic: str) -> int:
    """How many partitions have a leader."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=SECONDS).topics[topic]
    return sum(partition.leader >= 0 for partition in found.partitions.values())


def test_a_new_group_starts_at_the_earliest_record(kafka: Broker, topic: str, start: Start) -> None:
    """Also when the first records are gone already: nothing was lost, for nothing was ours."""
    produce(kafka.bootstrap, topic, [b"%d" % number for number in range(10)])
    delete_before(kafka.bootstrap, topic, 4)
    keeper, _ = start(topic)
    until(lambda: keeper.offsets() == [4, 5, 6, 7, 8, 9], SECONDS, "what is there is read")
    assert keeper.grants == [AssignedPartition(Partition(topic, 0), 1, untouched(4))]
    assert keeper.cuts == []


def test_a_new_group_starts_at_the_latest_record_where_that_is_asked_for(
    kafka: Broker, topic: str, start: Start
) -> None:
    """What was there before is passed over, what comes is read."""
    produce(kafka.bootstrap, topic, [b"old"] * 5)
    keeper, _ = start(topic, "latest")
    until(lambda: bool(keeper.grants), SECONDS, "the partition is ours")
    produce(kafka.bootstrap, topic, [b"new"])
    until(lambda: keeper.offsets() == [5], SECONDS, "the new record is read")


def test_the_done_set_comes_back_with_the_committed_offset(kafka: Broker, topic: str, group: str, start: Start) -> None:
    """A successor knows what its predecessor had done above the committed offset."""
    produce(kafka.bootstrap, topic, [b"%d" % number for number in range(10)])
    left = Progress(2, frozenset({4, 7}), clean=True)
    commit(kafka.bootstrap, group, TopicPartition(topic, 0, left.next, encode(Partition(topic, 0), left)))
    keeper, _ = start(topic)
    until(lambda: bool(keeper.grants), SECONDS, "the partition is ours")
    assert keeper.grants[0].progress == left


def test_a_log_that_was_cut_is_read_on_and_what_was_read_of_it_stays_ours(
    kafka: Broker, topic: str, group: str, start: Start
) -> None:
    """Retention passed the committed offset: the lane is told what is gone, and keeps its epoch."""
    produce(kafka.bootstrap, topic, [b"%d" % number for number in range(10)])
    commit(kafka.bootstrap, group, TopicPartition(topic, 0, 2))
    delete_before(kafka.bootstrap, topic, 8)
    keeper, _ = start(topic)
    until(lambda: keeper.offsets() == [8, 9], SECONDS, "what is left is read")
    assert keeper.cuts == [(Partition(topic, 0), 2, 8)]
    assert [grant.progress.next for grant in keeper.grants] == [2]
    assert keeper.gone == []
    assert {run.epoch for run in keeper.runs} == {keeper.grants[0].epoch}


def test_a_topic_made_anew_is_read_from_its_beginning(kafka: Broker, topic: str, group: str, start: Start) -> None:
    """Its log is shorter than what was read of the old one, whose offsets mean nothing any more."""
    produce(kafka.bootstrap, topic, [b"old"] * 10)
    keeper, thread = start(topic)
    until(lambda: len(keeper.offsets()) == 10, SECONDS, "the old one is read")
    delete_topics(kafka.bootstrap, topic)
    create_topic(kafka.bootstrap, topic)
    produce(kafka.bootstrap, topic, [b"new"] * 4)
    until(lambda: keeper.offsets()[10:] == [0, 1, 2, 3], SECONDS, "the new one is read")
    assert keeper.grants[-1].progress == untouched(0)
    assert keeper.grants[-1].epoch > keeper.grants[0].epoch
    assert thread.failure is None


@pytest.mark.parametrize(("before", "first"), [(True, 0), (False, 3)])
def test_a_log_whose_first_records_are_younger_than_what_was_read_is_another_one(
    kafka: Broker, topic: str, group: str, start: Start, before: bool, first: int
) -> None:
    """A topic that was made anew while nobody looked, and is longer than the place that its predecessor left."""
    last_at_ms = time.time_ns() // 1_000_000 if before else 0
    produce(kafka.bootstrap, topic, [b"new"] * 8)
    last_at_ms = last_at_ms - 1 if before else time.time_ns() // 1_000_000 + 1
    commit(
        kafka.bootstrap,
        group,
        TopicPartition(topic, 0, 3, encode(Partition(topic, 0), Progress(3, last_at_ms=last_at_ms))),
    )
    keeper, _ = start(topic)
    until(lambda: keeper.offsets() == list(range(first, 8)), SECONDS, "what was not read is read")
    assert keeper.grants[0].progress.next == first


def test_a_marker_behind_what_was_read_makes_no_other_log(kafka: Broker, topic: str, group: str, start: Start) -> None:
    """A search by time finds the marker of a transaction, which is younger than its records and read by nobody."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": group})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"read")
    producer.flush(SECONDS)
    (row,) = until(
        lambda: dump(kafka.bootstrap, topic, read_committed=False),
        SECONDS,
        "the record is there, and its transaction open",
    )
    until(lambda: time.time_ns() // 1_000_000 > row.timestamp + 1, SECONDS, "the marker will be younger")
    producer.commit_transaction(SECONDS)
    commit(
        kafka.bootstrap,
        group,
        TopicPartition(topic, 0, 2, encode(Partition(topic, 0), Progress(2, last_at_ms=row.timestamp))),
    )
    keeper, _ = start(topic)
    until(lambda: keeper.grants, SECONDS, "the partition is ours")
    assert keeper.grants[0].progress.next == 2


@pytest.mark.long
def test_a_level_that_was_made_anew_while_its_partition_was_parked_is_read_from_its_beginning(
    kafka: Broker, topic: str, start: Start
) -> None:
    """The new log is longer than what was read of the old one, so the old place is in it."""
    produce(kafka.bootstrap, topic, [b"old"] * 3)
    keeper, thread = start(topic)
    thread.looks.due_offsets.waits = lambda: {topic: 1_000}
    until(lambda: len(keeper.offsets()) == 3, SECONDS, "the old one is read")
    thread.want_fetch(Partition(topic, 0), WantedFetch(keeper.grants[0].epoch, False))
    delete_topics(kafka.bootstrap, topic)
    create_topic(kafka.bootstrap, topic)
    produce(kafka.bootstrap, topic, [b"new"] * 8)
    until(lambda: keeper.offsets()[3:] == list(range(8)), SECONDS, "the new one is read")
    assert keeper.grants[-1].epoch > keeper.grants[0].epoch


def test_a_partition_that_was_parked_when_it_left_is_fetched_when_it_comes_back(
    kafka: Broker, make_topic: MakeTopic, group: str, start: Start
) -> None:
    """A pause outlives `incremental_unassign` in the client: one pod joins a group and leaves it again."""
    topic = make_topic(partitions=2)
    keeper, thread = start(topic)
    until(lambda: len(keeper.grants) == 2, SECONDS, "both partitions are ours")
    for grant in list(keeper.grants):
        thread.want_fetch(grant.partition, WantedFetch(grant.epoch, False))
    other = Consumer(consumer_config({"bootstrap.servers": kafka.bootstrap}, group, "other"))
    other.subscribe([topic])

    def shared() -> bool:
        other.poll(0.1)
        return len(other.assignment()) == 1

    until(shared, SECONDS, "another member has one of them")
    left = Partition(topic, other.assignment()[0].partition)
    other.close()
    until(lambda: len(keeper.grants) == 3, SECONDS, "it is ours again")
    assert keeper.grants[-1].partition == left
    produce(kafka.bootstrap, topic, [Out(b"x", partition=left.number)])
    until(lambda: keeper.offsets(left.number) == [0], SECONDS, "and is read")


def test_partitions_added_to_a_topic_that_the_group_reads_begin_at_their_beginning(
    kafka: Broker, make_topic: MakeTopic, group: str, start: Start
) -> None:
    """`start: latest` is about the group's first start alone."""
    topic = make_topic(partitions=2)
    commit(kafka.bootstrap, group, TopicPartition(topic, 0, 0, encode(Partition(topic, 0), Progress(0, width=2))))
    produce(kafka.bootstrap, topic, [Out(b"old", partition=1)] * 3)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(SECONDS)
    until(lambda: partitions_of(kafka.bootstrap, topic) == 3, SECONDS, "the third partition has a leader")
    produce(kafka.bootstrap, topic, [Out(b"new", partition=2)] * 3)
    keeper, _ = start(topic, "latest")
    until(lambda: keeper.offsets(2) == [0, 1, 2], SECONDS, "the added partition is read from its beginning")
    starts = {grant.partition.number: grant.progress for grant in keeper.grants}
    assert starts[0] == Progress(0, width=2)
    assert starts[1] == untouched(3, 2), "it was there when the group began"
    assert starts[2] == untouched(0)


Hold = Callable[..., Producer]


@pytest.fixture
def hold(kafka: Broker, group: str) -> Iterator[Hold]:
    """`hold(*places)`: the transaction of a pod that died over offsets of the group, until it is aborted."""
    outsider = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})

    def begin(*places: TopicPartition) -> Producer:
        name = f"dead-{group}-{places[0].partition}"
        minutes = {"transaction.timeout.ms": 300_000}  # no wait of a test sees it end by itself
        dead = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name, **minutes})
        dead.init_transactions(SECONDS)
        dead.begin_transaction()
        dead.send_offsets_to_transaction(list(places), outsider.consumer_group_metadata(), SECONDS)
        return dead

    yield begin
    outsider.close()


def one_in_each(kafka: Broker, topic: str, group: str, partitions: int = 2) -> None:
    """Partitions with a record each, and a group that has read nothing of them."""
    for number in range(partitions):
        commit(kafka.bootstrap, group, TopicPartition(topic, number, 0))
    produce(kafka.bootstrap, topic, [Out(b"x", partition=number) for number in range(partitions)])


def test_an_offset_that_an_open_transaction_holds_back_stops_no_other_partition(
    kafka: Broker, make_topic: MakeTopic, group: str, start: Start, hold: Hold
) -> None:
    """A dead pod's transaction covers partition 0; partition 1 is read meanwhile, and 0 once it has ended."""
    topic = make_topic(partitions=2)
    one_in_each(kafka, topic, group)
    dead = hold(TopicPartition(topic, 0, 1))
    keeper, _ = start(topic)
    until(lambda: keeper.offsets(1) == [0], SECONDS, "the other partition is read")
    assert keeper.offsets(0) == []
    dead.abort_transaction(SECONDS)
    until(lambda: keeper.offsets(0) == [0], SECONDS, "the partition that was held back is read")


def test_each_of_several_offsets_that_are_held_back_is_waited_for_by_itself(
    kafka: Broker, make_topic: MakeTopic, group: str, start: Start, hold: Hold
) -> None:
    """Two dead pods, of which one has gone for good: what it held back is read while the other's is not.

    The same becomes of a partition whose offset Kafka was only slow to tell, on a busy machine."""
    topic = make_topic(partitions=2)
    one_in_each(kafka, topic, group)
    dead = [hold(TopicPartition(topic, number, 1)) for number in range(2)]
    keeper, thread = start(topic)
    owned_partitions = thread.assignment.owned_partitions
    until(
        lambda: sum(owned.awaits is not None for owned in list(owned_partitions.values())) == 2,
        SECONDS,
        "the client asks for both",
    )
    dead[1].abort_transaction(SECONDS)
    until(lambda: keeper.offsets(1) == [0], SECONDS, "the partition that is held back no more is read")
    assert keeper.offsets(0) == []
    dead[0].abort_transaction(SECONDS)
    until(lambda: keeper.offsets(0) == [0], SECONDS, "the other one is read")


def test_offsets_that_are_held_back_cost_the_other_partitions_nothing(
    kafka: Broker, make_topic: MakeTopic, group: str, start: Start, hold: Hold, caplog: pytest.LogCaptureFixture
) -> None:
    """No call waits for them: each would stop the consumer's thread for seconds, and it would be the next one's turn.

    The client itself gives up an offset that is held back as soon as it is given another partition."""
    topic = make_topic(partitions=6)
    one_in_each(kafka, topic, group, 6)
    dead = hold(*(TopicPartition(topic, number, 1) for number in range(5)))
    keeper, _ = start(topic)
    until(lambda: keeper.offsets(5) == [0], SECONDS, "the other partition is read")
    asked, producer = len(caplog.records), Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for offset in range(1, 41):
        producer.produce(topic, b"y", partition=5)
        assert producer.flush(SECONDS) == 0
        until(lambda: keeper.offsets(5)[-1] == offset, SECONDS, "its next record is read")  # noqa: B023 - called at once
    assert [record.message for record in caplog.records[asked:]] == []
    assert {number for number in range(6) if keeper.offsets(number)} == {5}
    dead.abort_transaction(SECONDS)
    until(lambda: all(keeper.offsets(number) for number in range(6)), SECONDS, "what was held back is read")
    assert [keeper.offsets(number) for number in range(5)] == [[0]] * 5


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_offsets_that_are_held_back_may_change_hands_with_their_partitions(
    kafka: Broker, make_topic: MakeTopic, group: str, start: Start, hold: Hold, order: tuple[int, int]
) -> None:
    """The group has given them to a member whose client does not have them yet, when another one comes or goes."""
    topic = make_topic(partitions=4)
    one_in_each(kafka, topic, group, 4)
    dead = hold(*(TopicPartition(topic, number, 1) for number in range(3)))
    members = [start(topic)]
    until(lambda: members[0][0].offsets(3) == [0], SECONDS, "the other partition is read")
    members.append(start(topic))
    until(
        lambda: all(len(thread.assignment.owned_partitions) == 2 for _, thread in members),
        SECONDS,
        "both have their share",
    )
    stays, goes = (members[number] for number in order)
    goes[1].stop(1.0)
    until(lambda: len(stays[1].assignment.owned_partitions) == 4, SECONDS, "one has all again")
    dead.abort_transaction(SECONDS)
    until(lambda: all(stays[0].offsets(number) == [0] for number in range(3)), SECONDS, "what was held back is read")
    assert not any(goes[0].offsets(number) for number in range(3))


def test_a_new_group_begins_though_the_first_offsets_of_a_dead_pod_are_held_back(
    kafka: Broker, make_topic: MakeTopic, group: str, start: Start, hold: Hold
) -> None:
    """It died in its first transaction: when that ends, there is no offset at all."""
    topic = make_topic(partitions=4)
    produce(kafka.bootstrap, topic, [Out(b"x", partition=number) for number in range(4)])
    dead = [hold(*(TopicPartition(topic, number, 1) for number in numbers)) for numbers in ((0, 1), (2, 3))]
    keeper, thread = start(topic)
    owned_partitions = thread.assignment.owned_partitions
    until(
        lambda: sum(owned.awaits is not None for owned in list(owned_partitions.values())) == 4,
        SECONDS,
        "the client asks for all",
    )
    dead[0].abort_transaction(SECONDS)
    until(lambda: keeper.offsets(0) == keeper.offsets(1) == [0], SECONDS, "the first two are read")
    assert keeper.offsets(2) == keeper.offsets(3) == []
    dead[1].abort_transaction(SECONDS)
    until(lambda: keeper.offsets(2) == keeper.offsets(3) == [0], SECONDS, "all are read")


def test_the_end_of_each_partition_is_known(kafka: Broker, topic: str, start: Start) -> None:
    """The lag in the metrics is the distance to it."""
    produce(kafka.bootstrap, topic, [b"%d" % number for number in range(7)])
    _, thread = start(topic)
    until(lambda: thread.looks.ends == {Partition(topic, 0): 7}, SECONDS, "the end is known")


def test_without_room_polling_goes_on_and_nothing_is_skipped(kafka: Broker, topic: str, start: Start) -> None:
    """Held back for longer than it takes to pause everything, it reads on where it was."""
    produce(kafka.bootstrap, topic, [b"a"] * 3)
    keeper, thread = start(topic)
    until(lambda: keeper.offsets() == [0, 1, 2], SECONDS, "the first records are read")
    keeper.room = False
    turned = thread.last_poll_at
    produce(kafka.bootstrap, topic, [b"b"] * 3)
    until(lambda: thread.last_poll_at > turned + 1.0, SECONDS, "the thread goes round without room")
    keeper.room = True
    until(lambda: keeper.offsets() == [0, 1, 2, 3, 4, 5], SECONDS, "the rest is read")


def test_a_parked_partition_is_read_from_where_it_is_told(kafka: Broker, topic: str, start: Start) -> None:
    """Pause, then resume at an earlier offset under a new turn: what was fetched before is told apart."""
    produce(kafka.bootstrap, topic, [b"%d" % number for number in range(6)])
    keeper, thread = start(topic)
    until(lambda: keeper.offsets() == [0, 1, 2, 3, 4, 5], SECONDS, "all is read")
    source = Partition(topic, 0)
    epoch = keeper.grants[0].epoch
    thread.want_fetch(source, WantedFetch(epoch + 1, False))  # of another assignment: it must do nothing
    thread.want_fetch(source, WantedFetch(epoch + 1, True, 1, 0))
    thread.want_fetch(source, WantedFetch(epoch, False))
    thread.want_fetch(source, WantedFetch(epoch, True, 1, 3))
    until(lambda: keeper.offsets()[6:] == [3, 4, 5], SECONDS, "it is read again from 3")
    assert {run.seek_count for run in keeper.runs if run.records and run.records[0].offset == 3} == {1}


def test_a_consumer_reads_other_topics_when_it_is_told_and_gives_up_those_it_leaves(
    kafka: Broker, make_topic: MakeTopic, start: Start
) -> None:
    first, second = make_topic(), make_topic()
    produce(kafka.bootstrap, first, [b"a"] * 2)
    produce(kafka.bootstrap, second, [b"b"] * 3)
    keeper, thread = start(first)
    until(lambda: keeper.offsets() == [0, 1], SECONDS, "the first is read")
    granted = {grant.partition.topic: grant.epoch for grant in keeper.grants}
    thread.subscribe([first, second])
    until(lambda: len(keeper.offsets()) == 5, SECONDS, "the second is read too")
    assert [grant.epoch for grant in keeper.grants if grant.partition.topic == first] == [granted[first]]
    assert keeper.gone == []
    thread.subscribe([second])
    until(lambda: keeper.gone == [Partition(first, 0)], SECONDS, "the first is given up in order")
    produce(kafka.bootstrap, second, [b"c"])
    until(lambda: len(keeper.offsets()) == 6, SECONDS, "the second is read on")
    assert not thread.assignment.group.overtaken, "the revocation was the client's own"
