"""What is true of a lane between any two of its calls. Stories and unit tests check it after each step, soaks now and
then: `Lane.check`.

Each offset of a partition that was begun and is not done is in exactly one place:

    ready, aside   it may be delivered, or waits for the records of a suspect partition
    delayed        its time has not come, or the service asked for a later attempt
    behind         an earlier record of its key, or partition, is not done
    withheld       its partition is blocked, or must be committed first
    marked         it goes alone, once Kafka knows that it may crash the service
    settled        its decision waits for a transaction, or Kafka refuses it
    committing     its decision is in the transaction in flight
    let go         it was dropped from memory, and is fetched again
    out            the service has it: what is in no other place, as many as `in_flight` counts
    left           the next owner delivers it, because this one ends or gives the partition up
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from sidecar.core.lane.partition import LanePartition
from sidecar.core.lane.parts import LaneParts
from sidecar.core.pace.dispatcher import Dispatcher
from sidecar.core.record import NEVER, Partition, Record


class BrokenInvariantError(AssertionError):
    """A lane is in a state that must not be: its records or its counts do not belong together."""


def check_lane(parts: LaneParts, dispatcher: Dispatcher) -> None:
    """Raise BrokenInvariantError if anything of a lane does not hold."""
    records_by_place, partitions = _records(parts, dispatcher), parts.partitions.values()
    for partition in partitions:
        _check_records(partition, records_by_place[partition.source])
        _check_counts(partition, records_by_place[partition.source])
    _true(
        parts.memory.load == sum(partition.load for partition in partitions), "the lane has the bytes of its partitions"
    )
    _true(
        dispatcher.in_flight >= sum(partition.in_flight for partition in partitions),
        "what is out has its place in flight",
    )
    unwritable = parts.outbox.unwritable
    wanted = [partition.commit_by_ms for partition in partitions if partition.source not in unwritable]
    _true(parts.commits.earliest <= min(wanted, default=NEVER), "no commit is later than it is wanted")


def _records(parts: LaneParts, dispatcher: Dispatcher) -> Mapping[Partition, dict[str, list[Record]]]:
    """Return the records of each assignment, by the place where they are."""
    records_by_place: defaultdict[Partition, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for where, record in _places(parts, dispatcher):
        partition = parts.partitions.get(record.source)
        if partition is not None and partition.epoch == record.epoch:
            records_by_place[record.source][where].append(record)
        else:  # the dispatcher does not know of assignments, and a transaction goes on without them
            _true(where in ("aside", "committing"), f"nothing of {record.source}, which is gone, is {where}")
    return records_by_place


def _places(parts: LaneParts, dispatcher: Dispatcher) -> Iterator[tuple[str, Record]]:
    batch = parts.commits.in_flight
    marked = (partition.suspicion.waiting for partition in parts.partitions.values() if partition.suspicion is not None)
    by_place: Mapping[str, Iterable[Record | None]] = {
        "ready": parts.ready,
        "aside": dispatcher.put_aside(parts.ready),
        "delayed": parts.delayed.all(),
        "behind": () if parts.key_queues is None else parts.key_queues.behind(),
        "withheld": chain.from_iterable(partition.withheld for partition in parts.partitions.values()),
        "marked": marked,
        "settled": (entry.record for entry in parts.outbox.entries(parts.commits.in_flight)),
        "committing": () if batch is None else (entry.record for entry in batch.entries),
    }
    for where, records in by_place.items():
        yield from ((where, record) for record in records if record is not None)


def _check_records(partition: LanePartition, records_by_place: Mapping[str, list[Record]]) -> None:
    begun, counted = partition.tracker.open_offsets(), dict.fromkeys(partition.tracker.left, "let go")
    for where, records in records_by_place.items():
        for record in records:
            _true(record.offset in begun, f"{record.id} is {where}, so it was begun and is not done")
            _true(record.offset not in counted, f"{record.id} is {where}, and not also {counted.get(record.offset)}")
            counted[record.offset] = where
    out = len(begun - counted.keys()) - partition.left
    holds = out >= partition.in_flight if partition.closing else out == partition.in_flight
    _true(holds, f"{partition.source} has {partition.in_flight} out, and {out} offsets are nowhere else")


def _check_counts(partition: LanePartition, records_by_place: Mapping[str, list[Record]]) -> None:
    source, records = partition.source, [record for records in records_by_place.values() for record in records]
    weight, retried = sum(record.weight for record in records), sum(record.again > 0 for record in records)
    settled = len(records_by_place["settled"]) + len(records_by_place["committing"])
    _true(
        partition.unsettled == settled,
        f"{source} has {partition.unsettled} decisions that are not in Kafka, found {settled}",
    )
    _true(_counts(partition, partition.load, weight), f"{source} has {partition.load} bytes, found {weight}")
    _true(
        _counts(partition, partition.retrying, retried),
        f"{source} has {partition.retrying} retried in place, found {retried}",
    )
    _true(not partition.blocked or partition.paused is not None, f"{source} is blocked, so it is paused")


def _counts(partition: LanePartition, counted: int, in_memory: int) -> bool:
    """Return whether a count is that of the records in memory; what is out counts too, and is not seen."""
    more = partition.in_flight or partition.left or partition.closing
    return counted >= in_memory if more else counted == in_memory


def _true(holds: bool, claim: str) -> None:
    if not holds:
        raise BrokenInvariantError(claim)
