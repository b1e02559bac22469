"""Copies that the lane has committed itself: they go out when they are due without being read back."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.lane.queue_copies import AT_HAND_SHARE, SOON_MS
from reconsume.sidecar.core.progress import Progress
from tests.sim.ladder_rig import QUEUE, WAITS, LadderRig, waiting
from tests.sim.rig import Rig


def failed(*keys: bytes, queue: Progress | None = None, room: int = 1 << 20) -> LadderRig:
    """A lane whose first records have failed; what is written for them is on its way. `queue`: the progress there."""
    rig = LadderRig(room=room)
    rig.take_over(queue)
    rig.arrive(*keys)
    for offset in range(len(keys)):
        rig.fail(offset)
    rig.run(20)
    return rig


def commit(rig: LadderRig) -> None:
    """Commit all that is settled, and tell the lane where the copies lie."""
    for _ in range(4):
        if rig.batches:
            rig.conclude_located()
        rig.run(20)


def test_a_copy_whose_place_is_told_goes_out_though_nothing_is_read_back() -> None:
    rig = failed(b"a", b"b")
    commit(rig)
    assert (rig.reader.known_to, rig.read_to, rig.reader.awaited) == (2, 0, False)
    rig.run(WAITS[0])
    assert sorted(rig.reader.wanted) == [0, 1]
    rig.conclude()
    rig.bring()
    assert rig.out() == [0]


def test_what_is_due_soon_is_at_hand_as_it_would_be_read_and_what_is_due_late_is_not() -> None:
    rig = failed(b"a")
    assert WAITS[0] < SOON_MS < WAITS[1]
    rig.conclude_located()
    assert rig.reader.at_hand == [rig.log[0]]
    rig.run(WAITS[0])
    rig.conclude()
    rig.bring()
    rig.fail(0)
    commit(rig)
    assert (rig.end, len(rig.reader.at_hand)) == (2, 1)


def test_no_more_is_at_hand_than_there_is_room_for_and_those_that_are_first_are() -> None:
    """Given so many copies in one transaction that the last ones would push out the first, then only the first are."""
    rig = failed(*(b"k%d" % number for number in range(5)), room=AT_HAND_SHARE * 4_000)
    commit(rig)
    assert rig.log[0].weight < 4_000 < 2 * rig.log[0].weight
    assert rig.reader.at_hand == [rig.log[offset] for offset in (0, 1, 2)], "one was committed alone, then four"
    assert rig.reader.known_to == rig.end


def test_a_record_of_others_before_a_copy_is_read_first_and_both_go_out() -> None:
    rig = LadderRig()
    rig.take_over()
    rig.arrive(b"a", b"b")
    rig.take_it(1)
    rig.fail(0)
    rig.run(20)
    rig.put(waiting(1, redrives=1), key=b"b")
    rig.conclude_located()
    assert (rig.reader.known_to, rig.reader.awaited) == (0, True)
    rig.run(WAITS[0])
    assert rig.reader.wanted == [], "nobody knows yet what lies before it"
    rig.conclude()
    rig.look(most=1)
    rig.bring()
    rig.bring()
    assert sorted(rig.out()) == [0, 1]


def test_a_copy_that_is_read_back_all_the_same_changes_nothing() -> None:
    rig = failed(b"a", b"b")
    commit(rig)
    rig.look()
    rig.flow(WAITS[0])
    assert sorted(rig.out()) == [0, 1]
    rig.answer_all()
    rig.flow()
    assert rig.part(QUEUE).tracker.open == 0


def test_a_copy_that_is_read_before_its_commit_is_known_is_taken_once() -> None:
    rig = failed(b"a")
    rig.reach_kafka()
    rig.look()
    Rig.conclude(rig, located={0: (0, rig.log[0].timestamp)})
    rig.flow(WAITS[0])
    assert rig.out() == [0]


@pytest.mark.parametrize("last_at_ms", [None, 0, 7])
def test_progress_beyond_the_first_copy_of_a_log_says_so_before_it_is_read(last_at_ms: int | None) -> None:
    """Progress that says that nothing of a log was read is not believed: all of it would be delivered again."""
    rig = failed(b"a", queue=Progress(0, last_at_ms=last_at_ms))
    commit(rig)
    rig.run(WAITS[0])
    rig.bring()
    commit(rig)
    rig.take_it(0)
    rig.run(1_000)
    progress = rig.batches[0].commits[QUEUE].progress
    assert (progress.next, rig.read_to) == (1, 0)
    assert progress.last_at_ms == (rig.log[0].timestamp if last_at_ms == 0 else last_at_ms)
