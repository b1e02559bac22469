"""How many records of a queue are read beside its heads, and which (5.5, 5.7)."""

from __future__ import annotations

from typing import NamedTuple, cast

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.lane.key_ledger import AGE_STEP_MS
from reconsume.sidecar.core.lane.ledger_entry import QueuedCopy
from reconsume.sidecar.core.lane.owned_queue import LaneTies, OwnedQueue
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.read_aside import LOOK_FOR_OLD_MS, MOST_HOPS, MOST_OUT, OLD_MS, coming, read_aside
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.progress import Progress, ProgressTracker
from reconsume.sidecar.core.record import NEVER, Now, Partition
from reconsume.topics.attempt import Attempt
from reconsume.topics.retry_order import Order
from tests.sim.samples import ORDERS, WALL, policy

QUEUE = Partition("billing-ORDERED-orders", 0)
COPIES = 100
SPAN = 1_000
WRITTEN_MS = WALL - WALL % AGE_STEP_MS
"""A time that the ledger knows as it is."""
NOW, LATER = Now(WALL, 0), Now(WALL + OLD_MS, LOOK_FOR_OLD_MS)


class Reads:
    """Takes the reads by offset."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def fetch(self, queue: Partition, epoch: int, offset: int) -> None:
        self.offsets.append(offset)


class Ties(NamedTuple):
    """What reading aside asks of a lane."""

    rules: Policy
    queues: Reads

    def policy(self) -> Policy:
        return self.rules


class Aside:
    """A queue with a hundred keys, and what of it was asked for. `written_ms`: of its copies."""

    def __init__(self, *, parked: bool, written_ms: int = WALL) -> None:
        self.owned, self.reads = OwnedQueue(QUEUE, ORDERS, 1), Reads()
        self.owned.old_at_ms = 0
        self.queue = LanePartition(QUEUE, 1, ProgressTracker(Progress(0)), 0, "ordered", under=ORDERS)
        self.ties = Ties(replace(policy(), queued=True, parks=not parked), self.reads)
        for offset in range(COPIES):
            self.queue.tracker.begin(offset)
            due_ms = NEVER if parked else 0
            copy = QueuedCopy(
                offset, (offset, WALL), b"%d" % offset, Order(offset), Attempt(0, 0, 1), due_ms, written_ms, 300
            )
            self.owned.ledger.read(copy)

    def look(self, now: Now = NOW, span: int = SPAN) -> list[int]:
        """Look once; return the offsets that were asked for."""
        self.reads.offsets.clear()
        read_aside(cast(LaneTies, self.ties), self.queue, self.owned, span, now)
        return list(self.reads.offsets)


@pytest.mark.parametrize("inside", [0, 1, 10, MOST_OUT])
def test_no_more_are_out_than_may_be(inside: int) -> None:
    aside = Aside(parked=True)
    aside.owned.inside = {-1 - number: (-1 - number, 0) for number in range(inside)}
    assert aside.look() == list(range(MOST_OUT - inside))
    assert aside.look() == []
    assert coming(aside.owned) == 512 * (MOST_OUT - inside), "their bytes, rounded"


@pytest.mark.parametrize(("span", "count"), [(7, 7), (1, 1)])
def test_what_progress_does_not_reach_is_noted_and_left(span: int, count: int) -> None:
    aside = Aside(parked=True)
    assert aside.look(span=span) == list(range(count))
    assert aside.owned.out_of_reach == COPIES - 1


@pytest.mark.parametrize(("hopping", "count"), [(0, MOST_HOPS), (3, MOST_HOPS - 3), (MOST_HOPS, 0)])
def test_old_copies_go_a_few_at_a_time_until_all_have_gone(hopping: int, count: int) -> None:
    aside = Aside(parked=False, written_ms=WALL - 60_000)
    aside.owned.hopping = {-1 - number for number in range(hopping)}
    assert len(aside.look(LATER)) == count
    assert len(aside.owned.old) == COPIES - count
    assert aside.look(LATER) == []
    aside.owned.hopping.clear()
    assert len(aside.look(LATER)) == MOST_HOPS


@pytest.mark.parametrize(("more_ms", "count"), [(0, 0), (1, MOST_HOPS)])
def test_a_copy_is_old_after_four_hours_and_looked_for_every_eight(more_ms: int, count: int) -> None:
    aside = Aside(parked=False, written_ms=WRITTEN_MS)
    assert len(aside.look(Now(WRITTEN_MS + OLD_MS + more_ms, LOOK_FOR_OLD_MS))) == count
    assert aside.owned.old_at_ms == 2 * LOOK_FOR_OLD_MS
