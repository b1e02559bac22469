"""The open offsets far below the highest begun one, and the bytes that they cost in the metadata at most.

Everything between them is done. So the done set there is written as pairs of counts, *so many open, so many done*, and
its length follows from the open offsets alone.

The cost is a bound for whatever ends next. Let an offset cost one byte for its part of the open count, and the length
of its distance from the open offset before it for the done count between them. If an offset ends, two distances become
one, and a number is never longer than the two numbers of which it is the sum. So the cost only falls when records end,
in any order, and it is enough to look at it when an offset joins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Set
from itertools import pairwise

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.offset_ranges import Range


class FarOffsets:
    """Open offsets in ascending order, and their `cost` in bytes.

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
