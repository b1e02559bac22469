"""The gates of a lane: a record passes them where it would leave, or is kept where the closed one finds it again.

A record leaves at two points. Its turn has come (`pass_or_keep`, from `Lane.send`): the order of its key, the limits of
its topic, the rate and the pace have agreed by then. Or the delay of its level is over (`pass_after_wait`): it may
have to wait on, hop, or be forwarded by a relay.

    gate                                         | where the record is kept
    ---------------------------------------------|------------------------------------------------------------------
    closing                                      | CALLED_OFF: the next owner delivers it
    refused, unproven, behind-reset              | STOPPED, and tried again once the gate may be open
    superseded by a reset                        | SETTLED: what ends it is written
    held by an operator                          | KEPT or STOPPED, or back in its queue (`hold_gate.py`)
    decided by an operator                       | SETTLED, or STOPPED for a rate (`settling.py`)
    suspect                                      | STOPPED, until the mark of its partition is in Kafka (`suspects.py`)

Which gate is closed says `Why.first_closed`, which changes nothing. The gate of suspects is asked last, because it
takes something: a mark, and a commit. A gate that is not in force costs one comparison. Event loop alone.
"""

from __future__ import annotations

from typing import assert_never

from reconsume.sidecar.core.decisions import Decisions
from reconsume.sidecar.core.hold_gate import HoldGate
from reconsume.sidecar.core.ownership import Machines
from reconsume.sidecar.core.partition import AWAY, CALLED_OFF, Entry, PartitionState
from reconsume.sidecar.core.position_reset import PositionResets
from reconsume.sidecar.core.reasons import Closed, NotDelivered
from reconsume.sidecar.core.record import Now, Record
from reconsume.sidecar.core.settling import Settling
from reconsume.sidecar.core.suspects import SuspectGate
from reconsume.sidecar.core.why import Why
from reconsume.topics.transitions import Forward, Wait, after_wait, by_reset


class Gates:
    """The gates of one lane. `suspects`: None if crashes are not looked at. It keeps nothing."""

    def __init__(
        self,
        machines: Machines,
        decisions: Decisions,
        why: Why,
        resets: PositionResets,
        hold_gate: HoldGate,
        settling: Settling,
        suspects: SuspectGate | None,
    ) -> None:
        self._machines, self._decisions, self._why = machines, decisions, why
        self._resets, self._hold_gate, self._settling, self._suspects = resets, hold_gate, settling, suspects

    # --- its turn has come ------------------------------------------------------------------------------------------

    def pass_or_keep(self, partition: PartitionState, record: Record, now: Now) -> bool:
        """Return whether a record may be delivered now. If not, it is where the closed gate finds it again."""
        if (reason := self._why.first_closed(partition, record)) is not None:
            self._keep(partition, record, reason, now)
            return False
        suspicion, suspects = partition.suspicion, self._suspects
        if self._settling.in_force and self._settling.takes(partition, record, now):
            if suspects is not None and suspicion is not None:
                suspects.kept_back(partition, suspicion)
            return False
        return suspicion is None or suspects is None or suspects.pass_or_keep(partition, suspicion, record, now)

    def _keep(self, partition: PartitionState, record: Record, reason: Closed, now: Now) -> None:
        match reason:
            case NotDelivered.CLOSING:
                partition.offsets.move(partition.offsets.entries[record.offset], CALLED_OFF)
            case NotDelivered.HELD:
                self._hold_back(partition, record)
            case NotDelivered.SUPERSEDED:
                self._decisions.write(partition, record, by_reset(record), now)
            case NotDelivered.REFUSED | NotDelivered.UNPROVEN | NotDelivered.BEHIND_RESET:
                self._machines.waiting.stop_record(partition, record, reason)
            case _:
                assert_never(reason)

    def _hold_back(self, partition: PartitionState, record: Record) -> None:
        """Keep back a record that an operator holds."""
        self._hold_gate.keep_back(partition, record)
        queues = self._decisions.queues
        queue = None if queues is None else queues.under(partition)
        if queue is not None and partition.offsets.entries[record.offset].where is AWAY:
            queue.put_back((record,))
            self._machines.agenda.wake_by(0)  # amid a dispatch, maybe of the other lane, behind the look at the queues
        if self._suspects is not None and partition.suspicion is not None:
            self._suspects.kept_back(partition, partition.suspicion)

    # --- the delay of its level is over -----------------------------------------------------------------------------

    def pass_after_wait(self, partition: PartitionState, entry: Entry, now: Now) -> bool:
        """Do what follows once the level delay of a record is over; return whether it may be delivered now."""
        record, waiting = entry.record, self._machines.waiting
        assert record is not None
        if self._resets.in_force and record.retry_state is not None and self._resets.supersedes(record.retry_state):
            self._decisions.write(partition, record, by_reset(record), now)
            return False
        if self._settling.in_force and self._settling.takes(partition, record, now):
            return False
        decision = after_wait(record, self._decisions.policy, now.wall_ms, waiting.patience_ms)
        if isinstance(decision, Wait):
            if decision.ms > 0:
                waiting.delay_record(partition, entry, now.steady_ms + decision.ms)
            return decision.ms <= 0
        if isinstance(decision, Forward):
            if self._hold_gate.in_force and self._hold_gate.is_held(record):
                self._hold_back(partition, record)
                return False
            self._decisions.counters.late(record, partition.kind.delay_ms, now.wall_ms)
        self._decisions.write(partition, record, decision, now)
        return False
