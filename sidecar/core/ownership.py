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

A revoked partition is released in order: deliveries in flight are awaited, their progress is committed, then the
partition is given up. A lost partition is dropped at once, and nothing is committed. Anything that carries an older
assignment epoch afterwards is refused. A queue partition is owned, and given up, with its main partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.commit_batch import CommitResult
from reconsume.sidecar.core.fetching import Fetching
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.outbox import Commits, MembershipDoubt, Outbox
from reconsume.sidecar.core.partition import CALLED_OFF, AssignedPartition, Kind, PartitionState
from reconsume.sidecar.core.ports import Recall
from reconsume.sidecar.core.progress import Bounds, Progress
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.sidecar.core.room import Room, RoomMaker
from reconsume.sidecar.core.suspects import SuspectGate
from reconsume.sidecar.core.waiting import WaitingRecords
from reconsume.topics.durations import render_duration


class Machines(NamedTuple):
    """The machines of one lane, which act on its `partitions`."""

    partitions: dict[Partition, PartitionState]
    agenda: Agenda
    waiting: WaitingRecords
    room: Room
    room_maker: RoomMaker
    fetching: Fetching
    outbox: Outbox
    commits: Commits
    doubt: MembershipDoubt


class Release(NamedTuple):
    """Partitions that are being given up, and the callback for the end of that."""

    partitions: frozenset[Partition]
    done: Callable[[], None]
    since_ms: int = 0


