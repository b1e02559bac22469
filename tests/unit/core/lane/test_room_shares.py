"""No flow fills the room of a lane alone, and a lane whose records are done within seconds pauses nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from reconsume.sidecar.core.lane.in_place_queues import OrderBy
from reconsume.sidecar.core.lane.room_shares import LOOK_AT_MOST_MS, LOOK_EVERY_MS
from reconsume.sidecar.core.pace.rates import TopicTerms
from reconsume.sidecar.core.record import Partition, Record
from reconsume.topics.rates import Rate
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, policy, record
from tests.sim.suspect_rigs import died

OTHER, BILLS = Partition("orders", 1), Partition("bills", 0)
LEVEL, READY = Partition("billing-RETRY-10s", 0), Partition("billing-RETRY", 0)
SECOND = Partition("billing-RETRY-30s", 0)
WEIGHT = record(0).weight
ROOM = 64 * WEIGHT
RUN = 8
"""Records in one hand-over."""


class Fetcher:
    """A lane with logs without end, which it reads as a consumer's thread does: where it is not paused, until full."""

    def __init__(
        self,
        *sources: Partition,
        order: OrderBy | None = None,
        concurrency: int = 4,
        terms: Mapping[str, TopicTerms] | None = None,
    ) -> None:
        self.rig = Rig(room=ROOM, concurrency=concurrency, order=order, terms=terms)
        self.rig.assign(*sources)
        self._at, self._heard = dict.fromkeys(sources, 0), 0
        self.read = 0
        """Records that were fetched."""

    def fetch(self, *sources: Partition, value: bytes = b"v") -> None:
        """Hand over records of these partitions in turn, until nothing more is taken."""
        took = True
        while took:
            took = False
            for source in sources:
                took |= self._fetch(source, value)

    def _fetch(self, source: Partition, value: bytes) -> bool:
        rig = self.rig
        for what in rig.fetches[self._heard :]:
            if what[0] == "resume":
                self._at[what[1]] = what[2]  # type: ignore[index,assignment]
        self._heard = len(rig.fetches)
        if rig.lane.memory.full or rig.part(source).paused is not None:
            return False
        begin = self._at[source]
        self._at[source] += RUN
        self.read += RUN
        rig.take(*[self._record(source, offset, value) for offset in range(begin, begin + RUN)])
        return True

    @staticmethod
    def _record(source: Partition, offset: int, value: bytes) -> Record:
        return record(offset, source=source, key=b"%d" % (offset % 7), value=value)

    def load(self, source: Partition) -> float:
        """Return what a partition holds, as a part of the room."""
        return self.rig.part(source).load / ROOM

    def run(self, seconds: int, *sources: Partition) -> None:
        """Let time pass while these partitions are fetched."""
        for _ in range(seconds * 4):
            self.fetch(*sources)
            self.rig.run(250)
            while self.rig.batches:
                self.rig.conclude()


def fast(lane: Fetcher) -> Fetcher:
    """Let a lane be one whose records are done at once."""
    for _ in range(40):
        lane.fetch(ORDERS)
        lane.rig.answer_all()
        lane.rig.run(50)
        while lane.rig.batches:
            lane.rig.conclude()
    assert lane.rig.part(ORDERS).done_a_second > ROOM
    return lane


@pytest.mark.parametrize("order", [None, "key", "partition"])
def test_a_fast_flow_that_hangs_lets_go_of_half_of_the_room_within_a_second(order: OrderBy | None) -> None:
    lane = fast(Fetcher(ORDERS, BILLS, order=order))
    lane.fetch(ORDERS)
    assert lane.rig.lane.memory.full
    lane.rig.run(2 * LOOK_EVERY_MS)
    lane.fetch(ORDERS, BILLS)
    assert lane.load(ORDERS) <= 0.5 + RUN * WEIGHT / ROOM
    assert lane.load(BILLS) > 0


