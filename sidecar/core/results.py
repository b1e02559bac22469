"""What follows once a transaction has ended: what is in Kafka is done, and what is not is committed again from memory.

Nothing is delivered again because a commit has failed (contract 7.4, 7.11). The order matters: first what is done, then
what Kafka refuses, then what waits for either.

A missing topic blocks every partition whose failures go there. A record that is too large, or whose target partition
accepts nothing, is held alone; its partition is blocked only if too many of them are held, or too many bytes. So is an
ordered record whose queue topic takes nothing: what it holds is its own key, and all others need no queue. A partition
whose own progress Kafka refuses is blocked as well. A blocked partition keeps no waiting records in memory: over weeks
they would take the room of all others. Whether a partition is blocked follows from what is refused now (`_review`), and
from nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitResult, Refusal, SettledRecord, WrittenAt
from reconsume.sidecar.core.decisions import Decisions, is_about_output
from reconsume.sidecar.core.notes import NoteKeeper
from reconsume.sidecar.core.outbox import MOST_REFUSED, Proof, refused_by_partition
from reconsume.sidecar.core.outcome import output_refused
from reconsume.sidecar.core.ownership import Machines, Ownership
from reconsume.sidecar.core.partition import CALLED_OFF, PartitionState
from reconsume.sidecar.core.ports import Notice
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import NEVER, Now, Partition
from reconsume.sidecar.core.suspects import SuspectGate

TOO_MANY = "too many of its copies are refused"
TOO_LARGE = "its refused copies take too much memory"


class ResultCalls(NamedTuple):
    """What results ask of their lane. `finish`: ends the way of a record; its flag: the progress is in Kafka
    already."""

    finish: Callable[..., None]
    notice: Notice


class CommitResults:
    """What the results of one lane's transactions do. It keeps nothing."""

    def __init__(
        self,
        machines: Machines,
        ownership: Ownership,
        decisions: Decisions,
        suspects: SuspectGate | None,
        calls: ResultCalls,
        notes: NoteKeeper,
    ) -> None:
        self._machines, self._ownership, self._decisions = machines, ownership, decisions
        self._suspects, self._calls, self._notes = suspects, calls, notes

    def apply_result(self, result: CommitResult, now: Now) -> None:
        """Do what follows from the result of the batch in flight."""
        machines = self._machines
        machines.doubt.batch_ended()
        machines.commits.end_batch(now, committed=result.committed)
        if result.batch.padded:
            self._take_proof(result, now)
            return
        if result.apart:
            machines.commits.halve(result.batch)
        # Contract 7.4, 7.11: what did not happen is committed again from memory; nothing is delivered again for it.
        kept = [one for entry in result.again if (one := self._kept(entry, result)) is not None]
        machines.outbox.put_back(kept)
        self._finish_written(result, now)
        if self._notes.in_use:
            self._notes.batch_ended(result, now)
            self._decisions.settling.batch_ended(result)
        self._refuse(result.refused, now)
        if result.unwritable:
            self._refuse_progress(result, now)
        if result.committed and machines.outbox.unwritable:
            machines.commits.progress_accepted(result.batch.commits)
        if machines.outbox.refused or machines.outbox.unwritable or machines.room.refused_bytes:
            self._review(now)
        self._ownership.note_committed(result, now)

    def _kept(self, entry: SettledRecord, result: CommitResult) -> SettledRecord | None:
        """Return what is to be committed of an entry that is not in Kafka; None if nothing is."""
        partition = self._ownership.owner_of(entry.record)
        if partition is None or not entry.is_early:
            return None if partition is None else entry
        if entry.record.offset in partition.offsets.entries:  # its turn has come meanwhile
            return replace(entry, is_early=False)
        if result.notes_refused:
            self._notes.finish_early(partition, entry.record, is_written=False)
            return None
        return entry

    def _take_proof(self, result: CommitResult, now: Now) -> None:
        """Let deliveries begin if the brokers take the longest progress."""
        if result.committed or result.too_long:
            self._machines.commits.proof = Proof.PROVEN if result.committed else Proof.REFUSED
        if result.unwritable:
            self._refuse_progress(result, now)
            self._review(now)
        if result.committed:
            for partition in self._machines.partitions.values():
                self._machines.waiting.let_try(partition, first=False)
        self._ownership.lose_fenced(result)

    # --- what is written --------------------------------------------------------------------------------------------

    def _finish_written(self, result: CommitResult, now: Now) -> None:
        """End the way of each record whose decision is in Kafka."""
        queues, located, machines = self._decisions.queues, result.located, self._machines
        if result.committed and machines.waiting.keys is None and queues is None and not machines.outbox.refused:
            self._finish_together(result.done, now)
            return
        if located and queues is not None:
            queues.transaction_ended(result.producer)
        for index, entry in enumerate(result.done):
            self._finish_entry(entry, result.committed, now, located.get(index))
        if located and queues is not None:
            queues.pass_located()

    def _finish_together(self, entries: Iterable[SettledRecord], now: Now) -> None:
        """End the way of records for which none waits, as `_finish_entry` would: their bytes are free at the end."""
        bytes_done, counters = dict[PartitionState, int](), self._decisions.counters
        for entry in entries:
            record = entry.record
            if entry.is_early:
                self._finish_entry(entry, True, now, None)
            elif (partition := self._ownership.owner_of(record)) is not None:
                counters.count(entry.decision)
                partition.offsets.finish(record.offset)
                bytes_done[partition] = bytes_done.get(partition, 0) + record.weight
        for partition, weight in bytes_done.items():
            self._machines.room.add_bytes(partition, -weight)
            partition.throughput.done_bytes += weight
            if partition.closing:
                self._machines.commits.at_once(partition)

    def _finish_entry(self, entry: SettledRecord, is_covered: bool, now: Now, where: WrittenAt | None) -> None:
        partition = self._ownership.owner_of(entry.record)
        # Contract 9.1: it went to another owner meanwhile, who has read what this batch has written.
        if partition is None:
            return
        self._decisions.counters.count(entry.decision)
        if entry.is_early and self._notes.finish_early(partition, entry.record, is_written=True):
            self._machines.outbox.forget_entry(entry)
            return
        if self._decisions.queues is not None:
            self._decisions.queues.copy_written(entry, where, now)
        self._calls.finish(partition, entry.record, is_covered=is_covered)
        if self._machines.outbox.refused:
            self._machines.outbox.entry_accepted(entry)

    # --- what is refused --------------------------------------------------------------------------------------------

    def _refuse(self, refusals: Iterable[Refusal], now: Now) -> None:
        """Keep what Kafka refuses, and try it again later."""
        for refusal in refusals:
            entry, partition = refusal.entry, self._ownership.owner_of(refusal.entry.record)
            if partition is None:
                continue
            if is_about_output(refusal):  # the record fails; the service is available
                self._machines.outbox.forget_entry(entry)
                self._decisions.decide_outcome(partition, entry.record, output_refused(refusal.reason), now)
            elif partition.closing:  # to wait until the topic is repaired would only delay the rebalance
                self._machines.outbox.forget_entry(entry)
                if not entry.is_early or not self._notes.finish_early(partition, entry.record, is_written=False):
                    partition.offsets.move(partition.offsets.entries[entry.record.offset], CALLED_OFF)
            else:
                self._machines.outbox.refuse_entry(refusal, now)
                if partition.blocked:  # what was in flight when it was blocked may have come back
                    self._let_go(partition)

    def _refuse_progress(self, result: CommitResult, now: Now) -> None:
        """Keep the partitions apart whose progress Kafka refuses."""
        machines = self._machines
        machines.commits.all_at_once()
        machines.outbox.put_off(result.again, now)
        for source, reason in result.unwritable.items():
            if (partition := machines.partitions.get(source)) is None:
                continue
            if partition.closing:  # the next owner begins where Kafka's progress is
                self._ownership.lose_partitions((source,))
            else:
                machines.outbox.refuse_progress(source, reason, now)
        machines.outbox.sort_out()

    # --- which partitions are blocked -------------------------------------------------------------------------------

    def _review(self, now: Now) -> None:
        """Block and unblock partitions by the copies, and the progress, that Kafka refuses now."""
        sizes, missing = Counter[Partition](), dict[Partition, str]()
        machines, policy = self._machines, self._decisions.policy
        queues = frozenset(policy.names.queues_of(policy.topics))
        for (source, _), refused in machines.outbox.refused.items():
            sizes[source] += refused.refusal.entry.record.weight
            if refused.refusal.about == "topic" and refused.refusal.where not in queues:
                missing[source] = refused.refusal.reason
        for source, unwritable in machines.outbox.unwritable.items():
            sizes[source] += sum(entry.record.weight for entry in unwritable.entries)
            missing.setdefault(source, f"its progress is refused: {unwritable.reason}")
        machines.room.set_refused(sizes)
        counts = refused_by_partition(machines.outbox)
        for source, partition in machines.partitions.items():
            if partition.closing or not (partition.blocked or source in sizes or source in missing):
                continue
            reason = missing.get(source) or self._crowd_of(partition, counts[source])
            if partition.blocked and not reason:
                machines.fetching.unblock(partition, now.steady_ms)
                machines.waiting.let_try(partition, first=False)
                self._calls.notice("unblocked", source, 0, partition.offsets.first)
            elif reason and not partition.blocked:
                self._block(partition, reason, counts[source])
            else:
                partition.blocked = reason

    def _crowd_of(self, partition: PartitionState, count: int) -> str:
        if count > (MOST_REFUSED * 3 // 4 if partition.blocked else MOST_REFUSED):
            return TOO_MANY
        return TOO_LARGE if self._machines.room.crowds_out(partition) else ""

    def _block(self, partition: PartitionState, reason: str, count: int) -> None:
        self._machines.fetching.block(partition, reason)
        if self._suspects is not None:
            self._suspects.stopped(partition)
        self._let_go(partition)
        self._calls.notice("blocked", partition.source, count, partition.offsets.first)

    def _let_go(self, partition: PartitionState) -> None:
        """Drop the records of a blocked partition that wait in memory; they are fetched again later."""
        # Those of a suspect partition are stopped for another reason too (`suspects.py`).
        entries = self._machines.waiting.take_back(partition, stopped=partition.suspicion is None)
        if entries:
            if self._decisions.queues is not None and (queue := self._decisions.queues.under(partition)) is not None:
                queue.put_back(entry.record for entry in entries if entry.record is not None)
            self._machines.fetching.drop_and_fetch_again(partition, entries, NEVER, NotFetched.REFUSED)
