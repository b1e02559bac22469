"""Suspects that hang: one that was out for 30 s while sidecar and service lived is cleared, and keeps nothing back."""

from __future__ import annotations

from reconsume.sidecar.core.lane.suspicion import HUNG_MS
from reconsume.sidecar.core.outcome import COMMITTED
from reconsume.sidecar.core.progress import Progress
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS
from tests.sim.suspect_rigs import OTHER, commit, died, rig_of, taken_up


def pass_time(rig: Rig, ms: int) -> None:
    """Let time pass; every commit succeeds."""
    for _ in range(ms // 250):
        rig.run(250)
        while rig.batches:
            rig.conclude()


def test_a_hung_suspect_that_went_alone_is_cleared_after_30_s_and_the_next_one_goes_beside_it() -> None:
    rig = taken_up(died(2), 0, 1, 2)
    pass_time(rig, 1_000)
    assert (rig.out_offsets(), rig.kafka[ORDERS].mark) == ([0], 0)
    pass_time(rig, HUNG_MS - 2_000)
    assert rig.out_offsets() == [0]
    pass_time(rig, 4_000)
    assert (rig.out_offsets(), rig.kafka[ORDERS].mark) == ([0, 1], 1)


def test_a_death_after_that_blames_nothing_on_it() -> None:
    rig = taken_up(died(2), 0)
    pass_time(rig, HUNG_MS + 4_000)
    assert rig.out_offsets() == [0]
    assert rig.kafka[ORDERS].mark is None


def test_hung_suspects_keep_the_records_of_other_partitions_back_for_30_s_each_and_then_no_more() -> None:
    rig = rig_of(concurrency=8)
    rig.assign(ORDERS, resume=died(2))
    rig.assign(OTHER, resume=Progress(0, clean=True))
    rig.take_offsets([0, 1])
    rig.take_offsets(range(3), OTHER)
    pass_time(rig, 2 * HUNG_MS + 20_000)
    assert sorted((sent.record.source.number, sent.record.offset) for sent in rig.sent) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert not rig.gate.single_file.sources


def test_an_answer_that_comes_late_is_counted_and_leaves_nothing_behind() -> None:
    rig = taken_up(died(2), 0, 1)
    pass_time(rig, HUNG_MS + 4_000)
    rig.answer(COMMITTED)
    rig.answer(COMMITTED)
    pass_time(rig, 15_000)
    assert rig.gate.single_file.hung == set()
    assert rig.part().tracker.first == 2
    assert rig.part().suspicion is None


def test_few_that_hang_after_one_crash_let_as_many_others_go_after_30_s() -> None:
    rig = taken_up(died(1), *range(40), concurrency=64)
    commit(rig)
    pass_time(rig, 1_000)
    few = len(rig.sent)
    assert 0 < few < 40
    pass_time(rig, HUNG_MS + 3_000)
    assert len(rig.sent) == 2 * few
