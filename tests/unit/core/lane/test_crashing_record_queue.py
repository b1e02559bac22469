"""After crashes the suspects of a queue go one at a time too, in whatever order its records are read."""

from __future__ import annotations

from msgspec.structs import replace

from reconsume.sidecar.core.lane.suspicion import IDLE_MS, QUIET_MS
from reconsume.sidecar.core.progress import Progress
from tests.sim.ladder_rig import QUEUE, LadderRig, rules, waiting
from tests.sim.samples import ORDERS

SUSPECTS = 2
"""The records at these first offsets of the queue were with the service when its last owner died."""


def taken_up(*offsets: int, progress: Progress | None = None) -> LadderRig:
    """A lane whose queue had owners that died twice, and that has read it, and then these records of it."""
    rig = LadderRig(policy=replace(rules(), max_deaths=3))
    rig.begin(Progress(100, clean=True))
    for number in range(SUSPECTS + 1):
        rig.put(waiting(number), key=b"k%d" % number)
    rig.open(progress or Progress(0, deaths=1, reach=SUSPECTS - 1))
    rig.look()
    assert rig.reader.wanted == [0, 1, 2]
    bring(rig, *offsets)
    return rig


def bring(rig: LadderRig, *offsets: int) -> None:
    for offset in offsets:
        rig.reader.wanted.remove(offset)
        rig.reader.wanted.insert(0, offset)
        rig.bring()


def goes_alone(rig: LadderRig, offset: int) -> None:
    """The record at this offset is out alone, and Kafka knows, until it is accepted."""
    rig.settle()
    assert (rig.out(), rig.queue().mark) == ([offset], offset)
    rig.take_it(offset)


def test_a_record_that_is_read_before_the_suspects_does_not_clear_them() -> None:
    rig = taken_up(2, 0, 1)
    goes_alone(rig, 0)
    goes_alone(rig, 1)
    rig.settle()
    assert rig.out() == [2], "it goes as soon as the last suspect is answered"


def test_suspects_that_are_read_late_are_waited_for_and_keep_nothing_else_back() -> None:
    rig = taken_up(2, 1)
    goes_alone(rig, 1)
    rig.arrive(b"free")
    rig.run(2 * QUIET_MS)
    rig.settle()
    assert rig.out() == [100]
    rig.take_it(100)
    bring(rig, 0)
    goes_alone(rig, 0)
    rig.settle()
    assert rig.out() == [2]


def test_suspects_that_are_gone_are_not_waited_for() -> None:
    rig = taken_up(2)
    rig.log = {2: rig.log[2]}
    bring(rig, 0, 1)
    rig.run(2 * IDLE_MS)
    rig.settle()
    assert rig.out() == [2]


def test_records_of_a_queue_that_are_not_due_were_not_with_the_service() -> None:
    """Those that are read go on without them."""
    rig = LadderRig(policy=replace(rules(), max_deaths=3))
    rig.begin(Progress(100, clean=True))
    for number in range(3):
        rig.put(waiting(number, due_in=3_600_000 if number < SUSPECTS else 0), key=b"k%d" % number)
    rig.open(Progress(0, deaths=1, reach=SUSPECTS - 1))
    rig.look()
    bring(rig, 2)
    rig.settle()
    assert rig.out() == [2]
    assert rig.part(QUEUE).suspicion is not None
    assert rig.part(ORDERS).suspicion is not None


KILLED = Progress(0, deaths=2, mark=1, reach=SUSPECTS - 1)
"""Two owners have died, and the last with the record at offset 1 alone with the service."""


def test_no_mark_of_another_record_replaces_the_evidence_against_the_one_that_crashes_the_service() -> None:
    """Given a record that is read first, then it goes once the other one is a dead letter, and not before."""
    rig = taken_up(0, progress=KILLED)
    rig.settle()
    assert (rig.out(), rig.queue().mark) == ([], None)
    rig.run(QUIET_MS // 2)
    bring(rig, 1)
    rig.settle()
    goes_alone(rig, 0)
    assert rig.queue().covers(1)


def test_a_record_that_crashes_the_service_and_is_not_read_keeps_the_others_back_for_ten_seconds() -> None:
    rig = taken_up(0, progress=KILLED)
    rig.settle()
    assert rig.out() == []
    rig.run(QUIET_MS)
    rig.settle()
    assert rig.out() == [0]
    rig.take_it(0)
    bring(rig, 1)
    rig.settle()
    assert rig.queue().covers(1), "it is a dead letter all the same"


def test_a_record_that_crashes_the_service_and_is_gone_keeps_nothing_back() -> None:
    rig = taken_up(0, progress=KILLED)
    del rig.log[1]
    bring(rig, 1)
    rig.run(IDLE_MS)
    rig.settle()
    assert rig.out() == [0]
