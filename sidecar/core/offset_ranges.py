"""A set of offsets as ranges: a million done records behind one that is open take as much room as ten.

Offsets have gaps (compaction, transaction markers). A range may pass over gaps, because no record is at such an offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Set
from itertools import chain
from typing import Any, TypeAlias

Range: TypeAlias = tuple[int, int]
"""First offset of a range, and the offset behind its last one."""


class OffsetRanges(Set[int]):
    """A set of offsets that never changes.

    Invariant: `ranges` are in ascending order, none is empty, and none touches the next one.
    """

    __slots__ = ("ranges",)

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        """Take ranges in ascending order of their first offsets; they may touch and overlap."""
        self.ranges: tuple[Range, ...] = tuple(_merged(ranges))

    @classmethod
    def of(cls, offsets: Iterable[int]) -> OffsetRanges:
        """Return the set of these offsets, which come in any order."""
        if isinstance(offsets, OffsetRanges):
            return offsets
        ranges, begin, end = list[Range](), 0, -1
        for one in sorted(offsets):  # as in `_merged`, at a third of its cost
            if one == end:
                end += 1
            elif one > end:
                if end > begin:
                    ranges.append((begin, end))
                begin, end = one, one + 1
        if end > begin:
            ranges.append((begin, end))
        joined = cls()
        joined.ranges = tuple(ranges)
        return joined

    @classmethod
    def _from_iterable(cls, offsets: Iterable[Any]) -> OffsetRanges:  # type: ignore[override]  # for |, & and -
        return cls.of(offsets)

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.end_of(offset) is not None

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(*one) for one in self.ranges)

    def __len__(self) -> int:
        return sum(end - first for first, end in self.ranges)

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __eq__(self, other: object) -> bool:
        return self.ranges == other.ranges if isinstance(other, OffsetRanges) else super().__eq__(other)

    def __repr__(self) -> str:
        return f"OffsetRanges({list(self.ranges)})"

    @property
    def end(self) -> int:
        """The offset behind the last one; 0 if there are none."""
        return self.ranges[-1][1] if self.ranges else 0

    def end_of(self, offset: int) -> int | None:
        """Return the end of the range that has `offset`; None if none has it."""
        at = bisect_right(self.ranges, (offset, float("inf"))) - 1
        return self.ranges[at][1] if at >= 0 and offset < self.ranges[at][1] else None

    def within(self, first: int, end: int) -> OffsetRanges:
        """Return the offsets from `first` on, and below `end`."""
        ranges = self.ranges
        if not ranges or (first <= ranges[0][0] and ranges[-1][1] <= end):
            return self
        return OffsetRanges((max(one, first), min(two, end)) for one, two in ranges)

    def first_ranges(self, count: int) -> OffsetRanges:
        """Return the first `count` ranges."""
        first = OffsetRanges()
        first.ranges = self.ranges[:count]
        return first

    def union(self, other: OffsetRanges) -> OffsetRanges:
        """Return the offsets of both."""
        if not (self.ranges and other.ranges):
            return self if self.ranges else other
        return OffsetRanges(sorted(self.ranges + other.ranges))


def _merged(ranges: Iterable[Range]) -> Iterator[Range]:
    begin = end = -1
    for first, after in ranges:
        if first >= after:
            continue
        if first > end:
            if end > begin:
                yield begin, end
            begin, end = first, after
        else:
            end = max(end, after)
    if end > begin:
        yield begin, end


NONE = OffsetRanges()
