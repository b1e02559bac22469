"""Where a broadcast begins while some brokers do not answer, and when the instance is ready."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_END, KafkaError

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.delivery.broadcast import FIRST_LOOK_EVERY, AllPartitions
from tests.unit.kafka.cluster_stub import HIGH, LOW, ClusterStub, Lane

WRITTEN_SINCE = 33
"""The first offset of the time at which the instance started."""


class Scene:
    """An instance that reads nine partitions, each led by one of three brokers."""

    def __init__(self, *silent: int, refuses: int | None = None) -> None:
        self.cluster, self.lane = ClusterStub(partitions=9), Lane()
        self.cluster.silent, self.cluster.refuses = set(silent), refuses
        self.instance = AllPartitions(self.lane, lock_timeout=1.0)
        self.instance.starts.leaders.clock = lambda: self.cluster.now
        self.instance.join(self.cluster.consumer, ["orders"])

    def look(self, seconds: float = FIRST_LOOK_EVERY) -> None:
        """A later turn of the consumer's thread."""
        self.cluster.now += seconds
        self.instance._look_at = 0.0
        self.instance.answer(self.cluster.consumer)

    def starts(self, leader: int) -> set[int]:
        """The offsets at which a broker's partitions begin."""
        return {offset for place, offset in self.lane.starts.items() if self.cluster.leader(place.number) == leader}


def test_the_partitions_of_the_brokers_that_answer_begin_at_once_at_their_end() -> None:
    scene = Scene(1)
    assert [scene.starts(leader) for leader in range(3)] == [{HIGH}, set(), {HIGH}]
    assert len(scene.lane.starts) == 6


def test_the_instance_is_ready_for_what_it_reads_while_one_broker_is_away() -> None:
    assert Scene(1).instance.placed
    assert not Scene(0, 1, 2).instance.placed


@pytest.mark.parametrize(("later", "begins"), [(WRITTEN_SINCE, WRITTEN_SINCE), (OFFSET_END, HIGH)])
def test_a_partition_whose_leader_comes_back_begins_at_what_was_written_since_the_start(
    later: int, begins: int
) -> None:
    """Begun at its end of that moment, what was written between the leader's return and the look would be skipped."""
    scene = Scene(1)
    scene.cluster.silent.clear()
    scene.cluster.later = later
    scene.look(20)
    assert [scene.starts(leader) for leader in range(3)] == [{HIGH}, {begins}, {HIGH}]


def test_a_partition_that_is_added_later_begins_at_its_beginning_though_a_broker_is_away() -> None:
    scene = Scene(1)
    scene.cluster.partitions = 10
    scene.look()
    assert scene.lane.starts[Partition("orders", 9)] == LOW
    assert scene.starts(1) == set()


def test_nothing_that_has_begun_begins_again() -> None:
    scene = Scene(1)
    begun = dict(scene.lane.starts)
    scene.lane.starts.clear()
    scene.look()
    assert (scene.lane.starts, len(begun)) == ({}, 6)


@pytest.mark.parametrize(
    ("refuses", "begins"),
    [(KafkaError.UNKNOWN_TOPIC_OR_PART, LOW), (KafkaError.TOPIC_AUTHORIZATION_FAILED, WRITTEN_SINCE)],
    ids=["made later", "may be read later"],
)
def test_only_a_topic_that_did_not_exist_at_the_start_is_read_from_its_beginning(refuses: int, begins: int) -> None:
    """Given a right that comes after the instance: all that the topic ever held is no news."""
    scene = Scene(refuses=refuses)
    scene.cluster.refuses, scene.cluster.later = None, WRITTEN_SINCE
    scene.look()
    assert set(scene.lane.starts.values()) == {begins}
    scene.cluster.partitions = 10
    scene.look()
    assert scene.lane.starts[Partition("orders", 9)] == LOW, "a partition that is added later"
