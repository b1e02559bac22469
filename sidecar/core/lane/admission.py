"""Taking up what the consumer hands over: which records of a run may begin, and when their partition must be parked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from sidecar.core.lane.delay_queue import HOLD_WITHIN, RESUME_EARLY
from sidecar.core.lane.key_queues import OrderBy
from sidecar.core.lane.partition import FetchedRecords, PartitionState
from sidecar.core.lane.paused import PausedPartitions
from sidecar.core.progress import SPAN
from sidecar.core.record import Now, Record
from sidecar.core.tag_filter import TagFilter


class LaneOptions(NamedTuple):
    """What a lane takes up, and how much of it.

    `room`: bytes that may be handed over and not done before the consumer holds back. `order`: what is delivered one at
    a time, if anything. `wanted`: which records are delivered; None: all.
    """

    room: int
    order: OrderBy | None = None
    wanted: TagFilter | None = None


Admitted: TypeAlias = tuple[Record, int]
"""A record to begin with, and the ms that are left of its level."""


class AdmissionLimit(NamedTuple):
    """`roomy`: there is memory to wait for records that are near. `most`: the bytes that the partition may hold.

    `because`: why it may hold no more.
    """

    roomy: bool
    most: int
    because: str


def admit(
    part: PartitionState, run: FetchedRecords, lot: PausedPartitions, now: Now, allowed: AdmissionLimit
) -> Iterator[Admitted]:
    """The records of a run that begin now, each once.

    Ends early, with the partition parked, at the first record that is far off, beyond the partition's span, or more
    than the partition may hold.
    """
    near = HOLD_WITHIN if allowed.roomy else RESUME_EARLY
    tracker = part.tracker
    for record in run.records:
        left = part.time_left(record, now) if part.level_delay else 0
        if left > near:
            part.seen.note(max(run.records[-1].offset, run.high - 1), now.steady)
            lot.pause(part, record.offset, now.steady + left - RESUME_EARLY, "not due")
            return
        if tracker.span(record.offset) >= SPAN:
            lot.pause(part, record.offset, now.steady, "at its bound")
            return
        if part.load > allowed.most:
            part.most = allowed.most
            lot.pause(part, record.offset, now.steady, allowed.because)
            return
        if tracker.begin(record.offset):
            yield record, left
