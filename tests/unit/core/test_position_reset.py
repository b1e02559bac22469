"""The machine of resets, driven by hand: what a move is, when it is made, and what becomes of copies."""

from __future__ import annotations

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.outcome import COMMITTED, Failed
from reconsume.sidecar.core.partition import Kind, PartitionState
from reconsume.sidecar.core.position_reset import RETRIES_WAIT_MS, VALID_MS, ResetOrder, move_of
from reconsume.sidecar.core.progress import Bounds, LogId, Progress
from reconsume.sidecar.core.record import NEVER, Partition
from reconsume.topics.position_ranges import MOST_RANGES, PartitionResets, ResetRange
from reconsume.topics.transitions import Commit
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, record

LOG = LogId("c1", "t1")
READY = Partition("billing-RETRY", 0)


def ordered_to(target: int, reset: str = "r1", based_on: str = "", **more: object) -> ResetOrder:
    """A reset of the only main partition."""
    return ResetOrder(ORDERS, reset, LOG.topic, target, based_on, WALL + VALID_MS, **more)  # type: ignore[arg-type]


def main_rig(progress: Progress = Progress(0, log=LOG)) -> Rig:  # noqa: B008 - it never changes
    rig = Rig()
    rig.assign(ORDERS, resume=progress)
    return rig


def moved(rig: Rig) -> PartitionResets:
    """Let the lane move its partition; what it notes with that."""
    for _ in range(20):
        rig.run(250)
        while rig.batches:
            if (share := rig.conclude().commits.get(ORDERS)) is not None and share.resets is not None:
                return share.resets
    raise AssertionError("nothing was moved")


# --- what a move is --------------------------------------------------------------------------------------------------


def state_at(progress: Progress, resets: PartitionResets | None = None) -> PartitionState:
    partition = PartitionState(ORDERS, 1, Kind("main", None), progress, Bounds())
    partition.commit.resets = resets
    return partition


def test_a_reset_backwards_calls_undone_what_lies_from_its_target_to_the_first_offset_that_was_not_begun() -> None:
    partition = state_at(Progress(20, OffsetRanges([(22, 30)]), log=LOG, width=3))
    move = move_of(partition, ordered_to(5), WALL)
    assert move.resets == PartitionResets(LOG.topic, 1, (ResetRange(5, 30, 1, WALL),), ("r1",))
    assert move.progress == Progress(5, clean=True, log=LOG, cycle=1, notes=True, width=3)


def test_a_reset_into_what_is_done_leaves_what_is_open_below_it() -> None:
    partition = state_at(Progress(20, OffsetRanges([(22, 30)]), log=LOG))
    progress = move_of(partition, ordered_to(25), WALL).progress
    assert [progress.covers(offset) for offset in (19, 20, 21, 22, 24, 25, 29)] == [
        True,
        *[False] * 2,
        *[True] * 2,
        *[False] * 2,
    ]


def test_the_new_cycle_is_one_more_than_the_greater_of_progress_and_record() -> None:
    known = PartitionResets(LOG.topic, 2, (ResetRange(0, 40, 2, WALL),), ("r0",))
    assert move_of(state_at(Progress(50, log=LOG, cycle=4), known), ordered_to(30), WALL).resets.cycle == 5
    move = move_of(state_at(Progress(50, log=LOG, cycle=1), known), ordered_to(30), WALL)
    assert (move.resets.cycle, move.progress.cycle, move.resets.resets) == (3, 3, ("r0", "r1"))
    assert [one.start for one in move.resets.ranges] == [0, 30]


def test_a_reset_forwards_names_what_it_skips_and_is_in_no_new_cycle() -> None:
    partition = state_at(Progress(20, OffsetRanges([(22, 30)]), log=LOG))
    move = move_of(partition, ordered_to(35), WALL)
    assert move.resets == PartitionResets(LOG.topic, 0, (), ("r1",), ((20, 22), (30, 35)))
    assert move.progress == Progress(35, clean=True, log=LOG, notes=True)


def test_a_reset_forwards_leaves_what_an_earlier_reset_has_not_delivered_unless_it_skips_all() -> None:
    known = PartitionResets(LOG.topic, 1, (ResetRange(10, 25, 1, WALL),), ("r0",))
    partition = state_at(Progress(20, OffsetRanges([(22, 23)]), log=LOG, cycle=1), known)
    order = ordered_to(40, based_on="r0")
    move = move_of(partition, order, WALL)
    assert move.resets.skipped == ((25, 40),)
    assert [move.progress.covers(offset) for offset in (19, 20, 21, 22, 23, 24, 25, 39, 40)] == [
        *(True, False, False, True, False, False, True, True, False)
    ]
    all_skipped = move_of(partition, order._replace(skips_all=True), WALL)
    assert all_skipped.resets.skipped == ((20, 22), (23, 40))
    assert all_skipped.progress.next == 40


