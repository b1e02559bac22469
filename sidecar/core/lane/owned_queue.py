"""One queue partition as the owner of its main partition knows it, and what the queues of a lane act on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.calls import Write
from reconsume.sidecar.core.lane.commits import Commits
from reconsume.sidecar.core.lane.key_ledger import KeyLedger
from reconsume.sidecar.core.lane.ledger_entry import Identity, Phase
from reconsume.sidecar.core.lane.located_copies import LocatedCopies
from reconsume.sidecar.core.lane.memory import LaneMemory
from reconsume.sidecar.core.lane.ownership import Ownership
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.paused import PausedPartitions
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Filling, QueueReads
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.policy_record import SettlementRecord


@dataclass(slots=True)
class OwnedQueue:
    """One queue partition, of the partition `main`.

    `opened`: how far the group has read it is known. `caught_up`: what waits is known. `absent`: nothing waits, as
    there is no such queue; it may be read later. `alarm_ms`: the steady time at which it is to be looked at
    without an event.

    Invariants: what its partition has let go is what waits in it, and nothing else; what the ledger has taken is here.
    """

    source: Partition
    main: Partition
    epoch: int
    ledger: KeyLedger = field(default_factory=KeyLedger)
    located: LocatedCopies = field(default_factory=LocatedCopies)
    opened: bool = False
    caught_up: bool = False
    absent: bool = False
    keep_at_ms: int = NEVER
    alarm_ms: int = NEVER
    requested: dict[int, Identity] = field(default_factory=dict)
    """The records that are being read, by the offset of their copy."""
    inside: dict[int, Identity] = field(default_factory=dict)
    """Those that the lane has, by the same."""
    hopping: set[int] = field(default_factory=set)
    """The offsets of those that are read and not delivered: they are written again at the end, unless they end."""
    filling: bool = False
    """Whether so much waits that it was named (`queue_facts.begins_to_fill`)."""
    settling: dict[Identity, SettlementRecord] = field(default_factory=dict)
    """What people have decided about records that wait here, until it is carried out."""
    old: set[Identity] = field(default_factory=set)
    """Those whose copies are to be written again because they are old."""
    old_at_ms: int = -NEVER
    """The steady time (ms) at which old copies are looked for again."""
    own_at_ms: int = 0
    """The greatest timestamp (epoch ms) of the copies of our own that were taken in without being read."""
    out_of_reach: int = -1
    """The offset of a head that is due, too far from the first open record to be delivered; −1: there is none."""
    main_end: int = -1
    """Where the main partition ended when it was read up to its end; −1: it was not."""
    short_of: int = -1
    short_since_ms: int = NEVER
    """The lowest offset of a head that the main partition does not reach, and the steady time since which it does
    not (`short_main.py`)."""
    unseen: set[Identity] = field(default_factory=set)
    """Records whose copies were awaited when the log was cut, and were not read since (`unseen_copies.py`)."""
    unseen_until_ms: int = NEVER
    end_seen: bool = False
    unseen_end: int = -1
    """The steady time at which these are held lost; whether the log was read up to its end since the cut, and where it
    ended then."""
    round_at_ms: int = -NEVER
    """The steady time (ms) at which the present round of hops began: what lay below `round_end` then hops once."""
    round_end: int = -1

    def check(self, queue: LanePartition | None) -> None:
        """Raise BrokenInvariantError if an invariant does not hold. `queue`: its partition, if records of it begin."""
        self.ledger.check()
        self.located.check()
        if queue is None:
            return
        entries = list(self.ledger.entries())
        at_rest = {entry.offset for entry in entries if entry.phase in (Phase.QUEUED, Phase.REQUESTED)}
        taken = {entry.offset for entry in entries if entry.phase is Phase.TAKEN}
        late = {copy.offset for copy in (*self.ledger.early.values(), *self.ledger.later.values())}
        waiting = at_rest | late
        ensure(queue.requested <= self.requested.keys(), f"what {queue.source} waits for is being read")
        ensure(queue.tracker.dropped == waiting, f"{queue.source} has let go what waits in it, and nothing else")
        ensure(taken <= self.inside.keys(), f"{queue.source} has {taken - self.inside.keys()} nowhere")


class LaneTies(NamedTuple):
    """What the queues of a lane act on.

    `finish` ends the way of a record. `policy` is the one in force. `end_turn` does what follows from a call of a lane.
    `filling` names a queue in which much waits.
    """

    ownership: Ownership
    waiting: WaitingRecords
    memory: LaneMemory
    commits: Commits
    paused: PausedPartitions
    queues: QueueReads
    policy: Callable[[], Policy]
    write: Write
    finish: Callable[[LanePartition, Record], None]
    end_turn: Callable[[Now], None]
    filling: Filling
