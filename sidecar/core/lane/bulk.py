"""Two fast paths of a lane for many records at once, with the result of the usual way, at a third of its cost.

`RelayBulk` is that of a relay: due records at the head of a run enter the next batch together, and are done together.
It does in bulk what `admission`, `transitions.after_wait`, `transition_records` and the lane do for each record alone.
Records that need more work take the usual way: not due, broken, of a topic not known here, beyond the span, or refused
before.

`BulkAnswers` applies one batch response, with the same result as `Lane.answered` for each of its records. It is only
for the most common outcome: a main-topic record that the service accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.crash_gate import CrashGate
from reconsume.sidecar.core.lane.memory import LaneMemory
from reconsume.sidecar.core.lane.outbox import Outbox
from reconsume.sidecar.core.lane.ownership import Ownership
from reconsume.sidecar.core.lane.partition import FetchedRecords, LanePartition
from reconsume.sidecar.core.outcome import COMMITTED, label_of
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Now, Record
from reconsume.topics.headers_fast import for_topic
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Forward

_KIND = attrgetter("decision.__class__", "record.source", "record.epoch")


class RelayBulk:
    """Forward the due records of a relay."""

    def __init__(self, ownership: Ownership, memory: LaneMemory, outbox: Outbox, counters: LaneCounters) -> None:
        self._ownership, self._memory, self._outbox, self._counters = ownership, memory, outbox, counters

    def forward_due(self, partition: LanePartition, run: FetchedRecords, policy: Policy, now: Now) -> FetchedRecords:
        """Forward the due records at the head of a run; return the rest of the run."""
        entries: list[SettledRecord] = []
        late: list[int] = []
        taken = load_bytes = 0
        wait_ms, tracker, ready, wall_ms = (
            partition.level_delay_ms or 0,
            partition.tracker,
            policy.names.ready,
            now.wall_ms,
        )
        topics = policy.topics
        if run.records and tracker.end_of_done(run.records[0].offset) is not None:
            return run  # the usual way passes over it
        for record in run.records:
            retry_state, offset = record.retry_state, record.offset  # None if the headers are broken or cannot be read
            # Contract 3.6, 2.9, 7.2: bad headers, a topic of others, and an offset too far ahead need the usual way.
            if retry_state is None or retry_state.topic not in topics or not tracker.make_way(offset):
                break
            due_ms = max(retry_state.due_at, record.timestamp + wait_ms)
            if due_ms > wall_ms:
                break
            taken += 1
            if tracker.begin(offset):
                late.append(wall_ms - due_ms)
                load_bytes += record.weight
                headers = for_topic(record.headers or [], ready)
                copy = Copy(ready, record.key, record.value, headers, record.source.number)
                entries.append(SettledRecord(record, Forward(retry_state), (copy,)))
        partition.settled(len(entries))
        self._counters.lateness.add_all(late)
        self._memory.add(partition, load_bytes)
        self._outbox.extend(entries)
        return run._replace(records=run.records[taken:])

    def settle(self, entries: Iterable[SettledRecord]) -> Iterator[SettledRecord]:
        """Finish forwarded records that are in Kafka with their progress; yield the entries that need the usual way."""
        for (kind, _, _), row in groupby(entries, _KIND):
            if kind is not Forward or self._outbox.refused:
                yield from row
            else:
                self._done([entry.record for entry in row])

    def _done(self, records: list[Record]) -> None:
        partition = self._ownership.owner_of(records[0])
        if partition is None:
            return
        for record in records:
            partition.finish(record)
        partition.unsettle(len(records))
        self._memory.add(partition, -sum(record.weight for record in records))
        self._counters.forwarded += len(records)


class BulkAnswers:
    """Collect the accepted records while the dispatcher passes on the outcomes of a batch.

    `apply` is called after the last outcome. Invariant: between two calls of the lane nothing is collected.
    """

    def __init__(
        self, dispatcher: Dispatcher, ownership: Ownership, gate: CrashGate | None, counters: LaneCounters
    ) -> None:
        self._dispatcher, self._ownership, self._gate, self._counters = dispatcher, ownership, gate, counters
        self._records: list[Record] = []

    def add(self, record: Record) -> None:
        """Add a record that the service accepted."""
        self._records.append(record)

    def apply(self, finish: Callable[[LanePartition, Record], None], now: Now) -> Iterator[LanePartition]:
        """Finish all collected records; yield each partition when its records are finished."""
        for records in self._take_runs():
            self._dispatcher.committed_many(records, now)
            partition = self._ownership.owner_of(records[0])
            # Contract 9.1: an answer for an earlier assignment is counted and changes nothing.
            if partition is None:
                self._counters.fenced_answers += len(records)
                continue
            partition.answered(len(records))
            self._counters.deliveries[partition.source.topic, partition.level, label_of(COMMITTED)] += len(records)
            for record in records:
                if self._gate is not None and partition.suspicion is not None:
                    self._gate.answered(partition, partition.suspicion, record, COMMITTED, now)
                finish(partition, record)
            yield partition

    def _take_runs(self) -> Iterator[list[Record]]:
        """Yield the records in runs: records of one partition and assignment that follow each other."""
        run: list[Record] = []
        records, self._records = self._records, []
        for record in records:
            if run and (record.source is not run[0].source or record.epoch != run[0].epoch):
                yield run
                run = []
            run.append(record)
        if run:
            yield run

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(not self._records, "every accepted record of a batch was finished")
