"""One partition as its owner knows it: an ordered map from offset to entry, and nothing else keeps a record.

An entry is an offset that has begun and is not done. One field of it says where it is:

    AWAY        in Kafka alone, and to be read again: at once or, in a queue, when its turn comes. It has no record
    KEPT        in Kafka alone, kept back by an operator (`hold_gate.py`), and AWAY once that is over. It has no record
    DELAYED     in memory until `until_ms`: its level is not over, or the service asked for a later attempt
    BEHIND      in memory, behind an earlier record of its key or partition that is not done
    READY       in memory, and in its flow: what keeps it is the pace, a rate, or its share
    STOPPED     in memory, stopped by the gate that `stopped_by` names (`why.py`), which lets it try again
    OUT         with the service
    SETTLED     decided, and on its way into Kafka
    CALLED_OFF  called off while the sidecar ends: the next owner delivers it

`Offsets.move` alone changes that field, and keeps the counts. Lists beside the map (the flows of ready records,
the agenda of delayed ones, the keys) are indexes: `Lane.check` compares them with it.

Progress is the complement of the open entries, up to the highest offset that has begun (`snapshot`). Its text is short
(`progress_codec.py`), so an offset may begin only if progress can be written *whatever ends next*:

- up to `span` offsets from the first open one, because a bitmap says any set of these;
- at any distance, if a bitmap says the last `window` offsets, and the open ones below it cost `far_bytes` at most. All
  between them is done, so each costs a byte, and the length of its distance from the one before. If one ends, two
  distances become one, whose number is never longer than the two: so the cost only falls, and is looked at at a begin.

What the last owner has done is `inherited` until the partition has passed it. The partition is used on the event loop
alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.core.append_times import AppendTimes
from reconsume.sidecar.core.commit_batch import PartitionCommit
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.offset_ranges import NONE, OffsetRanges, Range
from reconsume.sidecar.core.partition_notes import PartitionNotes
from reconsume.sidecar.core.progress import Bounds, Progress
from reconsume.sidecar.core.reasons import BY_OPERATOR, NotDelivered, NotFetched
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.in_place_told import LONGEST_REASON, InPlaceTold
from reconsume.topics.position_ranges import PartitionResets

if TYPE_CHECKING:
    from reconsume.sidecar.core.suspicion import Suspicion


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
        return InPlaceTold(
            self.record.id,
            self.record.times,
            max(0, self.due_ms),
            max(0, self.record.failed_at_ms),
            self.reason[:LONGEST_REASON],
            self.is_held,
        )


class Pause(NamedTuple):
    """The pause of a partition: it continues at `offset`, not before the steady time `at_ms`."""

    offset: int
    at_ms: int
    because: NotFetched


class WantedFetch(NamedTuple):
    """How a lane wants a partition to be fetched under the assignment `epoch`. A new assignment is fetched.

    `is_fetched`: False while it is paused; what was fetched and not handed over is dropped then. `seek_count`: the
    consumer that has sought less often seeks to `offset`; what it hands over from then on carries this number.
    """

    epoch: int
    is_fetched: bool = True
    seek_count: int = 0
    offset: int = 0


class Where(IntEnum):
    """Where an entry is; the head of this file has the table."""

    AWAY = 0
    KEPT = 1
    DELAYED = 2
    BEHIND = 3
    READY = 4
    STOPPED = 5
    OUT = 6
    SETTLED = 7
    CALLED_OFF = 8


AWAY, KEPT, DELAYED, BEHIND, READY, STOPPED, OUT, SETTLED, CALLED_OFF = Where


class Entry(msgspec.Struct, eq=False, gc=False):
    """An offset that has begun and is not done. `record`: None while it is away. `until_ms`: steady time, of DELAYED.

    `stopped_by`: the gate that keeps it back, of STOPPED and KEPT; otherwise None. `hold`: the id of the operator's
    hold (HELD), or of the decision whose rate keeps it back (DECIDED); otherwise empty. `tried`: of one that is retried
    in place.
    """

    offset: int
    where: Where
    record: Record | None = None
    until_ms: int = 0
    stopped_by: NotDelivered | None = None
    hold: str = ""
    tried: TriedRecord | None = None


IN_QUEUE = Entry(-1, AWAY)
"""The entry of each offset of a queue that has begun and was never read into memory: its ledger knows all about it, so
thousands share this one (contract 13.3). It never changes; `begin` replaces it by one of the offset's own."""


