"""Taking up what the consumer hands over: which records of a run may begin, and when their partition must be parked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from sidecar.core.lane.delay_queue import EARLY, NEAR
from sidecar.core.lane.key_queues import By
from sidecar.core.lane.partition import Assigned, Run
from sidecar.core.lane.paused import ParkingLot
from sidecar.core.progress import SPAN
from sidecar.core.record import Now, Record
from sidecar.core.tag_filter import Subscriptions


class Terms(NamedTuple):
    """What a lane takes up, and how much of it.

    `room`: bytes that may be handed over and not done before the consumer holds back. `order`: what is delivered one at
    a time, if anything. `wanted`: which records are delivered; None: all.
    """

    room: int
    order: By | None = None
    wanted: Subscriptions | None = None


Begun: TypeAlias = tuple[Record, int]
"""A record to begin with, and the ms that are left of its level."""


class Allowance(NamedTuple):
    """`roomy`: there is memory to wait for records that are near. `most`: the bytes that the partition may hold.

    `because`: why it may hold no more.
    """

    roomy: bool
    most: int
    because: str


def begun(part: Assigned, run: Run, lot: ParkingLot, now: Now, allowed: Allowance) -> Iterator[Begun]:
    """The records of a run that begin now, each once.

    Ends early, with the partition parked, at the first record that is far off, beyond the partition's span, or more
    than the partition may hold.
    """
    near = NEAR if allowed.roomy else EARLY
    tracker = part.tracker
    for record in run.records:
        left = part.time_left(record, now) if part.wait else 0
        if left > near:
            part.seen.note(max(run.records[-1].offset, run.high - 1), now.steady)
            lot.park(part, record.offset, now.steady + left - EARLY, "not due")
            return
        if tracker.span(record.offset) >= SPAN:
            lot.park(part, record.offset, now.steady, "at its bound")
            return
        if part.load > allowed.most:
            part.most = allowed.most
            lot.park(part, record.offset, now.steady, allowed.because)
            return
        if tracker.begin(record.offset):
            yield record, left
