"""Progress: it never claims what is not done, it fits whatever ends next, and a new owner goes on from it (7.2, 7.3).

The map of a partition (`core/partition.py`) is asked here by itself, and what it says is written and read as metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.partition import AWAY, READY, Offsets, varint_length
from reconsume.sidecar.core.progress import SPAN, Bounds, Progress
from reconsume.sidecar.core.progress_codec import decode, encode
from reconsume.sidecar.core.record import Partition
from tests.sim.samples import record

HERE = Partition("orders", 3)
ANY = record(0)


def started(progress: Progress, bounds: Bounds = Bounds()) -> Offsets:  # noqa: B008 - it is a constant
    """A partition that goes on from this progress."""
    return Offsets(progress, bounds)


def begins(offsets: Offsets, offset: int) -> bool:
    """Whether an offset begins, or begins again."""
    return offsets.begin(offset, READY, ANY) is not None


def let_go(offsets: Offsets, *dropped: int) -> None:
    """Drop records from memory that have begun."""
    for offset in dropped:
        entry = offsets.entries[offset]
        entry.record = None
        offsets.move(entry, AWAY)


@st.composite
def logs(draw: st.DrawFn) -> list[int]:
    """Offsets of a log's records, with the gaps that markers and compaction leave."""
    steps = draw(st.lists(st.integers(1, 4) | st.just(40), min_size=1, max_size=40))
    start, log = draw(st.integers(0, 2**40)), []
    for step in steps:
        start += step
        log.append(start)
    return log


@given(logs(), st.data())
def test_a_snapshot_covers_exactly_what_was_finished_or_is_about_to_be(log: list[int], data: st.DataObject) -> None:
    tracker = started(Progress(log[0]))
    begun: list[int] = []
    finished: set[int] = set()
    waiting = list(log)
    for step in data.draw(st.lists(st.sampled_from(["begin", "finish", "look"]), max_size=100)):
        if step == "begin" and waiting:
            begun.append(waiting.pop(0))
            assert begins(tracker, begun[-1])
        elif step == "finish" and set(begun) - finished:
            offset = data.draw(st.sampled_from(sorted(set(begun) - finished)))
            finished.add(offset)
            tracker.finish(offset)
        elif step == "look":
            extra = data.draw(st.sets(st.sampled_from(log)) if begun else st.just(set())) & set(begun)
            covered = tracker.snapshot(extra)
            assert {offset for offset in log if covered.covers(offset)} == finished | extra
            assert len(tracker.entries) == len(set(begun) - finished)


@given(logs(), st.data())
def test_a_new_owner_begins_exactly_what_is_not_done(log: list[int], data: st.DataObject) -> None:
    first = started(Progress(log[0]))
    reached = data.draw(st.integers(1, len(log)))
    for offset in log[:reached]:
        begins(first, offset)
    done = data.draw(st.sets(st.sampled_from(log[:reached])))
    for offset in data.draw(st.permutations(sorted(done))):
        first.finish(offset)
    left = first.snapshot()

    second = started(decode(HERE, left.next, encode(HERE, left)))
    again = [offset for offset in log if offset >= left.next and begins(second, offset)]
    assert again == [offset for offset in log if offset not in done]
    for offset in data.draw(st.permutations(again)):
        second.finish(offset)
    assert second.snapshot() == Progress(log[-1] + 1)


def test_an_offset_is_begun_only_once() -> None:
    tracker = started(Progress(3))
    assert [begins(tracker, offset) for offset in (2, 3, 3, 5, 4)] == [False, True, False, True, False]


def test_markers_behind_the_last_record_are_passed_over() -> None:
    tracker = started(Progress(3))
    begins(tracker, 3)
    assert tracker.reached(9)
    assert tracker.snapshot() == Progress(3)
    tracker.finish(3)
    assert tracker.snapshot() == Progress(9)
    assert not tracker.reached(9)


def test_a_gap_is_no_distance_while_nothing_is_open() -> None:
    tracker = started(Progress(3))
    assert tracker.span(1_000_000) == 0
    begins(tracker, 10)
    assert tracker.span(1_000_000) == 999_990


