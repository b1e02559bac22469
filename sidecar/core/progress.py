"""The progress of a partition, although deliveries end out of order.

Progress is *the next offset, and the set of done offsets above it*. Both are in the committed offset: the set is in its
metadata. A new owner therefore repeats no attempt that was counted. Offsets have gaps (compaction, transaction
markers), so nothing here assumes that the one after n is n + 1.

The metadata is short (`progress_codec.py`), so a record may begin only if the progress can be written *whatever ends
next*, in whatever order:

- up to `span` offsets from the first open one, because a bitmap says any set of these;
- and at any distance, if a bitmap says the last `window` offsets, and the open ones below them cost `far_bytes` at most
  (`FarOffsets`): there everything but the open offsets is done.

Ends make neither longer: a bitmap has its length whatever its bits are, and the cost of the far offsets only falls. So
it is enough to look when a record begins. What a new owner may have open is what the last one had open, or less, so
until it is behind all that the last owner has done it needs no look at all.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Set
from itertools import pairwise
from typing import NamedTuple

import msgspec

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.offset_ranges import NONE, OffsetRanges, Range

SPAN = 16_384
"""Offsets: up to this distance from the next one a bitmap says the whole done set. It takes 2 048 bytes."""


class Bounds(NamedTuple):
    """How far a partition may go beyond its first open record.

    `span`: offsets within which any set of them may be open. `window`: beyond the span, the last offsets, of which a
    bitmap says which are done. `far_bytes`: what the open records below the window may cost in bytes. `skip`: so many
    done offsets in a row are not read: a seek costs as much as some thousand records.
    """

    span: int = SPAN
    window: int = SPAN // 2
    far_bytes: int = 1_000
    skip: int = 4_096


class LogId(NamedTuple):
    """Which log a partition's offsets belong to: digests of the cluster's id and of the topic's id.

    Each is the CRC-32 of the id that Kafka gives, as eight hexadecimal digits. Kafka draws both ids at random. So the
    ids of a topic and of its successor have the same digest once in four billion times; the successor is then taken for
    the same log, as with a broker that has no topic ids. Two clusters are only mistaken for each other if, in addition,
    topic, partition and committed offset are the same; the records are then delivered again.
    """

    cluster: str
    topic: str

    @classmethod
    def of(cls, cluster_id: str, topic_id: str) -> LogId:
        """Return the digests of two ids as Kafka gives them."""
        return cls(*(f"{zlib.crc32(one.encode()):08x}" for one in (cluster_id, topic_id)))


def is_recreated(stated: LogId | None, present: LogId | None) -> bool:
    """Whether `present` is the log of a topic that was created again since progress named `stated`.

    Only the same cluster with another topic id says so. None, on either side, says nothing.
    """
    return (
        stated is not None
        and present is not None
        and stated.cluster == present.cluster
        and stated.topic != present.topic
    )


class Progress(msgspec.Struct, frozen=True):
    """A partition's progress. `done` holds offsets at or above `next`.

    `clean`: the owner had delivered nothing of the partition, or was alive when it gave the partition up. Without this
    mark the owner crashed. `ours`: a sidecar committed it.

    For the crash gate: `deaths` is how many owners in a row had crashed before this one. `mark` is the offset that
    this owner delivers alone. `reach` is the last offset that this owner releases for delivery (None: it does not say).

    `width`: how many partitions the topic had when the group began to read it at the latest record (`start: latest`).
    Partitions from that number on were added later and are read from their beginning.

    `last_at_ms`: the timestamp (epoch ms) of the last record that was read of a level; of a queue it may be one of a
    record before that. If a log ends before `next` and all of it is younger than this, the topic was created anew. 0:
    no record was read since the log's beginning. Then `next` may have passed over markers of aborted transactions
    alone, and the next owner of the partition starts at the beginning again: the offset says nothing of another log of
    the same name.

    `log`: the log that this owner reads; None: Kafka has not told. `cycle`: how many resets moved the position.
    `notes`: whether the policy topic has records about this partition (chunks, ranges) to be read first.
    """

    next: int
    done: Set[int] = NONE
    clean: bool = False
    ours: bool = True
    deaths: int = 0
    mark: int | None = None
    reach: int | None = None
    width: int | None = None
    last_at_ms: int | None = None
    log: LogId | None = None
    cycle: int = 0
    notes: bool = False

    def covers(self, offset: int) -> bool:
        """Return whether the record at `offset` is done."""
        return offset < self.next or offset in self.done


class ProgressTracker:
    """Track what was begun and what is done in one partition under one assignment.

    `begin` takes offsets in ascending order, `finish` in any order. Far below the highest begun offset only the open
    ones are kept. Near it, a deque holds the offsets that are open or not yet passed over, and a set holds the done
    ones above the first open one. It costs 0.2-0.3 us a record, and gaps cost nothing.

    Invariants: the deque ascends, lies below `next` and above the far ones, and begins with an open offset; `dropped`
    offsets were begun and are not done.
    """

    __slots__ = (
        "_done",
        "_far",
        "_inherited",
        "_order",
        "_to_reread",
        "_top",
        "bounds",
        "dropped",
        "next",
    )

    def __init__(self, resume: Progress, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - it is a constant
        self.next = resume.next
        """The offset that is to be begun next, or a lower one if the log has a gap here."""
        self.dropped: set[int] = set()
        """Offsets that were begun and then dropped from memory, unanswered. They must be fetched and begun again."""
        self.bounds = bounds
        self._far = FarOffsets()
        self._order: deque[int] = deque()
        self._done: set[int] = set()
        self._top = resume.next
        """The offset behind the highest one that was begun."""
        self._inherited = OffsetRanges.of(resume.done) if resume.done else NONE
        """What the last owner has done; empty once all of it is passed."""
        self._to_reread: list[int] | None = None
        """The dropped offsets in their order, and some that are no longer dropped. None: to be sorted."""

    # --- may it begin -----------------------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The lowest offset that is not done."""
        return self._far.offsets[0] if self._far.offsets else self._order[0] if self._order else self.next

    @property
    def unread(self) -> int:
        """The offset from which on records must be fetched: those that were dropped from memory come again."""
        return min((self.next, *self.dropped))

    def span(self, offset: int) -> int:
        """Return how far `offset` is from the first open one; 0 if none is open: a gap in the log is no distance."""
        return offset - self.first if self._far.offsets or self._order else 0

    def make_way(self, offset: int) -> bool:
        """Have the progress take `offset` too; return False if it may not begin: it could not be written."""
        order = self._order
        if not self._far.offsets and (not order or offset - order[0] < self.bounds.span):
            return True  # nearly always: asked for each record
        return self._make_way_far(offset, self.bounds.span)

    def make_room(self, offset: int) -> bool:
        """Do the same for a quarter of the bound behind `offset`: with less, a partition would be paused again at
        once."""
        return self._make_way_far(offset, self.bounds.span * 3 // 4 + 1, self.bounds.window // 4)

    def _make_way_far(self, offset: int, span: int, more: int = 0) -> bool:
        bounds = self.bounds
        if offset < self.next or offset < self._inherited.end:
            return True  # it was begun, and dropped from memory, or it is open in the progress that is in Kafka
        if self.span(offset) < span:
            return True
        if self._inherited is not NONE:
            self._pass_inherited()
        return self._leave_below(offset + more + 1 - bounds.window, bounds.far_bytes)

    def _leave_below(self, end: int, most: int | None = None) -> bool:
        """Make the open offsets below `end` far ones; return False if that takes more than `most` bytes."""
        far, order, done = self._far, self._order, self._done
        while order and order[0] < end:
            if most is not None and far.cost_with(order[0]) > most:
                return False
            far.append(order.popleft())
            while order and order[0] in done:
                done.discard(order.popleft())
        return True

    def _pass_inherited(self) -> None:
        """Take what the last owner has done as done by this one: all of it is passed."""
        inherited, self._inherited = self._inherited, NONE
        self._top, self.next = max(self._top, inherited.end), max(self.next, inherited.end)
        if self.span(inherited.end) > self.bounds.span:
            self._leave_below(inherited.end - self.bounds.window)
        if self._order:
            done = set(inherited.within(self._order[0], inherited.end))
            self._order = deque(sorted(done.union(self._order)))
            self._done |= done

    # --- what was begun, and what is done ---------------------------------------------------------------------------

    @property
    def open(self) -> int:
        """The number of offsets that were begun and are not done."""
        return self.open_from(self.first)

    def open_from(self, offset: int) -> int:
        """Return how many offsets, from `offset` on, were begun and are not done."""
        return sum(1 for begun in self.open_offsets() if begun >= offset)

    def open_offsets(self) -> set[int]:
        """Return the offsets that were begun and are not done."""
        return set(self._far.offsets).union(self._order) - self._done

    def is_done(self, offset: int) -> bool:
        """Return whether the record at `offset` is known to be done."""
        if offset >= self.next:
            return offset in self._inherited
        if self._order and offset >= self._order[0]:
            return offset in self._done or offset in self._inherited
        return offset not in self._far.offsets

    def end_of_done(self, offset: int) -> int | None:
        """Return the end of the done offsets from `offset` on that are not worth to be read; None if there are none."""
        if offset >= self.next:
            end = None if self._inherited is NONE else self._inherited.end_of(offset)
        elif offset in self.dropped:
            return None
        else:  # all that was begun is done, or at hand
            if self._to_reread is None:
                self._to_reread = sorted(self.dropped)
            at = bisect_right(self._to_reread, offset)
            end = self._to_reread[at] if at < len(self._to_reread) else self.next
        return end if end is not None and end - offset >= self.bounds.skip else None

    def begin(self, offset: int) -> bool:
        """Begin an offset; return False if it is done already, or was begun before and not let go."""
        if offset < self.next:
            if offset not in self.dropped:
                return False
            self.dropped.discard(offset)
            return True
        self.next = self._top = offset + 1
        if self._inherited is not NONE:
            if offset in self._inherited:
                return False
            if offset >= self._inherited.end:
                self._pass_inherited()
        self._order.append(offset)
        return True

    def let_go(self, offset: int) -> None:
        """Undo the begin of an offset: it stays open, and is begun again when it is fetched again."""
        self.dropped.add(offset)
        self._to_reread = None

    def put_off(self, offset: int) -> bool:
        """Begin an offset and let it go at once, as its record is not kept; return False if it is done already."""
        if offset >= self.next and self._inherited is NONE:  # as nearly always: `begin`, without a call
            self.next = self._top = offset + 1
            self._order.append(offset)
        elif not self.begin(offset):
            return False
        self.dropped.add(offset)
        self._to_reread = None
        return True

    def cut(self, wanted: int, low: int) -> int:
        """Move on to `low`, where the log begins now; return how many offsets from `wanted` on are lost unread.

        Offsets dropped from memory unanswered are lost too. The others that were begun stay under way, because they are
        in memory. Gaps in the log count as offsets.
        """
        lost = [offset for offset in self.dropped if offset < low]
        for offset in lost:
            self.dropped.discard(offset)
            self.finish(offset)
        first = max(wanted, self.next)
        unread = max(0, low - first) - len(self._inherited.within(first, low))
        self.next = max(self.next, low)
        return len(lost) + max(0, unread)

    def finish(self, offset: int) -> None:
        """Mark an offset as done."""
        order = self._order
        if order and order[0] == offset:
            order.popleft()
            done = self._done
            while order and order[0] in done:
                done.discard(order.popleft())
        elif order and offset > order[0]:
            self._done.add(offset)
        else:
            self._far.remove(offset)

    def reached(self, offset: int) -> bool:
        """Move on to `offset`, where the log ends, behind all markers; return False if nothing changed."""
        if offset <= self.next:
            return False
        self.next = offset
        return True

    # --- what is committed ------------------------------------------------------------------------------------------

    def snapshot(self, extra: Collection[int] = (), *, clean: bool = False) -> Progress:
        """Return the progress as it will be once `extra` is done too."""
        extra = frozenset(extra)
        done = self._done.union(extra) if extra else self._done
        first = next((offset for offset in self._far.offsets if offset not in extra), None)
        below = self._far_done(extra)
        if first is None:
            first = next((offset for offset in self._order if offset not in done), None)
        if first is None:
            first = self._inherited.end_of(self.next) or self.next
        near = OffsetRanges.of(offset for offset in done if offset > first)
        inherited = self._inherited.within(first, self._inherited.end)
        return Progress(first, below.union(near).union(inherited), clean)

    def _far_done(self, extra: Set[int]) -> OffsetRanges:
        return OffsetRanges(self._far.done_up_to(self._order[0] if self._order else self._top, extra))

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        begun, far = list(self._order), self._far.offsets
        self._far.check()
        ensure(begun == sorted(set(begun)), "offsets are begun in ascending order")
        ensure(not begun or (begun[-1] < self.next and begun[0] not in self._done), "the first offset is not done")
        ensure(not (begun and far) or far[-1] < begun[0], "far offsets lie below the near ones")
        ensure(self.dropped <= self.open_offsets(), "what was dropped from memory was begun and is not done")


class FarOffsets:
    """The open offsets far below the highest begun one, in ascending order, and their `cost` in bytes.

    Everything between them is done. So the done set there is written as pairs of counts, *so many open, so many done*,
    and its length follows from the open offsets alone. The cost is a bound for whatever ends next: let an offset cost
    one byte for its part of the open count, and the length of its distance from the open offset before it for the done
    count between them. If an offset ends, two distances become one, and a number is never longer than the two numbers
    of which it is the sum. So the cost only falls when records end, in any order, and it is enough to check it when an
    offset joins.

    Invariants: the offsets ascend; the cost is that of these offsets.
    """

    __slots__ = ("cost", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.cost = 0

    def cost_with(self, offset: int) -> int:
        """Return the bytes with one more offset, above all that are here."""
        return self.cost + (step(self.offsets[-1], offset) if self.offsets else 1)

    def append(self, offset: int) -> None:
        """Add an open offset above all that are here."""
        self.cost = self.cost_with(offset)
        self.offsets.append(offset)

    def remove(self, offset: int) -> None:
        """Remove an offset that is done; one that is not here changes nothing."""
        offsets = self.offsets
        at = bisect_left(offsets, offset)
        if at == len(offsets) or offsets[at] != offset:
            return
        before = offsets[at - 1] if at else None
        after = offsets[at + 1] if at + 1 < len(offsets) else None
        self.cost -= 1 if before is None else step(before, offset)
        if after is not None:
            self.cost += (1 if before is None else step(before, after)) - step(offset, after)
        del offsets[at]

    def done_up_to(self, end: int, extra: Set[int]) -> Iterator[Range]:
        """Yield the done ranges between these offsets, once those in `extra` are done too, and up to `end`."""
        begin: int | None = None
        for offset in self.offsets:
            if offset not in extra:
                if begin is not None:
                    yield begin, offset
                begin = offset + 1
        if begin is not None:
            yield begin, end

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        offsets = self.offsets
        ensure(offsets == sorted(set(offsets)), "far offsets ascend")
        steps = sum(step(before, after) for before, after in pairwise(offsets))
        ensure(self.cost == steps + bool(offsets), "the cost is that of the far offsets")


def step(before: int, offset: int) -> int:
    """Return the bytes that an open offset costs behind the open offset before it."""
    distance = offset - before
    return 1 if distance == 1 else 1 + varint_length(distance)


def varint_length(number: int) -> int:
    """Return the bytes of a number above 0, seven bits in each."""
    return (number.bit_length() + 6) // 7
