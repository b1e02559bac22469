"""The gates before a delivery, in the order of `NotDelivered`, and what keeps any other record from coming to them.

Two questions are asked on the event loop, and neither changes anything:

- `first_closed`, by `Lane.send`, for each record whose turn has come. The order of its key, its topic's limits, the
  rate and the pace have agreed by then, because only they make a record ready and give it a turn (`order.py`, `pace/`).
  The gate of suspects comes last (`suspects.py`): it takes a mark, so all others must have agreed.
- `reason_of`, by those who look at a lane, for any entry. It asks the same gates.

A gate that is not in force costs one comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconsume.sidecar.core.hold_gate import BY_DECISION, HoldGate
from reconsume.sidecar.core.outbox import Proof
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.partition import (
    AWAY,
    BEHIND,
    CALLED_OFF,
    DELAYED,
    OUT,
    READY,
    SETTLED,
    STOPPED,
    Entry,
    PartitionState,
)
from reconsume.sidecar.core.position_reset import PositionResets
from reconsume.sidecar.core.reasons import Closed, NotDelivered, NotFetched
from reconsume.sidecar.core.record import Record

if TYPE_CHECKING:
    from reconsume.sidecar.core.ownership import Machines


class Gates:
    """The gates of one lane."""

    def __init__(self, machines: Machines, resets: PositionResets, hold_gate: HoldGate, dispatcher: Dispatcher) -> None:
        self._machines, self._resets, self._holds, self._dispatcher = machines, resets, hold_gate, dispatcher

    def first_closed(self, partition: PartitionState, record: Record) -> Closed | None:
        """Return the first gate that does not let a record pass; None if all do."""
        # Contract 9.1: a partition that is given up sends nothing new.
        if partition.closing:
            return NotDelivered.BEHIND_RESET if _is_moving(partition) else NotDelivered.CLOSING
        # Contract 7.6: its copies are refused, so each further attempt could not be counted.
        if partition.blocked:
            return NotDelivered.REFUSED
        # Contract 7.2: nothing is delivered before it is known that progress of any length can be committed.
        if self._machines.commits.proof is not Proof.PROVEN:
            return NotDelivered.UNPROVEN
        if self._resets.in_force and record.retry_state is not None:
            reason = self._resets.reason_against(record.retry_state)
            if reason is not None:
                return reason
        if self._holds.in_force and self._holds.hold_of(partition, record) is not None:
            return NotDelivered.HELD
        return None

    def reason_of(self, partition: PartitionState, entry: Entry, steady_ms: int) -> NotDelivered | None:
        """Return why a record that is in memory is not delivered at a steady time (ms); None if it is with the service
        for the first time."""
        where, record = entry.where, entry.record
        if where is OUT:
            return NotDelivered.RETRIED if record is not None and not record.is_fresh_here else None
        if where is CALLED_OFF or partition.closing:
            return NotDelivered.BEHIND_RESET if _is_moving(partition) else NotDelivered.CLOSING
        if where is SETTLED:
            is_refused = (partition.source, entry.offset) in self._machines.outbox.refused
            return NotDelivered.REFUSED if is_refused else NotDelivered.UNCOMMITTED
        if self._dispatcher.doubts and where in (READY, STOPPED):  # as in the list: before the gates of `first_closed`
            return NotDelivered.MEMBERSHIP
        return self._reason_waiting(partition, entry, steady_ms)

    def _reason_waiting(self, partition: PartitionState, entry: Entry, steady_ms: int) -> NotDelivered:
        where, record = entry.where, entry.record
        if entry.hold:
            return NotDelivered.DECIDED if entry.hold.startswith(BY_DECISION) else NotDelivered.HELD
        if where is AWAY or record is None:
            return self.reason_unread(partition)
        if where is BEHIND:
            return NotDelivered.ORDER
        if not record.is_fresh_here:
            return NotDelivered.RETRIED
        if where is DELAYED and entry.until_ms > steady_ms:
            return NotDelivered.NOT_DUE
        if (closed := self.first_closed(partition, record)) is not None:
            return closed
        return NotDelivered.SUSPECT if where is STOPPED else self._dispatcher.what_keeps(record.main_topic)

    def reason_unread(self, partition: PartitionState) -> NotDelivered:
        """Return why what is not in memory of a partition is not delivered: the cause for which it is not read, if that
        is deliberate."""
        if partition.blocked:
            return NotDelivered.REFUSED
        if partition.paused is None:
            return NotDelivered.UNREAD
        if partition.paused.because is NotFetched.HELD:
            return NotDelivered.HELD
        if partition.paused.because is NotFetched.UNREAD_NOTES:
            return NotDelivered.UNREAD_NOTES
        turn = self._dispatcher.what_keeps(partition.source.topic)
        return turn if turn.is_deliberate else NotDelivered.UNREAD


def _is_moving(partition: PartitionState) -> bool:
    """Return whether a partition is drained because its position is being reset."""
    return partition.paused is not None and partition.paused.because is NotFetched.BEHIND_RESET
