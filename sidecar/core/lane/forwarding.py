"""The fast path of a relay: due records at the head of a run enter the next batch together, and are done together.

It does in bulk what `admission`, `decide.after_wait`, `copies` and the lane do for each record alone. The speed of a
relay depends on its cost. Records that need more work take the usual path: not due, broken, of a topic not known here,
beyond the span, or refused before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from sidecar.core.commit_batch import SettledRecord
from sidecar.core.copies import Copy
from sidecar.core.decide import Forward
from sidecar.core.lane.ownership import Ownership
from sidecar.core.lane.partition import FetchedRecords, LanePartition
from sidecar.core.lane.parts import LaneParts
from sidecar.core.policy import Policy
from sidecar.core.record import Now, Record
from topics.headers_fast import for_topic

_KIND = attrgetter("decision.__class__", "record.source", "record.epoch")


def forward_due(
    partition: LanePartition, run: FetchedRecords, policy: Policy, now: Now, parts: LaneParts
) -> FetchedRecords:
    """Forward the due records at the head of a run; return the rest of the run."""
    entries: list[SettledRecord] = []
    late: list[int] = []
    taken = load = 0
    wait, tracker, ready, wall = partition.level_delay or 0, partition.tracker, policy.names.ready, now.wall
    topics = policy.topics
    for record in run.records:
        life, offset = record.life, record.offset  # None if the headers are broken or cannot be read
        if life is None or life.topic not in topics or not tracker.takes(offset):
            break
        due = max(life.due_at, record.timestamp + wait)
        if due > wall:
            break
        taken += 1
        if tracker.begin(offset):
            late.append(wall - due)
            load += record.weight
            copy = Copy(ready, record.key, record.value, for_topic(record.headers or [], ready), record.source.number)
            entries.append(SettledRecord(record, Forward(life), (copy,)))
    partition.settled(len(entries))
    parts.counters.lateness.add_all(late)
    parts.memory.add(partition, load)
    parts.outbox.extend(entries)
    return run._replace(records=run.records[taken:])


def settle_forwarded(
    entries: Iterable[SettledRecord], parts: LaneParts, ownership: Ownership
) -> Iterator[SettledRecord]:
    """Finish forwarded records that are in Kafka with their progress; yield the entries that need the usual path."""
    for (kind, _, _), row in groupby(entries, _KIND):
        if kind is not Forward or parts.outbox.held:
            yield from row
        else:
            _done([entry.record for entry in row], parts, ownership)


def _done(records: list[Record], parts: LaneParts, ownership: Ownership) -> None:
    partition = ownership.owner_of(records[0])
    if partition is None:
        return
    for record in records:
        partition.tracker.finish(record.offset)
    partition.unsettle(len(records))
    parts.memory.add(partition, -sum(record.weight for record in records))
    parts.counters.forwarded += len(records)