class Kind(NamedTuple):
    """What a partition is. `delay_ms`: of its level; 0 on the ready topic and a queue, None on a main topic.

    `level`: its name in metrics. `under`: of a queue partition, the main partition whose owner has it.
    """

    level: str
    delay_ms: int | None
    under: Partition | None = None


class Throughput:
    """The bytes of a partition that are in memory, and those that get done (`room.py`)."""

    __slots__ = ("done_a_second", "done_bytes", "load", "seen_done")

    def __init__(self) -> None:
        self.load = 0
        """Bytes of its records in memory, with those that are out."""
        self.done_bytes = 0
        self.seen_done = 0
        """`done_bytes` at the last look."""
        self.done_a_second = 0

    def look(self, lasted_ms: int) -> None:
        """Note how much was done in the `lasted_ms` since the last look."""
        done = self.done_bytes
        self.done_a_second, self.seen_done = (done - self.seen_done) * 1_000 // lasted_ms, done


class Move(NamedTuple):
    """A reset of a partition's position: the progress after it, and what its owner notes with it."""

    progress: Progress
    resets: PartitionResets


class CommitState:
    """What Kafka knows of a partition. `progress`: what was committed last, by this sidecar or by the last owner."""

    __slots__ = ("by_ms", "last_at_ms", "move", "progress", "resets", "resets_owed")

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.by_ms = NEVER
        """The steady time by which progress must be committed: NEVER if it did not move since the last commit, 0 if
        something waits for the commit (`outbox.py`)."""
        self.last_at_ms = progress.last_at_ms
        """The greatest timestamp (epoch ms) of what was read of a level; it goes into each commit."""
        self.resets: PartitionResets | None = None
        """The resets of a main partition, whose ranges say in which cycle a record is. Nearly always None."""
        self.resets_owed: PartitionResets | None = None
        """What the next commits note of its resets, as the policy topic says something else; nearly always None."""
        self.move: Move | None = None
        """What the next commit moves the position to (`position_reset.py`); nothing else of it is committed then."""