def test_what_was_begun_and_let_go_is_begun_again_and_what_was_not_is_not() -> None:
    """A stopped partition gives its records back; those under way stay so."""
    tracker = started(Progress(0))
    assert all(begins(tracker, offset) for offset in range(6))
    tracker.finish(1)
    let_go(tracker, 2, 4)
    assert [offset for offset in range(8) if begins(tracker, offset)] == [2, 4, 6, 7]
    assert not begins(tracker, 2)
    for offset in (0, 2, 3, 4, 5, 6, 7):
        tracker.finish(offset)
    assert tracker.snapshot() == Progress(8)


def test_a_cut_log_loses_only_what_nobody_has_read() -> None:
    tracker = started(Progress(0, frozenset({7})))
    for offset in range(4):
        begins(tracker, offset)
    let_go(tracker, 3)
    assert tracker.cut(4, 10) == 6, "4, 5, 6, 8, 9 were never read, and 3 was let go; 7 is done"
    assert tracker.first == 0, "what is under way stays ours"
    assert begins(tracker, 10)
    for offset in (0, 1, 2, 10):
        tracker.finish(offset)
    assert tracker.snapshot() == Progress(11)
    assert tracker.cut(4, 10) == 0


def test_a_log_that_is_cut_loses_what_was_let_go_below_its_beginning_and_nothing_else() -> None:
    tracker = started(Progress(0))
    for offset in range(5):
        begins(tracker, offset)
    let_go(tracker, 1, 3)
    assert tracker.cut(5, 3) == 1
    assert (list(tracker.to_reread()), tracker.first, tracker.next) == ([3], 0, 5)
    assert begins(tracker, 3), "it is still there, and is fetched again"


@pytest.mark.parametrize(("wanted", "low", "lost"), [(2, 9, 6), (5, 9, 3), (2, 5, 3), (9, 9, 0), (2, 10, 6)])
def test_of_what_was_cut_unread_the_done_ones_are_not_lost(wanted: int, low: int, lost: int) -> None:
    assert started(Progress(2, frozenset({5, 9}))).cut(wanted, low) == lost


# --- at any distance -------------------------------------------------------------------------------------------------

USUAL = Bounds()
LONGEST_SET = 2_870
"""Characters of our longest metadata without its numbers."""


def written(progress: Progress) -> str:
    """The metadata."""
    return encode(HERE, progress)


def read(progress: Progress) -> Progress:
    """What the next owner finds."""
    return decode(HERE, progress.next, written(progress))


def subsets(open_offsets: set[int], random: Random) -> Iterator[set[int]]:
    """What may end next: nothing, all, every second one, and any."""
    ordered = sorted(open_offsets)
    yield from (set(), set(ordered), set(ordered[::2]), set(ordered[1::2]), set(ordered[2::3]))
    for share in (0.1, 0.5, 0.9):
        yield {offset for offset in ordered if random.random() < share}


