"""A record that waits in a queue although its main topic, made anew or cut, has no such offset any more."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.lane.partition import FetchedRecords
from reconsume.sidecar.core.lane.short_main import SURE_AFTER_MS
from reconsume.sidecar.core.progress import Progress
from tests.sim.ladder_rig import WAITS, LadderRig, behind, waiting
from tests.sim.samples import ORDERS

FAR = 5_000
"""The offset of a record of the former log."""


def former(end: int = 0) -> LadderRig:
    """A lane in whose queue two records of one key of a former log wait; the present one has `end` records."""
    rig = LadderRig()
    rig.put(waiting(FAR))
    rig.put(behind(FAR + 1))
    rig.take_over(main=Progress(end))
    return rig


def end_at(rig: LadderRig, end: int) -> None:
    """Tell the lane that the main partition was read up to its end."""
    seeks = rig.part().seek_count
    rig.lane.received([FetchedRecords(ORDERS, rig.part().epoch, seeks, [], end)], rig.now)
    rig.flow()


def test_it_goes_out_once_all_that_there_is_was_read_for_a_minute() -> None:
    rig = former()
    end_at(rig, 0)
    rig.flow(SURE_AFTER_MS - 1_000)
    assert rig.out() == []
    rig.flow(2_000)
    assert rig.out() == [FAR]
    rig.fail(FAR)
    rig.flow(WAITS[1])
    assert rig.out() == [FAR], "its retry need not wait a minute again"
    rig.take_it(FAR)
    rig.flow()
    assert rig.out() == [FAR + 1]
    rig.take_it(FAR + 1)
    rig.flow()
    assert not rig.queues.facts()[ORDERS].blocked_keys


def test_it_waits_while_more_of_the_main_partition_is_to_come() -> None:
    """As where its progress was lost, and all is read again."""
    rig = former()
    for _ in range(5):
        rig.arrive(b"b")
        rig.take_it(rig.out()[0])
        rig.flow(SURE_AFTER_MS)
    assert rig.out() == []


def test_a_record_of_its_key_that_is_out_comes_first() -> None:
    rig = former()
    rig.arrive(b"a")
    end_at(rig, 1)
    rig.flow(SURE_AFTER_MS + 1_000)
    assert rig.out() == [0]
    rig.take_it(0)
    rig.flow()
    assert rig.out() == [FAR]


@pytest.mark.parametrize("growing", [False, True])
def test_a_busy_topic_that_is_made_anew_keeps_it_no_longer(growing: bool) -> None:
    rig = former()
    for number in range(7):
        if growing:
            rig.arrive(b"b")
            rig.take_it(number)
        end_at(rig, rig.next_main)
        rig.flow(SURE_AFTER_MS // 5)
    assert rig.out() == [FAR]


def test_an_end_that_was_only_late_keeps_the_order() -> None:
    """A leader told an end that lay before what its predecessor had given; then the rest comes."""
    rig = LadderRig()
    rig.put(waiting(3))
    rig.take_over(main=Progress(1))
    end_at(rig, 1)
    rig.flow(SURE_AFTER_MS // 2)
    rig.next_main = 1
    rig.arrive(b"a", b"b")
    assert rig.out() == [1, 2]
    rig.take_it(2)
    rig.flow(SURE_AFTER_MS)
    assert rig.out() == [1]
    rig.arrive(b"c")
    rig.take_it(1)
    rig.flow()
    assert 3 in rig.out()
