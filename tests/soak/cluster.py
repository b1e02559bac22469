"""What is asked of the cluster, and what an operator tells it; each question is asked again while nodes come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.soak import admin
from tests.soak.admin import ANSWER, UnansweredError
from tests.support.kafka.group_topics import GroupTopics
from tests.support.proof.evidence import PartitionName, Progress, read_progress

T = TypeVar("T")
INSIST = 120.0
"""Seconds for which it is asked again: two nodes that are down together are back long before."""


UNSAID = (KafkaException, TimeoutError, UnansweredError)
"""What a question may end with while nodes are away."""


class NotSoError(AssertionError):
    """A fault did not do what it says, or did not end; the soak itself is at fault, or the cluster."""


class Ends(NamedTuple):
    """The first offset that is there, and the end (high watermark, or the last stable offset)."""

    low: int
    high: int


def lag_of(done: Progress | None, end: Ends) -> int:
    """How many offsets are left; what was cut from the log's front is not."""
    reached = end.low if done is None else max(done.next, end.low)
    return max(0, end.high - reached)


def insist(ask: Callable[[], T], what: str, seconds: float = INSIST) -> T:
    """The first truthy answer; an error of Kafka, silence, and an empty answer are asked again. Raises NotSoError."""
    end = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < end:
        try:
            answer = ask()
        except UNSAID as failure:
            last = failure
        else:
            if answer:
                return answer
            last = answer
        time.sleep(0.2)
    raise NotSoError(f"not within {seconds:g} s: {what} (last: {last!r})")


PAUSED_FOR = 3_000
"""ms without an answer after which a connection counts as that of a paused node."""


