"""Progress at any distance: whatever ends next it can be written, and it says what a plain set says."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.progress import SPAN, Bounds, FarOffsets, Progress, ProgressTracker
from reconsume.sidecar.core.progress_codec import decode, encode
from reconsume.sidecar.core.record import Partition

HERE = Partition("orders", 3)
USUAL = Bounds()
LONGEST = 2_870
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


def history(random: Random) -> ProgressTracker:
    """A partition after any history: gaps, runs of slow and of quick records, hung ones, and ends in any order."""
    tracker, offset, hung = ProgressTracker(Progress(0)), 0, random.choice([3, 40, 700])
    quick = random.choice([0.0, 0.5, 0.99])
    for _ in range(random.choice([300, 20_000, 50_000])):
        offset += 1 if random.random() < 0.99 else random.randint(1, 300)
        if not tracker.make_way(offset):
            for ended in random.sample(sorted(tracker.open_offsets()), tracker.open // random.choice([2, 20])):
                tracker.finish(ended)
            if not tracker.make_way(offset):
                break
        tracker.begin(offset)
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
    begun = tracker.open_offsets()
    for ended in subsets(begun, random):
        progress = tracker.snapshot(ended)
        assert len(written(progress)) <= LONGEST
        assert read(progress) == progress
        assert {offset for offset in begun if progress.covers(offset)} == ended


def full(random: Random, distances: list[int]) -> ProgressTracker:
    """A partition whose far open records cost all that they may, and whose window is a random pattern."""
    tracker, offset = ProgressTracker(Progress(0)), 0
    tracker.begin(0)
    while tracker.make_way(offset := offset + random.choice(distances)):
        tracker.begin(offset)
    for ended in sorted(tracker.open_offsets()):
        if offset - ended < USUAL.window and random.random() < 0.5:
            tracker.finish(ended)
    return tracker


@pytest.mark.parametrize("distances", [[1], [1, 2], [2], [3, 200], [150, 20_000], [2**21, 2**28], [2**35]])
def test_at_the_bound_progress_is_as_long_as_it_may_be_and_no_longer(distances: list[int]) -> None:
    random = Random(3)
    tracker = full(random, distances)
    for ended in subsets(tracker.open_offsets(), random):
        progress = tracker.snapshot(ended)
        assert len(written(progress)) <= LONGEST
        assert read(progress) == progress


@given(st.sets(st.integers(0, 3_000), min_size=1, max_size=60), st.data())
def test_the_cost_of_far_offsets_is_that_of_the_naive_count_and_never_rises_when_one_ends(
    offsets: set[int], data: st.DataObject
) -> None:
    far = FarOffsets()
    for offset in sorted(offsets):
        assert far.cost_with(offset) > far.cost
        far.append(offset)
    for ended in data.draw(st.permutations(sorted(offsets))):
        before = far.cost
        far.remove(ended)
        far.remove(ended)
        far.check()
        assert far.cost <= before
        counts = [end - begin for begin, end in OffsetRanges(far.done_up_to(3_000, frozenset())).ranges]
        assert sum(1 + (count.bit_length() + 6) // 7 for count in counts[:-1]) <= far.cost
    assert (far.offsets, far.cost) == ([], 0)


def test_one_record_without_an_answer_does_not_bound_its_partition() -> None:
    """Given a record that hangs for 15 minutes at 2 000 records a second, then the others go on, in little memory."""
    tracker, last = ProgressTracker(Progress(0)), 1_800_000
    for offset in range(last + 1):
        assert tracker.make_way(offset)
        tracker.begin(offset)
        if offset:
            tracker.finish(offset)
    progress = tracker.snapshot()
    assert (progress.next, OffsetRanges.of(progress.done).ranges) == (0, ((1, last + 1),))
    assert len(written(progress)) < 100
    tracker.finish(0)
    assert tracker.snapshot() == Progress(last + 1)


def test_what_cannot_be_written_is_not_begun_and_goes_on_when_a_quarter_is_free() -> None:
    """Given every fourth record without an answer, then the partition stands until enough of them have ended."""
    tracker, offset = ProgressTracker(Progress(0)), 0
    while tracker.make_way(offset):
        tracker.begin(offset)
        if offset % 4:
            tracker.finish(offset)
        offset += 1
    assert SPAN <= offset < 2 * SPAN
    assert not tracker.make_room(offset)
    hung = sorted(tracker.open_offsets())
    tracker.finish(hung[0])
    assert not tracker.make_room(offset), "one is not enough: it would be paused again at once"
    for ended in hung[: USUAL.window // 4]:
        tracker.finish(ended)
    assert tracker.make_room(offset)
    assert tracker.make_way(offset)


def test_a_new_owner_passes_over_what_is_not_worth_to_be_read() -> None:
    """Given three open records among a million, then these are begun, and long done ranges are named to be skipped."""
    done = OffsetRanges([(1, 400_000), (400_001, 400_100), (400_101, 1_000_000)])
    tracker = ProgressTracker(Progress(0, done))
    read, offset = [], 0
    while offset < 1_000_002:
        if (end := tracker.end_of_done(offset)) is not None:
            assert end - offset >= USUAL.skip
            offset = end
            continue
        assert tracker.make_way(offset)
        if tracker.begin(offset):
            read.append(offset)
        offset += 1
    assert read == [0, 400_000, 400_100, 1_000_000, 1_000_001]
    tracker.finish(400_000)
    assert OffsetRanges.of(tracker.snapshot().done).ranges == ((1, 400_100), (400_101, 1_000_000))
    for open_one in read:
        tracker.finish(open_one)
    assert tracker.snapshot() == Progress(1_000_002)


def test_a_new_owner_is_never_nearer_to_the_bound_than_the_last_one() -> None:
    """Given progress as long as it may be, then its open records begin, end in any order, and it always fits."""
    random = Random(5)
    left = full(random, [3, 200]).snapshot()
    tracker, offset = ProgressTracker(read(left)), left.next
    while offset < OffsetRanges.of(left.done).end:
        assert tracker.make_way(offset)
        tracker.begin(offset)
        if tracker.open and random.random() < 0.3:
            tracker.finish(random.choice(sorted(tracker.open_offsets())))
            assert len(written(tracker.snapshot())) <= LONGEST
        offset += 1
    while tracker.make_way(offset):
        tracker.begin(offset)
        offset += 1
    tracker.check()
    for ended in subsets(tracker.open_offsets(), random):
        assert len(written(tracker.snapshot(ended))) <= LONGEST


def test_progress_behind_which_nothing_was_read_moves_on_over_what_the_last_owner_has_done() -> None:
    """Given the log's end behind the done records, when the hung one ends, then nothing of them is named any more."""
    tracker = ProgressTracker(Progress(0, OffsetRanges([(1, 5 * SPAN)])))
    tracker.begin(0)
    tracker.finish(0)
    assert tracker.snapshot() == Progress(5 * SPAN)