class Offsets:
    """The map of one partition's entries, and how far it is read.

    Invariants: `order` ascends, lies below `next`, and has each offset of the map; the counts are those of the entries.
    """

    __slots__ = (
        "_allowed_to",
        "_reread",
        "bounds",
        "counts",
        "entries",
        "inherited",
        "next",
        "notes",
        "order",
        "top",
        "tried",
    )

    def __init__(self, resume: Progress, bounds: Bounds) -> None:
        self.entries: dict[int, Entry] = {}
        """By offset, ascending."""
        self.order: deque[int] = deque()
        """The offsets that have begun, from the first open one on or before; some of them are done."""
        self.next = resume.next
        """The offset that is to begin next, or a lower one if the log has a gap there."""
        self.top = resume.next
        """The offset behind the highest one that has begun, or that the last owner had done and this one has passed."""
        self.inherited: OffsetRanges = OffsetRanges.of(resume.done) if resume.done else NONE
        """What the last owner has done at `next` and above; empty once all of it is passed."""
        self.notes = PartitionNotes(is_unread=True) if resume.notes else None
        """What was settled before it began, and what else is noted of the partition; nearly always None: nothing."""
        self.bounds = bounds
        self.counts = [0] * len(Where)
        self.tried = 0
        """How many entries are retried in place."""
        self._allowed_to = -1
        """A cached answer: each offset up to this one may begin."""
        self._reread: list[int] | None = None
        """The entries that are to be read again, ascending, and some that are no more. None: to be sorted."""

    # --- what is open, and what is done -----------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The lowest offset that is open; `next` if none is."""
        order, entries = self.order, self.entries
        while order and order[0] not in entries:
            order.popleft()
        return order[0] if order else self.next

    def open_offsets(self) -> Iterator[int]:
        """Yield the open offsets, ascending."""
        return iter(self.entries)

    def to_reread(self) -> Iterator[int]:
        """Yield the offsets that are to be read again, ascending."""
        return (offset for offset, e in self.entries.items() if e.where is AWAY)

    def kept_back(self) -> Iterator[Entry]:
        """Yield the entries that an operator keeps back by their offsets alone. Slow."""
        return (e for e in self.entries.values() if e.where is KEPT) if self.counts[KEPT] else iter(())

    def stopped(self) -> Iterator[Entry]:
        """Yield the entries that gates have stopped, by offset."""
        return (e for e in self.entries.values() if e.where is STOPPED) if self.counts[STOPPED] else iter(())

    @property
    def unread(self) -> int:
        """The offset from which on records must be fetched."""
        return min(next(self.to_reread(), NEVER), self.next) if self.counts[AWAY] else self.next

    def is_done(self, offset: int) -> bool:
        """Return whether the record at `offset` is known to be done."""
        if offset < self.next:
            return offset not in self.entries
        return offset in self.inherited or (self.notes is not None and self.notes.has(offset))

    def span(self, offset: int) -> int:
        """Return how far `offset` is from the first open one; 0 if none is open: a gap in the log is no distance."""
        return offset - self.first if self.entries else 0

    def end_of_done(self, offset: int) -> int | None:
        """Return the end of the done offsets from `offset` on if these are not worth to be read; else None."""
        if offset >= self.next:
            end = None if self.inherited is NONE else self.inherited.end_of(offset)
        elif (entry := self.entries.get(offset)) is not None and entry.where is AWAY:
            return None
        else:  # all that has begun is done, or at hand
            if self._reread is None:
                self._reread = list(self.to_reread())
            at = bisect_right(self._reread, offset)
            end = self._reread[at] if at < len(self._reread) else self.next
        return end if end is not None and end - offset >= self.bounds.skip else None

    # --- may it begin -----------------------------------------------------------------------------------------------

    def may_begin(self, offset: int) -> bool:
        """Return whether progress can be written whatever ends next, if `offset` begins too."""
        order = self.order
        if not order or offset - order[0] < self.bounds.span or offset <= self._allowed_to:
            return True  # nearly always: asked for each record
        return self._may_begin_far(offset, self.bounds.span, 0)

    def has_room(self, offset: int) -> bool:
        """Return the same for a quarter of the bound behind `offset`: with less, a partition would be paused again at
        once."""
        return self._may_begin_far(offset, self.bounds.span * 3 // 4 + 1, self.bounds.window // 4)

    def _may_begin_far(self, offset: int, span: int, more: int) -> bool:
        if offset < self.next or offset < self.inherited.end or self.span(offset) < span:
            return True  # it is open in the progress that is in Kafka, or near
        self.order.clear()  # behind a record that hangs for hours, millions would be done ones
        self.order.extend(self.entries)
        ahead = self.bounds.window // 8
        if ahead and self._far_cost(offset + ahead) <= self.bounds.far_bytes:
            self._allowed_to = offset + ahead
            return True
        return self._far_cost(offset + more) <= self.bounds.far_bytes

    def _far_cost(self, offset: int) -> int:
        """Return the bytes of the open offsets below the window that ends behind `offset`."""
        end, cost, before = offset + 1 - self.bounds.window, 0, -1
        for one in self.open_offsets():
            if one >= end or cost > self.bounds.far_bytes:
                break
            cost += 1 if before < 0 else step(before, one)
            before = one
        return cost

    # --- entries come and go ----------------------------------------------------------------------------------------

    def begin(self, offset: int, where: Where, record: Record | None) -> Entry | None:
        """Begin an offset, or take in one that was away; None if it is done, or is not to be read again."""
        if offset < self.next:
            entry = self.entries.get(offset)
            if entry is None or entry.where is not AWAY:
                return None
            if entry is IN_QUEUE:
                entry = self.entries[offset] = Entry(offset, AWAY)
            entry.record = record
            self.move(entry, where)
            return entry
        self.next = self.top = offset + 1
        if self.inherited is not NONE:
            is_done = offset in self.inherited
            if self.next >= self.inherited.end:
                self.inherited = NONE
            if is_done:
                return None
        if self.notes is not None and self._was_settled_early(offset, self.notes):
            return None
        entry = self.entries[offset] = IN_QUEUE if where is AWAY else Entry(offset, where, record)
        self.order.append(offset)
        self.counts[where] += 1
        return entry

    def _was_settled_early(self, offset: int, notes: PartitionNotes) -> bool:
        """Return whether an offset that begins is settled. One that is on its way into Kafka is open until then."""
        if (record := notes.coming.pop(offset, None)) is not None:
            self.entries[offset] = Entry(offset, SETTLED, record)
            self.order.append(offset)
            self.counts[SETTLED] += 1
        return record is not None or notes.has(offset)

    def move(self, entry: Entry, where: Where) -> None:
        """Note that an entry is elsewhere now."""
        counts = self.counts
        counts[entry.where] -= 1
        counts[where] += 1
        if where is AWAY:
            self._reread = None
        entry.where = where

    def finish(self, offset: int) -> None:
        """Note that an open offset is done."""
        entry = self.entries.pop(offset)
        self.counts[entry.where] -= 1
        self.tried -= entry.tried is not None

    def finish_out(self, records: Iterable[Record]) -> int:
        """Note that records are done that are OUT; return the bytes that they have taken. As `finish` for each."""
        entries, count, weight = self.entries, 0, 0
        for record in records:
            entry = entries.pop(record.offset)
            self.tried -= entry.tried is not None
            count += 1
            weight += record.weight
        self.counts[OUT] -= count
        return weight

    def cut(self, wanted: int, low: int) -> int:
        """Move on to `low`, where the log begins now; return how many offsets from `wanted` on are lost unread.

        Those that were to be read again are lost too. The others that have begun stay, because they are in memory.
        Gaps in the log count as offsets.
        """
        lost = [offset for offset in self.to_reread() if offset < low]
        for offset in lost:
            self.finish(offset)
        first = max(wanted, self.next)
        unread = max(0, low - first) - len(self.inherited.within(first, low))
        self._pass_to(low)
        return len(lost) + max(0, unread)

    def reached(self, end: int) -> bool:
        """Move on to `end`, where the log ends, behind all markers; return False if nothing changed."""
        if end <= self.next:
            return False
        self._pass_to(end)
        return True

    def _pass_to(self, offset: int) -> None:
        self.next = max(self.next, offset)
        if self.inherited is not NONE and self.next >= self.inherited.end:
            self.top, self.inherited = max(self.top, self.inherited.end), NONE

    def snapshot(self, extra: Collection[int] = (), *, clean: bool = False) -> Progress:
        """Return the progress as it will be once the offsets `extra` are done too."""
        opened = [offset for offset in self.open_offsets() if offset not in extra]
        inherited = self.inherited
        if not opened:
            first = inherited.end_of(self.next) or self.next
            return Progress(first, inherited.within(first, inherited.end), clean)
        ranges, at = list[Range](), opened[0] + 1
        for offset in opened:
            if offset > at:
                ranges.append((at, offset))
            at = offset + 1
        if self.top > at:
            ranges.append((at, self.top))
        done = OffsetRanges()
        done.ranges = tuple(ranges)
        return Progress(opened[0], done.union(inherited.within(self.next, inherited.end)), clean)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        order, counts = list(self.order), [0] * len(Where)
        for offset, entry in self.entries.items():
            ensure(entry is IN_QUEUE or offset == entry.offset, f"{offset} stands under its own offset")
            counts[entry.where] += 1
            has_record = entry.where not in (AWAY, KEPT, CALLED_OFF)
            ensure(
                entry.where is CALLED_OFF or (entry.record is not None) == has_record,
                f"{offset} has a record, or is away",
            )
            is_kept_back, is_by_operator = entry.where in (STOPPED, KEPT), entry.stopped_by in BY_OPERATOR
            ensure(
                is_kept_back == (entry.stopped_by is not None), f"{offset} names what keeps it back, and else nothing"
            )
            ensure(is_by_operator == bool(entry.hold), f"{offset} names its hold, and else none")
            ensure(entry.where is not KEPT or is_by_operator, f"{offset} is kept back by an operator")
        ensure(IN_QUEUE.where is AWAY and IN_QUEUE.record is None, "the entry that queues share never changes")
        ensure(counts == self.counts, f"the counts are those of the entries: {counts}, and not {self.counts}")
        ensure(order == sorted(set(order)), "offsets begin in ascending order")
        ensure(list(self.entries) == [offset for offset in order if offset in self.entries], "each has begun in order")
        ensure(not order or order[-1] < self.top <= self.next, "what has begun lies below the next one")
        ensure(self.tried == sum(e.tried is not None for e in self.entries.values()), "retries in place are counted")


class PartitionState:
    """One partition under one assignment.

    Invariants: a blocked partition is paused; it goes on at the first record that is to be read again, or before; only
    a level has the time of its last record.
    """

    __slots__ = (
        "append_times", "blocked", "closing", "commit", "epoch", "kind", "offsets", "paused", "seek_count", "source",
        "suspicion", "throughput",
    )  # fmt: skip

    def __init__(self, source: Partition, epoch: int, kind: Kind, progress: Progress, bounds: Bounds) -> None:
        self.source, self.epoch, self.kind = source, epoch, kind
        self.offsets = Offsets(progress, bounds)
        self.throughput = Throughput()
        self.commit = CommitState(progress)
        self.paused: Pause | None = None
        """Why it is not fetched, and where it goes on; None if it is."""
        self.seek_count = 0
        self.closing = False
        """Whether it is being given up: nothing more of it is delivered."""
        self.blocked = ""
        """Why no record of it is delivered: Kafka refuses its copies or its progress. Empty if it is not blocked."""
        self.suspicion: Suspicion | None = None
        """Why its records need care before they are delivered. Usually None, which costs nothing."""
        self.append_times = AppendTimes(kind.delay_ms or 0)

    # --- its commits ------------------------------------------------------------------------------------------------

    def take_commit(self, extra: Collection[int]) -> PartitionCommit:
        """Take its progress for a transaction, with the offsets `extra`, which that transaction settles."""
        self.commit.by_ms = NEVER
        if self.commit.move is not None:
            return PartitionCommit(self.epoch, self.commit.move.progress, self.kind.under, self.commit.move.resets)
        # Clean as soon as the release begins: at `lock_timeout` deliveries are still in flight, but no owner crashed.
        now, before = self.offsets.snapshot(extra, clean=self.closing), self.commit.progress
        progress = Progress(
            now.next,
            now.done,
            now.clean,
            width=before.width,
            last_at_ms=self.commit.last_at_ms,
            log=before.log,
            cycle=before.cycle,
            notes=self._has_notes(now.next),
        )
        if self.suspicion is not None:
            progress = self.suspicion.with_crash_state(progress)
        return PartitionCommit(self.epoch, progress, self.kind.under, self.commit.resets_owed)

    def _has_notes(self, next_offset: int) -> bool:
        """Return whether a new owner must read notes, if progress is at `next_offset`."""
        notes = self.offsets.notes
        return self.commit.resets is not None or (notes is not None and notes.remain(next_offset))

    def position(self) -> PartitionCommit:
        """Return the progress that is in Kafka, for a commit that changes nothing."""
        # Nothing of it was delivered: an offset that no sidecar has committed says so by the clean mark.
        progress = self.commit.progress
        clean = progress.clean or not progress.ours
        return PartitionCommit(self.epoch, replace(progress, clean=clean, ours=True), self.kind.under)

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many of its records are with the service."""
        return self.offsets.counts[OUT]

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is in flight or on its way into Kafka."""
        return not (self.offsets.counts[OUT] or self.offsets.counts[SETTLED])

    @property
    def unsaved(self) -> int:
        """How many records were answered without Kafka knowing; a gap in the offsets may count as records."""
        done, known = self.offsets.snapshot(), self.commit.progress
        return self.offsets.counts[SETTLED] + done.next - known.next + len(done.done) - len(known.done)

    def records(self, *where: Where) -> Iterator[Record]:
        """Yield the records that are in these places, by offset. Slow."""
        for entry in self.offsets.entries.values():
            if entry.where in where and entry.record is not None:
                yield entry.record

    def due_ms(self, record: Record) -> int:
        """Return when a record of it could be delivered at the earliest, epoch ms."""
        due_ms = record.timestamp + (self.kind.delay_ms or 0)
        return due_ms if record.retry_state is None else max(due_ms, record.retry_state.due_at)

    def time_left(self, record: Record, now: Now) -> int:
        """Return the ms until the level delay of a record is over, 0 or less if it is.

        That is never later than the level delay after the record was first known to be there, whatever the clock of the
        broker says (`append_times.py`).
        """
        delay_ms = self.kind.delay_ms
        if not delay_ms or self.offsets.is_done(record.offset):
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
        """Return whether a paused partition may go on if there is memory for it.

        Its time must have come, it must not be blocked or closing, its notes must be read, and a quarter of its span
        must be free. With less, a partition at its bound would be paused and sought for every record. Behind a skip it
        goes on up to its bound.
        """
        pause = self.paused
        if pause is None or self.blocked or self.closing or pause.at_ms > steady_ms:
            return False
        offsets = self.offsets
        if offsets.notes is not None and offsets.notes.is_unread:
            return False
        return offsets.may_begin(pause.offset) if pause.because is NotFetched.DONE else offsets.has_room(pause.offset)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        self.offsets.check()
        self.append_times.check()
        ensure(not self.blocked or self.paused is not None, f"{self.source} is blocked, so it is paused")
        first = next(self.offsets.to_reread(), NEVER)
        is_of_queue = self.kind.under is not None
        ensure(
            self.paused is None or is_of_queue or self.paused.offset <= first,
            f"{self.source} goes on at {first} or before",
        )
        is_level = self.kind.delay_ms is not None
        ensure(is_level or self.commit.last_at_ms is None, f"{self.source} has a last time, so it is of a level")


def step(before: int, offset: int) -> int:
    """Return the bytes that an open offset costs behind the open offset before it."""
    distance = offset - before
    return 1 if distance == 1 else 1 + varint_length(distance)


def varint_length(number: int) -> int:
    """Return the bytes of a number above 0, seven bits in each."""
    return (number.bit_length() + 6) // 7