def history(random: Random) -> Offsets:
    """A partition after any history: gaps, runs of slow and of quick records, hung ones, and ends in any order."""
    tracker, offset, hung = started(Progress(0)), 0, random.choice([3, 40, 700])
    quick = random.choice([0.0, 0.5, 0.99])
    for _ in range(random.choice([300, 20_000, 50_000])):
        offset += 1 if random.random() < 0.99 else random.randint(1, 300)
        if not tracker.may_begin(offset):
            for ended in random.sample(sorted(tracker.open_offsets()), len(tracker.entries) // random.choice([2, 20])):
                tracker.finish(ended)
            if not tracker.may_begin(offset):
                break
        begins(tracker, offset)
        if offset % hung and random.random() < quick:
            tracker.finish(offset)
    return tracker


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_whatever_ends_next_progress_fits_and_says_the_same_when_it_is_read(seed: int) -> None:
    """Given any history of begins and ends, and any part of what is open that ends in one batch."""
    random = Random(seed)
    tracker = history(random)
    tracker.check()
    begun = set(tracker.open_offsets())
    for ended in subsets(begun, random):
        progress = tracker.snapshot(ended)
        assert len(written(progress)) <= LONGEST_SET
        assert read(progress) == progress
        assert {offset for offset in begun if progress.covers(offset)} == ended


def full(random: Random, distances: list[int]) -> Offsets:
    """A partition whose far open records cost all that they may, and whose window is a random pattern."""
    tracker, offset = started(Progress(0)), 0
    begins(tracker, 0)
    while tracker.may_begin(offset := offset + random.choice(distances)):
        begins(tracker, offset)
    for ended in sorted(tracker.open_offsets()):
        if offset - ended < USUAL.window and random.random() < 0.5:
            tracker.finish(ended)
    return tracker


@pytest.mark.parametrize("distances", [[1], [1, 2], [2], [3, 200], [150, 20_000], [2**21, 2**28], [2**35]])
def test_at_the_bound_progress_is_as_long_as_it_may_be_and_no_longer(distances: list[int]) -> None:
    random = Random(3)
    tracker = full(random, distances)
    for ended in subsets(set(tracker.open_offsets()), random):
        progress = tracker.snapshot(ended)
        assert len(written(progress)) <= LONGEST_SET
        assert read(progress) == progress


@given(st.sets(st.integers(0, 3_000), min_size=1, max_size=60), st.integers(3_001, 4_000), st.data())
def test_an_offset_that_may_begin_may_begin_whatever_ends_before_it(
    offsets: set[int], following: int, data: st.DataObject
) -> None:
    """What the open offsets far below cost is at least what the done ones between them take, and only falls."""
    bounds = Bounds(span=30, window=16, far_bytes=data.draw(st.integers(0, 150)))
    tracker, begun = started(Progress(0), bounds), set[int]()
    for offset in sorted(offsets):
        if not tracker.may_begin(offset):
            break
        begun.add(offset)
        assert begins(tracker, offset)
    may_begin, has_room = tracker.may_begin(following), tracker.has_room(following)
    for ended in data.draw(st.permutations(sorted(begun))):
        tracker.finish(ended)
        if tracker.entries and tracker.top - tracker.first > bounds.span:
            end = tracker.top - bounds.window
            ranges = OffsetRanges.of(tracker.snapshot().done).within(tracker.first, end).ranges
            assert sum(1 + varint_length(end - start) for start, end in ranges[:-1]) <= bounds.far_bytes
        assert tracker.may_begin(following) >= may_begin
        assert tracker.has_room(following) >= has_room
        may_begin, has_room = tracker.may_begin(following), tracker.has_room(following)
        tracker.check()
    assert tracker.may_begin(following)


def test_one_record_without_an_answer_does_not_bound_its_partition() -> None:
    """Given a record that hangs for 15 minutes at 2 000 records a second, then the others go on, in little memory."""
    tracker, last = started(Progress(0)), 1_800_000
    for offset in range(last + 1):
        assert tracker.may_begin(offset)
        begins(tracker, offset)
        if offset:
            tracker.finish(offset)
    progress = tracker.snapshot()
    assert (progress.next, OffsetRanges.of(progress.done).ranges) == (0, ((1, last + 1),))
    assert len(written(progress)) < 100
    tracker.finish(0)
    assert tracker.snapshot() == Progress(last + 1)


def test_what_cannot_be_written_is_not_begun_and_goes_on_when_a_quarter_is_free() -> None:
    """Given every fourth record without an answer, then the partition stands until enough of them have ended."""
    tracker, offset = started(Progress(0)), 0
    while tracker.may_begin(offset):
        begins(tracker, offset)
        if offset % 4:
            tracker.finish(offset)
        offset += 1
    assert SPAN <= offset < 2 * SPAN
    assert not tracker.has_room(offset)
    hung = sorted(tracker.open_offsets())
    tracker.finish(hung[0])
    assert not tracker.has_room(offset), "one is not enough: it would be paused again at once"
    for ended in hung[1 : USUAL.window // 4]:
        tracker.finish(ended)
    assert tracker.has_room(offset)
    assert tracker.may_begin(offset)


def test_a_new_owner_passes_over_what_is_not_worth_to_be_read() -> None:
    """Given three open records among a million, then these are begun, and long done ranges are named to be skipped."""
    done = OffsetRanges([(1, 400_000), (400_001, 400_100), (400_101, 1_000_000)])
    tracker = started(Progress(0, done))
    read, offset = [], 0
    while offset < 1_000_002:
        if (end := tracker.end_of_done(offset)) is not None:
            assert end - offset >= USUAL.skip
            offset = end
            continue
        assert tracker.may_begin(offset)
        if begins(tracker, offset):
            read.append(offset)
        offset += 1
    assert read == [0, 400_000, 400_100, 1_000_000, 1_000_001]
    tracker.finish(400_000)
    assert OffsetRanges.of(tracker.snapshot().done).ranges == ((1, 400_100), (400_101, 1_000_000))
    for open_one in tuple(tracker.entries):
        tracker.finish(open_one)
    assert tracker.snapshot() == Progress(1_000_002)


def test_a_new_owner_is_never_nearer_to_the_bound_than_the_last_one() -> None:
    """Given progress as long as it may be, then its open records begin, end in any order, and it always fits."""
    random = Random(5)
    left = full(random, [3, 200]).snapshot()
    tracker, offset = started(read(left)), left.next
    while offset < OffsetRanges.of(left.done).end:
        assert tracker.may_begin(offset)
        begins(tracker, offset)
        if len(tracker.entries) and random.random() < 0.3:
            tracker.finish(random.choice(sorted(tracker.open_offsets())))
            assert len(written(tracker.snapshot())) <= LONGEST_SET
        offset += 1
    while tracker.may_begin(offset):
        begins(tracker, offset)
        offset += 1
    tracker.check()
    for ended in subsets(set(tracker.open_offsets()), random):
        assert len(written(tracker.snapshot(ended))) <= LONGEST_SET


def test_progress_behind_which_nothing_was_read_moves_on_over_what_the_last_owner_has_done() -> None:
    """Given the log's end behind the done records, when the hung one ends, then nothing of them is named any more."""
    tracker = started(Progress(0, OffsetRanges([(1, 5 * SPAN)])))
    begins(tracker, 0)
    tracker.finish(0)
    assert tracker.snapshot() == Progress(5 * SPAN)


def test_what_was_dropped_from_memory_is_read_again_and_not_the_million_behind_it() -> None:
    """Given a stopped partition that gave a few records back, then only these are worth to be read again."""
    tracker = started(Progress(0))
    for offset in range(1_000_000):
        assert tracker.may_begin(offset)
        begins(tracker, offset)
        if offset not in (0, 600_000):
            tracker.finish(offset)
    let_go(tracker, 0, 600_000)
    assert tracker.end_of_done(0) is None
    assert begins(tracker, 0)
    assert tracker.end_of_done(1) == 600_000
    assert tracker.end_of_done(599_990) is None, "a seek costs more than to read ten"
    assert begins(tracker, 600_000)
    assert tracker.end_of_done(600_001) == 1_000_000


@given(st.data())
def test_it_says_what_a_plain_set_says_over_many_owners(data: st.DataObject) -> None:
    """Given owners that begin, finish, let go, skip and hand over at any time, then each is done once, none skipped."""
    log, done, progress = range(80), set[int](), Progress(0)
    span = data.draw(st.sampled_from([3, 10, SPAN]))
    bounds = Bounds(span, data.draw(st.sampled_from([2, 8])), data.draw(st.sampled_from([6, 200])), skip=2)
    for _ in range(data.draw(st.integers(1, 4))):
        tracker, begun = started(progress, bounds), set[int]()
        position = progress.next
        for step in data.draw(st.lists(st.sampled_from(["begin", "begin", "finish", "let go", "skip"]), max_size=60)):
            if step == "begin" and position < len(log) and tracker.may_begin(position):
                assert begins(tracker, position) == (position not in done)
                begun |= {position} - done
                position += 1
            elif step == "skip" and (end := tracker.end_of_done(position)) is not None:
                assert done.issuperset(range(position, end))
                position = end
            elif step in ("finish", "let go") and begun - done:
                offset = data.draw(st.sampled_from(sorted(begun - done)))
                if step == "finish":
                    done.add(offset)
                    tracker.finish(offset)
                else:
                    let_go(tracker, offset)
                    assert begins(tracker, offset)
            tracker.check()
        progress = tracker.snapshot()
        assert {offset for offset in log if progress.covers(offset)} == done
        progress = read(progress)
        assert {offset for offset in log if progress.covers(offset)} == done
