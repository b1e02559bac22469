"""Which partitions are fetched, and from where: not before a level is over, nor beyond the bound (2.3, 2.6, 7.2)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.fetching import HOLD_WITHIN_MS, RESUME_EARLY_MS
from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.outcome import COMMITTED, NACKED, Failed, Throttled
from reconsume.sidecar.core.partition import FetchedRecords
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import SPAN, Progress
from reconsume.sidecar.core.progress_codec import decode, encode
from reconsume.sidecar.core.record import NEVER, Partition, Record
from reconsume.topics.levels import LONGEST, TABLE
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Hop, Retry
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, policy, record

TEN = Partition("billing-RETRY-10s", 0)
HOURS = Partition("billing-RETRY-2h", 0)
READY = Partition("billing-RETRY", 0)


def on_level(*records: Record, **options: int) -> Rig:
    rig = Rig(retry=True, **options)  # type: ignore[arg-type]
    rig.assign(records[0].source)
    rig.take(*records)
    return rig


def waiting(offset: int = 0, appended: int = WALL, source: Partition = TEN, due_at: int = WALL) -> Record:
    return record(offset, source=source, timestamp=appended, life=life(due_at=due_at))


def test_a_far_off_head_parks_its_partition_and_is_fetched_again_a_little_early() -> None:
    rig = on_level(waiting(5), waiting(6))
    assert rig.fetches == [("pause", TEN)]
    assert rig.lane.room.taken == 0  # only the offset is kept
    rig.run(10_000 - RESUME_EARLY_MS - 1)
    assert rig.fetches == [("pause", TEN)]
    rig.run(1)
    assert rig.fetches == [("pause", TEN), ("resume", TEN, 5, 1)]
    rig.take(waiting(5), waiting(6))
    rig.run(RESUME_EARLY_MS - 1)
    assert not rig.sent
    rig.run(1)
    assert rig.out_offsets() == [5, 6]


def test_each_parked_partition_goes_on_at_its_own_time() -> None:
    rig = on_level(waiting(5, source=TEN))
    minute = Partition("billing-RETRY-1m", 0)
    for source in (HOURS, minute):
        rig.assign(source)
        rig.take(waiting(5, source=source))
    for source, delay in ((TEN, 10_000), (minute, 60_000), (HOURS, 7_200_000)):
        rig.run(delay - RESUME_EARLY_MS - 10 - rig.now.steady_ms)
        assert ("resume", source, 5, 1) not in rig.fetches
        rig.run(10)
        assert ("resume", source, 5, 1) in rig.fetches


def test_each_pause_of_a_partition_has_a_seek_count_of_its_own() -> None:
    rig = on_level(waiting(5))
    rig.run(10_000)
    rig.take(waiting(5), waiting(6, WALL + 10_000))
    rig.run(20_000)
    assert [what for what in rig.fetches if what[0] == "resume"] == [("resume", TEN, 5, 1), ("resume", TEN, 6, 2)]


def test_what_was_fetched_before_the_seek_is_dropped() -> None:
    rig = on_level(waiting(5))
    rig.take(waiting(6), turn=0)  # was on its way when the partition was parked
    rig.run(10_000 - RESUME_EARLY_MS)
    rig.take(waiting(6), turn=0)  # still from before
    rig.take(waiting(5), waiting(6), turn=1)
    rig.run(20_000)
    assert rig.out_offsets() == [5, 6]


def test_a_near_head_waits_in_memory() -> None:
    rig = on_level(waiting(0, WALL - 10_000 + HOLD_WITHIN_MS))
    assert not rig.fetches
    rig.run(HOLD_WITHIN_MS - 1)
    assert not rig.sent
    rig.run(1)
    assert rig.out_offsets() == [0]


def test_with_little_room_only_what_is_due_at_once_is_kept() -> None:
    rig = on_level(waiting(0, WALL - 10_000 + HOLD_WITHIN_MS), room=1)
    assert rig.fetches == [("pause", TEN)]


def test_records_before_the_far_off_head_are_taken_up() -> None:
    rig = on_level(waiting(0, WALL - 10_000), waiting(1, WALL - 9_000), waiting(2, WALL))
    assert rig.out_offsets() == [0]
    rig.run(1_000)
    assert rig.out_offsets() == [0, 1]
    assert rig.part(TEN).paused is not None


def test_what_is_done_already_does_not_park_its_partition() -> None:
    rig = Rig(retry=True)
    rig.assign(TEN, resume=Progress(4, frozenset({5})))
    rig.take(waiting(4, WALL - 10_000), waiting(5), end=6)
    assert not rig.fetches
    rig.answer()
    rig.settle()
    assert rig.part(TEN).offsets.snapshot() == Progress(6)


@settings(deadline=None)
@given(
    st.sampled_from([READY, TEN, HOURS]),
    st.integers(-20_000, 20_000),
    st.integers(-8_000_000, 8_000_000),
    st.lists(st.integers(-4_000, 4_000), max_size=3),
)
def test_a_level_never_delivers_early_and_always_delivers(
    source: Partition, appended: int, due: int, clock_steps: list[int]
) -> None:
    rig = Rig(retry=True)
    rig.assign(source)
    lone = record(0, source=source, timestamp=WALL + appended, life=life(due_at=WALL + due))
    rig.take(lone)
    for turn in range(40_000):
        if rig.sent or rig.lane.machines.commits.in_flight is not None:
            break
        if turn < len(clock_steps):
            rig.clock.behind += clock_steps[turn]
        rig.run(max(0, rig.wake_at - rig.now.steady_ms))
        if rig.fetches and rig.fetches.pop()[0] == "resume":
            rig.take(lone)
    wait = samples_wait(source)
    stepped = sum(map(abs, clock_steps))
    assert rig.now.steady_ms >= min(wait, appended + wait) - stepped
    if rig.sent:
        assert rig.now.wall_ms >= WALL + due
    else:  # it hops on, since it is due later still
        assert rig.lane.machines.commits.in_flight is not None
        assert rig.lane.machines.commits.in_flight.entries[0].writes[0].topic.startswith("billing-RETRY-")
        assert rig.now.wall_ms < WALL + due


def samples_wait(source: Partition) -> int:
    return {READY: 0, TEN: 10_000, HOURS: 7_200_000}[source]


def test_a_record_that_is_due_much_later_hops_to_the_longest_level_that_fits() -> None:
    rig = on_level(waiting(0, WALL - 10_000, due_at=WALL + 61_000))
    batch = rig.settle()[0]
    assert [copy.topic for copy in batch.entries[0].writes] == ["billing-RETRY-1m"]
    assert not rig.history
    assert rig.lane.counters.hops == 1
    assert rig.lane.room.taken == 0


def test_a_rest_below_every_level_is_waited_for_in_memory() -> None:
    rig = on_level(waiting(0, WALL - 10_000, due_at=WALL + 700))
    rig.run(699)
    assert not rig.sent
    rig.run(1)
    assert rig.out_offsets() == [0]


def test_a_clock_set_back_does_not_prolong_a_wait_in_memory() -> None:
    rig = on_level(waiting(0, WALL - 8_000, due_at=0))
    rig.clock.behind = 3_600_000
    rig.run(2_000)
    assert rig.out_offsets() == [0]


def test_lateness_is_measured_from_when_it_was_due() -> None:
    rig = on_level(waiting(0, WALL - 10_040, due_at=WALL - 40))
    assert (rig.lane.counters.lateness.total, len(rig.sent)) == (40, 1)


def test_a_try_in_place_is_not_late_once_more() -> None:
    rig = on_level(waiting(0, WALL - 10_040, due_at=WALL - 40))
    rig.answer(NACKED)
    rig.run(10 * 60_000)
    assert rig.out_offsets() == [0]
    assert (rig.lane.counters.lateness.total, sum(rig.lane.counters.lateness.counts)) == (40, 1)


def test_markers_at_the_end_of_a_level_are_committed_as_passed() -> None:
    rig = on_level(waiting(0, WALL - 10_000))
    rig.answer(COMMITTED)
    rig.settle()
    rig.take(waiting(2, WALL - 10_000), end=4)
    rig.answer(COMMITTED)
    assert rig.settle()[-1].commits[TEN].progress == Progress(4)


# --- the span --------------------------------------------------------------------------------------------------------


def test_a_partition_at_its_bound_is_parked_and_goes_on_when_a_quarter_is_free() -> None:
    rig = Rig(concurrency=SPAN, room=1 << 30)
    rig.assign(ORDERS)
    rig.take_offsets(range(SPAN + 10))
    assert len(rig.sent) == SPAN
    assert rig.fetches == [("pause", ORDERS)]
    for _ in range(SPAN // 4 - 1):
        rig.answer()
    assert len(rig.fetches) == 1
    rig.answer()
    assert rig.fetches[1:] == [("resume", ORDERS, SPAN, 1)]


@pytest.mark.parametrize("gap", [SPAN * 3 // 4 + 1, SPAN, 10 * SPAN])
def test_a_great_gap_in_the_log_does_not_stop_a_partition(gap: int) -> None:
    rig = Rig(policy=policy(), room=1 << 30)
    rig.assign(ORDERS)
    rig.take_offsets([0])
    rig.take_offsets([1 + gap])
    rig.answer_all()
    if rig.fetches:  # it may wait at its bound for what is open
        assert rig.fetches == [("pause", ORDERS), ("resume", ORDERS, 1 + gap, 1)]
        rig.take_offsets([1 + gap])
        rig.answer_all()
    assert rig.settle()[-1].commits[ORDERS].progress == Progress(2 + gap)


@pytest.mark.parametrize("gap", [SPAN * 3 // 4 + 1, 10 * SPAN])
def test_a_great_gap_before_a_head_that_is_not_due_does_not_keep_it_parked(gap: int) -> None:
    rig = on_level(waiting(gap))
    rig.run(10_000)
    assert ("resume", TEN, gap, 1) in rig.fetches


def test_a_broker_whose_clock_is_ahead_does_not_prolong_a_level() -> None:
    """A level of 10 s waited 610 s: at each fetch the wait began anew. Due by the sidecar's clock after 10 s."""
    records = [waiting(offset, WALL + 600_000 + offset, due_at=WALL + 10_000) for offset in range(3)]
    rig = on_level(*records)
    turn = 0
    for _ in range(60):
        rig.run(1_000)
        if rig.part(TEN).paused is None and rig.part(TEN).seek_count > turn:
            turn = rig.part(TEN).seek_count
            rig.take(*records)
        rig.answer_all()
    assert [sent.record.offset for sent in rig.history] == [0, 1, 2]
    assert min(sent.at for sent in rig.history) >= 10_000
    assert max(sent.at for sent in rig.history) <= 13_000


