"""One record that is never answered: its partition goes on at any distance, and a new owner repeats nothing of it."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.outcome import Failed, Throttled
from reconsume.sidecar.core.progress import SPAN, Progress
from reconsume.sidecar.core.progress_codec import decode, encode
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS

FAR = SPAN + SPAN // 4


def beyond_a_hung_record(rig: Rig, last: int, step: int = 1_024) -> None:
    """Take and answer records up to `last`, all but the first, as far as the lane lets it come."""
    rig.assign(ORDERS)
    rig.take_offsets([0])
    for first in range(1, last, step):
        rig.take_offsets(range(first, min(first + step, last)))
        while len(rig.sent) > 1:
            rig.answer(place=1)


def test_a_partition_goes_on_at_any_distance() -> None:
    rig = Rig(concurrency=2_000, room=1 << 30)
    beyond_a_hung_record(rig, FAR)
    progress = rig.settle()[-1].commits[ORDERS].progress
    assert (progress.next, OffsetRanges.of(progress.done).ranges) == (0, ((1, FAR),))
    assert rig.fetches == []


@pytest.mark.long  # unit/core/test_progress_distance.py has the bound in every run
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


def test_after_a_stop_only_what_was_let_go_is_read_again() -> None:
    """Given a postponed record far below done ones, when the partition was stopped, then it reads one record."""
    rig = Rig(concurrency=2_000, room=1 << 30)
    beyond_a_hung_record(rig, FAR)
    rig.settle()
    rig.answer(Throttled(3_600_000))
    rig.take_offsets([FAR])
    rig.answer(Failed("http-500"))
    rig.run(1_000)
    rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries])
    assert rig.state().startswith("stopped")
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