# --- when it is made -------------------------------------------------------------------------------------------------


def test_the_owner_moves_once_what_was_in_flight_is_committed_in_its_old_cycle_and_two_seconds_are_over() -> None:
    rig = main_rig()
    rig.take_offsets(range(6))
    for _ in range(3):
        rig.answer()
    rig.settle()
    rig.lane.reset([ordered_to(0)], {}, rig.now)
    assert not any(batch.commits[ORDERS].resets for batch in rig.settle()), "deliveries are in flight"
    assert rig.out_offsets() == [3, 4, 5]
    rig.answer(Failed("http-500"))
    rig.answer_all()
    rig.run(25)
    (entry,) = rig.conclude().entries
    assert entry.decision.retry_state.cycle == 0  # type: ignore[union-attr]
    assert [(one.start, one.end, one.cycle) for one in moved(rig).ranges] == [(0, 6, 1)]
    assert rig.taken_over == [(ORDERS,)]
    assert ORDERS not in rig.lane.partitions


def test_the_owner_waits_two_seconds_although_nothing_is_in_flight() -> None:
    rig = main_rig(Progress(9, log=LOG))
    rig.settle()
    rig.lane.reset([ordered_to(3)], {}, rig.now)
    rig.conclude()  # of what is drained
    rig.run(1_990)
    assert not rig.batches
    assert moved(rig).ranges[0].end == 9


def test_an_order_that_is_not_for_this_log_or_not_based_on_the_last_reset_is_not_carried_out() -> None:
    known = PartitionResets(LOG.topic, 1, (ResetRange(0, 5, 1, WALL),), ("r0",))
    for order in (
        ordered_to(3)._replace(topic="t2", based_on="r0"),
        ordered_to(3, based_on=""),
        ordered_to(3, based_on="r9"),
        ordered_to(3, "r0", based_on="r0"),
        ordered_to(3, based_on="r0")._replace(until_ms=WALL),
    ):
        rig = main_rig(Progress(9, log=LOG))
        rig.lane.reset([order], {ORDERS: known}, rig.now)
        rig.run(60_000)
        assert not any(batch.commits[ORDERS].resets for batch in rig.settle()), order
        assert not rig.part().closing


def test_one_more_reset_than_there_may_be_ranges_is_not_carried_out_backwards() -> None:
    ranges = tuple(ResetRange(100 * n, 100 * n + 50, n + 1, WALL) for n in range(MOST_RANGES))
    known = PartitionResets(LOG.topic, MOST_RANGES, ranges, ("r0",))
    rig = main_rig(Progress(5_000, log=LOG))
    rig.lane.reset([ordered_to(4_000, based_on="r0")], {ORDERS: known}, rig.now)
    rig.run(10_000)
    assert not rig.part().closing
    rig.lane.reset([ordered_to(6_000, based_on="r0")], {ORDERS: known}, rig.now)
    assert moved(rig).skipped == ((5_000, 6_000),)


def test_an_order_that_is_withdrawn_while_its_partition_drains_has_it_taken_over_as_it_was() -> None:
    rig = main_rig(Progress(9, log=LOG))
    rig.settle()
    rig.lane.reset([ordered_to(3)], {}, rig.now)
    rig.run(500)
    rig.lane.reset([], {}, rig.now)
    rig.run(5_000)
    rig.settle()
    assert rig.taken_over == [(ORDERS,)]
    assert rig.kafka.get(ORDERS, Progress(9)).next == 9


def test_a_partition_that_is_given_up_before_its_move_leaves_the_order_to_its_next_owner() -> None:
    rig = main_rig()
    rig.take_offsets([0, 1])
    rig.lane.reset([ordered_to(0)], {}, rig.now)
    given_up = rig.release(ORDERS)
    rig.answer_all()
    rig.settle()
    assert given_up == ["given up"]
    assert rig.kafka[ORDERS].cycle == 0
    assert not rig.taken_over


# --- copies ----------------------------------------------------------------------------------------------------------


def retry_rig(*offsets: int, concurrency: int = 4) -> Rig:
    rig = Rig(retry=True, concurrency=concurrency)
    rig.assign(READY)
    if offsets:
        rig.take(*(record(offset, source=READY, life=samples.life()) for offset in offsets))
    return rig


CARRIED_OUT = PartitionResets(LOG.topic, 1, (ResetRange(0, 9, 1, WALL),), ("r1",))


