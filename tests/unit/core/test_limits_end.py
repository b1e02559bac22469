"""Every limit of a lane ends with its cause: after any story of failures, throttles and refusals all partitions go on.

The exceptions of a story may last: one copy that Kafka never accepts, and one delivery that is never answered. They
keep back nothing but themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.fetching import CHECK_ROOM_EVERY_MS
from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent, Outcome, Rejected, Throttled
from reconsume.sidecar.core.pace.pace import AWAY, PROBE_INTERVAL_MS, SLOW_FOR_MS, State
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import NEVER, Partition, Record
from reconsume.sidecar.core.room import REFUSED_SHARE
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record

ROOM = 64 << 10
PARTS = [Partition("orders", number) for number in range(4)]
BIG, SMALL = 9_000, 10
"""Bytes of a value. A big one is more than the share of a partition in an outage."""
RUN = 8
"""Records in one hand-over."""
KINDS = ("topic", "partition", "record", "again")


class Kept(NamedTuple):
    """What lasts: the record (partition, offset) whose copies are refused for ever, and the one that gets no answer."""

    refused: tuple[int, int] | None
    out: tuple[int, int] | None


class Consumer:
    """A lane with a log for each partition, which it reads as a consumer's thread does."""

    def __init__(self, order: OrderBy | None, kept: Kept) -> None:
        rules = samples.policy() if order is None else replace(samples.policy(), in_place=InPlace(700, 2))
        self.rig = Rig(policy=rules, concurrency=8, failures=3, room=ROOM, order=order)
        self.rig.assign(*PARTS)
        self.logs: dict[Partition, list[Record]] = {source: [] for source in PARTS}
        self.kept = kept
        self._position = dict.fromkeys(PARTS, 0)
        self._heard = 0
        self.most = 0
        """Bytes that the lane had in memory at most."""

    def produce(self, number: int, sizes: list[int]) -> None:
        log = self.logs[PARTS[number]]
        for size in sizes:
            log.append(record(len(log), source=PARTS[number], key=b"%d" % (len(log) % 3), value=b"x" * size))

    def fetch(self, number: int) -> None:
        source, rig = PARTS[number], self.rig
        for what in rig.fetches[self._heard :]:
            if what[0] == "resume":
                self._position[what[1]] = what[2]  # type: ignore[index,assignment]
        self._heard = len(rig.fetches)
        rows = self.logs[source][self._position[source] : self._position[source] + RUN]
        if rows and not rig.lane.room.is_full_with(0) and rig.part(source).paused is None:
            self._position[source] = rows[-1].offset + 1
            rig.take(*rows)
        self.most = max(self.most, rig.lane.room.load)

    def answer(self, outcome: Outcome) -> bool:
        """Answer the oldest delivery that is ever answered; return False if there is none."""
        for place, sent in enumerate(self.rig.sent):
            if self._is(sent.record, self.kept.out):
                continue
            self.rig.answer(Rejected("no") if self._is(sent.record, self.kept.refused) else outcome, place)
            return True
        return False

    def conclude(self, kind: str | None) -> None:
        """End the batch that is out: Kafka takes it, or refuses it in some way."""
        if not self.rig.batches:
            return
        entries = self.rig.batches[0].entries
        refused = entries if kind in ("topic", "partition", "record") else ()
        lasting = [entry for entry in entries if self._is(entry.record, self.kept.refused)]
        if kind == "again":
            self.rig.conclude(again=[])
        elif refused or lasting:
            about = kind or "record"
            self.rig.conclude(refused=[(e, "record" if e in lasting else about) for e in refused or lasting])
        else:
            self.rig.conclude()

    def heal(self, seconds: int) -> None:
        """Let the service and Kafka be well for a while."""
        for _ in range(seconds * 4):
            for number in range(len(PARTS)):
                self.fetch(number)
            while self.answer(COMMITTED):
                pass
            self.rig.run(250)
            while self.rig.batches:
                self.conclude(None)

    def open_offsets(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the offset of each record that is not done."""
        for number, source in enumerate(PARTS):
            done = self.rig.part(source).offsets
            yield from ((number, one.offset) for one in self.logs[source] if not done.is_done(one.offset))

    def is_full_of_what_waits(self, number: int) -> bool:
        """Whether a partition stands because what waits behind its kept records takes half of its share or more."""
        part = self.rig.part(PARTS[number])
        stands = part.paused is not None and part.paused.because is NotFetched.SHARE
        return stands and number in {one[0] for one in self.kept if one} and not self.rig.lane.room.lets_go_on(part)

    @staticmethod
    def _is(one: Record, place: tuple[int, int] | None) -> bool:
        return place is not None and (one.source, one.offset) == (PARTS[place[0]], place[1])


NUMBERS = st.integers(0, len(PARTS) - 1)
OUTCOMES = st.sampled_from((COMMITTED, Failed("http-500"), Rejected("no"), Throttled(500), NotSent("refused")))
STEPS = st.one_of(
    st.tuples(st.just("produce"), NUMBERS, st.lists(st.sampled_from((SMALL, BIG)), min_size=1, max_size=8)),
    st.tuples(st.just("fetch"), NUMBERS),
    st.tuples(st.just("answer"), OUTCOMES, st.integers(1, 8)),
    st.tuples(st.just("run"), st.sampled_from((20, 250, 2_000))),
    st.tuples(st.just("conclude"), st.sampled_from((None, *KINDS))),
)
PLACES = st.none() | st.tuples(NUMBERS, st.integers(0, 9))


def live(consumer: Consumer, steps: list[tuple[object, ...]]) -> None:
    """Go through the steps of a story."""
    for step in steps:
        match step:
            case ("produce", int(number), list(sizes)):
                consumer.produce(number, sizes)
            case ("fetch", int(number)):
                consumer.fetch(number)
            case ("answer", outcome, int(count)):
                for _ in range(count):
                    consumer.answer(outcome)  # type: ignore[arg-type]
            case ("run", int(ms)):
                consumer.rig.run(ms)
            case (_, kind):
                consumer.conclude(kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [None, "key"])
@settings(deadline=None, max_examples=20)
@given(st.lists(STEPS, max_size=60), PLACES, PLACES)
@example([("produce", 2, [BIG] * 6)], None, (2, 5))  # more than its share behind a record that hangs
@example([("produce", 0, [SMALL] * 12 + [BIG] + [SMALL] * 2)], (0, 0), (0, 1))  # half of the room behind two of them
def test_after_any_story_all_partitions_go_on_and_only_what_lasts_is_left(
    order: OrderBy | None, steps: list[tuple[object, ...]], refused: tuple[int, int] | None, out: tuple[int, int] | None
) -> None:
    kept = Kept(refused, None if out == refused else out)
    consumer = Consumer(order, kept)
    live(consumer, [("produce", number, [SMALL, BIG, *[SMALL] * 8]) for number in range(len(PARTS))])
    live(consumer, [("fetch", number) for number in range(len(PARTS))])
    live(consumer, steps)
    consumer.heal(60)
    assert consumer.rig.gate.pace.state not in AWAY
    left = set(consumer.open_offsets())
    behind = {place for place in left for one in kept if one and place[0] == one[0] and place[1] % 3 == one[1] % 3}
    full = {number for number in range(len(PARTS)) if order and consumer.is_full_of_what_waits(number)}
    assert left <= (behind | {one for one in left if one[0] in full} if order else {place for place in kept if place})
    for number, source in enumerate(PARTS):
        if number in full:
            continue
        part = consumer.rig.part(source)
        assert (part.paused, part.blocked, consumer.rig.lane.shown.waiting()) == (None, "", 0), source
    assert consumer.most <= ROOM + ROOM // REFUSED_SHARE + RUN * (BIG + 2_048)


def slow(rig: Rig, on: bool) -> None:
    rig.gate.pace.outage.slowed = on


def retry(rig: Rig, on: bool, sources: Collection[Partition] = PARTS[:2]) -> None:
    for source in PARTS:
        rig.part(source).offsets.tried = int(on and source in sources)


def refuse(rig: Rig, on: bool) -> None:
    rig.lane.room.set_refused(Counter({PARTS[3]: ROOM} if on else {}))


CAUSES = {"an outage": (slow, ROOM // 8), "retries": (retry, ROOM // 8), "refusals": (refuse, ROOM // 16)}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_limit_is_there_with_its_cause_and_gone_with_it(cause: str) -> None:
    """Four partitions: each may have half of its share, and two with a retry share a quarter."""
    turn, most = CAUSES[cause]
    rig = Rig(room=ROOM, order="key")
    rig.assign(*PARTS)
    part = rig.part(PARTS[0])
    for on in (True, False, True):
        turn(rig, on)
        limit = rig.lane.room.limit_of(part)
        assert (limit.most, limit.because) == ((most, NotFetched.MEMORY) if on else (NEVER, NotFetched.DISTANCE))
        part.throughput.load = most + 1
        assert rig.lane.room.lets_go_on(part) == (not on)
        part.throughput.load = most * 3 // 4
        assert rig.lane.room.lets_go_on(part)


def test_more_partitions_that_retry_make_the_share_of_each_smaller_and_fewer_make_it_larger() -> None:
    rig = Rig(room=ROOM, order="key")
    rig.assign(*PARTS)
    seen = []
    for retrying in (1, 4, 2):
        retry(rig, True, PARTS[:retrying])
        seen.append(rig.lane.room.limit_of(rig.part(PARTS[0])).most)
    assert seen == [ROOM // 4, ROOM // 16, ROOM // 8]


def test_a_partition_that_an_outage_paused_goes_on_within_a_second_of_its_end_behind_a_slow_record() -> None:
    consumer = Consumer(None, Kept(None, (0, 0)))
    consumer.produce(0, [BIG, SMALL])
    live(consumer, [("produce", number, [SMALL] * 20) for number in (1, 2, 3)])
    consumer.rig.take(consumer.logs[PARTS[0]][0])
    live(consumer, [("fetch", number) for number in (1, 2, 3)])
    live(consumer, [("answer", Failed("http-500"), 8)])
    assert consumer.rig.gate.pace.slowed
    consumer.rig.take(consumer.logs[PARTS[0]][1])
    assert consumer.rig.part(PARTS[0]).paused is not None
    consumer.rig.run(1_000)
    while consumer.rig.gate.pace.slowed:
        consumer.answer(COMMITTED)
    consumer.rig.run(CHECK_ROOM_EVERY_MS)
    assert consumer.rig.part(PARTS[0]).paused is None


def test_a_slow_start_without_records_slows_no_partition_for_long() -> None:
    """The limit in flight grows by answers alone, so it may stay below the full number for days."""
    rig = Rig(concurrency=256, failures=3)
    rig.assign(*PARTS)
    for number in range(3):
        rig.take(record(0, source=PARTS[number]))
    while rig.sent:
        rig.answer(Failed("http-500"))
    rig.settle()
    rig.take(record(0, source=PARTS[3]))
    while rig.sent:
        rig.answer(COMMITTED)
    assert (rig.gate.pace.state, rig.gate.pace.slowed) == (State.OPEN, True)
    rig.take(record(1, source=PARTS[3]))  # is not answered: the lane is woken while it is out
    rig.run(SLOW_FOR_MS + 1_000)
    assert rig.gate.pace.limit < rig.gate.pace.full
    assert not rig.gate.pace.slowed


# --- while answered failures slow it down, one partition may not fill the lane's memory for all others ---------------


FAILS = Failed("http-500")
OTHER = Partition("orders", 1)
WEIGHT = record(0).weight


def slowed(room: int) -> Rig:
    """Two partitions, and a row of failures in the first."""
    rig = Rig(concurrency=4, failures=3, room=room)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(range(4))
    while rig.sent:
        rig.answer(FAILS)
    rig.settle()
    assert rig.gate.pace.slowed
    return rig


def test_a_partition_with_more_than_half_its_share_is_parked_and_the_others_are_not() -> None:
    rig = slowed(room=16 * WEIGHT)
    rig.take_offsets(range(4, 20))
    rig.take_offsets(range(3), OTHER)
    parked = rig.part().paused
    assert parked is not None
    assert (parked.because, parked.offset) == (NotFetched.MEMORY, 9)  # five are more than 16 / 4
    assert rig.part(OTHER).paused is None


def test_it_goes_on_when_a_quarter_of_that_is_free_again() -> None:
    rig = slowed(room=16 * WEIGHT)
    rig.take_offsets(range(4, 20))
    while rig.part().paused is not None:
        rig.run(PROBE_INTERVAL_MS)
        rig.answer_all(FAILS)
        rig.settle()
    assert 2 * WEIGHT <= rig.part().throughput.load <= 3 * WEIGHT
    assert ("resume", ORDERS, 9, 1) in rig.fetches


def test_an_open_pace_and_a_service_that_is_away_park_nothing() -> None:
    rig = Rig(concurrency=4, failures=3, room=16 * WEIGHT)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(range(6))
    assert rig.part().paused is None
    rig.answer(NotSent("refused"))
    rig.take_offsets(range(6, 12))
    assert rig.part().paused is None


def test_what_is_in_memory_already_stays_and_is_delivered() -> None:
    rig = Rig(concurrency=4, failures=3, room=16 * WEIGHT)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(range(12))
    for _ in range(4):
        rig.answer(FAILS)
    rig.settle()
    assert rig.gate.pace.slowed
    rig.run(PROBE_INTERVAL_MS)
    while rig.sent:
        rig.answer(COMMITTED)
    assert {sent.record.offset for sent in rig.history} == set(range(12))
