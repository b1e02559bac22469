"""Each offset of a partition that was begun and is not done is in exactly one of these ways.

    ready       it may be delivered, or waits for the single file of suspect partitions
    delayed     its time has not come, or the service asked for a later attempt
    behind      an earlier record of its key, or partition, is not done
    withheld    its partition is blocked, or must be committed first
    marked      it goes alone, once Kafka knows that it may crash the service
    settled     its decision waits for a transaction, or Kafka refuses it
    committing  its decision is in the transaction in flight
    held        an operator holds it: it waits in memory, or only its offset is kept
let go      it was dropped from memory, and is fetched again
    out         the service has it: what is in no other way, as many as `in_flight` counts
    called off  the next owner delivers it, because this one ends or gives the partition up

Between any two calls of a lane this holds, and what each object of it claims of itself. Stories and unit tests check it
after each step, soaks now and then: `Lane.check`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.commits import Commits
from reconsume.sidecar.core.lane.outbox import Outbox
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.record import Partition, Record


def check_records(
    partitions: Mapping[Partition, LanePartition], waiting: WaitingRecords, outbox: Outbox, commits: Commits
) -> None:
    """Raise BrokenInvariantError if a record is in no way, or in two, or if a partition counts it otherwise."""
    by_partition: defaultdict[Partition, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for way, record in _ways(partitions, waiting, outbox, commits):
        partition = partitions.get(record.source)
        if partition is not None and partition.epoch == record.epoch:
            by_partition[record.source][way].append(record)
        else:  # a transaction goes on without the assignment
            ensure(way == "committing", f"nothing of {record.source}, which is gone, is {way}")
    for partition in partitions.values():
        _check_records(partition, by_partition[partition.source])
        _check_counts(partition, by_partition[partition.source])


def _ways(
    partitions: Mapping[Partition, LanePartition], waiting: WaitingRecords, outbox: Outbox, commits: Commits
) -> Iterator[tuple[str, Record]]:
    batch = commits.in_flight
    marked = (partition.suspicion.marked for partition in partitions.values() if partition.suspicion is not None)
    by_way: Mapping[str, Iterable[Record | None]] = {
        **waiting.by_way(),
        "marked": marked,
        "settled": (entry.record for entry in outbox.entries(batch)),
        "committing": () if batch is None else (entry.record for entry in batch.entries),
    }
    for way, records in by_way.items():
        yield from ((way, record) for record in records if record is not None)


def _check_records(partition: LanePartition, records_by_way: Mapping[str, list[Record]]) -> None:
    begun, counted = partition.tracker.open_offsets(), dict.fromkeys(partition.tracker.dropped, "let go")
    for offset in partition.held:
        ensure(offset in begun and offset not in counted, f"{partition.source}@{offset} is held, and in no other way")
        counted[offset] = "held"
    for way, records in records_by_way.items():
        for record in records:
            ensure(record.offset in begun, f"{record.id} is {way}, so it was begun and is not done")
            ensure(record.offset not in counted, f"{record.id} is {way}, and not also {counted.get(record.offset)}")
            counted[record.offset] = way
    out = len(begun - counted.keys()) - partition.called_off
    holds = out >= partition.in_flight if partition.closing else out == partition.in_flight
    ensure(holds, f"{partition.source} has {partition.in_flight} out, and {out} offsets are nowhere else")


def _check_counts(partition: LanePartition, records_by_way: Mapping[str, list[Record]]) -> None:
    source, records = partition.source, [record for records in records_by_way.values() for record in records]
    weight, retried = sum(record.weight for record in records), sum(record.again > 0 for record in records)
    settled = len(records_by_way["settled"]) + len(records_by_way["committing"])
    held = len(records_by_way["held"])
    held_too = partition.closing or partition.held_in_memory == held
    ensure(held_too, f"{source} has {partition.held_in_memory} held in memory, found {held}")
    ensure(
        partition.unsettled == settled,
        f"{source} has {partition.unsettled} decisions that are not in Kafka, found {settled}",
    )
    ensure(_counts(partition, partition.load, weight), f"{source} has {partition.load} bytes, found {weight}")
    ensure(
        _counts(partition, partition.retrying, retried),
        f"{source} has {partition.retrying} retried in place, found {retried}",
    )


def _counts(partition: LanePartition, counted: int, in_memory: int) -> bool:
    """Return whether a count is that of the records in memory; what is out counts too, and is not seen."""
    more = partition.in_flight or partition.called_off or partition.closing
    return counted >= in_memory if more else counted == in_memory