def test_what_was_dropped_from_memory_is_read_again_and_not_the_million_behind_it() -> None:
    """Given a stopped partition that gave a few records back, then only these are worth to be read again."""
    tracker = ProgressTracker(Progress(0))
    for offset in range(1_000_000):
        assert tracker.make_way(offset)
        tracker.begin(offset)
        if offset not in (0, 600_000):
            tracker.finish(offset)
    for offset in (0, 600_000):
        tracker.let_go(offset)
    assert tracker.end_of_done(0) is None
    assert tracker.begin(0)
    assert tracker.end_of_done(1) == 600_000
    assert tracker.end_of_done(599_990) is None, "a seek costs more than to read ten"
    assert tracker.begin(600_000)
    assert tracker.end_of_done(600_001) == 1_000_000


@given(st.data())
def test_it_says_what_a_plain_set_says_over_many_owners(data: st.DataObject) -> None:
    """Given owners that begin, finish, let go, skip and hand over at any time, then each is done once, none skipped."""
    log, done, progress = range(80), set[int](), Progress(0)
    span = data.draw(st.sampled_from([3, 10, SPAN]))
    bounds = Bounds(span, data.draw(st.sampled_from([2, 8])), data.draw(st.sampled_from([6, 200])), skip=2)
    for _ in range(data.draw(st.integers(1, 4))):
        tracker, begun = ProgressTracker(progress, bounds), set[int]()
        position = progress.next
        for step in data.draw(st.lists(st.sampled_from(["begin", "begin", "finish", "let go", "skip"]), max_size=60)):
            if step == "begin" and position < len(log) and tracker.make_way(position):
                assert tracker.begin(position) == (position not in done)
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
                    tracker.let_go(offset)
                    assert tracker.begin(offset)
            tracker.check()
        progress = tracker.snapshot()
        assert {offset for offset in log if progress.covers(offset)} == done
        progress = read(progress)
        assert {offset for offset in log if progress.covers(offset)} == done
