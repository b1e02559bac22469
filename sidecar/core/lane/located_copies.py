"""Copies that this lane has committed itself: where they lie is known, so they are taken in without being read back.

To read a copy back costs as much as to write it. But a queue is taken in by rising offsets, and what was passed counts
as done. So a copy is taken in only where all that lies before it is known: where the known part of the log ends, or one
offset further, if the known part ends with the last copy of an earlier transaction of this lane. Kafka appends the
marker of a transaction behind its records, and before any record of the same producer's next one, so the one offset
between is the marker's. Anything else may be of others: a redrive, a transaction that was aborted or whose end was
unknown; where another producer has written the second transaction, the marker of the first may come later than it. What
lies behind that waits here until the reader of the queue has come so far.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from reconsume.sidecar.core.commit_batch import SettledRecord, WrittenAt
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.ledger_entry import Identity, QueuedCopy
from reconsume.sidecar.core.record import NEVER, OUR_HEADERS, Now, Partition, Record, weight_of
from reconsume.topics.attempt import attempt_of
from reconsume.topics.render_headers import as_read
from reconsume.topics.retry_headers import RetryState

Transaction: TypeAlias = tuple[int, int]
"""The number of its producer, and its own. Both rise."""


class LocatedCopies:
    """The located copies of one queue that were not taken in yet.

    Invariants: they rise by transaction and by offset, and none is taken in before those that lie before it.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Transaction, QueuedCopy]] = deque()
        self._last = ((-1, -1), -1)
        """The transaction of the last copy that left, and the offset behind it."""

    @property
    def are_waiting(self) -> bool:
        """Whether copies wait here, as what lies before them is not known."""
        return bool(self._waiting)

    def add(self, transaction: Transaction, copy: QueuedCopy) -> None:
        """Add a copy that is in Kafka.

        One that lies below another is in another log: the reader of the queue finds that out, and ends the process.
        """
        last = self._waiting[-1][1].offset + 1 if self._waiting else self._last[1]
        if copy.offset >= last:
            self._waiting.append((transaction, copy))

    def comes_next(self, transaction: Transaction, offset: int, known_to: int) -> bool:
        """Return whether all before a copy that is in Kafka is known, so that it is taken in at once, without `add`.

        `known_to`: as for `take`. So nearly all are, and a transaction's thousands of copies do not wait here together.
        """
        if self._waiting or not (offset == known_to or self._is_behind_marker(known_to, transaction, offset)):
            return False
        self._last = transaction, offset + 1
        return True

    def take(self, known_to: int) -> QueuedCopy | None:
        """Remove and return the next copy, if all before it is known; those that were read meanwhile are dropped.

        `known_to`: the offset up to which the queue was taken in.
        """
        while self._waiting:
            transaction, copy = self._waiting[0]
            if copy.offset > known_to and not self._is_behind_marker(known_to, transaction, copy.offset):
                return None
            self._waiting.popleft()
            self._last = transaction, copy.offset + 1
            if copy.offset >= known_to:
                return copy
        return None

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        waiting = [(transaction, copy.offset) for transaction, copy in self._waiting]
        offsets = [offset for _, offset in waiting]
        ensure(waiting == sorted(waiting) and offsets == sorted(set(offsets)), "located copies rise")
        ensure(not waiting or self._last[1] <= offsets[0], "located copies leave in their order")

    def _is_behind_marker(self, known_to: int, transaction: Transaction, offset: int) -> bool:
        """Return whether nothing but the marker of an earlier transaction of ours lies before a copy."""
        before, end = self._last
        is_next = before != transaction and before[0] == transaction[0]
        return is_next and offset == known_to + 1 and end == known_to


def located_copy(
    entry: SettledRecord, state: RetryState, identity: Identity, line: bytes, where: WrittenAt, now: Now
) -> QueuedCopy:
    """Return what a ledger knows of the copy of an entry, without the payload. Its weight is about that."""
    record, (offset, written_ms) = entry.record, where
    assert state.order is not None, "a copy in a queue has its order"
    due_ms = NEVER if state.parked else now.steady_ms  # which all share that are due already
    if due_ms != NEVER and state.due_at > now.wall_ms:
        due_ms += state.due_at - now.wall_ms
    weight = record.weight if record.retry_state is not None else record.weight + OUR_HEADERS
    return QueuedCopy(offset, identity, line, state.order, attempt_of(state), due_ms, written_ms, weight)


def as_read_back(entry: SettledRecord, state: RetryState, source: Partition, where: WrittenAt) -> Record:
    """Return the copy of an entry as whoever reads it in its queue would know it."""
    copy, state = entry.writes[0], as_read(state)
    weight = weight_of(copy.key, copy.value, copy.headers, state)
    offset, timestamp = where
    epoch = entry.record.epoch
    return Record(source, offset, epoch, timestamp, copy.key, copy.value, copy.headers, state, "", weight)
