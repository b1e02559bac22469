"""How a lane gets partitions and gives them up (contract 9.1).

    state    | what it means                                | leaves to, when
    ---------|----------------------------------------------|----------------
    assigned | records are fetched and delivered            | paused: its next record is not due, or no room is left
    assigned |                                              | blocked: Kafka refuses its copies or progress
    assigned |                                              | closing: it is revoked
    assigned |                                              | gone: it is lost, fenced, cut short, or assigned anew
    paused   | not fetched; records in memory are delivered | assigned: its time has come, and it has room again
    paused   |                                              | blocked, closing, gone: as from assigned
    blocked  | not fetched, and no record is delivered      | assigned: Kafka seems to accept its copies again
    blocked  |                                              | paused: the same, but another reason to pause remains
    blocked  |                                              | closing, gone: as from assigned
    closing  | no record is delivered; answers are awaited  | gone: all is answered and committed, or it is lost
    gone     | no state is left; late answers are refused   | assigned: it is assigned anew, with a new epoch

`admission.py` and `paused.py` pause and resume partitions, `blocked_partitions.py` blocks them, and this module does
the rest. The states are fields of `LanePartition`: `paused`, `blocked` and `closing`.

A revoked partition is released in order: deliveries in flight are awaited, their progress is committed, then the
partition is given up. A lost partition is dropped at once, and nothing is committed. Anything that carries an older
assignment epoch afterwards is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from reconsume.sidecar.core.commit_batch import CommitResult
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.commits import Commits
from reconsume.sidecar.core.lane.crash_gate import CrashGate
from reconsume.sidecar.core.lane.memory import LaneMemory
from reconsume.sidecar.core.lane.outbox import Outbox
from reconsume.sidecar.core.lane.partition import AssignedPartition, LanePartition
from reconsume.sidecar.core.lane.paused import PausedPartitions
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.ports import Recall
from reconsume.sidecar.core.progress import Bounds, Progress, ProgressTracker
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.topics.durations import render_duration


class Release(NamedTuple):
    """Partitions that are being given up, and the callback for the end of that."""

    partitions: frozenset[Partition]
    done: Callable[[], None]


class Ownership:
    """The partitions that a lane holds now. `waits`: as in `Lane`. `gate`: None if crashes are not looked at.

    Invariants: a release waits for partitions that are closing; a partition stands under its own name.
    """

    def __init__(
        self,
        partitions: dict[Partition, LanePartition],
        waits: Mapping[str, int],
        bounds: Bounds,
        memory: LaneMemory,
        waiting: WaitingRecords,
        outbox: Outbox,
        commits: Commits,
        paused: PausedPartitions,
        gate: CrashGate | None,
        recall: Recall,
    ) -> None:
        self.partitions = partitions
        self.queues: dict[Partition, Partition] = {}
        """The queue partition of each main partition that has one; it is owned, and given up, with it."""
        self.uncommitted_at_loss = 0
        """Records, at most, that were answered but not in Kafka when their partition went. They are delivered again."""
        self.records_lost: Counter[str] = Counter()
        """By topic: offsets that were gone from the log before they were read, or before they were done."""
        self.on_drop: Callable[[Collection[Partition]], None] | None = None
        """Called with partitions that are dropped."""
        self._waits, self._bounds = waits, bounds
        self._memory, self._waiting, self._outbox, self._commits = memory, waiting, outbox, commits
        self._paused, self._gate, self._recall = paused, gate, recall
        self._releases: list[Release] = []

    @property
    def load(self) -> int:
        """Bytes of the lane's room that are taken."""
        return self._memory.taken

    def owner_of(self, record: Record) -> LanePartition | None:
        """Return the partition of a record; None if it is not assigned any more, or was assigned anew."""
        partition = self.partitions.get(record.source)
        return partition if partition is not None and partition.epoch == record.epoch else None

    def apply_delays(self, waits: Mapping[str, int]) -> None:
        """Use other level delays for the partitions assigned from now on.

        An assigned partition keeps its own delay, as the name of its topic does.
        """
        self._waits = waits

    def assigned(self, grants: Iterable[AssignedPartition]) -> None:
        """Start partitions where their last owner left off."""
        for grant in grants:
            self.lost((grant.partition,))
            wait_ms = self._waits.get(grant.partition.topic)
            level = "main" if wait_ms is None else "ready" if wait_ms == 0 else render_duration(wait_ms)
            progress = grant.progress
            partition = LanePartition(
                grant.partition,
                grant.epoch,
                ProgressTracker(progress, self._bounds),
                wait_ms,
                level,
                width=progress.width,
                last_at_ms=None if wait_ms is None else progress.last_at_ms,
                log=progress.log,
                cycle=progress.cycle,
                notes=progress.notes,
            )
            if grant.lost:
                self.records_lost[grant.partition.topic] += grant.lost
            if partition.width is not None and not progress.ours:  # commit it, so that a crash does not move the start
                self._commits.soon(partition)
            self._begin(partition, progress)

    def opened(self, grant: AssignedPartition, main: Partition) -> LanePartition:
        """Start the queue partition of a main partition, where the group has read it to."""
        at_ms = grant.progress.last_at_ms
        tracker = ProgressTracker(grant.progress)
        queue = LanePartition(grant.partition, grant.epoch, tracker, 0, "ordered", under=main, last_at_ms=at_ms)
        self._begin(queue, grant.progress)
        self.queues[main] = grant.partition
        return queue

    def _begin(self, partition: LanePartition, progress: Progress) -> None:
        self.partitions[partition.source] = partition
        self._waiting.own(partition.source)
        partition.note_committed(progress)
        if self._gate is not None:
            self._gate.granted(partition, progress)

    def caught_up(self, queue: LanePartition, now: Now) -> None:
        """Note that all that waits in a queue is known."""
        if self._gate is not None:
            self._gate.log_ended(queue, now)

    def cut(self, source: Partition, epoch: int, wanted: int, low: int) -> None:
        """Count the records that are lost unread, because the log begins at `low` now.

        `wanted`: the offset to be read next, below `low`. What was read stays under way. A paused partition continues
        at an offset of its own: if that is gone too, the consumer reports it then.
        """
        partition = self.partitions.get(source)
        if partition is not None and partition.epoch == epoch and partition.paused is None:
            self.records_lost[source.topic] += partition.tracker.cut(wanted, low)
            self._commits.soon(partition)

    def truncated(self, source: Partition, high: int) -> None:
        """Drop a partition whose log ends at `high` now, and count what was not done. It is assigned anew."""
        if source in self.partitions:
            self.records_lost[source.topic] += self.partitions[source].tracker.open_from(high)
            self.lost((source,))

    def release(self, partitions: Collection[Partition], done: Callable[[], None]) -> None:
        """Give partitions up in order; call `done` once all deliveries in flight are answered and committed."""
        mine = self._tied(partitions)
        self._recall(mine, lost=False)
        self._forget_waiting(mine)
        for source in mine:
            partition = self.partitions[source]
            partition.close()
            self._commits.soon(partition)  # the last commit carries the clean mark
        self._outbox.unwritable.hurry(mine)
        if self._gate is not None:
            self._gate.closing([self.partitions[source] for source in mine])
        self._releases.append(Release(mine, done))
        self.check_releases()

    def check_releases(self) -> None:
        """Give up the closing partitions that have nothing left to do, and report each finished release."""
        if not self._releases:
            return
        batch = self._commits.in_flight
        under_way = () if batch is None else batch.commits  # the last commit of these may still fail
        ended = [
            source
            for source, partition in self.partitions.items()
            if partition.closing and partition.idle and not partition.uncommitted
        ]
        ended = [source for source in ended if source not in under_way]
        if self.queues:  # a main partition and its queue go together
            ended = [source for source in ended if self._tied((source,)) <= set(ended)]
        self.drop(ended)
        over = [release for release in self._releases if not release.partitions & self.partitions.keys()]
        self._releases = [release for release in self._releases if release not in over]
        for release in over:
            release.done()

    def lost(self, partitions: Collection[Partition]) -> None:
        """Drop partitions that another member owns by now, or whose time to finish is over; commit nothing."""
        self.drop(partitions)
        self.check_releases()

    def committed(self, result: CommitResult, now: Now) -> None:
        """Note how far a batch's result moved the progress of its partitions, and drop the fenced ones."""
        for source, share in result.batch.commits.items():
            partition = self.partitions.get(source)
            if partition is not None and partition.epoch == share.epoch:
                self._committed(partition, share.progress, result.committed)
                self._paused.resume_if_ready(partition, now.steady_ms)
        self.lost_to_others(result)

    def lost_to_others(self, result: CommitResult) -> None:
        """Drop the partitions of a batch that another member owns by now."""
        self.lost([source for source in result.fenced if self._is(source, result)])

    def _committed(self, partition: LanePartition, progress: Progress, true: bool) -> None:
        if not true:
            self._commits.soon(partition)
        else:
            partition.note_committed(progress)
        if self._gate is not None and partition.suspicion is not None:
            self._gate.committed(partition, partition.suspicion, progress if true else None)

    def drop(self, partitions: Collection[Partition]) -> None:
        """Forget partitions and everything that belongs to them."""
        mine = self._tied(partitions)
        if not mine:
            return
        self._recall(mine, lost=True)
        self._forget_waiting(mine)
        self._outbox.drop(mine)
        for source in mine:
            partition = self.partitions.pop(source)
            self.queues.pop(source, None)
            self.uncommitted_at_loss += partition.unsaved
            self._memory.forget(partition)
            if self._gate is not None:
                self._gate.dropped(partition)
        if self.on_drop is not None:
            self.on_drop(mine)

    def _tied(self, partitions: Collection[Partition]) -> frozenset[Partition]:
        """Return the partitions that are owned, each with its queue, or the main partition of that."""
        mine = {source for source in partitions if source in self.partitions}
        for source in tuple(mine) if self.queues else ():
            if (queue := self.queues.get(source)) is not None:
                mine.add(queue)
            elif (main := self.partitions[source].under) is not None:
                mine.add(main)
        return frozenset(mine)

    def _is(self, source: Partition, result: CommitResult) -> bool:
        partition = self.partitions.get(source)
        return partition is not None and partition.epoch == result.batch.commits[source].epoch

    def _forget_waiting(self, partitions: Collection[Partition]) -> None:
        self._waiting.drop(partitions)
        for source in self._outbox.drop_refused(partitions, self._commits.in_flight):
            self.partitions[source].unsettle()

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for source, partition in self.partitions.items():
            ensure(partition.source == source, f"{source} stands under its own name")
        for release in self._releases:
            remaining = [self.partitions[source] for source in release.partitions & self.partitions.keys()]
            ensure(bool(remaining), "a release that is over was reported")
            # One that was assigned anew meanwhile ends the release by its next end.
            ensure(any(partition.closing for partition in remaining), "a release waits for a partition that is closing")
