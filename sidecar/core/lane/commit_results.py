"""What follows once a batch has ended: what is in Kafka is done, and what is not is committed again from memory.

Nothing is delivered again because a commit has failed (contract 7.4, 7.11).
"""

from __future__ import annotations

from typing import Protocol

from reconsume.sidecar.core.commit_batch import CommitResult, SettledRecord, WrittenAt
from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.core.lane.blocked_partitions import BlockedPartitions
from reconsume.sidecar.core.lane.bulk import RelayBulk
from reconsume.sidecar.core.lane.commits import Commits
from reconsume.sidecar.core.lane.decisions import Decisions
from reconsume.sidecar.core.lane.long_waits import LongWaits
from reconsume.sidecar.core.lane.memory import LaneMemory
from reconsume.sidecar.core.lane.outbox import Outbox
from reconsume.sidecar.core.lane.ownership import Ownership
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.room_shares import RoomShares
from reconsume.sidecar.core.record import Now, Record


class Finish(Protocol):
    """As `Lane._finish`."""

    def __call__(self, partition: LanePartition, record: Record, *, covered: bool) -> None: ...


class CommitResults:
    """What the results of one lane's batches do. It keeps nothing.

    The order matters: first what is done, then what Kafka refuses, then what waits for either.
    """

    def __init__(
        self,
        ownership: Ownership,
        outbox: Outbox,
        commits: Commits,
        memory: LaneMemory,
        blocked: BlockedPartitions,
        room: RoomShares,
        relay_bulk: RelayBulk,
        queues: LongWaits | None,
        decisions: Decisions,
        counters: LaneCounters,
        finish: Finish,
    ) -> None:
        self._ownership, self._outbox, self._commits, self._memory = ownership, outbox, commits, memory
        self._blocked, self._room, self._relay_bulk, self._queues = blocked, room, relay_bulk, queues
        self._decisions, self._counters, self._finish = decisions, counters, finish

    def apply(self, result: CommitResult, now: Now) -> None:
        """Do what follows from the result of the batch in flight."""
        self._commits.ended(now, committed=result.committed)
        if result.batch.padded:
            self._take_proof(result, now)
            return
        if result.apart:
            self._commits.halve(result.batch)
        # Contract 7.4, 7.11: what did not happen is committed again from memory; nothing is delivered again for it.
        ownership = self._ownership
        self._outbox.put_back(entry for entry in result.again if ownership.owner_of(entry.record) is not None)
        self._all_written(result, now)
        if result.refused:
            self._blocked.refused(result.refused, now)
        self._take_progress(result, now)
        if self._outbox.refused or self._outbox.unwritable or self._memory.refused_bytes:
            self._blocked.review(now)
            self._room.admitted(now)  # the copies that Kafka takes now count in the room again
        self._ownership.committed(result, now)

    def _take_proof(self, result: CommitResult, now: Now) -> None:
        """Let deliveries begin if the brokers take the longest progress."""
        if result.committed or result.too_long:
            self._commits.proved(accepted=result.committed)
        if result.unwritable:
            self._blocked.progress_refused(result, now)
            self._blocked.review(now)
        if result.committed:
            self._blocked.begin()
        self._ownership.lost_to_others(result)

    def _take_progress(self, result: CommitResult, now: Now) -> None:
        """Note what Kafka says of the progress of partitions, in a batch that it took or not."""
        if result.unwritable:
            self._blocked.progress_refused(result, now)
        if result.committed and self._outbox.unwritable:
            self._commits.progress_accepted(result.batch.commits)

    def _all_written(self, result: CommitResult, now: Now) -> None:
        straight, located = self._decisions.policy.relay and result.committed, result.located
        if located and self._queues is not None:
            self._queues.copies.transaction_ended(result.producer)
        for index, entry in enumerate(self._relay_bulk.settle(result.done) if straight else result.done):
            self._written(entry, result.committed, now, located.get(index))
        if located and self._queues is not None:
            self._queues.copies.take_located()

    def _written(self, entry: SettledRecord, with_progress: bool, now: Now, where: WrittenAt | None) -> None:
        partition = self._ownership.owner_of(entry.record)
        # Contract 9.1: it went to another owner meanwhile, who has read what this batch has written.
        if partition is None:
            return
        partition.unsettle()
        self._counters.count(entry.decision)
        if self._queues is not None:
            self._queues.copies.written(entry, where, now)
        self._finish(partition, entry.record, covered=with_progress)
        if self._outbox.refused:
            self._outbox.accepted(entry)
