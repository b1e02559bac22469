"""One request for many partitions, and what of it is answered where some of their leaders do not answer."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.log_checks import LONGEST, LONGEST_REST, PART_WITHIN, REST, Leaders
from tests.unit.kafka.cluster_stub import HIGH, LOW, ClusterStub

WITHIN = 1.0
PLACES = [Partition("orders", number) for number in range(12)]


class Scene:
    """A cluster, and what one consumer knows of its leaders."""

    def __init__(self, brokers: int = 3, partitions: int = 12, silent: set[int] | None = None) -> None:
        self.cluster = ClusterStub(brokers, partitions)
        self.cluster.silent = silent or set()
        self.leaders = Leaders(lambda: self.cluster.now)
        self.places = [Partition("orders", number) for number in range(partitions)]

    def ends(self) -> set[int]:
        """The brokers whose partitions are answered for; of each, all of them are."""
        asked = [TopicPartition(*source, OFFSET_END) for source in self.places]
        found = self.cluster.lookup(self.leaders).numbers(asked, WITHIN)
        assert set(found.values()) <= {HIGH}
        answered = {self.cluster.leader(source.number) for source in found}
        assert set(found) == {source for source in self.places if self.cluster.leader(source.number) in answered}
        return answered

    def requests(self) -> int:
        """The requests for offsets since the last call."""
        count = self.cluster.asked.pop("offsets", 0)
        self.cluster.asked.clear()
        return count


def test_all_partitions_are_looked_up_with_one_request_while_their_leaders_answer() -> None:
    scene = Scene()
    assert scene.ends() == {0, 1, 2}
    assert scene.cluster.asked == {"offsets": 1}


def test_where_one_leader_does_not_answer_the_partitions_of_the_others_are_looked_up() -> None:
    scene = Scene(silent={1})
    assert scene.ends() == {0, 2}
    assert scene.cluster.now == pytest.approx(WITHIN + PART_WITHIN)


def test_a_leader_that_has_not_answered_delays_the_next_lookups_no_more() -> None:
    """Else each look would stop the consumer's thread for two seconds, as long as the leader is away."""
    scene = Scene(silent={1})
    scene.ends()
    begun = scene.cluster.now
    scene.requests()
    assert scene.ends() == {0, 2}
    assert (scene.requests(), scene.cluster.now) == (1, begun)


@pytest.mark.parametrize("rests", [1, 3, 12])
def test_the_longer_a_leader_is_away_the_rarer_it_is_waited_for_and_soon_it_is_found_again(rests: int) -> None:
    scene = Scene(silent={1})
    scene.ends()
    for _ in range(rests):
        scene.cluster.now += LONGEST_REST
        begun = scene.cluster.now
        for _ in range(5):
            scene.ends()
        assert scene.cluster.now - begun == pytest.approx(PART_WITHIN)
    scene.cluster.silent.clear()
    scene.cluster.now += LONGEST_REST
    assert scene.ends() == {0, 1, 2}


def test_a_record_of_a_leader_that_rests_ends_its_rest() -> None:
    """It was just fetched: what its log holds can be looked up, and is to be known before the record is handed over."""
    scene = Scene(silent={1})
    scene.ends()
    scene.cluster.silent.clear()
    assert scene.ends() == {0, 2}
    scene.leaders.reached([scene.places[0]])
    assert scene.ends() == {0, 2}
    scene.leaders.reached([scene.places[4]])
    assert scene.ends() == {0, 1, 2}


def test_partitions_that_have_moved_to_another_leader_are_answered_while_the_old_one_is_away() -> None:
    scene = Scene(silent={1})
    scene.ends()
    scene.cluster.leader = lambda number: {4: 0}.get(number, number % 3)  # type: ignore[method-assign]
    scene.cluster.now += REST
    asked = [TopicPartition(*source, OFFSET_BEGINNING) for source in scene.places]
    found = scene.cluster.lookup(scene.leaders).numbers(asked, WITHIN)
    assert set(found) == {source for source in scene.places if source.number % 3 != 1 or source.number == 4}
    assert set(found.values()) == {LOW}


def test_without_any_answer_one_request_is_made_for_all_and_none_by_leaders() -> None:
    scene = Scene(silent={0, 1, 2})
    scene.cluster.lists = False
    assert scene.ends() == set()
    assert scene.requests() == 1


@given(
    brokers=st.integers(1, 40),
    silent=st.sets(st.integers(0, 39), max_size=6),
    partitions=st.integers(1, 200),
    lists=st.booleans(),
)
def test_whoever_does_not_answer_a_lookup_ends_in_time_and_the_others_are_answered_within_some_lookups(
    brokers: int, silent: set[int], partitions: int, lists: bool
) -> None:
    scene = Scene(brokers, partitions, silent)
    scene.cluster.lists = lists
    leading = {scene.cluster.leader(number) for number in range(partitions)}
    for _ in range(40):
        before = scene.cluster.now
        answered = scene.ends()
        assert scene.cluster.now - before <= LONGEST
        assert not answered & silent
        assert scene.requests() <= 2 + LONGEST / PART_WITHIN + 2 * len(leading)
        scene.cluster.now += LONGEST_REST
    if lists or not leading & silent:
        assert answered == leading - silent
        scene.cluster.silent.clear()
        assert scene.ends() == leading


def test_a_leader_that_answers_late_once_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reconsume.assignment")
    scene = Scene(silent={1})
    scene.ends()
    scene.cluster.silent.clear()
    scene.cluster.now += LONGEST_REST
    assert scene.ends() == {0, 1, 2}
    assert caplog.messages == []


def test_a_leader_is_named_once_when_it_stops_to_answer_and_once_when_it_answers_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "reconsume.assignment")
    scene = Scene(silent={1})
    for _ in range(5):
        scene.ends()
        scene.cluster.now += LONGEST_REST
    scene.cluster.silent.clear()
    scene.ends()
    assert [getattr(record, "event", "") for record in caplog.records] == ["offsets-unanswered", "offsets-answered"]
    assert "broker 1" in caplog.messages[0]
