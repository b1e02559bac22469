"""How far the levels are due, asked of a real broker; and a wedge that no part of the lane knows of, which shows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.counters import Histogram
from reconsume.sidecar.core.lane import LaneOptions
from reconsume.sidecar.core.outcome import COMMITTED
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Reply
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.core.status import PartitionRow
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.consumer.client_assignment import OwnedPartition
from reconsume.sidecar.kafka.consumer.log_checks import Leaders, OffsetLookup
from reconsume.sidecar.kafka.consumer.looks import SLACK, DueOffsets
from reconsume.sidecar.runtime.lane_runner import LaneRunner, LaneSpec
from reconsume.topics import retry_headers as wire
from reconsume.topics.levels import build_ladder
from tests.conftest import MakeTopic
from tests.support.deadline import NotInTimeError, until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import SECONDS, Out

LEVEL = {"message_timestamp_type": "LogAppendTime"}


# --- the look alone ------------------------------------------------------------------------------------------------


class Look:
    """A consumer, and the heads of some topics as it finds them."""

    def __init__(self, bootstrap: str, waits: Mapping[str, int]) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": "heads", "isolation.level": "read_committed"}
        self.consumer = Consumer(config)
        self.heads = DueOffsets()
        self.found: list[Mapping[Partition, int]] = []
        self.heads.waits, self.heads.tell = lambda: waits, self.found.append

    def logs(self) -> OffsetLookup:
        return OffsetLookup(self.consumer, Leaders())

    def at(self, *sources: Partition) -> Mapping[Partition, int]:
        """The heads of these partitions now."""
        asked = [TopicPartition(*source, OFFSET_END) for source in sources]
        places = self.consumer.offsets_for_times(asked, timeout=SECONDS)
        ends = {Partition(place.topic, place.partition): place.offset for place in places}
        self.heads.request_due_offsets(
            self.logs(), [OwnedPartition(source, WantedFetch(1)) for source in sources], ends
        )
        return self.found[-1]


def together(bootstrap: str, topic: str, count: int, record: Out | None = None) -> None:
    """Records of one transaction: its marker is the offset behind them."""
    record = record or Out(b"x")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"t-{topic}"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for _ in range(count):
        producer.produce(topic, record.value, record.key, headers=list(record.headers), partition=0)
    producer.commit_transaction(SECONDS)


def test_the_head_is_the_first_offset_whose_level_is_not_over(kafka: Broker, make_topic: MakeTopic) -> None:
    topic = make_topic(**LEVEL)
    look = Look(kafka.bootstrap, {topic: 1_000})
    together(kafka.bootstrap, topic, 3)
    begun = time.monotonic()
    assert look.at(Partition(topic, 0)) == {}, "nothing is due yet"
    until(lambda: look.at(Partition(topic, 0)) == {Partition(topic, 0): 4}, SECONDS, "all is due, the marker too")
    assert time.monotonic() - begun > (1_000 + SLACK) / 1000 - 1
    together(kafka.bootstrap, topic, 2)
    assert look.at(Partition(topic, 0)) == {Partition(topic, 0): 4}
    assert look.heads.problem == ""


def test_topics_that_are_no_levels_are_not_asked_for(kafka: Broker, make_topic: MakeTopic) -> None:
    topic, main = make_topic(**LEVEL), make_topic()
    together(kafka.bootstrap, topic, 1)
    look = Look(kafka.bootstrap, {topic: -SLACK})
    found = until(lambda: look.at(Partition(topic, 0), Partition(main, 0)), SECONDS, "the level is due")
    assert set(found) == {Partition(topic, 0)}


def test_a_topic_that_is_gone_is_said_and_the_others_are_known(kafka: Broker, make_topic: MakeTopic) -> None:
    topic = make_topic(**LEVEL)
    together(kafka.bootstrap, topic, 1)
    look = Look(kafka.bootstrap, {topic: -SLACK, f"{topic}-gone": -SLACK})
    until(lambda: look.at(Partition(topic, 0)), SECONDS, "the level is due")
    look.heads.request_due_offsets(
        look.logs(),
        [
            OwnedPartition(Partition(topic, 0), WantedFetch(1)),
            OwnedPartition(Partition(f"{topic}-gone", 0), WantedFetch(2)),
        ],
        {},
    )
    assert look.found[-1] == {Partition(topic, 0): 2}
    assert look.heads.problem == f"Kafka does not say how far the levels are due: {topic}-gone[0]"


# --- a lane on a broker --------------------------------------------------------------------------------------------


class Takes:
    """A service that takes everything at once."""

    def __init__(self) -> None:
        self.durations = Histogram((1.0,))
        self.taken: list[Record] = []

    def __call__(self, record: Record, reply: Reply) -> None:
        self.taken.append(record)
        asyncio.get_running_loop().call_soon(lambda: reply(record, COMMITTED, now()))

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        pass

    def withdraw(self, is_held: Callable[[Record], bool]) -> None:
        pass

    def close(self) -> None:
        pass


class Lane:
    """A retry lane of its own on an event loop of its own."""

    def __init__(self, group: GroupTopics) -> None:
        self._loop = uvloop.new_event_loop()
        self.service = Takes()
        waits = {**group.levels, group.names.ready: 0}
        delays = group.delays
        policy = Policy(group.names, group.mains, build_ladder(delays), delays, delays, instance="pod-0")
        plan = LaneSpec("retry", group.names.retry_group, tuple(waits), waits, "earliest", 5.0, LaneOptions(1 << 20))
        kafka = {"bootstrap.servers": group.bootstrap}

        async def make() -> LaneRunner:
            gate = Dispatcher(Pace(8))
            return LaneRunner(
                plan, policy, kafka, gate, self.service, lambda label, seconds: None, CredentialRegistry()
            )

        self.engine = self._loop.run_until_complete(make())

    async def _known(self) -> None:
        """There is no policy to wait for."""

    def run(self, seconds: float) -> None:
        """Let the loop run."""
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def until(self, predicate: Any, what: str) -> None:
        """Run the loop until something is so; else say how the lane stands."""

        def step() -> bool:
            self.run(0.05)
            return bool(predicate())

        try:
            until(step, SECONDS, what)
        except NotInTimeError as late:
            taken = [(record.source, record.offset) for record in self.service.taken]
            ends, error = self.engine.consumer.looks.ends, self.engine.last_error
            raise NotInTimeError(f"{late}; {taken=} {ends=} {error=} status={self.status()}") from None

    def start(self) -> None:
        """Consume; returns when every partition is the lane's."""
        self._loop.run_until_complete(self.engine.start(self._known))

    def status(self) -> dict[Partition, PartitionRow]:
        """By partition."""
        return {Partition(part["topic"], part["partition"]): part for part in self.engine.status()}

    def close(self) -> None:
        """Leave."""
        self._loop.run_until_complete(self.engine.drain(5.0))
        self._loop.close()


