"""One record that is never answered: its partition goes on at any distance, and a new owner repeats nothing of it."""

from __future__ import annotations

import pytest

from sidecar.core.offset_ranges import OffsetRanges
from sidecar.core.progress import MOST_RANGES, SPAN, Progress
from sidecar.core.progress_codec import decode, encode
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS

FAR = 3 * SPAN


def beyond_a_hung_record(rig: Rig, last: int, step: int = 1_024) -> None:
    """Take and answer records up to `last`, all but the first, as far as the lane lets it come."""
    rig.assign(ORDERS)
    rig.take_offsets([0])
    for first in range(1, last, step):
        rig.take_offsets(range(first, min(first + step, last)))
        while len(rig.sent) > 1:
            rig.answer(place=1)


@pytest.mark.parametrize(("far", "reached"), [(True, FAR), (False, SPAN)])
def test_a_partition_goes_on_at_any_distance_where_all_instances_read_such_progress(far: bool, reached: int) -> None:
    rig = Rig(concurrency=2_000, room=1 << 30)
    rig.lane.allow_far(far)
    beyond_a_hung_record(rig, FAR)
    progress = rig.settle()[-1].commits[ORDERS].progress
    assert (progress.next, OffsetRanges.of(progress.done).ranges) == (0, ((1, reached),))
    assert (rig.fetches == []) is far


def test_a_partition_that_stands_goes_on_as_soon_as_all_instances_read_such_progress() -> None:
    rig = Rig(concurrency=2_000, room=1 << 30)
    beyond_a_hung_record(rig, FAR)
    assert rig.fetches == [("pause", ORDERS)]
    rig.lane.allow_far(True)
    rig.run(1_000)
    assert rig.fetches[1:] == [("resume", ORDERS, SPAN, 1)]


def test_a_partition_that_is_far_stands_while_an_instance_does_not_read_such_progress() -> None:
    """Given a partition beyond the bound, when an older instance joins, then nothing more begins."""
    rig = Rig(concurrency=2_000, room=1 << 30)
    rig.lane.allow_far(True)
    beyond_a_hung_record(rig, FAR)
    rig.lane.allow_far(False)
    rig.take_offsets([FAR])
    assert rig.fetches == [("pause", ORDERS)]
    rig.answer()
    assert rig.fetches[1:] == [("resume", ORDERS, FAR, 1)]
    assert rig.settle()[-1].commits[ORDERS].progress == Progress(FAR)


def test_many_open_records_far_apart_stop_a_partition_before_its_progress_is_too_long() -> None:
    """Given every hundredth record without an answer, then the partition stands, and its progress can be written."""
    rig = Rig(concurrency=2_000, room=1 << 30)
    rig.lane.allow_far(True)
    rig.assign(ORDERS)
    first = 0
    while not rig.fetches:
        rig.take_offsets(range(first, first + 100))
        for place in reversed(range(len(rig.sent))):
            if rig.sent[place].record.offset % 100:
                rig.answer(place=place)
        first += 100
    assert SPAN < first < 2 * MOST_RANGES * 100
    progress = rig.settle()[-1].commits[ORDERS].progress
    assert decode(progress.next, encode(progress)) == progress
    rig.answer_all()
    assert len(rig.fetches) == 2


def test_a_new_owner_reads_what_is_open_and_goes_on_behind_it() -> None:
    """Given two open records among many done ones, then both are delivered, and the consumer seeks over the rest."""
    rig = Rig(concurrency=8)
    rig.lane.allow_far(True)
    resume = Progress(0, OffsetRanges([(1, FAR), (FAR + 1, 3 * FAR)]))
    rig.assign(ORDERS, resume=resume)
    rig.take_offsets(range(100))
    assert (rig.out_offsets(), rig.state()) == ([0], "passing over done records")
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
