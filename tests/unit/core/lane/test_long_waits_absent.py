"""A queue topic that does not exist: only the keys that fail wait, in memory, until it is made."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.lane.outbox import LAST_TRY_MS, MOST_REFUSED
from reconsume.sidecar.core.lane.partition import Because
from tests.sim.ladder_rig import QUEUE, LadderRig, waiting
from tests.sim.samples import ORDERS


def without_a_queue() -> LadderRig:
    """A lane that has taken over a partition whose queue does not exist."""
    rig = LadderRig()
    rig.begin()
    rig.queues.absent(QUEUE, 1, rig.now)
    return rig


def refuse(rig: LadderRig, where: str = QUEUE.topic) -> None:
    """Refuse all that the next batch writes, because this topic is missing."""
    rig.run(LAST_TRY_MS)
    entries = [entry for entry in rig.batches[0].entries if entry.writes]
    rig.conclude(refused=[(entry, "topic") for entry in entries], where=where)


def waits(rig: LadderRig) -> Because | None:
    pause = rig.part(ORDERS).paused
    return None if pause is None else pause.because


def test_the_key_of_a_copy_without_a_queue_waits_and_all_others_go_on() -> None:
    rig = without_a_queue()
    rig.arrive(b"a", b"b", b"a")
    assert rig.out() == [0, 1]
    rig.fail(0)
    rig.take_it(1)
    refuse(rig)
    rig.arrive(b"a", b"b", b"c")
    assert rig.out() == [4, 5]
    assert not rig.part(ORDERS).blocked
    assert waits(rig) is None
    assert rig.lane.shown.facts(rig.now.steady_ms).partitions[ORDERS].refused == 1


def test_what_waited_in_memory_goes_to_the_queue_once_it_is_made_and_goes_on_from_there() -> None:
    rig = without_a_queue()
    rig.arrive(b"a", b"a")
    rig.fail(0)
    refuse(rig)
    rig.run(LAST_TRY_MS)
    rig.conclude()
    rig.open()
    rig.look()
    rig.flow(10_000)
    assert rig.out() == [0]
    rig.take_it(0)
    rig.flow()
    assert rig.out() == [1]
    rig.take_it(1)
    rig.flow()
    rig.arrive(b"a")
    assert rig.out() == [2]


def test_a_queue_that_is_opened_late_is_read_up_to_its_end_while_its_main_partition_goes_on() -> None:
    """What a redrive has written meanwhile is found there."""
    rig = without_a_queue()
    rig.arrive(b"b")
    rig.put(waiting(0, due_in=0, sequence=1), key=b"a")
    rig.open()
    rig.arrive(b"c")
    assert rig.out() == [0, 1]
    rig.look(caught_up=False)
    rig.look()
    assert waits(rig) is None
    rig.flow()
    assert rig.out() == [0, 1, 0]
    rig.queues.absent(QUEUE, 1, rig.now)
    assert rig.lane.shown.facts(rig.now.steady_ms).queues[ORDERS].blocked_keys == 1


@pytest.mark.parametrize(("where", "stops"), [(QUEUE.topic, False), ("billing-DLQ", True), ("billing-ORDERED-x", True)])
def test_only_the_own_queue_is_needed_by_no_other_key(where: str, stops: bool) -> None:
    rig = without_a_queue()
    rig.arrive(b"a")
    rig.fail(0)
    refuse(rig, where)
    assert bool(rig.part(ORDERS).blocked) is stops


def test_what_waits_in_memory_is_bounded_and_its_partition_goes_on_once_there_is_room() -> None:
    rig = without_a_queue()
    failing = MOST_REFUSED + 1
    rig.arrive(*(b"k%d" % number for number in range(failing)))
    for _ in range(failing):
        rig.fail(rig.out()[0])
    while rig.lane.shown.facts(rig.now.steady_ms).partitions[ORDERS].refused < failing:
        refuse(rig)
    assert rig.part(ORDERS).blocked == "too many of its copies are refused"
    rig.flow(LAST_TRY_MS)
    assert not rig.part(ORDERS).blocked
