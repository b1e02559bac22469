"""The state of one partition under one assignment, as a lane knows it. `ownership.py` has the table of the states."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import PartitionCommit
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.append_times import AppendTimes
from reconsume.sidecar.core.lane.suspicion import Suspicion
from reconsume.sidecar.core.progress import LogId, Progress, ProgressTracker
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.in_place_told import LONGEST_KEY, LONGEST_REASON, InPlaceTold


class AssignedPartition(NamedTuple):
    """A partition that was assigned to this sidecar, and where its last owner left off.

    `lost`: how many records of a former log of that name its last owner had begun and not finished.
    """

    partition: Partition
    epoch: int
    progress: Progress
    lost: int = 0


class FetchedRecords(NamedTuple):
    """Records of one partition, in order, as one call of the consumer hands them over.

    `seek_count` distinguishes runs fetched before a seek from those after it. `end`: the log ends at this offset (None:
    unknown). `high`: the broker had records below this offset (0: unknown). `last_at_ms`: as in `Progress`, of a level.
    """

    partition: Partition
    epoch: int
    seek_count: int
    records: list[Record]
    end: int | None = None
    high: int = 0
    last_at_ms: int | None = None


class TriedRecord(NamedTuple):
    """A record that is retried in place.

    `due_ms`: when its next attempt is due, epoch ms. `reason`: the class of its last failure. `is_held`: an operator
    holds it.
    """

    record: Record
    due_ms: int
    reason: str
    is_held: bool = False

    def shown(self) -> InPlaceTold:
        """Return what others may know of it."""
        key = self.record.key
        return InPlaceTold(
            self.record.id,
            self.record.times,
            max(0, self.due_ms),
            max(0, self.record.failed_at_ms),
            self.reason[:LONGEST_REASON],
            None if key is None else base64.b64encode(key[:LONGEST_KEY]).decode(),
            key is not None and len(key) > LONGEST_KEY,
            self.is_held,
        )


class Because(Enum):
    """Why a partition is paused. `core/status.py` has the words that people read."""

    NOT_DUE = auto()
    """Its next record is not due."""
    AT_BOUND = auto()
    """The span of its open offsets is full."""
    SKIPS = auto()
    """The last owner has done what comes next: it goes on behind that."""
    SLOWED = auto()
    """It holds more than its share, in an outage in which the service still answers."""
    BEHIND_RETRY = auto()
    """A record that is retried in place keeps too much of it back."""
    SHARED = auto()
    """It holds its share of the room, which other flows need too."""
    CROWDED = auto()
    """It holds more than its share of what refused copies leave."""
    BLOCKED = auto()
    """Kafka refuses its copies or its progress."""
    QUEUE_UNREAD = auto()
    """What waits in its queue is not known yet."""
    BEHIND_KEYS = auto()
    """As many records wait in its queue as may (`retry.ordered_max_waiting`)."""
    HELD = auto()
    """An operator holds its records, or as many of them as it may keep back."""


class Pause(NamedTuple):
    """The pause of a partition: it continues at `offset`, not before the steady time `at_ms`."""

    offset: int
    at_ms: int
    because: Because


@dataclass(slots=True)
class LanePartition:
    """The state of one partition.

    Invariants: no count is negative; a blocked partition is paused; only a level has the time of its last record.
    `invariants.py` compares the counts with the records.

    `level_delay_ms`: the delay of its level in ms; 0 on the ready topic, None on a main topic.
    """

    source: Partition
    epoch: int
    tracker: ProgressTracker
    level_delay_ms: int | None
    level: str
    seek_count: int = 0
    in_flight: int = 0
    unsettled: int = 0
    """Records whose decision is not in Kafka yet."""
    tried: dict[int, TriedRecord] = field(default_factory=dict)
    """Records that are being retried in place, by offset."""
    called_off: int = 0
    """Records that were answered without an outcome while the sidecar ends, or gives it up: the next owner delivers
    them."""
    load: int = 0
    """Bytes of its records that were admitted and are not done."""
    done_a_second: int = 0
    """Bytes of its records that are done in a second, as was seen last (`room_shares.py`)."""
    done_bytes: int = 0
    """Bytes of its records that are done since it is owned."""
    seen_done: int = 0
    """`done_bytes` when that was seen last."""
    commit_by_ms: int = NEVER
    """The steady time by which its progress must be committed: NEVER if it did not move since the last commit, 0 if
    something waits for the commit (`commits.py`)."""
    committed: Progress | None = None
    """The progress that was committed last, by this sidecar or by the last owner."""
    width: int | None = None
    last_at_ms: int | None = None
    log: LogId | None = None
    cycle: int = 0
    notes: bool = False
    """`width`, `last_at_ms`, `log`, `cycle` and `notes` are as in `Progress`: they go into every commit."""
    held: dict[int, str] = field(default_factory=dict)
    """Offsets that were begun and that an operator's hold keeps back, with the hold; their records are not in
    memory."""
    held_heads: int = 0
    """Records of a queue that could go out, and that an operator holds."""
    requested: set[int] = field(default_factory=set)
    """Offsets of the records of a queue that are being read and whose turn it is."""
    held_in_memory: int = 0
    """Records that an operator's hold keeps back in memory."""
    append_times: AppendTimes = field(init=False)
    suspicion: Suspicion | None = None
    """Why its records need care before they are delivered (`crash_gate.py`). Usually None, which costs nothing."""
    closing: bool = False
    paused: Pause | None = None
    under: Partition | None = None
    """Of a queue partition: the main partition whose owner has it."""
    blocked: str = ""
    """Why no record of it is delivered: Kafka refuses its copies or its progress. Empty if it is not blocked."""

    def __post_init__(self) -> None:
        self.append_times = AppendTimes(self.level_delay_ms or 0)

    # --- the way of its records: only these methods write its fields ------------------------------------------------

    def add_bytes(self, weight: int) -> None:
        """Count the bytes of admitted records, or (negative) of records that are done."""
        self.load += weight

    def look(self, lasted_ms: int) -> None:
        """Note how much of it was done in the `lasted_ms` since the last look."""
        done = self.done_bytes
        self.done_a_second, self.seen_done = (done - self.seen_done) * 1_000 // lasted_ms, done

    def sent(self) -> None:
        """Note that a record was sent to the service."""
        self.in_flight += 1

    def answered(self, count: int = 1) -> None:
        """Note that deliveries have ended."""
        self.in_flight -= count

    def retry_in_place(self, record: Record, due_ms: int, reason: str) -> None:
        """Note that a record, `tried` before, is to be delivered again from memory, as in `TriedRecord`."""
        self.tried[record.offset] = TriedRecord(record, due_ms, reason)

    def leave(self) -> None:
        """Leave a record to the next owner: its delivery was called off."""
        self.called_off += 1

    def settled(self, count: int = 1) -> None:
        """Note that records have their decision, which waits for a transaction."""
        self.unsettled += count

    def unsettle(self, count: int = 1) -> None:
        """Note that decisions are in Kafka, or were dropped with their partition."""
        self.unsettled -= count

    def finish(self, record: Record) -> None:
        """Note that a record is done."""
        if record.again:
            self.tried.pop(record.offset, None)
        self.done_bytes += record.weight
        self.tracker.finish(record.offset)

    def read_up_to(self, last_at_ms: int) -> None:
        """Note the greatest timestamp (epoch ms) of what was read of a level."""
        self.last_at_ms = last_at_ms

    # --- its commits ----------------------------------------------------------------------------------------------

    def want_commit(self, at_ms: int) -> None:
        """Have its progress committed at the steady time `at_ms` at the latest."""
        self.commit_by_ms = min(self.commit_by_ms, at_ms)

    def take_commit(self, extra: Collection[int]) -> PartitionCommit:
        """Take its progress for a transaction, with the offsets `extra`, which that transaction settles."""
        self.commit_by_ms = NEVER
        # Clean as soon as the release begins: at `lock_timeout` deliveries are still in flight, but no owner crashed.
        progress = replace(
            self.tracker.snapshot(extra, clean=self.closing),
            width=self.width,
            last_at_ms=self.last_at_ms,
            log=self.log,
            cycle=self.cycle,
            notes=self.notes,
        )
        if self.suspicion is not None:
            progress = self.suspicion.with_crash_state(progress)
        return PartitionCommit(self.epoch, progress, self.under)

    def position(self) -> PartitionCommit:
        """Return the progress that is in Kafka, for a commit that changes nothing."""
        assert self.committed is not None
        # Nothing of it was delivered: an offset that no sidecar has committed says so by the clean mark.
        clean = self.committed.clean or not self.committed.ours
        return PartitionCommit(self.epoch, replace(self.committed, clean=clean, ours=True), self.under)

    def note_committed(self, progress: Progress) -> None:
        """Note the progress that is in Kafka now."""
        self.committed = progress

    # --- its state --------------------------------------------------------------------------------------------------

    def suspect(self, suspicion: Suspicion | None) -> None:
        """Give its records this care before they are delivered; None: none."""
        self.suspicion = suspicion

    def close(self) -> None:
        """Deliver nothing more of it: it is being given up."""
        self.closing = True

    def block(self, reason: str) -> None:
        """Deliver nothing of it, for a reason that people read. Empty: deliver again."""
        self.blocked = reason

    def pause(self, pause: Pause) -> None:
        """Accept no records until `resume`."""
        self.paused = pause

    def let_go(self, records: Iterable[Record], pause: Pause) -> None:
        """Drop records of a paused partition, which are fetched again once it continues; `pause` is the one it has."""
        first = pause.offset
        for record in records:
            self.tracker.let_go(record.offset)
            first = min(first, record.offset)
        self.paused = pause._replace(offset=first)

    def keep_back(self, offset: int, hold: str) -> None:
        """Keep only the offset of a record that was begun, as long as an operator holds it."""
        self.held[offset] = hold

    def put_back(self, offset: int) -> None:
        """Keep only the offset of a record of a queue that was begun: its copy is read again later."""
        self.tracker.let_go(offset)

    def request(self, offset: int) -> None:
        """Note that a record of a queue is being read, as its turn has come."""
        self.requested.add(offset)

    def came(self, offset: int) -> None:
        """Note that a record of a queue was read, or is gone."""
        self.requested.discard(offset)

    def hold_heads(self, count: int) -> None:
        """Note how many first records of a queue an operator holds: they stay in the queue."""
        self.held_heads = count

    def wait_held(self, count: int = 1) -> None:
        """Count records that an operator's hold keeps back in memory, or (negative) does no more."""
        self.held_in_memory += count

    def fetch_held(self, offsets: Iterable[int], pause: Pause) -> None:
        """Have the records at these offsets fetched again, as nobody holds them any more; `pause` is the one it has."""
        first = pause.offset
        for offset in offsets:
            del self.held[offset]
            self.tracker.let_go(offset)
            first = min(first, offset)
        self.paused = pause._replace(offset=first)

    def pass_over(self, offset: int) -> None:
        """Note that a record of a queue that is not in memory is done."""
        self.tracker.dropped.discard(offset)
        self.tracker.finish(offset)

    def resume(self) -> int:
        """Accept records again; return the offset of the next one.

        The new seek count distinguishes these records from those that were fetched before.
        """
        assert self.paused is not None
        offset, self.paused = self.paused.offset, None
        self.seek_count += 1
        return offset

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def retrying(self) -> int:
        """How many records are being retried in place."""
        return len(self.tried)

    def due(self, record: Record) -> int:
        """Return when a record of it could be delivered at the earliest, epoch ms."""
        due_ms = record.timestamp + (self.level_delay_ms or 0)
        return due_ms if record.retry_state is None else max(due_ms, record.retry_state.due_at)

    @property
    def uncommitted(self) -> bool:
        """Whether its progress must still be committed."""
        return self.commit_by_ms != NEVER

    @property
    def idle(self) -> bool:
        """Whether nothing of it is in flight or on its way into Kafka."""
        return self.in_flight == 0 and self.unsettled == 0

    @property
    def unsaved(self) -> int:
        """How many records were answered without Kafka knowing; a gap in the offsets may count as records."""
        done, known = self.tracker.snapshot(), self.committed or Progress(self.tracker.first)
        return self.unsettled + done.next - known.next + len(done.done) - len(known.done)

    def time_left(self, record: Record, now: Now) -> int:
        """Return the ms until the level delay of a record is over, 0 or less if it is.

        That is never later than the level delay after the record was first known to be there, whatever the clock of the
        broker says (`append_times.py`).
        """
        delay_ms = self.level_delay_ms
        if delay_ms is None or self.tracker.is_done(record.offset):
            return 0
        # Contract 2.3: by the broker's clock as far as what was seen bears it out, and never later than the level's
        # delay.
        remaining_ms = record.timestamp + delay_ms - now.wall_ms
        if remaining_ms <= 0 and self.append_times.is_over(record.offset, now.steady_ms - delay_ms):
            return remaining_ms
        return self.append_times.appended(record.offset, record.timestamp, now) + delay_ms - now.steady_ms

    def accepts(self, run: FetchedRecords) -> bool:
        """Whether records are taken: fetched in this assignment, after the last seek, and not paused or closing."""
        current = self.epoch == run.epoch and self.seek_count == run.seek_count
        return current and self.paused is None and not self.closing

    def may_fetch(self, steady_ms: int) -> bool:
        """Return whether a paused partition may continue if there is memory for it; make room for that.

        Its time must have come, it must not be blocked or closing, and a quarter of its span must be free. With less, a
        partition at its bound would be paused and sought for every record. Behind a skip it goes on up to its bound.
        """
        if self.paused is None or self.blocked or self.closing or self.paused.at_ms > steady_ms:
            return False
        room = self.tracker.make_way if self.paused.because is Because.SKIPS else self.tracker.make_room
        return room(self.paused.offset)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for name in ("in_flight", "unsettled", "called_off", "load", "seek_count", "held_in_memory"):
            ensure(getattr(self, name) >= 0, f"{self.source} has {getattr(self, name)} {name}")
        ensure(not self.blocked or self.paused is not None, f"{self.source} is blocked, so it is paused")
        first = min(self.tracker.dropped, default=NEVER)
        ensure(self.paused is None or self.paused.offset <= first, f"{self.source} goes on at {first} or before")
        ensure(
            self.level_delay_ms is not None or self.last_at_ms is None,
            f"{self.source} has a last time, so it is of a level",
        )
        self.tracker.check()
        self.append_times.check()
