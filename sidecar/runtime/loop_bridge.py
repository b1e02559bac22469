"""The bridge between a lane and the threads around it: every call reaches the lane on the event loop.

The consumer's and the committer's threads call these methods; each call becomes one callback of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.ages import Ages, LogEnds
from reconsume.sidecar.core.commit_batch import CommitResult
from reconsume.sidecar.core.lane import Lane
from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.ports import ScannedRange
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.observability.failure_lines import log_dead_letters
from reconsume.topics.owner_notes import OwnerNotes

HAND_OVERS = 2
"""Hand-overs that may wait for the loop. One in work and one behind it keep the loop busy; more only take memory."""


class LoopBridge:
    """The calls of other threads to one lane, which it passes on to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lane: Lane
        self.ages = Ages()
        self.lacks_room = False
        """Whether the brokers refuse the longest metadata of an offset."""
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._given = self._given_bytes = 0
        self._taken = self._taken_bytes = 0
        self._queue_runs_given = self._queue_runs_taken = 0

    # --- called on the consumer's thread -----------------------------------------------------------------------------

    def assigned(self, grants: Sequence[AssignedPartition]) -> None:
        self._loop.call_soon_threadsafe(self._assigned, grants)

    def received(self, runs: Sequence[FetchedRecords], weight: int) -> None:
        self._given += 1
        self._given_bytes += weight
        self._loop.call_soon_threadsafe(self._received, runs, weight)

    def release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._release, partitions, done)

    def dropped(self, partitions: Sequence[Partition]) -> None:
        self._loop.call_soon_threadsafe(self.lane.lost, partitions)

    def cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None:
        self._loop.call_soon_threadsafe(self._cut, partition, epoch, wanted, low)

    def truncated(self, partition: Partition, high: int) -> None:
        self._loop.call_soon_threadsafe(self.lane.truncated, partition, high)

    def full(self) -> bool:
        """Return whether the lane has no room for more records."""
        under_way = self._given_bytes - self._taken_bytes
        return self._given - self._taken >= HAND_OVERS or self.lane.is_full_with(under_way)

    def looked(self, heads: Mapping[Partition, int]) -> None:
        """Pass on the first offset of each level partition that is not due."""
        self._loop.call_soon_threadsafe(self._looked, heads)

    def ended(self, ends: LogEnds) -> None:
        """Pass on where the log of each partition ends."""
        self._loop.call_soon_threadsafe(self._ended, ends)

    # --- called by the reader of the queues --------------------------------------------------------------------------

    def queue_opened(self, grant: AssignedPartition) -> None:
        self._loop.call_soon_threadsafe(self._queue_opened, grant)

    def queue_absent(self, queue: Partition, epoch: int) -> None:
        self._loop.call_soon_threadsafe(self._queue_absent, queue, epoch)

    def queue_cut(self, queue: Partition, epoch: int, end: int) -> None:
        self._loop.call_soon_threadsafe(self._queue_cut, queue, epoch, end)

    def queue_read(self, run: FetchedRecords, caught_up: bool) -> None:
        self._queue_runs_given += 1
        self._loop.call_soon_threadsafe(self._queue_read, run, caught_up)

    def queue_fetched(self, queue: Partition, epoch: int, offset: int, record: Record | None) -> None:
        self._loop.call_soon_threadsafe(self._queue_fetched, queue, epoch, offset, record)

    def queue_full(self) -> bool:
        """Return whether nothing more of the queues may be handed over for now."""
        return self._queue_runs_given - self._queue_runs_taken >= HAND_OVERS

    # --- called by the reader of notes -------------------------------------------------------------------------------

    def notes_read(self, wanted: Mapping[Partition, int], notes: OwnerNotes) -> None:
        self._loop.call_soon_threadsafe(self._notes_read, wanted, notes)

    def scanned(self, scanned: ScannedRange) -> None:
        self._loop.call_soon_threadsafe(self._scanned, scanned)

    # --- called on the committer's thread ----------------------------------------------------------------------------

    def committed(self, result: CommitResult) -> None:
        """Pass on the result of a batch."""
        self._loop.call_soon_threadsafe(self._committed, result)

    def member_refused(self) -> None:
        """Pass on that Kafka refuses a batch as one of no member."""
        self._loop.call_soon_threadsafe(self._member_refused)

    # --- on the loop -------------------------------------------------------------------------------------------------

    def wake(self, at: int) -> None:
        """Schedule the lane's next tick at a steady time (ms), in place of an earlier request (port `wake`)."""
        if self._timer is not None:
            self._timer.cancel()
        # One ms more than the difference: the loop's timer may fire early, and an early tick would find nothing due.
        self._timer = self._loop.call_later(max(0, at - now().steady_ms + 1) / 1000, self._tick)

    def _member_refused(self) -> None:
        self.lane.member_refused()

    def _assigned(self, grants: Sequence[AssignedPartition]) -> None:
        self.lane.assigned(grants, now())

    def _cut(self, partition: Partition, epoch: int, wanted: int, low: int) -> None:
        self.lane.cut(partition, epoch, wanted, low, now())

    def _received(self, runs: Sequence[FetchedRecords], weight: int) -> None:
        self._taken += 1
        self._taken_bytes += weight
        self.lane.received(runs, now())

    def _queue_opened(self, grant: AssignedPartition) -> None:
        if self.lane.queues is not None:
            self.lane.queues.opened(grant, now())

    def _queue_absent(self, queue: Partition, epoch: int) -> None:
        if self.lane.queues is not None:
            self.lane.queues.absent(queue, epoch, now())

    def _queue_cut(self, queue: Partition, epoch: int, end: int) -> None:
        if self.lane.queues is not None:
            self.lane.queues.cut(queue, epoch, end, now())

    def _queue_read(self, run: FetchedRecords, caught_up: bool) -> None:
        self._queue_runs_taken += 1
        if self.lane.queues is not None:
            self.lane.queues.read(run, now(), caught_up=caught_up)

    def _queue_fetched(self, queue: Partition, epoch: int, offset: int, record: Record | None) -> None:
        if self.lane.queues is not None:
            self.lane.queues.fetched(queue, epoch, offset, record, now())

    def _notes_read(self, wanted: Mapping[Partition, int], notes: OwnerNotes) -> None:
        self.lane.notes_read(wanted, notes, now())

    def _scanned(self, scanned: ScannedRange) -> None:
        self.lane.scanned(scanned, now())

    def _looked(self, heads: Mapping[Partition, int]) -> None:
        moment = now()
        self.ages.note_heads(heads, self.lane.shown.facts(moment), moment)

    def _ended(self, ends: LogEnds) -> None:
        moment = now()
        self.ages.note_ends(ends, self.lane.shown.facts(moment), moment)

    def _release(self, partitions: Sequence[Partition], done: Callable[[], None]) -> None:
        self.lane.release(partitions, done, now())

    def _committed(self, result: CommitResult) -> None:
        self.lacks_room |= result.too_long
        self.lane.committed(result, now())
        log_dead_letters(result.done)

    def _tick(self) -> None:
        self._timer = None
        self.lane.tick(now())
