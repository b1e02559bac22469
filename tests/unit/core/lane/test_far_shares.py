"""A partition far beyond its hung record is a flow like any other: it goes on, and holds no more than its share."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.progress import SPAN
from tests.sim.samples import ORDERS
from tests.unit.core.lane.test_room_shares import BILLS, ROOM, RUN, WEIGHT, Fetcher

HUNG, FAR = 0, 2 * SPAN


def beyond_a_hung_record(lane: Fetcher, last: int) -> None:
    """Read and answer the records of a partition up to `last`, all but the first one, as fast as they come."""
    rig = lane.rig
    while rig.part().tracker.next < last:
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
    for _ in range(200):
        lane.fetch(ORDERS, BILLS)
        while len(lane.rig.sent) > 1:
            lane.rig.answer(place=1)
        lane.rig.run(50)
        while lane.rig.batches:
            lane.rig.conclude()
    assert begun(lane) == list(range(len(begun(lane))))
    assert len(begun(lane)) > FAR + ROOM // WEIGHT
    assert lane.rig.part(BILLS).tracker.next > ROOM // WEIGHT


def test_where_all_of_it_hangs_it_lets_go_of_what_is_above_its_share_and_begins_that_again(lane: Fetcher) -> None:
    """Given a partition far beyond its hung record, when nothing of it ends any more, then another topic gets room.
    When its records end again, then each has gone out once, and the progress passes over none of them."""
    lane.fetch(ORDERS)
    assert lane.rig.lane.memory.full
    lane.run(2, ORDERS, BILLS)
    assert lane.load(ORDERS) <= 0.5 + RUN * WEIGHT / ROOM
    assert lane.load(BILLS) > 0
    assert lane.rig.part().tracker.dropped, "the test is about records that are let go"
    for _ in range(400):
        lane.fetch(ORDERS, BILLS)
        if len(lane.rig.sent) > 1:
            lane.rig.answer(place=1)
    assert sorted(begun(lane)) == list(range(len(begun(lane)))), "each of them, once"
    assert len(begun(lane)) > FAR + 100
    progress = lane.rig.settle()[-1].commits[ORDERS].progress
    out = {sent.record.offset for sent in lane.rig.sent if sent.record.source == ORDERS}
    assert progress.next == HUNG
    assert OffsetRanges.of(progress.done).end <= lane.rig.part().tracker.next
    assert not out & set(OffsetRanges.of(progress.done).within(FAR, lane.rig.part().tracker.next))


def test_what_was_let_go_is_open_in_the_progress_once_the_hung_record_has_ended(lane: Fetcher) -> None:
    lane.fetch(ORDERS)
    lane.run(2, ORDERS, BILLS)
    for sent in list(lane.rig.sent):
        if sent.record.source == ORDERS:
            lane.rig.answer(place=lane.rig.sent.index(sent))
    dropped = lane.rig.part().tracker.dropped
    progress = next(batch.commits[ORDERS].progress for batch in lane.rig.settle() if ORDERS in batch.commits)
    assert HUNG < progress.next <= min(dropped)
    assert [offset for offset in dropped if progress.covers(offset)] == []