def test_a_backlog_that_was_there_at_the_first_look_does_not_wait_a_level_for_each_run() -> None:
    """Of a broker whose clock is ahead: the high watermark says that the records behind the head are there too."""
    backlog = [waiting(offset, WALL + 600_000, due_at=WALL) for offset in range(40)]
    rig = Rig(retry=True)
    rig.assign(TEN)
    turn = -1
    for _ in range(30):
        part = rig.part(TEN)
        if part.paused is None and part.seek_count > turn:
            turn = part.seek_count
        while part.paused is None and part.offsets.next < 40:
            first = part.offsets.next
            run = FetchedRecords(TEN, 1, part.seek_count, backlog[first : first + 10], high=40)
            rig.lane.received([run], rig.now)
        rig.run(1_000)
        rig.answer_all()
    assert len(rig.history) == 40
    assert max(sent.at for sent in rig.history) <= 14_000


def test_a_broker_whose_clock_is_behind_does_not_make_a_record_hop_without_a_pause() -> None:
    """By its time the level is over at once, while the record is not due: it hopped thirty times a second."""
    rig = Rig(retry=True)
    rig.assign(TEN)
    rig.lane.received([FetchedRecords(TEN, 1, 0, [], end=5)], rig.now)
    rig.take(waiting(5, WALL - 600_000, due_at=WALL + 10_000))
    rig.run(5_000)
    assert not rig.sent
    assert rig.part(TEN).paused is not None
    assert not [batch for batch in rig.batches if batch.entries]