@pytest.fixture
def retries(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap, delays=(1_000, 5_000)), partitions=1)


@pytest.fixture
def lane(retries: GroupTopics) -> Iterator[Lane]:
    lane = Lane(retries)
    lane.start()
    yield lane
    lane.close()


def copy_of(group: GroupTopics, level: str) -> Out:
    """A waiting retry, as a sidecar writes it."""
    stamp = str(now().wall_ms).encode()
    fields = {
        wire.REAL_TOPIC: group.main.encode(),
        wire.ORIGIN_MESSAGE_ID: f"{group.main}:0:0".encode(),
        wire.RETRY_TOPIC: level.encode(),
        wire.RECONSUMETIMES: b"1",
        wire.RETRY_REDRIVES: b"0",
        wire.RETRY_DUE_AT: stamp,
        wire.RETRY_REAL_TIMESTAMP: stamp,
        wire.RETRY_FIRST_FAILED_AT: stamp,
        wire.RETRY_REASON: b"http-500",
        wire.RETRY_GROUP: group.group.encode(),
    }
    return Out(b"late", b"k", tuple(fields.items()), partition=0)


@pytest.mark.long
def test_a_partition_paused_behind_the_lanes_back_shows_as_overdue_and_no_other_does(
    lane: Lane, retries: GroupTopics
) -> None:
    """Given two levels with a due retry each, one of which the client does not fetch, then that one shows, and why.

    Nor does the other show, whose last offset is a transaction's marker, nor the ready topic, which is empty.
    """
    paused, healthy = (Partition(topic, 0) for topic in list(retries.levels))
    lane.until(lambda: {paused, healthy} <= lane.status().keys(), "the levels are ours")
    consumer = lane.engine.consumer
    consumer._demands.commands.put(lambda: consumer._client.consumer.pause([TopicPartition(*paused)]))
    lane.until(consumer._demands.commands.empty, "the client pauses")
    # While the loop stands still, hand-overs pile up: the thread then pauses all partitions, and resumes all.
    with ThreadPoolExecutor(1) as beside:
        for source in (paused, healthy):
            written = beside.submit(together, retries.bootstrap, source.topic, 1, copy_of(retries, source.topic))
            lane.until(written.done, "a retry is written")
            written.result()
    lane.until(lambda: lane.service.taken, "the other retry is delivered")
    lane.until(lambda: lane.status()[paused]["undelivered_for"], "the wedge shows")
    shown = lane.status()
    assert (shown[paused]["not_delivered"], shown[paused]["not_fetched"]) == ("unread", None)
    assert {source: part["undelivered_for"] for source, part in shown.items() if source != paused} == {
        healthy: 0,
        Partition(retries.names.ready, 0): 0,
    }
    before = lane.status()[paused]["undelivered_for"]
    lane.run(1.0)
    assert lane.status()[paused]["undelivered_for"] >= before + 0.9
    consumer._demands.commands.put(lambda: consumer._client.consumer.resume([TopicPartition(*paused)]))
    lane.until(lambda: len(lane.service.taken) == 2, "it is delivered once it is fetched")
    lane.until(lambda: lane.status()[paused]["undelivered_for"] == 0, "nothing is overdue any more")
    assert lane.engine.last_error == ""
