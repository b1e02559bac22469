"""One record that is never answered: its partition goes on at any distance, and a new owner repeats nothing of it."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.outcome import Failed, Throttled
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_bounds import SPAN
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


@pytest.mark.long  # unit/core/test_progress_distance.py has the bound in every run
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
    assert 2 * SPAN < first < 4 * SPAN
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


def test_a_far_partition_whose_next_records_are_done_is_at_its_bound_while_nothing_may_begin_behind_them() -> None:
    """Given an older instance in the group, then the state names the bound, and not that the partition passes over."""
    rig = Rig(concurrency=8)
    rig.assign(ORDERS, resume=Progress(0, OffsetRanges([(1, FAR)])))
    rig.take_offsets(range(100))
    rig.run(60_000)
    assert (rig.out_offsets(), rig.state(), rig.fetches) == ([0], "at its bound", [("pause", ORDERS)])
    rig.lane.allow_far(True)
    rig.run(1_000)
    assert rig.fetches[1:] == [("resume", ORDERS, FAR, 1)]


def test_after_a_stop_only_what_was_let_go_is_read_again() -> None:
    """Given a postponed record far below done ones, when the partition was stopped, then it reads one record."""
    rig = Rig(concurrency=2_000, room=1 << 30)
    rig.lane.allow_far(True)
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
    rig.lane.allow_far(True)
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
    text = encode(progress)
    assert len(text) < 2_870
    assert decode(0, text).done >= set(copied)


def test_progress_that_the_brokers_do_not_take_waits_and_no_record_begins_until_it_fits() -> None:
    """Given brokers that take too little, then what was begun goes on, and the copies wait with the progress."""
    rig = Rig(concurrency=100)
    rig.assign(ORDERS)
    rig.take_offsets(range(10))
    for place in (9, 7, 5):
        rig.answer(Failed("http-500"), place=place)
    rig.run(1_000)
    batch = rig.conclude(too_long=[ORDERS])
    assert batch.commits[ORDERS].kept == set(), "until now the brokers took all"
    rig.take_offsets([10])
    assert (rig.fetches, rig.state()) == ([("pause", ORDERS)], "at its bound")
    assert len(rig.sent) == 7
    rig.answer_all()
    written = [entry.record.offset for batch in rig.settle() for entry in batch.entries]
    assert sorted(written) == [5, 7, 9], "each copy once"
    assert rig.kafka[ORDERS] == Progress(10)
    assert rig.fetches[1:] == [("resume", ORDERS, 10, 1)]


def test_where_the_brokers_take_less_each_commit_names_the_attempts_that_are_counted() -> None:
    rig = Rig(concurrency=100)
    rig.assign(ORDERS)
    rig.take_offsets(range(10))
    rig.answer(Failed("http-500"), place=9)
    rig.run(1_000)
    rig.conclude(again=(), most=400)
    rig.answer(place=8)
    rig.run(1_000)
    assert rig.conclude().commits[ORDERS].kept == {9}
    rig.answer(Failed("http-500"), place=4)
    batch = rig.settle()[-1]
    assert (batch.commits[ORDERS].progress.done, batch.commits[ORDERS].kept) == ({4, 8, 9}, {4, 9})


def test_a_partition_whose_copies_wait_commits_what_fits_without_them() -> None:
    """Given more copies than the brokers' metadata can name, then fewer go at each try, and in the end none of them,
    because a gate may wait for the progress alone; once a record has ended, all go."""
    rig = Rig(concurrency=100)
    rig.assign(ORDERS)
    rig.take_offsets(range(20))
    for _ in range(19):
        rig.answer(Failed("http-500"), place=1)
    rig.run(10)
    tried = []
    while not tried or tried[-1]:
        rig.run(6_000)
        tried.append(len(rig.batches[0].entries))
        rig.conclude(too_long=[ORDERS] if tried[-1] else ())
    assert tried == sorted(tried, reverse=True)
    assert rig.state() != "stopped", "what was begun goes on"
    rig.answer()
    written = [entry.record.offset for batch in rig.settle() for entry in batch.entries]
    assert sorted(written) == list(range(1, 20))
    assert rig.kafka[ORDERS] == Progress(20)


def test_behind_a_skip_a_partition_goes_on_up_to_its_bound() -> None:
    """Given 13 000 done records, and only the older form, then what is left of the span begins: it stood at the skip
    until a quarter of the span was free."""
    rig = Rig(concurrency=2 * SPAN, room=1 << 30)
    rig.assign(ORDERS, resume=Progress(0, OffsetRanges([(1, 13_000)])))
    rig.take_offsets(range(100))
    rig.run(10)
    assert rig.fetches == [("pause", ORDERS), ("resume", ORDERS, 13_000, 1)]
    rig.take_offsets(range(13_000, SPAN + 10))
    assert rig.out_offsets() == [0, *range(13_000, SPAN)]
    assert rig.state() == "at its bound"
