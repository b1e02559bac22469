"""`reconsume_parked_keys`: the keys whose first record is parked, also where a redriven letter came before it."""

from __future__ import annotations

from tests.sim.ladder_rig import LadderRig, waiting
from tests.sim.samples import ORDERS


def test_a_key_whose_first_record_can_go_is_not_parked() -> None:
    """Given a letter that was redriven to where main ended, and a later record that was parked before it was read."""
    rig = LadderRig()
    rig.put(waiting(5, parked=True, due_at=0), key=b"a")
    rig.put(waiting(1, 0, redrives=1, sequence=1), key=b"a")
    rig.take_over()
    facts = rig.lane.facts(rig.now.steady_ms).queues[ORDERS]
    assert (facts.blocked_keys, facts.parked_keys) == (1, 0)


def test_a_key_of_two_parked_records_counts_once() -> None:
    rig = LadderRig()
    rig.put(waiting(5, parked=True, due_at=0), key=b"a")
    rig.put(waiting(1, 1, redrives=1, sequence=1, parked=True, due_at=0), key=b"a")
    rig.take_over()
    facts = rig.lane.facts(rig.now.steady_ms).queues[ORDERS]
    assert facts.parked_keys <= facts.blocked_keys
