"""`reconsume_parked_keys`: the keys whose first record is parked, also where a redriven letter came before it."""

from __future__ import annotations

from msgspec.structs import replace

from reconsume.sidecar.core.lane.key_ledger import KeyLedger
from reconsume.sidecar.core.lane.ledger_entry import QueuedCopy
from reconsume.sidecar.core.record import NEVER
from reconsume.topics.attempt import Attempt
from reconsume.topics.retry_order import Order
from tests.sim.ladder_rig import LadderRig, waiting
from tests.sim.samples import ORDERS


def test_a_key_whose_first_record_can_go_is_not_parked() -> None:
    """Given a letter that was redriven to where main ended, and a later record that was parked before it was read."""
    rig = LadderRig()
    rig.put(waiting(5, parked=True, due_at=0), key=b"a")
    rig.put(waiting(1, 0, redrives=1, sequence=1), key=b"a")
    rig.take_over()
    facts = rig.lane.shown.facts(rig.now.steady_ms).queues[ORDERS]
    assert (facts.blocked_keys, facts.parked_keys) == (1, 0)


def test_a_key_of_two_parked_records_counts_once() -> None:
    rig = LadderRig()
    rig.put(waiting(5, parked=True, due_at=0), key=b"a")
    rig.put(waiting(1, 1, redrives=1, sequence=1, parked=True, due_at=0), key=b"a")
    rig.take_over()
    facts = rig.lane.shown.facts(rig.now.steady_ms).queues[ORDERS]
    assert facts.parked_keys <= facts.blocked_keys


def test_a_key_stays_parked_while_its_head_is_written_again_and_until_it_is_read_as_due() -> None:
    """Copies that lie long are written again, and where Kafka refuses copies that lasts."""
    ledger, identity, attempt = KeyLedger(), (7, 1_000), Attempt(0, 0, 2)
    parked = QueuedCopy(20, identity, b"a", Order(7), attempt, NEVER)
    ledger.read(parked)
    seen = list[int]()
    for copy in (replace(parked, offset=21), replace(parked, offset=22, due_ms=5)):
        entry = ledger.entry(identity)
        assert entry is not None
        assert ledger.take_aside(entry)
        assert ledger.taken(identity, entry.offset)
        seen.append(ledger.parked_keys)
        ledger.writing(identity, b"a", Order(7), attempt)
        seen.append(ledger.parked_keys)
        ledger.written(identity)
        seen.append(ledger.parked_keys)
        ledger.check()
        ledger.read(copy)
        ledger.check()
    assert seen == [1] * 6
    assert ledger.parked_keys == 0
    assert ledger.heads.next_at() == 5
