"""The records that wait in one partition's queue topic, by key: which record is first, and which keys are blocked.

A *line* is the records of one key that wait, in their order (`RETRY_ORDER`). Its first record is the *head*. A key with
a line is blocked: main records behind the head wait (contract 5.5). Of a line at most one record is *out*: its payload
is being read, or the lane has it.

Thousands of records may wait behind one head, so an entry is small, and what entries have in common is one object:
the bytes of the key, the attempt, the due time, the rounded time and weight of the copy.

`KeyLedger` (`ledger.py`) alone changes lines. `DueHeads` (`due_heads.py`) asks them what may go out. Event loop alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from enum import Enum
from heapq import nlargest
from operator import attrgetter
from typing import TypeAlias

import msgspec

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.record import NEVER
from reconsume.topics.attempt import Attempt
from reconsume.topics.retry_order import LARGEST_OFFSET, LAST, Order

Identity: TypeAlias = tuple[int, int]
"""A record of the main partition: its offset and its timestamp. The timestamp tells it from a record at the same offset
of a former log, after the main topic was deleted and recreated."""


BITS = 63
"""Of an offset, or a timestamp: neither is negative, nor larger than a long."""


class Phase(Enum):
    """Where a waiting record is; the head of `ledger.py` has the table."""

    WRITING = "writing"
    """Its copy is on its way into Kafka. The lane has the record."""
    EXPECTED = "expected"
    """Its copy is in Kafka, and was not read back yet."""
    QUEUED = "queued"
    """Its copy is in the queue at `WaitingEntry.offset`."""
    REQUESTED = "requested"
    """Its copy is being read by its offset."""
    TAKEN = "taken"
    """The lane has the record."""


OUT = (Phase.REQUESTED, Phase.TAKEN)
NOT_IN_QUEUE = (Phase.WRITING, Phase.EXPECTED)
"""The phases in which it is not known where the copy of a record will be, or is."""
NO_COPY = -1
"""The due time of a record whose copies were never read."""


class WaitingEntry(msgspec.Struct, eq=False, gc=False):
    """One record that waits.

    `number`: its identity in one number (`packed`). `moved`: the order of one that was redriven; None: its order is its
    offset. `offset`: of the copy that counts (−1: none is known). `extent`: that copy's `written_ms` and `weight`,
    rounded. `ticket`: the number of its place among the due heads (`due_heads.py`); 0: it has none.

    The ledger writes all of it, but for `ticket`, which the heads write, and `key`, which its line may replace.
    """

    number: int
    key: bytes
    moved: Order | None
    attempt: Attempt
    phase: Phase
    offset: int = -1
    due_ms: int = NO_COPY
    extent: tuple[int, int] = (0, 0)
    ticket: int = 0

    @property
    def written_ms(self) -> int:
        """About when its copy was written, epoch ms."""
        return self.extent[0]

    @property
    def weight(self) -> int:
        """About the bytes that its record takes in memory."""
        return self.extent[1]

    @property
    def identity(self) -> Identity:
        """Which record of the main partition it is."""
        return self.number >> BITS, self.number & LARGEST_OFFSET

    @property
    def order(self) -> Order:
        """Its order among those of its key."""
        return Order(self.number >> BITS) if self.moved is None else self.moved

    @property
    def rank(self) -> tuple[int, int]:
        """As `Order.rank`."""
        return (self.number >> BITS, LAST) if self.moved is None else self.moved.rank

    @property
    def is_parked(self) -> bool:
        """Whether its copy is in the queue and waits for an operator."""
        return self.due_ms >= NEVER and self.phase is Phase.QUEUED

    @property
    def at(self) -> tuple[tuple[int, int], int]:
        """What the records of a key are sorted by. The identity parts two redrives that were given one order, and
        records of two logs."""
        return self.rank, self.number


def packed(identity: Identity) -> int:
    """Return an identity in one number, of which thousands take less memory. It sorts as the identity does."""
    return identity[0] << BITS | identity[1]


def moved_order(identity: Identity, order: Order) -> Order | None:
    """Return the order of a record that was redriven; None for any other."""
    return None if order[0] == identity[0] and not order[1] else order


_AT = attrgetter("at")


class KeyLine(msgspec.Struct, eq=False, gc=False):
    """The records of one key, the head first. `out`: the one that is requested or taken. `ahead`: how many heads are
    requested before the next records are read ahead; `CopyReads` alone writes it."""

    entries: list[WaitingEntry]
    out: WaitingEntry | None = None
    ahead: int = 0


class KeyLines:
    """The lines of one partition.

    Invariants: no line is empty; an entry is in the line of its key, by its order; of a line only `out` is requested or
    taken.
    """

    def __init__(self) -> None:
        self._lines: dict[bytes, KeyLine] = {}
        self.by_key: Mapping[bytes, KeyLine] = self._lines
        """The lines; asked for each record that begins, where a method of ours would be a call more."""

    # --- questions --------------------------------------------------------------------------------------------------

    def blocks(self, key: bytes, offset: int) -> bool:
        """Return whether a main record at `offset` must wait: an earlier one of its key does, or any of its key is
        out."""
        line = self._lines.get(key)
        # A main record ranks behind the redrives of the time when its offset was the end: hence LAST.
        return line is not None and (line.out is not None or line.entries[0].rank < (offset, LAST))

    def is_head(self, entry: WaitingEntry) -> bool:
        """Return whether an entry is the first of its key."""
        return self._lines[entry.key].entries[0] is entry

    def is_free_head(self, entry: WaitingEntry) -> bool:
        """Return whether an entry is in the queue as the head of its key, none of which is out."""
        line = self._lines.get(entry.key)  # None: it ended, and was the last, while it was among the due heads
        if line is None or line.out is not None or line.entries[0] is not entry:
            return False
        return entry.phase is Phase.QUEUED

    def largest(self, most: int) -> list[KeyLine]:
        """Return the keys of which the most records wait, the largest first."""
        return nlargest(most, self._lines.values(), key=lambda line: len(line.entries))

    def oldest_at(self) -> int | None:
        """Return the timestamp (epoch ms) of the oldest first record of a key; None if nothing waits."""
        return min((line.entries[0].identity[1] for line in self._lines.values()), default=None)

    # --- changes: each returns the line, whose head may be another one now -------------------------------------------

    def insert(self, entry: WaitingEntry) -> KeyLine:
        """Put an entry where its order is."""
        if (line := self._lines.get(entry.key)) is None:
            line = self._lines[entry.key] = KeyLine([entry])
            return line
        entry.key = line.entries[0].key  # one object for the whole line: thousands may be in it
        if line.entries[-1].at < entry.at:  # as nearly always
            line.entries.append(entry)
        else:
            insort(line.entries, entry, key=_AT)
        return line

    def remove(self, entry: WaitingEntry) -> KeyLine | None:
        """Take an entry away; return None if its line is empty, and gone."""
        line = self._lines[entry.key]
        # What ends is nearly always the head: without this each end behind a hot key would search its line.
        del line.entries[0 if line.entries[0] is entry else bisect_left(line.entries, entry.at, key=_AT)]
        if not line.entries:
            del self._lines[entry.key]
            return None
        return self.come_back(entry)

    def go_out(self, entry: WaitingEntry) -> bool:
        """Note that an entry is out; return False if another one of its key is."""
        line = self._lines[entry.key]
        if line.out is not None:
            return False
        line.out = entry
        return True

    def come_back(self, entry: WaitingEntry) -> KeyLine:
        """Note that an entry is not out, if it was."""
        line = self._lines[entry.key]
        if line.out is entry:
            line.out = None
        return line

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for key, line in self._lines.items():
            ensure(bool(line.entries), "no line is empty")
            ensure(line.entries == sorted(line.entries, key=_AT), "a line is in the order of its records")
            ensure(all(entry.key == key for entry in line.entries), "a line has no other keys")
            out = [entry for entry in line.entries if entry.phase in OUT]
            ensure(out == ([] if line.out is None else [line.out]), "one record of a key is out at most")
