"""What is kept back in memory has a quarter of the room, whatever the shares: other keys go on (5.3, 10.4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.record import Partition
from tests.sim.rig import Rig
from tests.sim.samples import policy, record
from tests.unit.core.lane.test_room_shares import ROOM, WEIGHT

SOURCES = [Partition("orders", number) for number in range(4)]
FIRST = SOURCES[0]
BAD = b"bad"
IN_PLACE = replace(policy(), in_place=InPlace())
KEPT = ROOM // 8 // WEIGHT + 1
"""Records: more than the share of one of four partitions, less than a quarter of the room."""


class Busy:
    """An ordered lane with a service that keeps up, and a backlog of each partition: it is full nearly always."""

    def __init__(self) -> None:
        self.rig = Rig(policy=IN_PLACE, order="key", concurrency=8, room=ROOM)
        self.rig.whole = False
        self.rig.assign(*SOURCES)
        self.read = 0

    def give(self, source: Partition, count: int, key: bytes | None = None) -> None:
        part = self.rig.part(source)
        if part.paused is None and not self.rig.lane.memory.full:
            begin, self.read = part.tracker.unread, self.read + count
            offsets = range(begin, begin + count)
            self.rig.take(*(record(offset, source=source, key=key or b"%d" % offset) for offset in offsets))

    def run(self, seconds: int) -> None:
        for _ in range(seconds * 10):
            for source in (*SOURCES[1:], FIRST):
                self.give(source, 8)
            for _ in range(8):
                if self.rig.sent:
                    self.rig.answer()
            self.rig.run(100)
            while self.rig.batches:
                self.rig.conclude()

    def went(self) -> int:
        """How many records of the first partition were delivered."""
        return sum(sent.record.source == FIRST for sent in self.rig.history)


def held(lane: Busy) -> None:
    lane.rig.lane.hold(Holds([Hold("h", key=BAD)]), lane.rig.now)
    lane.give(FIRST, KEPT, BAD)


def retried(lane: Busy) -> None:
    lane.give(FIRST, KEPT, BAD)
    lane.rig.answer(Failed("http-500", delay=600_000))


@pytest.mark.parametrize("keep", [held, retried])
def test_other_keys_of_its_partition_go_on_where_the_lane_is_full(keep: Callable[[Busy], None]) -> None:
    lane = Busy()
    keep(lane)
    assert lane.rig.part(FIRST).load > ROOM // 8
    lane.run(5)
    before = lane.went()
    lane.run(10)
    assert lane.went() > before + 40
    assert lane.rig.part(FIRST).load <= ROOM // 4 + 8 * WEIGHT


@pytest.mark.parametrize("keep", [held, retried])
def test_they_are_not_fetched_again_and_again(keep: Callable[[Busy], None]) -> None:
    lane = Busy()
    keep(lane)
    lane.run(15)
    assert lane.read <= 2 * len(lane.rig.history) + 4 * ROOM // WEIGHT
