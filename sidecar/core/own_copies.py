"""The copies that a lane has written to a queue itself: most of them are taken in without being read back.

To read a copy back costs as much as to write it. The producer's reports say at which offsets copies are, and the result
of a transaction brings that to the lane. But a queue is taken in by rising offsets, and what was passed counts as done.
So a copy is taken in at once only where all that is before it is known: where the known part of the log ends, or one
offset further, if the known part ends with the last copy of an earlier transaction of this lane. Kafka appends the
marker of a transaction behind its records, and before any record of the same producer's next one, so the one offset
between is the marker's.

Anything else may be of others: a redrive, a transaction that was aborted or whose end was unknown; where another
producer has written the second transaction, the marker of the first may come later than it. What is behind that is read
back, until the reader of the queue has come to where the lane writes. Pure.
"""

from __future__ import annotations

from typing import TypeAlias

from reconsume.sidecar.core.commit_batch import SettledRecord, WrittenAt
from reconsume.sidecar.core.key_lines import Identity
from reconsume.sidecar.core.ledger import QueuedCopy
from reconsume.sidecar.core.record import NEVER, OUR_HEADERS, Now, Partition, Record, weight_of
from reconsume.topics.attempt import attempt_of
from reconsume.topics.render_headers import as_read
from reconsume.topics.retry_headers import RetryState

Transaction: TypeAlias = tuple[int, int]
"""The number of its producer, and its own. Both rise."""


class OwnCopies:
    """The last of the copies of our own in one queue whose offset was told."""

    def __init__(self) -> None:
        self._transaction: Transaction = (-1, -1)
        self._end = -1
        """The offset behind it."""

    def continues(self, transaction: Transaction, offset: int, known_to: int) -> bool:
        """Note a copy that is in Kafka; return whether all before it is known.

        `known_to`: the offset up to which the queue was taken in.
        """
        before, end = self._transaction, self._end
        is_next = before != transaction and before[0] == transaction[0]
        is_behind_marker = is_next and offset == known_to + 1 and end == known_to
        if offset >= end:  # one below is in another log: the reader of the queue finds that out, and ends the process
            self._transaction, self._end = transaction, offset + 1
        return offset == known_to or is_behind_marker


def due_of(state: RetryState, now: Now) -> int:
    """Return the steady time (ms) at which a record may go out; NEVER if it is parked.

    All records of one call that are due already get the same int object, which saves memory."""
    if state.parked:
        return NEVER
    return now.steady_ms + state.due_at - now.wall_ms if state.due_at > now.wall_ms else now.steady_ms


def located_copy(
    entry: SettledRecord, state: RetryState, identity: Identity, line: bytes, where: WrittenAt, now: Now
) -> QueuedCopy:
    """Return what a ledger knows of the copy of an entry, without the payload. Its weight is about that."""
    record, (offset, written_ms) = entry.record, where
    assert state.order is not None, "a copy in a queue has its order"
    due_ms = due_of(state, now)
    weight = record.weight if record.retry_state is not None else record.weight + OUR_HEADERS
    return QueuedCopy(offset, identity, line, state.order, attempt_of(state), due_ms, written_ms, weight)


def as_read_back(entry: SettledRecord, state: RetryState, source: Partition, where: WrittenAt) -> Record:
    """Return the copy of an entry as whoever reads it in its queue would know it."""
    copy, state = entry.writes[0], as_read(state)
    weight = weight_of(copy.key, copy.value, copy.headers, state)
    offset, timestamp = where
    epoch = entry.record.epoch
    return Record(source, offset, epoch, timestamp, copy.key, copy.value, copy.headers, state, "", weight)
