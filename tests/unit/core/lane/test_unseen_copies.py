"""A queue that is cut before a copy was read back: no key stands for ever, and what can still come is awaited."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.lane.partition import FetchedRecords
from reconsume.sidecar.core.lane.unseen_copies import SURE_AFTER_MS
from tests.sim.ladder_rig import QUEUE, WAITS, LadderRig, waiting


def rig_with_a_copy_on_its_way(*, committed: bool = True) -> LadderRig:
    """A lane whose record at 0 has failed; its copy is not read back. Another key has nothing to do with it."""
    rig = LadderRig(concurrency=2)
    rig.take_over()
    rig.settle()
    rig.arrive(b"a", b"b")
    rig.fail(0)
    rig.run(20)
    if committed:
        rig.conclude()
    return rig


def cut(rig: LadderRig) -> None:
    """Let all that lies in the queue go, unread."""
    rig.read_to = rig.end
    rig.queues.cut(QUEUE, rig.part().epoch, rig.end, rig.now)
    rig.check()


def end(rig: LadderRig) -> None:
    """Say that the queue was read up to its end."""
    rig.queues.read(FetchedRecords(QUEUE, rig.part().epoch, 0, [], rig.end), rig.now, caught_up=True)
    rig.check()


def test_a_copy_that_is_gone_is_given_up_after_a_minute_and_its_key_goes_on() -> None:
    rig = rig_with_a_copy_on_its_way()
    cut(rig)
    end(rig)
    rig.run(SURE_AFTER_MS - 100)
    rig.arrive(b"a")
    rig.flow()
    assert rig.out() == [1], "the record behind it waits in the queue"
    rig.run(200)
    rig.take_it(1)
    rig.flow(WAITS[1])
    assert rig.out() == [2]
    assert rig.lane.ownership.records_lost["orders"] == 1


def test_what_stood_behind_a_copy_that_is_gone_goes_out_without_any_other_event() -> None:
    """All else is idle then: without a wake-up of its own the key would stand until the next look for old copies."""
    rig = rig_with_a_copy_on_its_way()
    rig.take_it(1)
    cut(rig)
    end(rig)
    rig.arrive(b"a")
    rig.flow()
    assert rig.out() == rig.reader.wanted == []
    rig.run(SURE_AFTER_MS + 100)
    assert rig.reader.wanted == [1], "the record behind it is asked for"


def test_nothing_is_given_up_before_the_log_was_read_to_its_end() -> None:
    rig = rig_with_a_copy_on_its_way()
    cut(rig)
    rig.run(2 * SURE_AFTER_MS)
    assert len(rig.lane.ownership.records_lost) == 0
    end(rig)
    assert rig.lane.ownership.records_lost["orders"] == 1


def test_what_is_gone_is_given_up_in_a_queue_in_which_more_comes_without_a_pause() -> None:
    """The client reports no end of such a log; what it held at the cut was read all the same."""
    rig = rig_with_a_copy_on_its_way()
    cut(rig)
    rig.run(SURE_AFTER_MS)
    assert len(rig.lane.ownership.records_lost) == 0
    copy = replace(rig.log[0], offset=rig.end, key=b"c", retry_state=waiting(7))
    rig.queues.read(FetchedRecords(QUEUE, rig.part().epoch, 0, [copy], None), rig.now, caught_up=True)
    assert rig.lane.ownership.records_lost["orders"] == 1


@pytest.mark.parametrize("committed", [True, False])
def test_a_copy_that_comes_after_the_cut_is_delivered_as_ever(committed: bool) -> None:
    """It lay behind the new beginning, or was committed only afterwards."""
    rig = rig_with_a_copy_on_its_way(committed=committed)
    rig.queues.cut(QUEUE, rig.part().epoch, rig.end, rig.now)
    rig.take_it(1)
    if not committed:
        rig.run(SURE_AFTER_MS)
        end(rig)
    rig.flow(WAITS[0])
    rig.fail(0)
    rig.flow()
    rig.run(SURE_AFTER_MS)
    rig.flow(WAITS[1])
    assert rig.take_it(0).times == 2
    assert len(rig.lane.ownership.records_lost) == 0


def test_a_copy_that_is_being_written_at_the_cut_has_a_minute_from_its_end_at_most() -> None:
    """Its transaction may have written it before the cut."""
    rig = rig_with_a_copy_on_its_way(committed=False)
    cut(rig)
    end(rig)
    rig.run(SURE_AFTER_MS)
    rig.conclude()
    rig.read_to = rig.end
    end(rig)
    rig.run(SURE_AFTER_MS)
    assert rig.lane.ownership.records_lost["orders"] == 1
