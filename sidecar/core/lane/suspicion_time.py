"""What time alone does to the suspicion of a partition: nothing, as long as its suspects may be still to come. Pure.

They may wait behind records of other partitions that fill the lane's memory, behind the suspects of another partition,
or for a leader.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from sidecar.core.lane.partition import LanePartition
from sidecar.core.lane.suspicion import QUIET, Suspicion
from sidecar.core.record import Now

IDLE = 3_000
"""ms without a suspect after which a partition keeps no others waiting: what was in flight has come by then."""

Step: TypeAlias = Literal["stay", "leave", "together", "first"]
"""`leave`: it holds up no other partition, and its suspects go alone when they come. The others are stages."""


def after_time(suspicion: Suspicion, partition: LanePartition, now: Now, *, waits: bool, roomy: bool) -> Step:
    """Return what becomes of a partition whose suspects have no mark.

    `waits`: whether records of it are ready; only stage `alone` asks. `roomy`: whether the lane had room for more
    records in the last IDLE ms.
    """
    unread = partition.load == 0 and not roomy  # with records of its own in memory it must go on, and make room
    if is_over(suspicion, partition.load or unread, now):
        return "first" if suspicion.culprit is None else "together"  # the culprit is not read yet
    if suspicion.stage != "alone":
        return "stay"
    if waits:
        suspicion.touched = now.steady
    idle = now.steady - suspicion.touched >= IDLE
    if partition.blocked or (idle and (suspicion.left or suspicion.unmet or unread)):
        return "leave"
    return "together" if idle else "stay"


def is_over(suspicion: Suspicion, load: int, now: Now) -> bool:
    """Return whether the owner has lived long enough, and all that may have been in flight is answered.

    `load`: the bytes that the partition holds, or any if more may be still to come.
    """
    if suspicion.unmet or now.steady - suspicion.begin(now).steady < QUIET:
        return False
    return load == 0 or (suspicion.stage == "together" and suspicion.seen >= suspicion.window and not suspicion.left)
