"""No flow fills the room of a lane alone, and a lane whose records are done within seconds pauses nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.pace.rates import TopicTerms
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.progress import SPAN
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.core.room import LOOK_AT_MOST_MS, LOOK_EVERY_MS
from reconsume.topics.rates import Rate
from reconsume.topics.retry_headers import RetryState
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
        if rig.lane.room.is_full_with(0) or rig.part(source).paused is not None:
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
        return self.rig.part(source).throughput.load / ROOM

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
    assert lane.rig.part(ORDERS).throughput.done_a_second > ROOM
    return lane


@pytest.mark.parametrize("order", [None, "key", "partition"])
def test_a_fast_flow_that_hangs_lets_go_of_half_of_the_room_within_a_second(order: OrderBy | None) -> None:
    lane = fast(Fetcher(ORDERS, BILLS, order=order))
    lane.fetch(ORDERS)
    assert lane.rig.lane.room.is_full_with(0)
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
    assert set(rig.part(LEVEL).offsets.to_reread()) == {3, 4, 5, 6}
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
    assert set(rig.part(SECOND).offsets.to_reread()) == {4, 5, 6}
    rig.answer(place=4)
    rig.run(20)
    rig.conclude()
    rig.run(1_000)
    assert rig.fetches[-1][:3] == ("resume", SECOND, 4)


def test_topics_divide_half_of_the_room_and_partitions_the_part_of_their_topic() -> None:
    lane = Fetcher(ORDERS, OTHER, BILLS)
    lane.fetch(ORDERS)
    lane.run(4, ORDERS, OTHER, BILLS)
    memory, rig = lane.rig.lane.room, lane.rig
    assert memory.share_of(rig.part(BILLS)) == ROOM // 4
    assert memory.share_of(rig.part(ORDERS)) == memory.share_of(rig.part(OTHER)) == ROOM // 8
    assert lane.load(BILLS) <= 0.25 + RUN * WEIGHT / ROOM
    assert lane.load(OTHER) <= 0.125 + RUN * WEIGHT / ROOM
    assert not memory.is_full_with(0)


def test_a_record_that_is_larger_than_the_share_passes_alone() -> None:
    lane = Fetcher(ORDERS, BILLS)
    lane.fetch(ORDERS)
    lane.run(2, ORDERS)
    lane.rig.take(record(0, source=BILLS, value=b"x" * ROOM))
    assert lane.rig.part(BILLS).throughput.load > ROOM
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
    assert lane.rig.lane.room.is_full_with(0)


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
        assert not set(rig.part(ORDERS).offsets.to_reread())
        if rig.sent and rig.clock.steady_ms > 5_000:
            rig.answer()
    assert rig.part(ORDERS).offsets.first == 40


@pytest.mark.parametrize(("taken", "roomy"), [(ROOM // 2 - 1, True), (ROOM // 2, False)])
def test_records_that_are_due_soon_are_held_while_less_than_half_of_the_room_is_taken(
    taken: int, *, roomy: bool
) -> None:
    rig = Rig(room=ROOM)
    rig.assign(ORDERS)
    rig.lane.room.add_bytes(rig.part(), taken)
    assert rig.lane.room.limit_of(rig.part()).roomy == roomy


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
    assert rig.part().throughput.load == kept * WEIGHT, "what is out stays"


@pytest.mark.parametrize(("records", "kept"), [(16, 16), (17, 3)])
def test_a_partition_keeps_all_of_its_share(records: int, kept: int) -> None:
    rig = crowded(records, beside=b"x" * (50 * WEIGHT))
    rig.run(LOOK_EVERY_MS)
    assert rig.lane.room.share_of(rig.part()) == 16 * WEIGHT
    assert rig.part().throughput.load == kept * WEIGHT


def test_a_topic_that_waits_for_its_limit_keeps_what_fits_in_its_share_to_the_byte() -> None:
    rig = crowded(20, beside=b"x" * (50 * WEIGHT), terms={"orders": TopicTerms(rate=Rate(1, 3_600_000))})
    rig.run(LOOK_EVERY_MS)
    assert set(rig.part().offsets.to_reread()) == {16, 17, 18, 19}


@pytest.mark.parametrize(("after_ms", "seen"), [(LOOK_AT_MOST_MS - 1, False), (LOOK_AT_MOST_MS, True)])
def test_what_a_partition_gets_done_is_seen_a_tenth_of_a_second_later_while_records_come(
    after_ms: int, *, seen: bool
) -> None:
    rig = crowded(1)
    rig.answer()
    rig.run(after_ms)
    rig.take_offsets([1])
    assert rig.part().throughput.done_a_second == (10 * WEIGHT if seen else 0)


# --- what is kept back in memory has a quarter of the room, whatever the shares: other keys go on (5.3 ---------------


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

    def give(self, source: Partition, count: int) -> None:
        part = self.rig.part(source)
        if part.paused is None and not self.rig.lane.room.is_full_with(0):
            begin, self.read = part.offsets.unread, self.read + count
            self.rig.take(*(self.one(source, offset) for offset in range(begin, begin + count)))

    @staticmethod
    def one(source: Partition, offset: int) -> Record:
        """The record at an offset: the first ones of the first partition have one key."""
        return record(offset, source=source, key=BAD if source == FIRST and offset < KEPT else b"%d" % offset)

    def run(self, seconds: int) -> None:
        """Let time pass; as a consumer does, the lane begins with another partition each time."""
        for turn in range(seconds * 10):
            for source in SOURCES[turn % 4 :] + SOURCES[: turn % 4]:
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
    lane.give(FIRST, KEPT)


def retried(lane: Busy) -> None:
    lane.give(FIRST, KEPT)
    lane.rig.answer(Failed("http-500", delay=600_000))


@pytest.mark.parametrize("keep", [held, retried])
def test_other_keys_of_its_partition_go_on_where_the_lane_is_full(keep: Callable[[Busy], None]) -> None:
    lane = Busy()
    keep(lane)
    assert lane.rig.part(FIRST).throughput.load > ROOM // 8
    lane.run(5)
    before = lane.went()
    lane.run(10)
    assert lane.went() > before + 40
    assert lane.rig.part(FIRST).throughput.load <= ROOM // 4 + 8 * WEIGHT


@pytest.mark.parametrize("keep", [held, retried])
def test_they_are_not_fetched_again_and_again(keep: Callable[[Busy], None]) -> None:
    lane = Busy()
    keep(lane)
    lane.run(15)
    assert lane.read <= 2 * len(lane.rig.history) + 4 * ROOM // WEIGHT


# --- A partition far beyond its hung record is a flow like any other: it goes on, and holds no more than -------------


HUNG, FAR = 0, SPAN + SPAN // 4


def beyond_a_hung_record(lane: Fetcher, last: int) -> None:
    """Read and answer the records of a partition up to `last`, all but the first one, as fast as they come."""
    rig = lane.rig
    while rig.part().offsets.next < last:
        lane.fetch(ORDERS)
        while len(rig.sent) > 1:
            rig.answer(place=1)
        rig.run(50)
        while rig.batches:
            rig.conclude()


@pytest.fixture
def lane() -> Fetcher:
    lane = Fetcher(ORDERS, BILLS, concurrency=8)
    lane.rig.whole = False
    beyond_a_hung_record(lane, FAR)
    lane.rig.whole = True
    return lane


def begun(lane: Fetcher) -> list[int]:
    """The offsets of the partition that went out, in their order."""
    return [sent.record.offset for sent in lane.rig.history if sent.record.source == ORDERS]


def test_a_partition_goes_on_far_beyond_its_hung_record_beside_another_topic(lane: Fetcher) -> None:
    turns = 0
    while not (len(begun(lane)) > FAR + ROOM // WEIGHT and lane.rig.part(BILLS).offsets.next > ROOM // WEIGHT):
        turns += 1
        assert turns <= 200
        lane.fetch(ORDERS, BILLS)
        while len(lane.rig.sent) > 1:
            lane.rig.answer(place=1)
        lane.rig.run(50)
        while lane.rig.batches:
            lane.rig.conclude()
    assert begun(lane) == list(range(len(begun(lane))))


def test_where_all_of_it_hangs_it_lets_go_of_what_is_above_its_share_and_begins_that_again(lane: Fetcher) -> None:
    """Given a partition far beyond its hung record, when nothing of it ends any more, then another topic gets room.
    When its records end again, then each has gone out once, and the progress passes over none of them."""
    lane.fetch(ORDERS)
    assert lane.rig.lane.room.is_full_with(0)
    lane.run(2, ORDERS, BILLS)
    assert lane.load(ORDERS) <= 0.5 + RUN * WEIGHT / ROOM
    assert lane.load(BILLS) > 0
    assert set(lane.rig.part().offsets.to_reread()), "the test is about records that are let go"
    for _ in range(400):
        lane.fetch(ORDERS, BILLS)
        if len(lane.rig.sent) > 1:
            lane.rig.answer(place=1)
    assert sorted(begun(lane)) == list(range(len(begun(lane)))), "each of them, once"
    assert len(begun(lane)) > FAR + 100
    progress = lane.rig.settle()[-1].commits[ORDERS].progress
    out = {sent.record.offset for sent in lane.rig.sent if sent.record.source == ORDERS}
    assert progress.next == HUNG
    assert OffsetRanges.of(progress.done).end <= lane.rig.part().offsets.next
    assert not out & set(OffsetRanges.of(progress.done).within(FAR, lane.rig.part().offsets.next))


def test_what_was_let_go_is_open_in_the_progress_once_the_hung_record_has_ended(lane: Fetcher) -> None:
    lane.fetch(ORDERS)
    lane.run(2, ORDERS, BILLS)
    for sent in list(lane.rig.sent):
        if sent.record.source == ORDERS:
            lane.rig.answer(place=lane.rig.sent.index(sent))
    dropped = set(lane.rig.part().offsets.to_reread())
    progress = next(batch.commits[ORDERS].progress for batch in lane.rig.settle() if ORDERS in batch.commits)
    assert HUNG < progress.next <= min(dropped)
    assert [offset for offset in dropped if progress.covers(offset)] == []


# --- topics whose own limit keeps them waiting fill no lane: each lets go of what is above its share of --------------


SLOW = tuple(Partition(f"slow{number}", 0) for number in range(4))
FAST = Partition("fast", 0)
ONE_AN_HOUR = TopicTerms(rate=Rate(1, 3_600_000))
FIVE_A_SECOND = TopicTerms(rate=Rate(5, 1_000))
DELAYS = tuple(range(1_000, 7_000, 1_000))


def backlogs(term: TopicTerms, order: OrderBy | None = None) -> Fetcher:
    """A lane in which one topic after the other had a backlog, none of which went."""
    lane = Fetcher(*SLOW, FAST, order=order, concurrency=8, terms={one.topic: term for one in SLOW})
    for one in SLOW:
        lane.run(1, one)
    return lane


@pytest.mark.parametrize("order", [None, "key", "partition"])
@pytest.mark.parametrize("term", [ONE_AN_HOUR, TopicTerms(concurrency=1)])
def test_backlogs_of_topics_that_wait_for_their_limits_leave_room_for_another(
    term: TopicTerms, order: OrderBy | None
) -> None:
    lane = backlogs(term, order)
    lane.run(1, *SLOW, FAST)
    assert {sent.record.source for sent in lane.rig.history} >= {FAST}
    assert not lane.rig.lane.room.is_full_with(0)
    share = lane.rig.lane.room.share_of(lane.rig.part(SLOW[0])) / ROOM
    assert max(map(lane.load, SLOW)) <= share + RUN * WEIGHT / ROOM


def test_what_rests_is_not_read_again_and_again() -> None:
    lane = backlogs(ONE_AN_HOUR)
    lane.run(2, *SLOW)
    read = lane.read
    lane.run(60, *SLOW)
    assert lane.read <= read + RUN


@pytest.mark.parametrize("order", [None, "key", "partition"])
def test_what_was_let_go_comes_again_and_each_record_goes_once_in_its_turn(order: OrderBy | None) -> None:
    lane = backlogs(FIVE_A_SECOND, order)
    for _ in range(120):
        lane.fetch(*SLOW)
        lane.rig.answer_all()
        lane.rig.run(250)
        while lane.rig.batches:
            lane.rig.conclude()
    for one in SLOW:
        begun = [sent.record.offset for sent in lane.rig.history if sent.record.source == one]
        assert begun == list(range(len(begun)))
        assert len(begun) > 130, "five a second, for half a minute"


def test_a_record_that_is_larger_than_the_share_stays_and_goes_when_its_limit_allows() -> None:
    lane = Fetcher(*SLOW, terms={one.topic: ONE_AN_HOUR for one in SLOW})
    for one in SLOW:
        lane.rig.take(record(0, source=one, value=b"x" * (ROOM // 3)))
    lane.rig.run(10_000)
    assert not [one for one in SLOW if set(lane.rig.part(one).offsets.to_reread())]
    lane.rig.run(3_600_000)
    assert len(lane.rig.sent) == 4


def test_retries_of_a_topic_that_waits_for_its_rate_leave_room_in_the_levels() -> None:
    terms = {"slow": ONE_AN_HOUR}
    rig = Rig(policy=policy(topics=("slow", "fast"), table=DELAYS), retry=True, room=ROOM, terms=terms)
    levels = [Partition(f"billing-RETRY-{delay // 1_000}s", 0) for delay in DELAYS]
    rig.assign(*levels)
    past = WALL - 60_000
    for level in levels:
        at = 0
        while not (rig.lane.room.is_full_with(0) or rig.part(level).paused):
            state = RetryState(f"slow:0:{at}", "slow", 1, past)
            rig.take(record(at, source=level, timestamp=past, life=state))
            at += 1
            rig.run(100)
    rig.run(1_000)
    assert not rig.lane.room.is_full_with(0)
