"""The parts of a lane that hold its records and partitions, and count them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sidecar.core.counters import LaneCounters
from sidecar.core.lane.admission import LaneOptions
from sidecar.core.lane.commits import Commits
from sidecar.core.lane.delay_queue import DelayQueue
from sidecar.core.lane.key_queues import KeyQueues
from sidecar.core.lane.memory import LaneMemory
from sidecar.core.lane.outbox import Outbox
from sidecar.core.lane.partition import LanePartition
from sidecar.core.lane.paused import PausedPartitions
from sidecar.core.pace.pace import Pace
from sidecar.core.policy import Policy
from sidecar.core.ports import Fetch, Notice
from sidecar.core.record import Now, Partition, Record
from topics.transitions import Commit, Written

Write: TypeAlias = Callable[[LanePartition, Record, Commit | Written, Now], None]


class LaneCalls(NamedTuple):
    """What a part asks its lane to do. `wake_by` asks for a tick at a steady time (ms)."""

    policy: Callable[[], Policy]
    write: Write
    wake_by: Callable[[int], None]
    notice: Notice


@dataclass(frozen=True, slots=True)
class LaneParts:
    """Built first, and handed to all that act on them: ownership, quarantine, refused copies, timer, forwarding."""

    memory: LaneMemory
    ready: deque[Record]
    delayed: DelayQueue
    key_queues: KeyQueues | None
    outbox: Outbox
    commits: Commits
    paused: PausedPartitions
    partitions: dict[Partition, LanePartition]
    counters: LaneCounters


def build_parts(options: LaneOptions, fetch: Fetch, pace: Pace, wake_by: Callable[[int], None]) -> LaneParts:
    """Return the empty parts of a new lane."""
    partitions: dict[Partition, LanePartition] = {}
    outbox = Outbox()
    memory = LaneMemory(options.room, partitions, pace, ordered=options.order is not None)
    return LaneParts(
        memory,
        deque(),
        DelayQueue(options.room),
        None if options.order is None else KeyQueues(options.order),
        outbox,
        Commits(partitions, outbox, wake_by),
        PausedPartitions(fetch, memory),
        partitions,
        LaneCounters(),
    )