HALF, HOUR = 1_800_000, 3_600_000
LONG = policy(ladder=(HOUR,), table=(HOUR,))


def asked_for_half_an_hour(offset: int) -> Record:
    """A copy with `delay=30m` where the shortest level is an hour: it waits in the ready topic."""
    return replace(waiting(offset, WALL, READY, WALL + HALF), value=b"")


def test_what_waits_below_the_shortest_level_never_fills_the_lanes_room() -> None:
    """Given 500 of them, then one that is due is delivered at once, and in front of the level nothing is early."""
    weight = asked_for_half_an_hour(0).weight
    rig = Rig(policy=LONG, retry=True, room=100 * weight)
    rig.assign(READY)
    for start in range(0, 500, 50):
        rig.take(*(asked_for_half_an_hour(offset) for offset in range(start, start + 50)))
    rig.take(waiting(500, WALL, READY, WALL))
    assert rig.out_offsets() == [500]
    rig.answer_all()
    hops = [entry for batch in rig.settle() for entry in batch.entries if isinstance(entry.decision, Hop)]
    assert len(hops) == 475
    assert {
        (entry.writes[0].topic, entry.decision.retry_state.due_at) for entry in hops if entry.decision.retry_state
    } == {("billing-RETRY-1h", WALL + HALF)}
    assert rig.lane.room.taken <= 25 * weight
    rig.run(HALF - rig.now.steady_ms - 1)
    assert not rig.sent
    rig.run(1)
    while rig.sent:
        rig.answer_all()
    assert len(rig.history) == 26


