"""Admit what the consumer hands over: which records of a run may begin, and when their partition must be paused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from reconsume.sidecar.core.lane.delay_queue import HOLD_WITHIN_MS, RESUME_EARLY_MS
from reconsume.sidecar.core.lane.in_place_queues import OrderBy
from reconsume.sidecar.core.lane.memory import AdmissionLimit
from reconsume.sidecar.core.lane.partition import Because, FetchedRecords, LanePartition
from reconsume.sidecar.core.lane.paused import PausedPartitions
from reconsume.sidecar.core.progress import Bounds
from reconsume.sidecar.core.record import Now, Record
from reconsume.topics.tags import TagFilter


class LaneOptions(NamedTuple):
    """What a lane admits, and how much of it.

    `room`: bytes that may be handed over and not done before the consumer fetches no more. `order`: delivery one at a
    time for each key or each partition; None: no order. `wanted`: the filter of the records to deliver; None: all.
    `bounds`: how far a partition may go beyond its first open record. `proves_room`: nothing is delivered before the
    brokers have taken the longest metadata that progress may need.
    `weight`: its part of the deliveries in proportion to the other lane, while records of both wait.
    """

    room: int
    order: OrderBy | None = None
    wanted: TagFilter | None = None
    bounds: Bounds = Bounds()
    weight: int = 1
    proves_room: bool = False


Admitted: TypeAlias = tuple[Record, int]
"""A record to begin with, and the ms that remain of its level delay."""


def admit(
    partition: LanePartition, run: FetchedRecords, paused: PausedPartitions, now: Now, allowed: AdmissionLimit
) -> Iterator[Admitted]:
    """Yield the records of a run that begin now, each once.

    Ends early, with the partition paused, at a record that is not due soon, lies beyond the span, or exceeds the bytes
    of the partition.
    """
    near = HOLD_WITHIN_MS if allowed.roomy else RESUME_EARLY_MS
    if partition.level_delay_ms and run.high:
        # Not only at the end of the log: what hops makes the log longer, and then its end is not seen for long.
        partition.append_times.note(run.high - 1, now.steady_ms)
    tracker, bound = partition.tracker, Because.HELD if partition.held else Because.AT_BOUND
    for record in run.records:
        if (end := tracker.end_of_done(record.offset)) is not None:
            because = Because.SKIPS if tracker.make_way(end) else bound
            paused.pause(partition, end, now.steady_ms, because)  # continues there as soon as it may: a seek
            return
        remaining = partition.time_left(record, now) if partition.level_delay_ms else 0
        if remaining > near:
            partition.append_times.note(max(run.records[-1].offset, run.high - 1), now.steady_ms)
            paused.pause(partition, record.offset, now.steady_ms + remaining - RESUME_EARLY_MS, Because.NOT_DUE)
            return
        if not tracker.make_way(record.offset):
            paused.pause(partition, record.offset, now.steady_ms, bound)
            return
        if partition.load > allowed.most:
            paused.pause(partition, record.offset, now.steady_ms, allowed.because)
            return
        if tracker.begin(record.offset):
            yield record, remaining