class Cluster:
    """The soak's view of Kafka, without any of the product's code."""

    def __init__(self, kafka: EmbeddedKafka, group: GroupTopics) -> None:
        self.kafka, self.group = kafka, group
        quiet = {
            "bootstrap.servers": kafka.bootstrap,
            "log_level": 0,
            "reconnect.backoff.max.ms": 500,
            # A paused node takes connections and answers nothing: the next question must go to another one.
            "socket.timeout.ms": PAUSED_FOR,
            "socket.connection.setup.timeout.ms": PAUSED_FOR,
        }
        self.admin = AdminClient(quiet)  # for what it lists; its other calls may abort the process
        self.away = admin.Away(kafka.bootstrap)
        # Watermarks as of read_uncommitted, and `committed` that never waits for an open transaction.
        base = {**quiet, "isolation.level": "read_uncommitted", "enable.auto.commit": False}
        self._stable = Consumer({**base, "isolation.level": "read_committed", "group.id": f"{group.group}-soak"})
        self._members = {lane: Consumer({**base, "group.id": lane}) for lane in self.lanes}

    def close(self) -> None:
        """Close the clients."""
        for client in (self._stable, *self._members.values()):
            client.close()

    @property
    def lanes(self) -> Mapping[str, tuple[str, ...]]:
        """Each consumer group of the product, and what it reads."""
        mains = (*self.group.mains, *self.group.queues)
        return {self.group.group: mains, self.group.names.retry_group: self.group.retries}

    def lane_of(self, topic: str) -> str:
        """The consumer group that reads a topic."""
        return next(lane for lane, topics in self.lanes.items() if topic in topics)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def alive(self) -> frozenset[int]:
        """The nodes that the cluster lists."""
        return frozenset(self.admin.list_topics(timeout=ANSWER).brokers)

    def await_gone(self, *nodes: int) -> frozenset[int]:
        """Wait until the cluster lists none of these any more; those that it lists."""

        def others() -> frozenset[int]:
            alive = self.alive()
            return frozenset() if alive & set(nodes) else alive

        return insist(others, f"the cluster no longer lists {nodes}", 30)

    def await_whole(self) -> None:
        """Wait until all nodes are there and every replica is in sync."""
        wanted = {node.id for node in self.kafka.nodes}

        def whole() -> bool:
            found = self.admin.list_topics(timeout=ANSWER)
            parts = [part for topic in found.topics.values() for part in topic.partitions.values()]
            return set(found.brokers) == wanted and all(
                len(part.isrs) == len(part.replicas) and part.leader >= 0 for part in parts
            )

        insist(whole, "all nodes are there and in sync")

    def led_by(self, node: int) -> int:
        """How many partitions a node leads."""
        topics = self.admin.list_topics(timeout=ANSWER).topics.values()
        return sum(part.leader == node for topic in topics for part in topic.partitions.values())

    def in_sync(self, topic: str) -> int:
        """The fewest replicas in sync of any partition of a topic."""
        parts = self.admin.list_topics(topic, timeout=ANSWER).topics[topic].partitions
        return min(len(part.isrs) for part in parts.values())

    # --- groups ------------------------------------------------------------------------------------------------------

    def members(self, lane: str) -> tuple[str, ...]:
        """The client ids of the members of a consumer group."""
        return self.away.ask(admin.members, lane)

    def progress(self, *topics: str) -> dict[PartitionName, Progress]:
        """The committed progress of every partition of these topics, which one lane reads; nothing where none is."""
        member = self._members[self.lane_of(topics[0])]
        found = member.committed(self._places(topics), timeout=ANSWER)
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
        return {(p.topic, p.partition): read_progress(p.offset, p.metadata) for p in found if p.offset >= 0}

    def left(self) -> dict[PartitionName, int]:
        """How many offsets of each partition are not done, where there are any.

        All progress before any end: what moves from one topic to another meanwhile is seen at the latter.
        """
        progress = {place: done for asked in self.lanes.values() for place, done in self.progress(*asked).items()}
        ends = self.ends([topic for asked in self.lanes.values() for topic in asked])
        return {place: lag for place, end in ends.items() if (lag := lag_of(progress.get(place), end))}

    # --- topics ------------------------------------------------------------------------------------------------------

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; KafkaException when it is not there."""
        found = self.admin.list_topics(topic, timeout=ANSWER).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return len(found.partitions)

    def topic_id(self, topic: str) -> str:
        """Kafka's id of the topic, which one made anew does not keep."""
        return self.away.ask(admin.topic_id, topic)

    def ends(self, topics: Sequence[str], stable: bool = False) -> dict[PartitionName, Ends]:
        """Where each partition begins and ends."""
        places = self._places(topics)
        lows = self._offsets(places, OFFSET_BEGINNING, stable)
        highs = self._offsets(places, OFFSET_END, stable)
        return {place: Ends(lows[place], highs[place]) for place in lows}

    def _places(self, topics: Sequence[str]) -> list[TopicPartition]:
        found = self.admin.list_topics(timeout=ANSWER).topics
        return [TopicPartition(name, number) for name in topics if name in found for number in found[name].partitions]

    def _offsets(self, places: Sequence[TopicPartition], logical: int, stable: bool) -> dict[PartitionName, int]:
        """By a consumer: `AdminClient.list_offsets` may end the process while leaders move (an assertion of 2.16)."""
        asked = [TopicPartition(place.topic, place.partition, logical) for place in places]
        client = self._stable if stable else next(iter(self._members.values()))
        client.list_topics(timeout=ANSWER)  # it knows no partition yet that was added, and would refuse the question
        found = client.offsets_for_times(asked, timeout=ANSWER) if asked else []
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
        return {(place.topic, place.partition): place.offset for place in found}

    def add_partition(self, topic: str) -> int:
        """One partition more; how many there are now, as the cluster says once all are led."""
        wanted = insist(lambda: self.partitions(topic), f"{topic} is there") + 1

        def added() -> int:
            with suppress(*UNSAID):
                self.away.ask(admin.grow, topic, wanted)
            parts = self.admin.list_topics(topic, timeout=ANSWER).topics[topic].partitions
            return wanted if len(parts) == wanted and all(p.leader >= 0 for p in parts.values()) else 0

        return insist(added, f"{topic} has {wanted} partitions")

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Cut the log; its first offset now, by the broker's word."""
        asked = partial(self.away.ask, admin.cut, topic, partition, before)
        return insist(asked, f"{topic}[{partition}] is cut below {before}")

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until it is listed no more."""

        def gone() -> bool:
            with suppress(*UNSAID):
                self.away.ask(admin.delete, topic)
            return topic not in self.admin.list_topics(timeout=ANSWER).topics

        insist(gone, f"{topic} is deleted")
