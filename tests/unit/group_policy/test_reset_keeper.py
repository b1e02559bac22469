"""What an instance makes of requests to reset positions, and of what owners note."""

from __future__ import annotations

from reconsume.sidecar.core.position_reset import ResetOrder
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.group_policy.reset_keeper import ResetKeeper
from reconsume.topics.position_ranges import PartitionResets, ResetNote, Resets
from reconsume.topics.reset_record import CARRIED_OUT_WITHIN_MS, ResetRequest, ResetTarget

ORDERS = Partition("orders", 2)
REQUEST = ResetRequest("orders", "t1", (ResetTarget(2, 70, "r0"),), "ann", "", at=1_000, skips=True)
ORDER = ResetOrder(ORDERS, "r1", "t1", 70, "r0", 1_000 + CARRIED_OUT_WITHIN_MS, skips_all=True)
CARRIED_OUT = PartitionResets("t1", 3, (), ("r0", "r1"))


class Told:
    def __init__(self) -> None:
        self.calls: list[tuple[tuple[ResetOrder, ...], Resets]] = []
        self.keeper = ResetKeeper(lambda orders, known: self.calls.append((orders, known)))


def test_the_lanes_hear_of_a_request_once_and_of_what_its_owner_has_done() -> None:
    told = Told()
    for notes in ((), (), (ResetNote(ORDERS, CARRIED_OUT),)):
        told.keeper.take(notes, {"r1": REQUEST}, 2_000, caught_up=True)
    assert told.calls == [((ORDER,), {}), ((ORDER,), {ORDERS: CARRIED_OUT})]


def test_a_group_without_resets_tells_its_lanes_nothing() -> None:
    told = Told()
    told.keeper.take((), {}, 2_000, caught_up=True)
    assert not told.calls


def test_what_was_known_stays_in_force_until_the_topic_was_read_again() -> None:
    told = Told()
    told.keeper.take((ResetNote(ORDERS, CARRIED_OUT),), {}, 2_000, caught_up=True)
    told.keeper.begin()
    told.keeper.take((), {}, 2_000, caught_up=False)
    assert len(told.calls) == 1
    told.keeper.take((ResetNote(ORDERS, CARRIED_OUT), ResetNote(ORDERS, None)), {}, 2_000, caught_up=True)
    assert told.calls[1:] == [((), {})]


def test_a_request_of_more_than_an_hour_ago_is_no_order() -> None:
    told = Told()
    told.keeper.take((), {"r1": REQUEST}, 1_001 + CARRIED_OUT_WITHIN_MS, caught_up=True)
    assert told.calls == []