@pytest.mark.parametrize("order", [None, "key", "partition"])
def test_a_hung_flow_takes_no_more_than_half_of_the_room(order: OrderBy | None) -> None:
    lane = Fetcher(ORDERS, BILLS, order=order, concurrency=2 * ROOM // WEIGHT)
    lane.fetch(ORDERS)
    assert lane.load(ORDERS) <= 0.5 + RUN * WEIGHT / ROOM
    lane.fetch(BILLS)
    assert lane.load(BILLS) > 0


def test_what_was_let_go_is_fetched_again_and_each_record_goes_once() -> None:
    lane = fast(Fetcher(ORDERS, BILLS))
    lane.fetch(ORDERS)
    lane.rig.run(2 * LOOK_EVERY_MS)
    for _ in range(400):
        lane.fetch(ORDERS, BILLS)
        lane.rig.answer()
    begun = [sent.record.offset for sent in lane.rig.history if sent.record.source == ORDERS]
    assert sorted(begun) == list(range(len(begun)))
    assert len(begun) > ROOM // WEIGHT, "what was let go came again"


def test_a_record_that_is_let_go_later_passes_over_none_that_is_not_fetched_again_yet() -> None:
    """Given ready records of a level were let go, and one that was not due is let go before they are fetched again."""
    rig = Rig(room=16 * WEIGHT, retry=True)
    rig.assign(LEVEL, READY, SECOND)
    due = [record(offset, source=LEVEL, timestamp=WALL - 10_000, life=life(due_at=WALL)) for offset in range(6)]
    later = record(6, source=LEVEL, timestamp=WALL - 7_200, life=life(due_at=WALL + 2_800))
    rig.take(*due, later)
    rig.take(record(0, source=READY, life=life(due_at=WALL), value=b"x" * ROOM))
    rig.run(600)
    rig.answer(place=3)
    rig.run(600)
    rig.conclude()
    rig.run(600)
    assert rig.fetches[-1][:3] == ("resume", LEVEL, 3)
    for source in (READY, SECOND):
        rig.take(record(1, source=source, timestamp=WALL - 30_000, life=life(due_at=WALL), value=b"x" * ROOM))
    rig.run(2_000)
    rig.answer_all()
    rig.settle()
    assert rig.part(LEVEL).tracker.dropped == {3, 4, 5, 6}
    assert rig.fetches[-1][:3] == ("resume", LEVEL, 3)


def test_due_records_that_are_let_go_do_not_wait_for_the_later_time_of_their_partition() -> None:
    """Given a level is paused until its next record is due, and is out with too much to go on when it lets go."""
    due = [record(offset, source=SECOND, timestamp=WALL - 30_000, life=life(due_at=WALL)) for offset in range(7)]
    rig = Rig(room=16 * due[0].weight, retry=True, concurrency=5)
    rig.assign(SECOND, READY)
    rig.take(*due, record(7, source=SECOND, life=life(due_at=WALL + 30_000)))
    rig.take(record(0, source=READY, life=life(due_at=WALL), value=b"x" * ROOM))
    rig.run(600)
    assert [sent.record.source for sent in rig.sent] == [SECOND] * 4 + [READY]
    assert rig.part(SECOND).tracker.dropped == {4, 5, 6}
    rig.answer(place=4)
    rig.run(20)
    rig.conclude()
    rig.run(1_000)
    assert rig.fetches[-1][:3] == ("resume", SECOND, 4)


def test_topics_divide_half_of_the_room_and_partitions_the_part_of_their_topic() -> None:
    lane = Fetcher(ORDERS, OTHER, BILLS)
    lane.fetch(ORDERS)
    lane.run(4, ORDERS, OTHER, BILLS)
    memory, rig = lane.rig.lane.memory, lane.rig
    assert memory.share_of(rig.part(BILLS)) == ROOM // 4
    assert memory.share_of(rig.part(ORDERS)) == memory.share_of(rig.part(OTHER)) == ROOM // 8
    assert lane.load(BILLS) <= 0.25 + RUN * WEIGHT / ROOM
    assert lane.load(OTHER) <= 0.125 + RUN * WEIGHT / ROOM
    assert not memory.full


def test_a_record_that_is_larger_than_the_share_passes_alone() -> None:
    lane = Fetcher(ORDERS, BILLS)
    lane.fetch(ORDERS)
    lane.run(2, ORDERS)
    lane.rig.take(record(0, source=BILLS, value=b"x" * ROOM))
    assert lane.rig.part(BILLS).load > ROOM
    assert lane.rig.part(BILLS).paused is None


def test_partitions_that_are_done_within_seconds_are_paused_once_at_most_until_that_is_seen() -> None:
    lane = fast(Fetcher(ORDERS, OTHER, BILLS, concurrency=8))
    lane.rig.fetches.clear()
    for _ in range(100):
        lane.fetch(ORDERS, OTHER, BILLS)
        for _ in range(30):
            lane.rig.answer()
        lane.rig.run(100)
    assert Counter(what[:2] for what in lane.rig.fetches if what[0] == "pause").keys() <= {
        ("pause", OTHER),
        ("pause", BILLS),
    }
    assert len([what for what in lane.rig.fetches if what[0] == "pause"]) <= 2


def test_an_instance_with_one_partition_has_the_room_to_itself() -> None:
    lane = Fetcher(ORDERS)
    lane.run(5, ORDERS)
    assert lane.rig.lane.memory.full


def test_a_slow_flow_is_not_read_again_and_again() -> None:
    """A pause drops what the client has fetched: with one for each record a slow flow would be read many times."""
    lane = Fetcher(ORDERS, BILLS)
    for _ in range(400):
        lane.fetch(ORDERS)
        lane.rig.answer()
        lane.rig.run(100)
    done = len(lane.rig.history) - len(lane.rig.sent)
    assert lane.read <= 2 * done + 2 * ROOM // WEIGHT


def test_suspects_are_not_let_go_so_that_their_suspicion_ends() -> None:
    """Given a full lane, then a partition that needs care keeps its records: what is not read yet may be a suspect."""
    rig = Rig(room=1, policy=policy(deaths=3))
    rig.assign(ORDERS, resume=died(1))
    rig.assign(BILLS)
    rig.take_offsets(range(40))
    for _ in range(200):
        rig.run(250)
        while rig.batches:
            rig.conclude()
        assert not rig.part(ORDERS).tracker.dropped
        if rig.sent and rig.clock.steady_ms > 5_000:
            rig.answer()
    assert rig.part(ORDERS).tracker.first == 40


@pytest.mark.parametrize(("taken", "roomy"), [(ROOM // 2 - 1, True), (ROOM // 2, False)])
def test_records_that_are_due_soon_are_held_while_less_than_half_of_the_room_is_taken(
    taken: int, *, roomy: bool
) -> None:
    rig = Rig(room=ROOM)
    rig.assign(ORDERS)
    rig.lane.memory.add(rig.part(), taken)
    assert rig.lane.memory.limit_of(rig.part()).roomy == roomy


def crowded(records: int, *, beside: bytes = b"", terms: Mapping[str, TopicTerms] | None = None) -> Rig:
    """A lane whose service hangs: three records of `orders` are out, and others wait, beside a large one of `bills`."""
    rig = Rig(room=ROOM, terms=terms)
    rig.assign(ORDERS, BILLS)
    rig.take_offsets(range(records))
    if beside:
        rig.take(record(0, source=BILLS, value=beside))
    return rig


@pytest.mark.parametrize(("records", "kept"), [(56, 56), (57, 3)])
def test_what_waits_is_let_go_when_less_than_an_eighth_of_the_room_is_free(records: int, kept: int) -> None:
    rig = crowded(records)
    rig.run(LOOK_EVERY_MS)
    assert rig.part().load == kept * WEIGHT, "what is out stays"


@pytest.mark.parametrize(("records", "kept"), [(16, 16), (17, 3)])
def test_a_partition_keeps_all_of_its_share(records: int, kept: int) -> None:
    rig = crowded(records, beside=b"x" * (50 * WEIGHT))
    rig.run(LOOK_EVERY_MS)
    assert rig.lane.memory.share_of(rig.part()) == 16 * WEIGHT
    assert rig.part().load == kept * WEIGHT


def test_a_topic_that_waits_for_its_limit_keeps_what_fits_in_its_share_to_the_byte() -> None:
    rig = crowded(20, beside=b"x" * (50 * WEIGHT), terms={"orders": TopicTerms(rate=Rate(1, 3_600_000))})
    rig.run(LOOK_EVERY_MS)
    assert rig.part().tracker.dropped == {16, 17, 18, 19}


@pytest.mark.parametrize(("after_ms", "seen"), [(LOOK_AT_MOST_MS - 1, False), (LOOK_AT_MOST_MS, True)])
def test_what_a_partition_gets_done_is_seen_a_tenth_of_a_second_later_while_records_come(
    after_ms: int, *, seen: bool
) -> None:
    rig = crowded(1)
    rig.answer()
    rig.run(after_ms)
    rig.take_offsets([1])
    assert rig.part().done_a_second == (10 * WEIGHT if seen else 0)