def test_few_of_them_wait_in_memory_and_are_on_time() -> None:
    rig = Rig(policy=LONG, retry=True)
    rig.assign(READY)
    rig.take(asked_for_half_an_hour(0))
    rig.run(HALF - 1)
    assert not rig.sent
    rig.run(1)
    assert rig.out_offsets() == [0]


def test_a_short_rest_waits_in_memory_however_full_it_is() -> None:
    rig = Rig(policy=LONG, retry=True, room=8_000)
    rig.assign(READY)
    rig.take(*(waiting(offset, WALL, READY, WALL + HOLD_WITHIN_MS) for offset in range(6)))
    assert rig.settle() == []
    rig.run(HOLD_WITHIN_MS)
    rig.answer_all()
    assert len(rig.history) == 6


def test_what_a_stopped_partition_lets_go_takes_no_room_any_more() -> None:
    """Else every later wait would hop to another level, as if memory were full."""
    rig = Rig(policy=LONG, retry=True, room=16_000)
    rig.assign(READY, TEN)
    rig.take(*(waiting(offset, WALL, READY, WALL + HOLD_WITHIN_MS) for offset in range(6)))
    assert rig.lane.machines.waiting.patience_ms == HOLD_WITHIN_MS
    rig.lane.lost([READY])
    rig.run(0)
    assert rig.lane.machines.waiting.patience_ms == NEVER


# --- one record that is never answered: its partition goes on at any distance, and a new owner repeats ---------------


FAR = SPAN + SPAN // 4


