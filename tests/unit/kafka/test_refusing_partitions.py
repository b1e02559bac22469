"""Which partitions take no records: known by what the cluster says, and tried again when that changes."""

from __future__ import annotations

import pytest

from reconsume.sidecar.kafka.committer.target_topics import RefusingPartitions, State, murmur2_partition
from reconsume.topics.transition_records import Copy

HERE = "level[1]"


def to(key: bytes | None, spread: int = 0, topic: str = "level") -> Copy:
    return Copy(topic, key, b"", [], spread)


def refusing(*states: State) -> RefusingPartitions:
    places = RefusingPartitions()
    places.looked({"level": list(states)})
    places.refuse(HERE)
    places.looked({"level": list(states)})
    return places


@pytest.mark.parametrize(
    ("key", "hashed"),
    # Of Apache Kafka's own test of its partitioner (UtilsTest.testMurmur2), as unsigned numbers.
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"", 275646681)],
)
def test_a_key_has_the_partition_that_the_java_client_gives_it(key: bytes, hashed: int) -> None:
    assert murmur2_partition(key, 1_000) == (hashed & 0x7FFFFFFF) % 1_000


def test_only_copies_for_the_partition_are_refused() -> None:
    places = refusing(State(0, 2), State(0, 2))
    assert places.refuses(to(None, 1)) == places.refuses(to(None, 3)) == HERE
    assert places.refuses(to(None, 0)) == places.refuses(to(None, 1, "other")) == ""
    keyed = {places.refuses(to(b"%d" % number)) for number in range(50)}
    assert keyed == {HERE, ""}


def test_a_copy_that_is_spread_although_it_has_a_key_is_refused_where_it_goes() -> None:
    places = refusing(State(0, 2), State(0, 2))
    for number in range(50):
        copy = Copy("level", b"%d" % number, b"", [], number, scattered=True)
        assert places.refuses(copy) == (HERE if number % 2 else "")


@pytest.mark.parametrize("now", [State(0, 3), State(2, 2)])
def test_a_partition_whose_leader_or_replicas_changed_is_tried_again(now: State) -> None:
    places = refusing(State(0, 2), State(0, 2))
    places.looked({"level": [State(0, 2), now]})
    assert not places


def test_a_partition_without_a_leader_is_not_tried() -> None:
    places = refusing(State(0, 2), State(0, 2))
    places.looked({"level": [State(0, 2), State(-1, 0)]})
    assert places.refuses(to(None, 1)) == HERE


def test_a_topic_that_is_gone_is_another_matter() -> None:
    places = refusing(State(0, 2), State(0, 2))
    places.looked({})
    assert not places
