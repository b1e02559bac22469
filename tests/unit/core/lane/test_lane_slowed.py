"""While answered failures slow it down, one partition may not fill the lane's memory for all others."""

from reconsume.sidecar.core.lane.partition import Because
from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent
from reconsume.sidecar.core.pace.pace import PROBE_INTERVAL_MS
from reconsume.sidecar.core.record import Partition
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record

FAILS = Failed("http-500")
OTHER = Partition("orders", 1)
WEIGHT = record(0).weight


def slowed(room: int) -> Rig:
    """Two partitions, and a row of failures in the first."""
    rig = Rig(concurrency=4, failures=3, room=room)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(range(4))
    while rig.sent:
        rig.answer(FAILS)
    rig.settle()
    assert rig.gate.pace.slowed
    return rig


def test_a_partition_with_more_than_half_its_share_is_parked_and_the_others_are_not() -> None:
    rig = slowed(room=16 * WEIGHT)
    rig.take_offsets(range(4, 20))
    rig.take_offsets(range(3), OTHER)
    parked = rig.part().paused
    assert parked is not None
    assert (parked.because, parked.offset) == (Because.SLOWED, 9)  # five are more than 16 / 4
    assert rig.part(OTHER).paused is None


def test_it_goes_on_when_a_quarter_of_that_is_free_again() -> None:
    rig = slowed(room=16 * WEIGHT)
    rig.take_offsets(range(4, 20))
    while rig.part().paused is not None:
        rig.run(PROBE_INTERVAL_MS)
        rig.answer_all(FAILS)
        rig.settle()
    assert 2 * WEIGHT <= rig.part().load <= 3 * WEIGHT
    assert ("resume", ORDERS, 9, 1) in rig.fetches


def test_an_open_pace_and_a_service_that_is_away_park_nothing() -> None:
    rig = Rig(concurrency=4, failures=3, room=16 * WEIGHT)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(range(6))
    assert rig.part().paused is None
    rig.answer(NotSent("refused"))
    rig.take_offsets(range(6, 12))
    assert rig.part().paused is None


def test_what_is_in_memory_already_stays_and_is_delivered() -> None:
    rig = Rig(concurrency=4, failures=3, room=16 * WEIGHT)
    rig.assign(ORDERS, OTHER)
    rig.take_offsets(range(12))
    for _ in range(4):
        rig.answer(FAILS)
    rig.settle()
    assert rig.gate.pace.slowed
    rig.run(PROBE_INTERVAL_MS)
    while rig.sent:
        rig.answer(COMMITTED)
    assert {sent.record.offset for sent in rig.history} == set(range(12))
