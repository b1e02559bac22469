"""The copies that a lane writes into its queues: from the decision that a record waits to the copy that lies in Kafka.

A decision blocks its key at once; the ledger expects the copy once its transaction is done. Where the transaction has
told where the copies lie, they are taken in without being read back (`located_copies.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from reconsume.sidecar.core.commit_batch import SettledRecord, WrittenAt
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.ledger_entry import identity_of
from reconsume.sidecar.core.lane.located_copies import as_read_back, located_copy
from reconsume.sidecar.core.lane.owned_queue import LaneTies, OwnedQueue
from reconsume.sidecar.core.lane.owned_queues import OwnedQueues
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.settled_by_hand import OpenSettlements
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.topics.attempt import attempt_of
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.transitions import DONE, Commit, Hop, Requeue, Retry, Written

COPIED = (Retry, Requeue, Hop)
"""The decisions after which a record waits in its queue. A union would be made anew for each record."""
SOON_MS = 30_000
"""ms within which a copy of our own must be due to be kept at hand: later ones would push others out."""
AT_HAND_SHARE = 8
"""One part in this many of the room, beside it, keeps the records of queues that were read or written last. They are
wanted again soon where nothing fails for long, and what is not kept is read again."""


class QueueCopies:
    """The copies that one lane writes.

    Invariant: between two calls of the lane nothing is at hand, as a call takes in all that its transaction has told.
    """

    def __init__(self, queues: OwnedQueues, settlements: OpenSettlements, ties: LaneTies) -> None:
        self._queues, self._settlements, self._ties = queues, settlements, ties
        self._transaction = (0, 0)
        """The last transaction of this lane that has ended, done: the number of its producer, and its own."""
        self._at_hand: dict[Partition, list[Record]] = {}
        """The main partitions of whose queues the transaction that ends has told where copies lie, with those of the
        copies that are due soon."""
        self._at_hand_bytes = 0

    def settles(self, partition: LanePartition, record: Record, decision: Commit | Written) -> bool:
        """Note a decision about a record: if it is to wait, its key is blocked from now on.

        Return whether the record has ended with it: one that came behind another and succeeds has nothing to write.
        """
        if (owned := self._queues.of(record)) is None:
            return False
        if isinstance(decision, COPIED):
            # A main record that is to wait takes its way, whatever waits as if it were the same.
            if partition.under is not None and self._is_other(owned, record):
                return False
            state, line = decision.retry_state, self._queues.line_of(record)
            assert state.order is not None, "a copy in a queue has its order"
            if obsolete := owned.ledger.writing(identity_of(record), line, state.order, attempt_of(state)):
                self._queues.pass_over(owned, obsolete)
        elif decision == DONE and partition.under is not None and not self._is_other(owned, record):
            self._ended(owned, record, owned.ledger.done(identity_of(record)))
            self._ties.finish(partition, record)
            return True
        return False

    def written(self, entry: SettledRecord, where: WrittenAt | None, now: Now) -> None:
        """Note that a decision is in Kafka. `where`: its copy lies there in the queue; None: that is to be read."""
        record, decision = entry.record, entry.decision
        if (owned := self._queues.of(record)) is None:
            return
        state = decision.retry_state if isinstance(decision, COPIED) else None
        # Of one with a fault the ledger has never heard, and its offset is another's identity.
        if record.fault or ((state is None or record.source == owned.source) and self._is_other(owned, record)):
            self._ended(owned, record, ())
        elif state is None:
            self._ended(owned, record, owned.ledger.done(identity_of(record)))
        elif where is None or not owned.opened or self._ties.ownership.partitions[owned.main].closing:
            self._ended(owned, record, owned.ledger.written(identity_of(record)))
        else:
            self._lies(owned, entry, state, where, now)

    def _lies(self, owned: OwnedQueue, entry: SettledRecord, state: RetryState, where: WrittenAt, now: Now) -> None:
        """Note where the copy of an entry lies."""
        record = entry.record
        identity, queue = identity_of(record), self._ties.ownership.partitions[owned.source]
        copy = located_copy(entry, state, identity, self._queues.line_of(record), where, now)
        if owned.located.comes_next(self._transaction, copy.offset, queue.tracker.next):
            self._queues.pass_own(queue, owned, copy)
            self._ended(owned, record, owned.ledger.written(identity, copy))
            owned.unseen.discard(identity)
        else:
            owned.located.add(self._transaction, copy)
            self._ended(owned, record, owned.ledger.written(identity))
        at_hand = self._at_hand.setdefault(owned.main, [])
        if state.due_at <= now.wall_ms + SOON_MS and self._at_hand_bytes < self._ties.memory.room // AT_HAND_SHARE:
            at_hand.append(kept := as_read_back(entry, state, owned.source, where))
            self._at_hand_bytes += kept.weight
        # A copy that is not read back would else never be seen to be the one that a person has decided about.
        self._settlements.bind(owned, identity, state)

    def _is_other(self, owned: OwnedQueue, record: Record) -> bool:
        """Return whether what waits as this record is another one, and stays."""
        return owned.ledger.has_other_key(identity_of(record), self._queues.line_of(record))

    def _ended(self, owned: OwnedQueue, record: Record, obsolete: Sequence[int]) -> None:
        if record.source == owned.source:
            owned.inside.pop(record.offset, None)
            owned.hopping.discard(record.offset)
        if obsolete:
            self._queues.pass_over(owned, obsolete)
        self._queues.look_at(owned.main)

    def transaction_ended(self, producer: int) -> None:
        """Note that a transaction is done whose copies are told of next. `producer`: as in `CommitResult`."""
        self._transaction = producer, self._transaction[1] + 1

    def take_located(self) -> None:
        """Take in what has waited for the copies of the transaction that has ended: none of these need be read back, as
        far as nothing of others lies before them."""
        at_hand, self._at_hand, self._at_hand_bytes = self._at_hand, {}, 0
        partitions = self._ties.ownership.partitions
        for main, records in at_hand.items():
            owned = self._queues.by_main[main]
            queue = partitions[owned.source]
            self._queues.take_located(queue, owned)
            end, awaited = queue.tracker.next, owned.located.are_waiting
            self._ties.queues.known(owned.source, owned.epoch, end, owned.own_at_ms, records, awaited=awaited)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(not self._at_hand, "what a transaction has told is taken in by the end of a call")