def beyond_a_hung_record(rig: Rig, last: int, step: int = 1_024) -> None:
    """Take and answer records up to `last`, all but the first, as far as the lane lets it come."""
    rig.assign(ORDERS)
    rig.take_offsets([0])
    for first in range(1, last, step):
        rig.take_offsets(range(first, min(first + step, last)))
        while len(rig.sent) > 1:
            rig.answer(place=1)


@pytest.mark.long  # test_progress.py has the bound in every run
def test_many_open_records_far_apart_stop_a_partition_before_its_progress_is_too_long() -> None:
    """Given every hundredth record without an answer, then the partition stands, and its progress can be written."""
    rig = Rig(concurrency=2_000, room=1 << 30)
    rig.assign(ORDERS)
    first = 0
    while not rig.fetches:
        rig.take_offsets(range(first, first + 100))
        for place in reversed(range(len(rig.sent))):
            if rig.sent[place].record.offset % 100:
                rig.answer(place=place)
        first += 100
    assert 2 * SPAN < first < 4 * SPAN
    progress = rig.settle()[-1].commits[ORDERS].progress
    assert decode(ORDERS, progress.next, encode(ORDERS, progress)) == progress
    rig.answer_all()
    assert len(rig.fetches) == 2


def test_a_new_owner_reads_what_is_open_and_goes_on_behind_it() -> None:
    """Given two open records among many done ones, then both are delivered, and the consumer seeks over the rest."""
    rig = Rig(concurrency=8)
    resume = Progress(0, OffsetRanges([(1, FAR), (FAR + 1, 3 * FAR)]))
    rig.assign(ORDERS, resume=resume)
    rig.take_offsets(range(100))
    assert (rig.out_offsets(), rig.wait().not_fetched) == ([0], "done")
    rig.run(10)
    assert rig.fetches == [("pause", ORDERS), ("resume", ORDERS, FAR, 1)]
    rig.take_offsets(range(FAR, FAR + 100))
    rig.run(10)
    assert rig.fetches[2:] == [("pause", ORDERS), ("resume", ORDERS, 3 * FAR, 2)]
    rig.take_offsets(range(3 * FAR, 3 * FAR + 2))
    assert rig.out_offsets() == [0, FAR, 3 * FAR, 3 * FAR + 1]
    assert rig.settle() == [] or rig.kafka[ORDERS].done >= OffsetRanges([(1, 2)])
    rig.answer_all()
    assert rig.settle()[-1].commits[ORDERS].progress == Progress(3 * FAR + 2)


def test_a_partition_goes_on_at_any_distance_and_after_a_stop_only_what_was_let_go_is_read_again() -> None:
    """Given a postponed record far below done ones, when the partition was stopped, then it reads one record."""
    rig = Rig(concurrency=2_000, room=1 << 30)
    beyond_a_hung_record(rig, FAR)
    progress = rig.settle()[-1].commits[ORDERS].progress
    assert (progress.next, OffsetRanges.of(progress.done).ranges) == (0, ((1, FAR),))
    assert rig.fetches == []
    rig.answer(Throttled(3_600_000))
    rig.take_offsets([FAR])
    rig.answer(Failed("http-500"))
    rig.run(1_000)
    rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries])
    assert rig.wait().not_fetched == "refused"
    rig.settle()
    assert rig.fetches == [("pause", ORDERS), ("resume", ORDERS, 0, 1)]
    rig.take_offsets(range(50))
    rig.run(10)
    assert rig.fetches[2:] == [("pause", ORDERS), ("resume", ORDERS, FAR + 1, 2)]


def test_half_of_all_keys_hang_and_no_counted_attempt_is_forgotten() -> None:
    """Given a partition at its bound, when every second record of it ends with a copy, then the done set is written
    whole: it was cut, and the attempts that it had lost were counted again."""
    rig = Rig(concurrency=20_000, room=1 << 30)
    beyond_a_hung_record(rig, FAR)
    first = FAR
    while not rig.fetches:
        rig.take_offsets(range(first, first + 1_000))
        first += 1_000
    for place in reversed(range(1, len(rig.sent), 2)):
        rig.answer(Failed("http-500"), place=place)
    copied = [entry.record.offset for batch in rig.settle() for entry in batch.entries]
    assert len(copied) > SPAN // 4
    progress = rig.kafka[ORDERS]
    text = encode(ORDERS, progress)
    assert len(text) < 2_870
    assert decode(ORDERS, 0, text).done >= set(copied)