def test_retries_wait_for_the_range_of_a_reset_and_go_on_once_it_is_known_not_to_have_them() -> None:
    rig = retry_rig()
    rig.lane.reset([ordered_to(8)], {}, rig.now)
    rig.take(record(0, source=READY, life=samples.life()))
    rig.run(2_500)
    assert not rig.sent
    beside = PartitionResets(LOG.topic, 1, (ResetRange(8, 9, 1, WALL),), ("r1",))
    rig.lane.reset([ordered_to(8)], {ORDERS: beside}, rig.now)
    assert rig.out_offsets() == [0]


def test_retries_wait_no_longer_than_half_a_minute_for_an_owner_that_is_away() -> None:
    rig = retry_rig()
    rig.lane.reset([ordered_to(8)], {}, rig.now)
    rig.take(record(0, source=READY, life=samples.life()))
    rig.run(RETRIES_WAIT_MS - 10)
    assert not rig.sent
    rig.run(20)
    assert rig.out_offsets() == [0]


def test_a_copy_of_an_older_cycle_than_its_range_ends_with_an_event_and_is_not_delivered() -> None:
    rig = retry_rig()
    rig.lane.reset([], {ORDERS: CARRIED_OUT}, rig.now)
    rig.take(
        record(0, source=READY, life=samples.life()),
        record(1, source=READY, life=samples.life(cycle=1)),
    )
    assert rig.out_offsets() == [1]
    ended = [entry for batch in rig.settle() for entry in batch.entries]
    assert [
        (entry.record.offset, entry.decision.retry_state.reason)
        for entry in ended
        if isinstance(entry.decision, Commit)
    ] == [(0, "by-reset")]  # type: ignore[union-attr]


def test_a_copy_whose_turn_comes_as_its_range_is_heard_of_is_superseded_too() -> None:
    rig = retry_rig(0, 1, concurrency=1)
    rig.lane.reset([], {ORDERS: CARRIED_OUT}, rig.now)
    rig.answer(COMMITTED)
    rig.settle()
    assert len(rig.history) == 1
    assert rig.kafka[READY].next == 2


def test_resets_of_a_former_topic_of_the_name_mean_nothing_to_the_owner_of_the_present_one() -> None:
    rig = main_rig(Progress(0, log=LogId("c1", "t2")))
    rig.lane.reset([], {ORDERS: CARRIED_OUT}, rig.now)
    rig.take_offsets([0])
    assert [sent.record.cycle for sent in rig.sent] == [0]
    assert not rig.lane.resets.in_force


def test_records_of_a_range_are_delivered_in_its_cycle_and_their_copies_say_so() -> None:
    rig = Rig()
    rig.assign(ORDERS, resume=Progress(8, log=LOG, cycle=1))
    rig.lane.resets.begin(ORDERS, CARRIED_OUT, rig.now)
    rig.take_offsets([8, 9])
    assert [sent.record.cycle for sent in rig.sent] == [1, 0]
    rig.answer(Failed("http-500"))
    (entry,) = (entry for batch in rig.settle() for entry in batch.entries)
    assert entry.decision.retry_state.cycle == 1  # type: ignore[union-attr]
    assert ("RETRY_CYCLE", b"1") in entry.writes[0].headers
    assert rig.kafka[ORDERS].cycle == 1
    assert rig.kafka[ORDERS].notes
    assert rig.lane.machines.agenda.time_of("resets") == NEVER


def test_a_target_in_what_an_earlier_reset_has_not_delivered_yet_is_one_backwards() -> None:
    """Found by the killing of owners: a new owner has begun little of the earlier range."""
    known = PartitionResets(LOG.topic, 2, (ResetRange(39, 200, 2, WALL),), ("r0",))
    partition = state_at(Progress(40, log=LOG, cycle=2, notes=True), known)
    move = move_of(partition, ordered_to(45, based_on="r0"), WALL)
    assert move.resets.ranges == (ResetRange(39, 200, 2, WALL), ResetRange(45, 200, 3, WALL))
    assert (move.progress.next, move.resets.skipped) == (40, ())


def test_the_owner_notes_its_resets_again_once_the_policy_topic_may_be_another_one() -> None:
    rig = main_rig(Progress(9, log=LOG, cycle=1))
    rig.lane.resets.begin(ORDERS, CARRIED_OUT, rig.now)
    rig.settle()
    rig.lane.rewrite_notes()
    noted = [batch.commits[ORDERS].resets for batch in rig.settle()]
    assert noted[0] == CARRIED_OUT
    rig.run(2_000)
    assert not any(batch.commits[ORDERS].resets for batch in rig.settle())


def test_a_move_that_is_carried_out_is_told() -> None:
    rig = main_rig(Progress(9, log=LOG))
    rig.settle()
    rig.lane.reset([ordered_to(3)], {}, rig.now)
    moved(rig)
    assert ("position-reset", ORDERS, 1, 3) in rig.told
