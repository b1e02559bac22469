"""When the next transaction of a lane starts, and what it holds. No other module answers either question.

Each partition has one time, `LanePartition.commit_by_ms`: NEVER while its progress is in Kafka, within the second if
that moved (`soon`), and at once if something waits for the commit (`at_once`). Settled records have theirs
(`Outbox.next_at`). At most one transaction is in flight, so under load each takes what has come during the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from reconsume.sidecar.core.commit_batch import CommitBatch, PartitionCommit, SettledRecord
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.outbox import BATCH_FOR_MS, Outbox
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.record import NEVER, Now, Partition

BATCH_MOST = 4_000
"""Records in a transaction at most. Records that came during the last transaction go along: more of them then share its
fixed cost."""
PROGRESS_EVERY_MS = 1_000
"""ms between commits of progress alone: after a crash at most this much is delivered a second time."""


class Commits:
    """The commits of one lane. `wake_by`: has the lane ticked at a steady time (ms) at the latest.

    `unproven`: it is not known yet that the brokers take the longest progress. Then a padded batch goes first.

    Invariants: `_by_ms` is at most the `commit_by_ms` of every partition whose progress Kafka takes; no partition of
    the batch in flight is one that Kafka does not take, unless it goes alone; a batch has the progress of each of its
    entries' partitions.
    """

    def __init__(
        self,
        partitions: Mapping[Partition, LanePartition],
        outbox: Outbox,
        wake_by: Callable[[int], None],
        *,
        unproven: bool = False,
    ) -> None:
        self.in_flight: CommitBatch | None = None
        self.unproven = unproven
        """Whether nothing may be delivered yet, since it is not known that progress of any length can be committed."""
        self._is_refused = False
        self.taken_ms = 0
        """When the batch in flight was taken (steady ms)."""
        self._partitions, self._outbox, self._wake_by = partitions, outbox, wake_by
        self._by_ms = NEVER
        """The earliest time of all partitions, or an earlier one."""
        self._ended_ms = -BATCH_FOR_MS
        self._progress_at_ms = -PROGRESS_EVERY_MS
        """When all progress was committed last (steady ms)."""
        self._was_alone = False
        self._most = self._most_partitions = BATCH_MOST

    # --- when -------------------------------------------------------------------------------------------------------

    def soon(self, partition: LanePartition) -> None:
        """Have the progress of a partition committed within the second; at once if its release waits for that alone."""
        # Contract 7.1: successes are committed within a second. 9.1: a release waits for nothing else.
        released = partition.closing and partition.in_flight == 0
        self._want(partition, 0 if released else self._progress_at_ms + PROGRESS_EVERY_MS)

    def at_once(self, partition: LanePartition) -> None:
        """Have the progress of a partition committed with the next transaction, which starts as soon as it can."""
        self._want(partition, 0)

    def all_at_once(self) -> None:
        """Let all progress go with the next batch: Kafka has refused a batch for the progress of some partitions."""
        self._progress_at_ms = -NEVER
        for partition in self._partitions.values():
            if partition.uncommitted:
                self._want(partition, 0)

    def next_at(self) -> int:
        """Return the steady time (ms) at which the next batch may start.

        `NEVER` while one is in flight, or if nothing is to be done.
        """
        if self.in_flight is not None:
            return NEVER
        if self.unproven and self._provable() is not None:
            return 0
        return min(self._by_ms, self._outbox.next_at(self._ended_ms))

    @property
    def earliest(self) -> int:
        """The steady time (ms) by which some progress must be committed, or an earlier one; NEVER if none must."""
        return self._by_ms

    def _want(self, partition: LanePartition, at_ms: int) -> None:
        partition.want_commit(at_ms)
        if at_ms < self._by_ms:
            self._by_ms = at_ms
            if self.in_flight is None:
                self._wake_by(at_ms)

    def _earliest(self) -> int:
        unwritable = self._outbox.unwritable  # these have times of their own
        times = (partition.commit_by_ms for source, partition in self._partitions.items() if source not in unwritable)
        return min(times, default=NEVER)

    # --- what -------------------------------------------------------------------------------------------------------

    def take(self, now: Now) -> CommitBatch | None:
        """Return the next batch, which is in flight from now on; None if there is nothing to commit."""
        if self.unproven and (partition := self._provable()) is not None:
            # Contract 7.2: alone, and before the first delivery.
            self.in_flight = CommitBatch((), {partition.source: partition.position()}, padded=True)
            self.taken_ms = now.steady_ms
            return self.in_flight
        if self._outbox.unwritable:
            self._outbox.sort_out()
        entries, alone, tried = self._take_entries(now)
        shares = self._take_commits(entries)
        if tried is not None and tried not in shares:
            shares[tried] = self._partitions[tried].take_commit(())
        if not alone:  # a retried entry is likely to be refused, and so would be all that goes with it
            shares |= self._take_progress(shares, now)
        if shares:
            self.in_flight, self.taken_ms = CommitBatch(entries, shares, alone), now.steady_ms
        self._by_ms = self._earliest()
        return self.in_flight

    def proved(self, *, accepted: bool) -> None:
        """Note that the brokers take the longest progress, or that they never will: then the process ends."""
        self.unproven, self._is_refused = not accepted, not accepted

    def _provable(self) -> LanePartition | None:
        """Return the partition whose position shows what the brokers take; None if there is none to be tried now."""
        if self._is_refused:
            return None
        unwritable = self._outbox.unwritable
        owned = self._partitions.items()
        return next((one for source, one in owned if not (one.closing or source in unwritable)), None)

    def ended(self, now: Now, *, committed: bool) -> None:
        """End the batch in flight, which has its result; if it was committed, the next ones may be twice as large."""
        self.in_flight = None
        self._ended_ms = now.steady_ms
        if committed:
            self._most = min(self._most * 2, BATCH_MOST)
            self._most_partitions = min(self._most_partitions * 2, BATCH_MOST)

    def halve(self, batch: CommitBatch) -> None:
        """Halve the size of the next batches until one is in Kafka.

        Kafka refuses a batch and names no cause, so smaller ones must find it: fewer entries, or without any entry
        fewer partitions.
        """
        if batch.entries:
            self._most = max(1, len(batch.entries) // 2)
        else:
            self._most_partitions = max(1, len(batch.commits) // 2)
            self.all_at_once()

    def progress_accepted(self, sources: Iterable[Partition]) -> None:
        """Let the settled records of partitions go whose progress Kafka takes again."""
        for source in sources:
            self._outbox.extend(self._outbox.unwritable.accepted(source))
        self._by_ms = min(self._by_ms, self._earliest())

    def _take_entries(self, now: Now) -> tuple[tuple[SettledRecord, ...], bool, Partition | None]:
        """Take the entries of the next batch.

        Return them, whether they go alone, and the partition whose progress is tried.
        """
        outbox = self._outbox
        late, tried = outbox.due(now.steady_ms), outbox.unwritable.due(now.steady_ms) if outbox.unwritable else None
        rest = len(outbox) or self._wanted((), now)
        # Contract 7.6, 7.7: a refused entry, or the progress of a refused partition, goes alone: it would refuse all
        # others.
        self._was_alone = (late is not None or tried is not None) and not (rest and self._was_alone)
        if self._was_alone and tried is not None:  # in turn with the rest, so that neither waits for the other for ever
            return outbox.unwritable.take(tried, self._most), True, tried
        if self._was_alone and late is not None:
            return (late,), True, None
        return outbox.pop(self._most), False, None

    def _take_commits(self, entries: Iterable[SettledRecord]) -> dict[Partition, PartitionCommit]:
        # Contract 7.1: a copy and the progress of its partition are in one transaction, or neither is.
        offsets: dict[Partition, set[int]] = {}
        source, extra = None, set[int]()
        for entry in entries:
            record = entry.record
            if record.source is not source:  # records of one partition follow each other, and share the object
                source, extra = record.source, offsets.setdefault(record.source, set())
            extra.add(record.offset)
        return {source: self._partitions[source].take_commit(extra) for source, extra in offsets.items()}

    def _wanted(self, taken: Collection[Partition], now: Now) -> list[LanePartition]:
        unwritable = self._outbox.unwritable
        return [
            partition
            for source, partition in self._partitions.items()
            if partition.commit_by_ms <= now.steady_ms and source not in taken and source not in unwritable
        ]

    def _take_progress(self, taken: Collection[Partition], now: Now) -> dict[Partition, PartitionCommit]:
        """Take the commits of the partitions with progress alone whose time has come, once a second all of them."""
        wanted = self._wanted(taken, now)
        if now.steady_ms - self._progress_at_ms >= PROGRESS_EVERY_MS and len(wanted) <= self._most_partitions:
            self._progress_at_ms = now.steady_ms
        return {partition.source: partition.take_commit(()) for partition in wanted[: self._most_partitions]}

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self._by_ms <= self._earliest(), "no commit is later than it is wanted")
        ensure(1 <= self._most <= BATCH_MOST and 1 <= self._most_partitions <= BATCH_MOST, "a batch has room for one")
        batch = self.in_flight
        if batch is not None:
            ensure(bool(batch.commits), "a batch carries the progress of its entries")
            entries = {entry.record.source for entry in batch.entries}
            ensure(entries <= batch.commits.keys(), "each entry of a batch goes with its partition's progress")
