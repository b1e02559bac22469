"""The progress of a partition, although deliveries end out of order.

Progress is *the next offset, and the set of done offsets above it*. Both are in the committed offset: the set is in its
metadata. A new owner therefore repeats no attempt that was counted. Offsets have gaps (compaction, transaction
markers), so nothing here assumes that the one after n is n + 1.

The set is kept as what is still open: one record that is never answered may have any number of done ones behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Set
from typing import NamedTuple

import msgspec

from sidecar.core.invariant import ensure
from sidecar.core.offset_ranges import NONE, OffsetRanges, Range

SPAN = 16_384
"""Offsets: up to this distance from the next one a done set is written as a bitmap, and always fits.

Its bitmap is 2 048 bytes, at worst 2 732 characters as base64; Kafka takes 4 096 (`offset.metadata.max.bytes`). Where
an older version is in the group, nothing is begun further off.
"""
MOST_RANGES = 400
"""Ranges of done offsets beyond `SPAN`. Each takes two numbers of one to three bytes: 2 732 characters at most."""
SKIP = 4_096
"""Done offsets in a row from which on a new owner does not read them: a seek costs as much as some thousand records."""
COMPACT = 1_024
"""Done offsets that may stay in the order of the begun ones, beside as many as are open, before they are dropped."""
RECOUNT = 6
"""One part in so many of the bound may begin or end until the ranges are counted again: it takes 1 ms."""


class Bounds(NamedTuple):
    """How far a partition may go beyond its first open record. `far`: at any distance, with progress as ranges."""

    far: bool = False
    span: int = SPAN
    ranges: int = MOST_RANGES
    skip: int = SKIP


class Progress(msgspec.Struct, frozen=True):
    """A partition's progress. `done` holds offsets at or above `next`.

    `clean`: the owner had delivered nothing of the partition, or was alive when it gave the partition up. Without this
    mark the owner crashed. `ours`: a sidecar committed it.

    For the crash gate: `deaths` is how many owners in a row had crashed before this one. `mark` is the offset that
    this owner delivers alone. `reach` is the last offset that this owner releases for delivery (None: it does not say).

    `width`: how many partitions the topic had when the group began to read it at the latest record (`start: latest`).
    Partitions from that number on were added later and are read from their beginning.

    `last_at`: the timestamp (epoch ms) of the last record that was read of a level. If a log ends before `next` and all
    of it is younger than this, the topic was created anew. 0: no record was read since the log's beginning. Then `next`
    may have passed over markers of aborted transactions alone, and whoever takes the partition over begins at the
    beginning again: the place says nothing of another log of the same name.
    """

    next: int
    done: Set[int] = NONE
    clean: bool = False
    ours: bool = True
    deaths: int = 0
    mark: int | None = None
    reach: int | None = None
    width: int | None = None
    last_at: int | None = None

    def covers(self, offset: int) -> bool:
        """Return whether the record at `offset` is done."""
        return offset < self.next or offset in self.done


class Tracker:
    """Track what was begun and what is done in one partition under one assignment.

    `begin` takes offsets in ascending order, `finish` in any order. Kept are the open offsets, in order, and what the
    last owner has done beyond `next`: 0.2-0.3 us a record, whatever the distance, and gaps cost nothing. `bounds` may
    be replaced at any time.

    Invariants: `dropped` is a part of the open offsets, which are below `next`; the first of the order is open.
    """

    __slots__ = ("_ahead", "_counted", "_open", "_order", "_ranges", "bounds", "dropped", "next")

    def __init__(self, resume: Progress, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - it is a constant
        self.next = resume.next
        """The offset that is to be begun next, or a lower one if the log has a gap here."""
        self.dropped: set[int] = set()
        """Offsets that were begun and then dropped from memory, unanswered. They must be fetched and begun again."""
        self.bounds = bounds
        self._open: set[int] = set()
        self._order: deque[int] = deque()
        """The open offsets as they were begun, done ones behind the first, and always the one that was begun last."""
        self._ahead = OffsetRanges.of(resume.done) if resume.done else NONE
        """What the last owner has done; empty once all of it is passed."""
        self._counted, self._ranges = -bounds.ranges, 0

    @property
    def first(self) -> int:
        """The lowest offset that is not done."""
        return self._order[0] if self._order else self.next

    def span(self, offset: int) -> int:
        """Return how far `offset` is from the first open one; 0 if none is open: a gap in the log is no distance."""
        return offset - self._order[0] if self._order else 0

    def takes(self, offset: int) -> bool:
        """Return whether `offset` may begin: progress with all before it done can be written."""
        return self.span(offset) < self.bounds.span or (self.bounds.far and not self._is_ragged(self.bounds.ranges))

    def has_room(self, offset: int) -> bool:
        """Return whether a quarter of the bound is free: less, and a partition would be paused again at once."""
        bounds = self.bounds
        return self.span(offset) <= bounds.span * 3 // 4 or (bounds.far and not self._is_ragged(bounds.ranges * 3 // 4))

    def _is_ragged(self, most: int) -> bool:
        """Return whether there may be more than so many ranges of done offsets. They are counted now and then."""
        slack = most // RECOUNT
        if len(self._open) < most - slack:  # there is a done range between two open offsets at most
            return False
        if abs(self.next + len(self._open) - self._counted) >= slack:
            self._counted = self.next + len(self._open)
            self._ranges = len(OffsetRanges(self._done(())).ranges)
        return self._ranges > most - slack

    @property
    def open(self) -> int:
        """The number of offsets that were begun and are not done."""
        return len(self._open)

    def open_from(self, offset: int) -> int:
        """Return how many offsets, from `offset` on, were begun and are not done."""
        return sum(1 for begun in self._open if begun >= offset)

    def open_offsets(self) -> Set[int]:
        """Return the offsets that were begun and are not done."""
        return frozenset(self._open)

    def is_done(self, offset: int) -> bool:
        """Return whether the record at `offset` is known to be done."""
        return offset not in self._open if offset < self.next else offset in self._ahead

    def end_of_done(self, offset: int) -> int | None:
        """Return the end of the done offsets from `offset` on that are not worth to be read; None if there are none."""
        if self._ahead is NONE or offset < self.next:
            return None
        end = self._ahead.end_of(offset)
        return end if end is not None and end - offset >= self.bounds.skip else None

    def begin(self, offset: int) -> bool:
        """Begin an offset; return False if it is done already, or was begun before and not let go."""
        if offset < self.next:
            if offset not in self.dropped:
                return False
            self.dropped.discard(offset)
            return True
        self.next = offset + 1
        if self._ahead is not NONE:
            if offset in self._ahead:
                return False
            if offset >= self._ahead.end:
                self._ahead = NONE
        self._open.add(offset)
        self._order.append(offset)
        return True

    def let_go(self, offset: int) -> None:
        """Undo the begin of an offset: it stays open, and is begun again when it is fetched again."""
        self.dropped.add(offset)

    def cut(self, wanted: int, low: int) -> int:
        """Move on to `low`, where the log begins now; return how many offsets from `wanted` on are lost unread.

        Offsets dropped from memory unanswered are lost too. The others that were begun stay under way, because they are
        in memory. Gaps in the log count as offsets.
        """
        gone = [offset for offset in self.dropped if offset < low]
        for offset in gone:
            self.dropped.discard(offset)
            self.finish(offset)
        first = max(wanted, self.next)
        unread = max(0, low - first) - len(self._ahead.within(first, low))
        self.next = max(self.next, low)
        return len(gone) + max(0, unread)

    def finish(self, offset: int) -> None:
        """Mark an offset as done."""
        order, still_open = self._order, self._open
        still_open.discard(offset)
        if order and order[0] == offset:
            order.popleft()
            while order and order[0] not in still_open:
                order.popleft()
        elif len(order) > 2 * len(still_open) + COMPACT:
            last = order[-1]
            self._order = deque(begun for begun in order if begun in still_open or begun == last)

    def reached(self, offset: int) -> bool:
        """Move on to `offset`, where the log ends, behind all markers; return False if nothing changed."""
        if offset <= self.next:
            return False
        self.next = offset
        return True

    def snapshot(self, extra: Collection[int] = (), *, clean: bool = False) -> Progress:
        """Return the progress as it will be once `extra` is done too; change nothing."""
        done = OffsetRanges(self._done(extra))
        still_open = self._still_open(frozenset(extra))
        first = next(still_open, self.next)
        return Progress(first, done.within(first, done.end), clean)

    def _still_open(self, extra: Set[int]) -> Iterator[int]:
        return (offset for offset in self._order if offset in self._open and offset not in extra)

    def _done(self, extra: Collection[int]) -> Iterator[Range]:
        """Yield the ranges between the open offsets, and then what the last owner has done beyond them."""
        begin: int | None = None
        for offset in self._still_open(frozenset(extra)):
            if begin is not None:
                yield begin, offset
            begin = offset + 1
        top = self._order[-1] + 1 if self._order else self.next
        if begin is not None:
            yield begin, top
        yield from self._ahead.within(top, self._ahead.end).ranges

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        begun = list(self._order)
        ensure(begun == sorted(set(begun)), "offsets are begun in ascending order")
        ensure(not begun or (begun[-1] < self.next and begun[0] in self._open), "the first offset is not done")
        ensure(self._open <= set(begun), "what is open was begun")
        ensure(self.dropped <= self._open, "what was dropped from memory was begun and is not done")
