"""The lines of keys: the records of each key that wait in a queue, in their order, and which one of them is out.

A key whose line is not empty is blocked for main records behind its head (contract 5.5).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from heapq import nlargest
from operator import attrgetter

import msgspec

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.ledger_entry import OUT, Entry, Phase
from reconsume.topics.retry_order import LAST

_AT = attrgetter("at")


class KeyLine(msgspec.Struct, eq=False, gc=False):
    """The records of one key, the head first. `out`: the one that is asked or taken."""

    entries: list[Entry]
    out: Entry | None = None


class KeyLines:
    """The lines of one partition. The ledger alone changes them; who may go out is asked of its heads.

    Invariants: no line is empty; an entry stands in the line of its key, by its order; of a line only `out` is asked or
    taken.
    """

    def __init__(self) -> None:
        self._lines: dict[bytes, KeyLine] = {}
        self.by_key: Mapping[bytes, KeyLine] = self._lines
        """The lines; asked for each record that begins, where a method of ours would be a call more."""

    def __len__(self) -> int:
        return len(self._lines)

    # --- questions --------------------------------------------------------------------------------------------------

    def blocks(self, key: bytes, offset: int) -> bool:
        """Return whether a main record at `offset` must wait: an earlier one of its key does, or any of its key is
        out."""
        line = self._lines.get(key)
        # A main record ranks behind the redrives of the time when its offset was the end: hence LAST.
        return line is not None and (line.out is not None or line.entries[0].rank < (offset, LAST))

    def is_head(self, entry: Entry) -> bool:
        """Return whether an entry is the lowest of its key."""
        return self._lines[entry.key].entries[0] is entry

    def is_free_head(self, entry: Entry) -> bool:
        """Return whether an entry lies in the queue as the head of its key, none of which is out."""
        line = self._lines.get(entry.key)  # None: it ended, and was the last, while it stood among the heads
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

    def insert(self, entry: Entry) -> KeyLine:
        """Put an entry where its order is."""
        if (line := self._lines.get(entry.key)) is None:
            line = self._lines[entry.key] = KeyLine([entry])
            return line
        entry.key = line.entries[0].key  # one object for the whole line: thousands may stand in it
        if line.entries[-1].at < entry.at:  # as nearly always
            line.entries.append(entry)
        else:
            insort(line.entries, entry, key=_AT)
        return line

    def replace(self, old: Entry, new: Entry) -> KeyLine:
        """Put `new` where `old` stands, which has the same key and order, and is not out."""
        line = self._lines[old.key]
        line.entries[_index(line, old)] = new
        return line

    def remove(self, entry: Entry) -> KeyLine | None:
        """Take an entry away; return None if its line is empty, and gone."""
        line = self._lines[entry.key]
        del line.entries[_index(line, entry)]
        if not line.entries:
            del self._lines[entry.key]
            return None
        if line.out is entry:
            line.out = None
        return line

    def go_out(self, entry: Entry) -> bool:
        """Note that an entry is out; return False if another one of its key is."""
        line = self._lines[entry.key]
        if line.out is not None:
            return False
        line.out = entry
        return True

    def come_back(self, entry: Entry) -> KeyLine:
        """Note that an entry is not out, if it was."""
        line = self._lines[entry.key]
        if line.out is entry:
            line.out = None
        return line

    def lines(self) -> list[KeyLine]:
        """Return all lines."""
        return list(self._lines.values())

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for key, line in self._lines.items():
            ensure(bool(line.entries), "no line is empty")
            ensure(line.entries == sorted(line.entries, key=_AT), "a line is in the order of its records")
            ensure(all(entry.key == key for entry in line.entries), "a line has no other keys")
            out = [entry for entry in line.entries if entry.phase in OUT]
            ensure(out == ([] if line.out is None else [line.out]), "one record of a key is out at most")


def _index(line: KeyLine, entry: Entry) -> int:
    # What ends is nearly always the head: without this each end behind a hot key would search its line.
    return 0 if line.entries[0] is entry else bisect_left(line.entries, entry.at, key=_AT)
