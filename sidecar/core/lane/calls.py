"""What a part of a lane asks the lane to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Notice
from reconsume.sidecar.core.record import Now, Record
from reconsume.topics.transitions import Commit, Written

OutputRefused: TypeAlias = Callable[[LanePartition, SettledRecord, str, Now], None]
Write: TypeAlias = Callable[[LanePartition, Record, Commit | Written, Now], None]


class LaneCalls(NamedTuple):
    """Calls to a lane. `wake_by` asks for a tick at a steady time (ms). `output_refused`: Kafka does not take what the
    service asked to be written, for a reason in words. `let_go`: what waited of a blocked partition is in memory no
    more."""

    policy: Callable[[], Policy]
    write: Write
    wake_by: Callable[[int], None]
    notice: Notice
    output_refused: OutputRefused
    let_go: Callable[[LanePartition], None]
