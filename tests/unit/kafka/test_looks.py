"""When a consumer asks about its logs. What the answers mean is in the tests of `start_offsets` and `due_offsets`."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from sidecar.core.record import Partition
from sidecar.kafka.consumer.looks import LOOK_EVERY, Looks
from sidecar.kafka.consumer.owned_partition import Key, OwnedPartition

LEVEL = Partition("billing-RETRY-5s", 0)
READ_AT = 1_795_391_078_015
SLOTS: dict[Key, OwnedPartition] = {LEVEL: OwnedPartition(LEVEL, 1, last=7, last_at=READ_AT)}


class Client:
    """Notes what each request is for; nothing is younger than what was read."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        (place,) = places
        kinds = {OFFSET_END: "end", READ_AT + 1: "log"}
        self.requests.append(kinds.get(place.offset, "due"))
        return [SimpleNamespace(topic=place.topic, partition=place.partition, offset=8, error=None)]


def test_no_two_requests_are_made_at_a_time_and_each_is_repeated_in_ten_seconds() -> None:
    """Each may wait behind a fetch for 0.5 s, and all retries of the lane that are due then wait with it."""
    client, looks, asked = Client(), Looks(), list[tuple[float, str]]()
    looks.due_offsets.waits = lambda: {LEVEL.topic: 5_000}
    for now in [step / 10 for step in range(1, 400)]:
        if looks.is_time(now):
            before = len(client.requests)
            looks.ask(cast("Consumer", client), SLOTS, now)
            asked += [(now, request) for request in client.requests[before:]]
    times = [at for at, _ in asked]
    assert min(later - earlier for earlier, later in pairwise(times)) > LOOK_EVERY / 4
    assert [what for _, what in asked[:6]] == ["end", "due", "log"] * 2
    ends = [at for at, what in asked if what == "end"]
    assert max(later - earlier for earlier, later in pairwise(ends)) < LOOK_EVERY * 1.1
    assert looks.ends == {LEVEL: 8}