class Ownership:
    """The partitions that a lane holds now. `waits`: as in `Lane`. `suspects`: None if crashes are not looked at.

    Invariants: a release waits for partitions that are closing; a partition stands under its own name.
    """

    def __init__(
        self,
        machines: Machines,
        waits: Mapping[str, int],
        bounds: Bounds,
        suspects: SuspectGate | None,
        recall: Recall,
        dropped: Callable[[Collection[Partition]], None],
    ) -> None:
        """`dropped`: called with partitions that are gone."""
        self.queues: dict[Partition, Partition] = {}
        """The queue partition of each main partition that has one."""
        self.uncommitted_at_loss = 0
        """Records, at most, that were answered but not in Kafka when their partition went. They are delivered again."""
        self.records_lost: Counter[str] = Counter()
        """By topic: offsets that were gone from the log before they were read, or before they were done."""
        self.waits = waits
        """An assigned partition keeps its own delay, as the name of its topic does."""
        self.suspects = suspects
        self._machines, self._bounds = machines, bounds
        self._recall, self._dropped = recall, dropped
        self._releases: list[Release] = []

    def owner_of(self, record: Record) -> PartitionState | None:
        """Return the partition of a record; None if it is not assigned any more, or was assigned anew."""
        partition = self._machines.partitions.get(record.source)
        return partition if partition is not None and partition.epoch == record.epoch else None

    # --- partitions come --------------------------------------------------------------------------------------------

    def begin_partitions(self, grants: Iterable[AssignedPartition]) -> None:
        """Start partitions where their last owner left off."""
        for grant in grants:
            self.lose_partitions((grant.partition,))
            wait_ms, progress = self.waits.get(grant.partition.topic), grant.progress
            level = "main" if wait_ms is None else "ready" if wait_ms == 0 else render_duration(wait_ms)
            partition = PartitionState(grant.partition, grant.epoch, Kind(level, wait_ms), progress, self._bounds)
            if wait_ms is None:
                partition.commit.last_at_ms = None
            if grant.lost:
                self.records_lost[grant.partition.topic] += grant.lost
            if progress.width is not None and not progress.ours:  # commit it, so that a crash does not move the start
                self._machines.commits.soon(partition)
            self._begin(partition, progress)

    def begin_queue(self, grant: AssignedPartition, main: Partition) -> PartitionState:
        """Start the queue partition of a main partition, where the group has read it to."""
        kind = Kind("ordered", 0, main)
        queue = PartitionState(grant.partition, grant.epoch, kind, grant.progress, Bounds())
        self._begin(queue, grant.progress)
        self.queues[main] = grant.partition
        return queue

    def _begin(self, partition: PartitionState, progress: Progress) -> None:
        self._machines.partitions[partition.source] = partition
        self._machines.waiting.ready.own(partition.source)
        if self.suspects is not None:
            self.suspects.granted(partition, progress)

    def cut(self, source: Partition, epoch: int, wanted: int, low: int) -> None:
        """Count the records that are lost unread, because the log begins at `low` now.

        `wanted`: the offset to be read next, below `low`. What was read stays under way. A paused partition continues
        at an offset of its own: if that is gone too, the consumer reports it then.
        """
        partition = self._machines.partitions.get(source)
        if partition is not None and partition.epoch == epoch and partition.paused is None:
            self.records_lost[source.topic] += partition.offsets.cut(wanted, low)
            self._machines.commits.soon(partition)

    def truncate(self, source: Partition, high: int) -> None:
        """Drop a partition whose log ends at `high` now, and count what was not done. It is assigned anew."""
        if (partition := self._machines.partitions.get(source)) is not None:
            self.records_lost[source.topic] += sum(offset >= high for offset in partition.offsets.entries)
            self.lose_partitions((source,))

    # --- and go -----------------------------------------------------------------------------------------------------

    def release_partitions(self, partitions: Collection[Partition], done: Callable[[], None], now: Now) -> None:
        """Give partitions up in order; call `done` once all deliveries in flight are answered and committed."""
        mine = self.tied_to(partitions)
        self._close(mine)
        self._releases.append(Release(mine, done, now.steady_ms))
        self.check_releases()

    def drain(self, source: Partition) -> None:
        """Deliver nothing more of a main partition, without giving it up: what is in flight ends, and is committed."""
        mine, owned = self.tied_to((source,)), self._machines.partitions
        for one in mine:
            partition = owned[one]
            self._machines.fetching.pause(partition, partition.offsets.unread, NEVER, NotFetched.BEHIND_RESET)
        self._close(mine)

    def _close(self, mine: Collection[Partition]) -> None:
        """Deliver nothing more of partitions, and have what is in flight of them committed."""
        owned = self._machines.partitions
        self._recall(mine, lost=False)
        self._forget_waiting(mine)
        for source in mine:
            owned[source].closing = True
            self._machines.commits.soon(owned[source])  # the last commit carries the clean mark
            if (refused := self._machines.outbox.unwritable.get(source)) is not None:
                refused.backoff.at_ms = 0  # contract 9.1: a rebalance waits for it
        if self.suspects is not None:
            self.suspects.closing([owned[source] for source in mine])

    def is_releasing(self, source: Partition) -> bool:
        """Return whether a partition is being given up."""
        return any(source in release.partitions for release in self._releases)

    def released_since(self) -> dict[Partition, int]:
        """Return the partitions that are being given up, each with the steady ms since when."""
        owned = self._machines.partitions
        return {source: release.since_ms for release in self._releases for source in release.partitions & owned.keys()}

    def check_releases(self) -> None:
        """Give up the closing partitions that have nothing left to do, and report each finished release."""
        if not self._releases:
            return
        batch, owned = self._machines.commits.in_flight, self._machines.partitions
        under_way = () if batch is None else batch.commits  # the last commit of these may still fail
        ended = {
            source
            for source, partition in owned.items()
            if partition.closing
            and partition.is_idle
            and partition.commit.by_ms == NEVER
            and source not in under_way
            and self.is_releasing(source)
        }
        if self.queues:  # a main partition and its queue go together
            ended = {source for source in ended if self.tied_to((source,)) <= ended}
        self._drop(ended)
        over = [release for release in self._releases if not release.partitions & owned.keys()]
        self._releases = [release for release in self._releases if release not in over]
        for release in over:
            release.done()

    def lose_partitions(self, partitions: Collection[Partition]) -> None:
        """Drop partitions that another member owns by now, or whose time to finish is over; commit nothing."""
        self._drop(partitions)
        self.check_releases()

    def lose_fenced(self, result: CommitResult) -> None:
        """Drop the partitions of a batch that another member owns by now."""
        owned, commits = self._machines.partitions, result.batch.commits
        fenced = [source for source in result.fenced if source in owned]
        self.lose_partitions([source for source in fenced if owned[source].epoch == commits[source].epoch])

    def note_committed(self, result: CommitResult, now: Now) -> None:
        """Note how far a batch's result moved the progress of its partitions, and drop the fenced ones."""
        for source, share in result.batch.commits.items():
            partition = self._machines.partitions.get(source)
            if partition is None or partition.epoch != share.epoch:
                continue
            if result.committed:
                partition.commit.progress = share.progress
            else:
                self._machines.commits.soon(partition)
            if self.suspects is not None and partition.suspicion is not None:
                self.suspects.committed(partition, partition.suspicion, share.progress if result.committed else None)
            self._machines.fetching.resume_if_ready(partition, now.steady_ms)
        self.lose_fenced(result)

    def _drop(self, partitions: Collection[Partition]) -> None:
        """Forget partitions and everything that belongs to them."""
        mine = self.tied_to(partitions)
        if not mine:
            return
        machines = self._machines
        self._recall(mine, lost=True)
        self._forget_waiting(mine)
        machines.outbox.drop_partitions(mine)
        for source in mine:
            partition = machines.partitions.pop(source)
            self.queues.pop(source, None)
            if partition.commit.move is None:
                self.uncommitted_at_loss += partition.unsaved
            machines.room.forget_partition(partition)
            machines.agenda.set_time(partition, NEVER)
            if self.suspects is not None:
                self.suspects.dropped(partition)
        self._dropped(mine)

    def tied_to(self, partitions: Collection[Partition]) -> frozenset[Partition]:
        """Return the partitions that are owned, each with its queue, or the main partition of that."""
        owned = self._machines.partitions
        mine = {source for source in partitions if source in owned}
        for source in tuple(mine) if self.queues else ():
            if (queue := self.queues.get(source)) is not None:
                mine.add(queue)
            elif (main := owned[source].kind.under) is not None:
                mine.add(main)
        return frozenset(mine)

    def _forget_waiting(self, partitions: Collection[Partition]) -> None:
        """Forget what waits of partitions, and what Kafka refuses: their next owner delivers it."""
        owned, outbox, commits = self._machines.partitions, self._machines.outbox, self._machines.commits
        self._machines.waiting.drop_partitions(owned[source] for source in partitions)
        for source, offset in outbox.forget_refused(partitions, commits.in_flight):
            offsets = owned[source].offsets
            if (entry := offsets.entries.get(offset)) is not None:  # else it was settled early, and has not begun
                offsets.move(entry, CALLED_OFF)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        owned = self._machines.partitions
        for source, partition in owned.items():
            ensure(partition.source == source, f"{source} stands under its own name")
        for release in self._releases:
            remaining = [owned[source] for source in release.partitions & owned.keys()]
            ensure(bool(remaining), "a release that is over was reported")
            # One that was assigned anew meanwhile ends the release by its next end.
            ensure(any(partition.closing for partition in remaining), "a release waits for a partition that is closing")
