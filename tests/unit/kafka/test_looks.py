"""When a consumer asks about its logs. What the answers mean is in the tests of `start_offsets` and `due_offsets`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from reconsume.sidecar.core.partition import WantedFetch
from reconsume.sidecar.core.progress import LogId
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.client_assignment import Key, OwnedPartition
from reconsume.sidecar.kafka.consumer.log_checks import Leaders, OffsetLookup
from reconsume.sidecar.kafka.consumer.looks import LOOK_EVERY, DueOffsets, Looks
from tests.unit.kafka.cluster_stub import ClusterStub

PLACES = [Partition("orders", number) for number in range(3)]
LEVEL = Partition("billing-RETRY-5s", 0)
READ_AT = 1_795_391_078_015
OWNED: dict[Key, OwnedPartition] = {LEVEL: OwnedPartition(LEVEL, WantedFetch(1), last=7, last_at_ms=READ_AT)}


class Client:
    """Notes what each request is for; nothing is younger than what was read."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def get_watermark_offsets(self, place: TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached, "no request"
        return 0, 9

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        (place,) = places
        kinds = {OFFSET_END: "end", READ_AT + 1: "log"}
        self.requests.append(kinds.get(place.offset, "due"))
        return [SimpleNamespace(topic=place.topic, partition=place.partition, offset=8, error=None)]


def test_of_which_partitions_nothing_is_known_is_said_once_for_as_long_as_that_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Their lag stands still meanwhile, which must not look like a lag that does not grow."""
    caplog.set_level(logging.INFO, "reconsume.assignment")
    cluster, looks, seen = ClusterStub(), Looks(), list[tuple[frozenset[Partition], str]]()
    leaders = Leaders(lambda: cluster.now)
    owned_partitions: dict[Key, OwnedPartition] = {place: OwnedPartition(place, WantedFetch(1)) for place in PLACES}

    def look_for(seconds: float) -> None:
        until = cluster.now + seconds
        while cluster.now < until:
            cluster.now += 1
            if looks.is_time(cluster.now):
                looks.ask(cluster.lookup(leaders), owned_partitions, cluster.now)
        seen.append((looks.unanswered, looks.problem))

    look_for(20)
    cluster.silent = {1}
    look_for(20)
    look_for(60)
    assert looks.ends.keys() == set(PLACES), "the ends of before stay"
    look_for(60)
    cluster.silent.clear()
    look_for(60)
    lost = frozenset(place for place in PLACES if place.number == 1)
    said = "Kafka does not say what these partitions hold: orders[1]"
    nothing = frozenset[Partition]()
    assert seen == [(nothing, ""), (nothing, ""), (lost, said), (lost, said), (nothing, "")]
    events = [event for record in caplog.records if (event := getattr(record, "event", "")).startswith("partitions-")]
    assert events == ["partitions-unanswered", "partitions-answered"]


@pytest.mark.parametrize(
    ("later", "silent", "heads"),
    [
        (7, False, {LEVEL: 7}),
        (OFFSET_END, False, {LEVEL: 9}),  # all of it is due, up to the end that was found before
        (0, False, {}),  # nothing is, as in a log that was created again
        (0, True, {LEVEL: 5}),  # nobody says: what was due stays due
    ],
)
def test_how_far_a_level_is_due(later: int, silent: bool, heads: dict[Partition, int]) -> None:
    cluster, due, told = ClusterStub(), DueOffsets(), list[Mapping[Partition, int]]()
    leaders, owned_partitions = Leaders(lambda: cluster.now), [OwnedPartition(LEVEL, WantedFetch(1))]
    due.waits, due.tell = lambda: {LEVEL.topic: 5_000}, told.append
    cluster.later = 5
    due.request_due_offsets(cluster.lookup(leaders), owned_partitions, {LEVEL: 9})
    cluster.later, cluster.silent = later, {0} if silent else set()
    due.request_due_offsets(cluster.lookup(leaders), owned_partitions, {LEVEL: 9})
    assert told == [{LEVEL: 5}, heads]
    assert bool(due.problem) == silent


def test_no_two_requests_are_made_at_a_time_and_each_is_repeated_in_ten_seconds() -> None:
    """Each may wait behind a fetch for 0.5 s, and all retries of the lane that are due then wait with it."""
    client, looks, asked = Client(), Looks(), list[tuple[float, str]]()
    looks.due_offsets.waits = lambda: {LEVEL.topic: 5_000}
    for now in [step / 10 for step in range(1, 400)]:
        if looks.is_time(now):
            before = len(client.requests)
            looks.ask(OffsetLookup(cast("Consumer", client), Leaders()), OWNED, now)
            asked += [(now, request) for request in client.requests[before:]]
    times = [at for at, _ in asked]
    assert min(later - earlier for earlier, later in pairwise(times)) > LOOK_EVERY / 4
    assert [what for _, what in asked[:6]] == ["end", "due", "log"] * 2
    ends = [at for at, what in asked if what == "end"]
    assert max(later - earlier for earlier, later in pairwise(ends)) < LOOK_EVERY * 1.1
    assert looks.ends == {LEVEL: 8}
    assert looks.highs == {LEVEL: 9}, "with what an open transaction keeps from readers of committed records"


def test_a_main_log_whose_topic_has_another_id_by_now_is_another_one() -> None:
    """Given partitions of a former log, of another cluster's, and of a log that nobody has named."""
    former = (LogId("c", "old"), LogId("another", "old"), None)
    owned: dict[Key, OwnedPartition] = {
        place: OwnedPartition(place, WantedFetch(1), log) for place, log in zip(PLACES, former, strict=True)
    }
    cluster, asked = ClusterStub(), list[set[str]]()

    def now_there(topics: Collection[str]) -> Mapping[str, LogId]:
        asked.append(set(topics))
        return {"orders": LogId("c", "new")}

    looks = Looks(log_ids=now_there)
    found = [looks.ask(cluster.lookup(Leaders()), owned, now) for now in (0.0, 4.0, 8.0)]
    assert found == [[], [], [PLACES[0]]]
    assert asked == [{"orders"}], "once in ten seconds"
