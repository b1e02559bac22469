"""Why a record is not delivered, and why a partition is not fetched: the one place that answers both questions.

`reasons.py` has the two closed lists of words with their meanings. The answers come in three steps:

- *The lane* (`Why`): it looks at a partition and its entries, and changes nothing.
- *Kafka* (`PartitionWaits.beside_log`): what the lane has not read waits only if it is in the log and due; and while
  the lane wants to read, a missing leader or an open transaction may be why nothing comes.
- *Time* (`ages.py`): for how long the oldest record has waited.

`/status`, metrics, heartbeats, log lines and `doctor` show what comes of the three (`ages.Wait`). Nothing else invents
a reason.

**Where an answer comes from.** The entry of a record says where it is (`partition.py`), and that leads to the reason:

    where               | reason
    --------------------|-------------------------------------------------------------------------------------------
    OUT                 | none at its first delivery; `retried` in place
    CALLED_OFF          | `closing`, or `behind-reset` while its partition moves to another position
    SETTLED             | `refused` if Kafka refuses its writes, else `uncommitted`
    KEPT                | its `stopped_by`: `held`, or `decided`
    STOPPED             | the same, or the first gate that is closed now, else its `stopped_by`: `suspect`
    BEHIND              | `order`; `held` if what it waits for is held
    DELAYED             | `not-due`, or `retried`
    READY               | the first gate that is closed, else what keeps the dispatcher: a rate, its topic, the pace
    AWAY, not begun yet | `unread`, or the deliberate reason for which its partition is not read

In a partition that is released, or while the membership is in doubt, these reasons come first, as in the list.

**Why a partition is not fetched** is known to whoever has paused it, and `Pause.because` keeps it:

    reason                          | set by
    --------------------------------|-------------------------------------------------------------------------------
    closing                         | `Ownership`: it is being released, and takes nothing more
    behind-reset                    | `Ownership.drain`, for `position_reset.py`
    unread-notes                    | `notes.py`, at a take-over
    queue-unread, behind-keys       | `queues.py`
    refused                         | `Fetching.block`, for `results.py`
    held                            | `HoldGate.pauses`; `Fetching.admit` where what is held fills the span
    not-due, distance, done         | `Fetching.admit`, of the next record
    memory, share                   | `Fetching.admit`, by `Room.limit_of`; `RoomMaker` for a share
    no-leader, transaction          | nobody has paused it: Kafka gives nothing (`ages.py` asks every ten seconds)

**The gates.** `first_closed` is asked by `Gates` for each record whose turn has come. The order of its key, its
topic's limits, the rate and the pace have agreed by then, because only they make a record ready and give it a turn
(`order.py`, `pace/`). The gate of suspects comes last (`suspects.py`): it takes a mark, so all others must have agreed.
A gate that is not in force costs one comparison. `gates.py` puts what a gate has stopped where that gate finds it
again, and `stopped_by` of its entry names the gate.

**An example.** Partition 3 of `orders` has these entries, and its log ends at 90:

    68  OUT      at its first delivery: it does not wait
    69  STOPPED  by `held`: an operator intends that, so it is `kept`
    70  BEHIND   68 has the same key, and is not done: `order`, which nobody intends, so it is `oldest`
    71  READY    not looked at: an older record waits for a reason that nobody intends
    72  is the offset to be read next. The partition is paused: what it holds in memory fills its part

`Why.waits_of` returns `oldest` 70 for `order`, `kept` 69 for `held`, `unread` 72, and `not_fetched` `held`. `/status`
shows `not_delivered: order` and `not_fetched: held`; the age is that of record 70. Once 70 and 71 are done, what waits
is 69 and, in the log, 72: both for an operator, so `/status` shows `held` twice, and the partition has no age.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reconsume.sidecar.core.hold_gate import HoldGate
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
from reconsume.sidecar.core.record import Now, Record
from reconsume.topics.attempt import retry_state_of

if TYPE_CHECKING:
    from reconsume.sidecar.core.owned_queue import QueueFacts
    from reconsume.sidecar.core.ownership import Machines
    from reconsume.sidecar.core.queues import LongWaits


class Waiting(NamedTuple):
    """A record that waits, and why.

    `since_ms`: the epoch ms since when it could be delivered if nothing kept it back, where that is known: of a main
    topic its timestamp, of a level when it was due; otherwise 0.
    """

    offset: int
    reason: NotDelivered
    since_ms: int = 0


class LogEnd(NamedTuple):
    """Where the log of one partition ends.

    `due_to`: the offset up to which it is due: of a level the first one that is not, of a main topic its high
    watermark. `committed`: where readers of committed records stop; None if it is not known. `is_unanswered`: Kafka has
    not answered for the partition for long.
    """

    due_to: int = 0
    committed: int | None = None
    is_unanswered: bool = False


class PartitionWaits(NamedTuple):
    """What of one partition waits, and why.

    `unread`: the offset from which on it is to be read. `oldest`: the lowest record that waits for a reason that nobody
    intends. `kept`: the lowest one before it, which waits deliberately. None each, if none does. `not_fetched`: None if
    the partition is fetched.
    """

    unread: Waiting
    oldest: Waiting | None = None
    kept: Waiting | None = None
    not_fetched: NotFetched | None = None

    def beside_log(self, log: LogEnd) -> PartitionWaits:
        """Return the same with what the log has and the lane has not read, and with what keeps Kafka from giving it."""
        oldest, kept, not_fetched = self.oldest, self.kept, self.not_fetched
        if self.unread.offset < log.due_to:
            if self.unread.reason.is_deliberate:
                kept = kept or self.unread
            else:
                oldest = oldest or self.unread
        if not_fetched is None and log.is_unanswered:
            not_fetched = NotFetched.NO_LEADER
        elif not_fetched is None and log.committed is not None and log.committed <= self.unread.offset < log.due_to:
            not_fetched = NotFetched.TRANSACTION
        return PartitionWaits(self.unread, oldest, kept, not_fetched)


class Why:
    """The answers of one lane."""

    def __init__(
        self,
        machines: Machines,
        resets: PositionResets,
        hold_gate: HoldGate,
        dispatcher: Dispatcher,
        queues: LongWaits | None,
    ) -> None:
        self._machines, self._resets, self._holds = machines, resets, hold_gate
        self._dispatcher, self._queues = dispatcher, queues

    # --- may a record go --------------------------------------------------------------------------------------------

    def first_closed(self, partition: PartitionState, record: Record) -> Closed | None:
        """Return the first gate that does not let a record pass; None if all do."""
        # Contract 9.1: a partition that is given up sends nothing new.
        if partition.closing:
            return _closing(partition)
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

    # --- why a record is not delivered ------------------------------------------------------------------------------

    def not_delivered(self, partition: PartitionState, entry: Entry, steady_ms: int) -> NotDelivered | None:
        """Return why a record that has begun is not delivered at a steady time (ms); None if it is with the service for
        the first time."""
        where, record = entry.where, entry.record
        if where is OUT:
            return NotDelivered.RETRIED if record is not None and not record.is_fresh_here else None
        if where is CALLED_OFF or partition.closing:
            return _closing(partition)
        if where is SETTLED:
            is_refused = (partition.source, entry.offset) in self._machines.outbox.refused
            return NotDelivered.REFUSED if is_refused else NotDelivered.UNCOMMITTED
        if self._dispatcher.doubts and where in (READY, STOPPED):
            return NotDelivered.MEMBERSHIP
        if entry.hold:
            return entry.stopped_by
        if where is AWAY or record is None:
            return self.not_read(partition)
        if where is BEHIND:
            return NotDelivered.ORDER
        if not record.is_fresh_here:
            return NotDelivered.RETRIED
        if where is DELAYED and entry.until_ms > steady_ms:
            return NotDelivered.NOT_DUE
        closed = self.first_closed(partition, record)
        return closed or entry.stopped_by or self._dispatcher.what_keeps(record.main_topic)

    def not_read(self, partition: PartitionState) -> NotDelivered:
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

    # --- why a partition is not fetched -----------------------------------------------------------------------------

    def not_fetched(self, partition: PartitionState) -> NotFetched | None:
        """Return why the lane has a partition not fetched; None if it has."""
        pause = partition.paused
        if partition.closing and not _is_moving(partition):
            return NotFetched.CLOSING
        if pause is not None:
            return pause.because
        return NotFetched.MEMORY if self._machines.room.is_full_with(0) else None

    # --- what waits of a partition ----------------------------------------------------------------------------------

    def waits_of(self, partition: PartitionState, queue: QueueFacts | None, now: Now) -> PartitionWaits:
        """Return what of a partition waits. `queue`: of a queue partition, what its ledger knows of it."""
        next_offset = partition.offsets.unread if partition.paused is None else partition.paused.offset
        oldest, kept = self._begun(partition, now)
        if queue is not None:
            oldest, kept = self._with_heads(partition, queue, oldest, kept, now)
        unread = Waiting(next_offset, self.not_read(partition))
        return PartitionWaits(unread, oldest, kept, self.not_fetched(partition))

    def _begun(self, partition: PartitionState, now: Now) -> tuple[Waiting | None, Waiting | None]:
        """Return `oldest` and `kept` of what has begun. Where a queue alone has a record, the queue alone knows whether
        its turn has come."""
        offsets, is_queue = partition.offsets, partition.kind.under is not None
        kept: Waiting | None = None
        behind_held: set[int] | None = None
        if is_queue and offsets.counts[AWAY] == len(offsets.entries):
            return None, None
        for entry in offsets.entries.values():
            if entry.where is AWAY and is_queue:
                continue
            reason = self.not_delivered(partition, entry, now.steady_ms)
            if entry.where is BEHIND:
                if behind_held is None:
                    behind_held = self._machines.waiting.behind_held(partition)
                reason = NotDelivered.HELD if entry.offset in behind_held else reason
            if reason is None:
                continue
            if not reason.is_deliberate:
                return Waiting(entry.offset, reason, _since(partition, entry)), kept
            # What is not due does not wait yet, so any other deliberate reason says more.
            not_due = NotDelivered.NOT_DUE
            if kept is None or (kept.reason is not_due and reason is not not_due):
                kept = Waiting(entry.offset, reason)
        return None, kept

    def _with_heads(
        self, partition: PartitionState, queue: QueueFacts, oldest: Waiting | None, kept: Waiting | None, now: Now
    ) -> tuple[Waiting | None, Waiting | None]:
        """Add the first records of keys that are in Kafka alone."""
        first = partition.offsets.first
        if self._queues is not None and self._queues.held_heads(partition):
            kept = Waiting(first, NotDelivered.HELD)
        elif kept is None and queue.blocked_keys > queue.parked_keys:
            kept = Waiting(first, NotDelivered.NOT_DUE)
        if queue.due_ms < now.steady_ms:
            due_ms = now.wall_ms - (now.steady_ms - queue.due_ms)
            reason = NotDelivered.UNREAD if oldest is None else oldest.reason
            since_ms = due_ms if oldest is None or not oldest.since_ms else min(due_ms, oldest.since_ms)
            oldest = Waiting(first, reason, since_ms)
        return oldest, kept


def _since(partition: PartitionState, entry: Entry) -> int:
    """Return the epoch ms since when a record could be delivered if nothing kept it back; 0 if that is not known."""
    if (record := entry.record) is None:
        return 0
    if partition.kind.delay_ms is None:
        return record.timestamp
    # An attempt in place has no due time of its own, and neither has what came behind another.
    return 0 if not record.is_fresh_here or retry_state_of(record).behind else partition.due_ms(record)


def _closing(partition: PartitionState) -> Closed:
    return NotDelivered.BEHIND_RESET if _is_moving(partition) else NotDelivered.CLOSING


def _is_moving(partition: PartitionState) -> bool:
    """Return whether a partition is drained because its position is being reset."""
    return partition.paused is not None and partition.paused.because is NotFetched.BEHIND_RESET