# --- the longest delay, on a virtual clock: ten days are made of level topics, copy by copy, and end on --------------


HOP = 20
"""ms from a decision to the copy in Kafka, in these tests."""


def first_copy(policy: Policy, delay: int) -> Copy:
    """The copy that a failure at WALL leaves which asks for `delay` ms."""
    rig = Rig(policy=policy)
    rig.assign(ORDERS)
    rig.take(record())
    rig.answer(Failed("retry-asked", asked=True, delay=delay))
    rig.run(HOP)
    (entry,) = rig.conclude().entries
    assert isinstance(entry.decision, Retry)
    return entry.writes[0]


def as_read(policy: Policy, copy: Copy, offset: int, appended: int) -> Record:
    """A copy as the retry lane reads it back, its headers understood anew."""
    life, fault = samples.read(copy.headers, policy, appended)
    assert life is not None, fault
    place = Partition(copy.topic, 0)
    return record(offset, source=place, timestamp=appended, headers=copy.headers, life=life)


def next_entry(rig: Rig, waiting: Record) -> SettledRecord | None:
    """Let the retry lane hold a record until it writes it on; None when it delivers it instead."""
    part = rig.part(waiting.source)
    while not rig.sent:
        if part.paused is None and part.offsets.next <= waiting.offset:
            rig.take(waiting)  # at first, and when the lane resumes the partition that it had parked
        while rig.batches:
            if entries := rig.conclude().entries:
                return entries[0]
        rig.run(max(1, rig.wake_at - rig.clock.steady_ms))
    return None


def travel(policy: Policy, delay: int) -> tuple[list[str], int]:
    """Follow a delay from level to level: the levels that it waited in, and when it was delivered, ms after."""
    rig, copy = Rig(policy=policy, retry=True), first_copy(policy, delay)
    offsets = dict.fromkeys(samples.waits(policy), 0)
    rig.assign(*(Partition(topic, 0) for topic in offsets))
    levels = []
    while True:
        levels.append(copy.topic.rpartition("-")[2])
        entry = next_entry(rig, as_read(policy, copy, offsets[copy.topic], rig.now.wall_ms))
        if entry is None:
            return levels, rig.sent[0].at
        assert isinstance(entry.decision, Hop)
        assert (entry.decision.retry_state.times, entry.decision.retry_state.due_at) == (1, WALL + delay)
        offsets[copy.topic] += 1
        (copy,) = entry.writes  # no event
        rig.run(HOP)


@pytest.mark.parametrize(
    ("delay", "levels"),
    [
        (7_000, ["5s", "1s", "1s"]),
        (90_000, ["1m", "30s"]),
        (7_261_000, ["2h", "1m", "1s"]),
    ],
)
def test_a_delay_is_made_of_the_longest_levels_that_still_fit(delay: int, levels: list[str]) -> None:
    found, at = travel(samples.policy(), delay)
    assert found == levels
    assert delay <= at < delay + 200  # the last level may be a ninth longer than what is left


def test_ten_days_are_made_of_hops_and_end_on_time() -> None:
    """Each hop costs a moment, which the rest of the way makes up for: never early, and not late by the sum either."""
    found, at = travel(samples.policy(), LONGEST)
    assert found[:119] == ["2h"] * 119
    rest = [samples.waits(samples.policy())[f"billing-RETRY-{level}"] for level in found[119:]]
    assert rest == sorted(rest, reverse=True)
    assert 7_190_000 <= sum(rest) <= max(TABLE)
    assert LONGEST <= at < LONGEST + 50
