"""Block a partition whose copies Kafka refuses, if no other record of it could do better.

The refused copies themselves are kept, and tried again, by `outbox.py`.

A missing topic blocks every partition whose failures go there. A record that is too large, or whose target partition
accepts nothing, is held alone; its partition is blocked only if too many of them are held, or too many bytes. So is an
ordered record whose queue topic takes nothing: what it holds is its own key, and all others need no queue. A
partition whose own progress Kafka refuses is blocked as well (`refused_progress.py`). A blocked partition keeps no
waiting records in memory: over weeks they would take the room of all others.

Whether a partition is blocked follows from what is held now (`review`), and from nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from reconsume.sidecar.core.commit_batch import CommitResult, Refusal
from reconsume.sidecar.core.lane.calls import LaneCalls
from reconsume.sidecar.core.lane.commits import Commits
from reconsume.sidecar.core.lane.crash_gate import CrashGate
from reconsume.sidecar.core.lane.memory import LaneMemory
from reconsume.sidecar.core.lane.outbox import MOST_REFUSED, Outbox
from reconsume.sidecar.core.lane.outputs import is_about_output
from reconsume.sidecar.core.lane.ownership import Ownership
from reconsume.sidecar.core.lane.partition import Because, LanePartition
from reconsume.sidecar.core.lane.paused import PausedPartitions
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.record import NEVER, Now, Partition

TOO_MANY = "too many of its copies are refused"
TOO_LARGE = "its refused copies take too much memory"


class BlockedPartitions:
    """The refused copies of one lane."""

    def __init__(
        self,
        ownership: Ownership,
        outbox: Outbox,
        waiting: WaitingRecords,
        memory: LaneMemory,
        commits: Commits,
        paused: PausedPartitions,
        gate: CrashGate | None,
        calls: LaneCalls,
    ) -> None:
        self._ownership, self._outbox, self._waiting, self._memory = ownership, outbox, waiting, memory
        self._commits, self._paused, self._gate, self._calls = commits, paused, gate, calls
        self._notice = calls.notice

    def refused(self, refusals: Iterable[Refusal], now: Now) -> None:
        """Hold what Kafka refuses."""
        for refusal in refusals:
            partition = self._ownership.owner_of(refusal.entry.record)
            if partition is None:
                continue
            if is_about_output(refusal):
                self._calls.output_refused(partition, refusal.entry, refusal.reason, now)
            elif partition.closing:  # to wait until the topic is repaired would only delay the rebalance
                self._outbox.forget(refusal.entry)
                partition.unsettle()
            else:
                self._outbox.refuse(refusal, now)
                if partition.blocked:  # what was in flight when it was blocked may have come back
                    self._let_go(partition)

    def progress_refused(self, result: CommitResult, now: Now) -> None:
        """Keep the partitions apart whose progress Kafka refuses."""
        outbox = self._outbox
        self._commits.all_at_once()
        outbox.put_off(result.again, now)
        for source, reason in result.unwritable.items():
            partition = self._ownership.partitions.get(source)
            if partition is None:
                continue
            if partition.closing:  # the next owner begins where Kafka's progress is
                self._ownership.lost((source,))
                continue
            outbox.unwritable.refuse(source, reason, now.steady_ms)
        outbox.sort_out()

    def begin(self) -> None:
        """Let the records go that were kept back until it was known that progress of any length can be committed."""
        for source in self._ownership.partitions:
            self._waiting.let_try(source, first=False)

    def review(self, now: Now) -> None:
        """Block and unblock partitions by the copies, and the progress, that Kafka refuses now."""
        sizes, missing = Counter[Partition](), dict[Partition, str]()
        policy = self._calls.policy()
        queues = frozenset(policy.names.queues_of(policy.topics))
        for (source, _), refused in self._outbox.refused.items():
            sizes[source] += refused.refusal.entry.record.weight
            if refused.refusal.about == "topic" and refused.refusal.where not in queues:
                missing[source] = refused.refusal.reason
        unwritable = self._outbox.unwritable
        sizes.update(unwritable.sizes())
        self._memory.hold(sizes)
        counts = self._outbox.refused_by_partition()
        for source, partition in self._ownership.partitions.items():
            if partition.closing or not (partition.blocked or source in sizes or source in unwritable):
                continue
            reason = missing.get(source) or unwritable.reason(source)
            if not reason:
                reason = self._crowds(partition, counts[source])
            if partition.blocked and not reason:
                self._go_on(partition, now)
            elif reason and not partition.blocked:
                self._stop(partition, reason, counts[source])
            else:
                partition.block(reason)

    def _crowds(self, partition: LanePartition, count: int) -> str:
        if count > (MOST_REFUSED * 3 // 4 if partition.blocked else MOST_REFUSED):
            return TOO_MANY
        return TOO_LARGE if self._memory.crowds(partition) else ""

    def _stop(self, partition: LanePartition, reason: str, count: int) -> None:
        self._paused.block(partition, reason)
        if self._gate is not None:
            self._gate.stopped(partition)
        self._let_go(partition)
        self._notice("blocked", partition.source, count, partition.tracker.first)

    def _go_on(self, partition: LanePartition, now: Now) -> None:
        self._paused.unblock(partition, now.steady_ms)
        self._waiting.let_try(partition.source, first=False)
        self._notice("unblocked", partition.source, 0, partition.tracker.first)

    def _let_go(self, partition: LanePartition) -> None:
        """Drop the records of a blocked partition that wait in memory; they are fetched again later."""
        # Those of a suspect partition are withheld for another reason too (`crash_gate.py`).
        records = self._waiting.take_back(partition.source, withheld=partition.suspicion is None)
        if records:
            self._memory.add(partition, -sum(record.weight for record in records))
            self._paused.let_go(partition, records, NEVER, Because.BLOCKED)
            self._calls.let_go(partition)
