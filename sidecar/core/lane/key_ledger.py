"""What waits in one partition's queue, by key: which record of a key is its head, and whether it may go out.

A record that failed waits in the queue topic, and later ones of its key behind it (`topics/retry_order.py`). The ledger
knows of each its order among those of its key, its counts, and where its copy lies; the payload is read when it is due.
Order comes from RETRY_ORDER alone, so that copies may be read, repeated and written again in any order.

    phase     | what happens                        | then
    ----------|-------------------------------------|----------
    none      | it fails, or comes behind its head  | writing
    none      | its copy is read in the queue       | queued
    writing   | its copy is committed               | expected
    writing   | its copy is read, then committed    | queued
    writing   | it ends otherwise                   | none
    expected  | its copy is read in the queue       | queued
    queued    | a newer copy is read                | queued
    queued    | it is the head, due, and asked for  | requested
    requested | its payload is read                 | taken
    requested | its payload is let go               | queued
    taken     | its payload is let go               | queued
    taken     | it fails                            | writing
    taken     | it is done or dead                  | none

One record of a key is asked or taken at a time, and only the head: the lowest of its key. Main records of a key wait
while one below them is here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from heapq import heappop, heappush, nlargest, nsmallest
from itertools import count
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import msgspec

from sidecar.core.invariant import ensure
from sidecar.core.record import NEVER
from topics.retry_order import LAST, Order

Identity: TypeAlias = tuple[int, int]
"""A record of the main partition: its offset and its timestamp. The timestamp tells it from a record at the same offset
of a former log, after the main topic was deleted and made anew."""


class Phase(Enum):
    """Where a record of the ledger is; the module has the table."""

    WRITING = "writing"
    """Its copy is on its way into Kafka. The lane has the record."""
    EXPECTED = "expected"
    """Its copy is in Kafka, and was not read back yet."""
    QUEUED = "queued"
    """Its copy lies in the queue at `Entry.offset`."""
    REQUESTED = "requested"
    """Its copy is being read by its offset."""
    TAKEN = "taken"
    """The lane has the record."""


OUT = (Phase.REQUESTED, Phase.TAKEN)
IN_QUEUE = (Phase.QUEUED, Phase.REQUESTED)
"""The phases in which the lane has not the record, but its copy alone."""
AGE_STEP_MS, WEIGHT_STEP = 60_000, 256
"""The steps in ms and bytes in which age and weight of a record are known."""
NO_COPY = -1
"""The due time of a record whose copies were never read."""
UNCOUNTED = (0, 0)
"""The counts of a record that was never delivered."""


class QueuedCopy(NamedTuple):
    """A copy as it was read in the queue. `due_ms`: the steady time at which the record may go out."""

    offset: int
    identity: Identity
    key: bytes
    order: Order
    counts: tuple[int, int]
    """Redrives and retries: of several copies of a record the greatest counts, then the last one."""
    due_ms: int
    """NEVER: it is parked, and waits for a person."""
    written_ms: int = 0
    """When the copy was written, epoch ms."""
    weight: int = 0
    """The bytes that its record takes in memory."""


class Entry(msgspec.Struct, eq=False, gc=False):
    """One record that waits. Thousands may wait behind one head, so what they have in common is one object.

    `moved`: the order of one that was redriven; None: its order is its offset. `offset`: of its copy (−1: none is
    known). `early`: a copy that was read while the lane does not know yet that it is committed. `later`: a copy with
    greater counts than those that the lane has.
    """

    identity: Identity
    key: bytes
    moved: Order | None
    counts: tuple[int, int]
    phase: Phase
    offset: int = -1
    due_ms: int = NO_COPY
    written_ms: int = 0
    weight: int = 0
    listed: bool = False
    """Whether it waits for its time, for main records before it, or to be asked for."""
    early: QueuedCopy | None = None
    later: QueuedCopy | None = None

    @property
    def order(self) -> Order:
        """Its order among those of its key."""
        return Order(self.identity[0]) if self.moved is None else self.moved

    @property
    def rank(self) -> tuple[int, int]:
        """As `Order.rank`."""
        return (self.identity[0], LAST) if self.moved is None else self.moved.rank

    @property
    def is_parked(self) -> bool:
        """Whether its copy lies in the queue and waits for a person."""
        return self.due_ms >= NEVER and self.phase is Phase.QUEUED

    @property
    def at(self) -> tuple[tuple[int, int], Identity]:
        """What the records of a key are sorted by."""
        return self.rank, self.identity


_AT = attrgetter("at")
_OFFSET = attrgetter("offset")


class KeyLine(msgspec.Struct, eq=False, gc=False):
    """The records of one key, the head first. `out`: the one that is asked or taken."""

    entries: list[Entry]
    out: Entry | None = None


class KeyLedger:
    """The ledger of one partition.

    Invariants: an entry stands in the line of its key, once, by its order; no line is empty; of a line only `out` is
    asked or taken; two entries never have one copy; a head that is queued is listed, unless it is parked, or another of
    its key is out.
    """

    def __init__(self) -> None:
        self.read_to = 0
        """Every record of the main partition below this offset was read."""
        self._former_from = NEVER
        """Heads from this offset on are of a former log of the main partition, which has no such offsets now."""
        self._entries: dict[Identity, Entry] = {}
        self._lines: dict[bytes, KeyLine] = {}
        self._numbers = count()
        self._parked: dict[Identity, Entry] = {}
        """Those whose copy in the queue says that they are parked."""
        self._due: list[tuple[int, int, Entry]] = []
        """Heads, by when they are due."""
        self._unread: list[tuple[int, int, Entry]] = []
        """Heads that are due, by the offset up to which the main partition must be read before."""
        self._behind_main: dict[bytes, Entry] = {}
        """Heads that are due, while main records of their keys are under way."""
        self._wanted: deque[Entry] = deque()
        """Heads that may go out."""
        self._held: list[Entry] = []
        """Heads that could go out, and that an operator holds."""
        self._written_ms = self._weight = 0
        """Those of the copy that was read last, as `_shared` rounds them."""

    def __len__(self) -> int:
        return len(self._entries)

    # --- questions --------------------------------------------------------------------------------------------------

    def blocks(self, key: bytes, offset: int) -> bool:
        """Return whether a main record at `offset` must wait: an earlier one of its key does, or any of its key is
        out."""
        line = self._lines.get(key)
        return line is not None and (line.out is not None or line.entries[0].rank < (offset, LAST))

    def has_line(self, key: bytes) -> bool:
        """Return whether any record of a key waits here."""
        return key in self._lines

    def knows(self, identity: Identity, key: bytes) -> bool:
        """Return whether this record of a key waits here."""
        entry = self._entries.get(identity)
        return entry is not None and entry.key == key

    def has_other_key(self, identity: Identity, key: bytes) -> bool:
        """Return whether a record waits here under another key: what has these two is no copy of it."""
        entry = self._entries.get(identity)
        return entry is not None and entry.key != key

    def next_at(self) -> int:
        """Return the steady time (ms) at which the next head is due; NEVER if none waits for its time."""
        return self._due[0][0] if self._due else NEVER

    def waits_for_main(self) -> bool:
        """Return whether a head that is due waits until more of the main partition is read."""
        return bool(self._unread)

    def lowest(self, most: int) -> list[Entry]:
        """Return the records whose copies lie lowest in the queue, and are not being read."""
        queued = (entry for entry in self._entries.values() if entry.phase is Phase.QUEUED)
        return nsmallest(most, queued, key=_OFFSET)

    @property
    def blocked_keys(self) -> int:
        """How many keys have a record that waits."""
        return len(self._lines)

    @property
    def parked_keys(self) -> int:
        """How many keys have a head that is parked. A redriven letter may be ahead of a parked record."""
        return sum(self._lines[entry.key].entries[0] is entry for entry in self._parked.values())

    def largest(self, most: int) -> list[KeyLine]:
        """Return the keys of which the most records wait, the largest first."""
        return nlargest(most, self._lines.values(), key=lambda line: len(line.entries))

    def oldest_at(self) -> int | None:
        """Return the timestamp (epoch ms) of the oldest first record of a key; None if nothing waits."""
        return min((line.entries[0].identity[1] for line in self._lines.values()), default=None)

    @property
    def held_heads(self) -> int:
        """How many heads could go out, and are held."""
        return sum(self._is_free_head(entry) for entry in self._held)

    def parked(self) -> list[Entry]:
        """Return the records that are parked."""
        return list(self._parked.values())

    def entry(self, identity: Identity) -> Entry | None:
        """Return the record of this identity, if it waits here."""
        return self._entries.get(identity)

    def entries(self) -> Iterator[Entry]:
        """Return all records that wait."""
        return iter(self._entries.values())

    # --- the lane writes copies --------------------------------------------------------------------------------------

    def writing(self, identity: Identity, key: bytes, order: Order, counts: tuple[int, int]) -> list[int]:
        """Note that a copy of a record is on its way into Kafka: its key is blocked from now on. Return as `written`
        does. What waits under another key was forged: the lane has the record itself."""
        entry = self._entries.get(identity)
        if entry is not None and entry.key != key:
            return self._forget(entry) + self.writing(identity, key, order, counts)
        if entry is None:
            self._insert(Entry(identity, key, _moved(identity, order), counts, Phase.WRITING))
            return []
        # While this owner was frozen the next one has written a copy, which was read before the answer came.
        theirs = _copy_of(entry) if entry.phase in IN_QUEUE else entry.early
        self._leave_out(entry)
        entry.phase, entry.counts, entry.offset, entry.early = Phase.WRITING, counts, -1, None
        self._offer(self._lines[entry.key])  # a record that is written again as it is need not have been the head
        return [] if theirs is None else self.read(theirs)

    def written(self, identity: Identity) -> list[int]:
        """Note that the copy of a record is in Kafka. Return the offsets of copies that mean nothing any more."""
        entry = self._entries.get(identity)
        if entry is None or entry.phase is not Phase.WRITING:
            return []
        entry.phase = Phase.EXPECTED
        if entry.early is None and entry.later is None:
            return []
        late = [copy for copy in (entry.early, entry.later) if copy is not None]
        entry.early = entry.later = None
        return [offset for copy in late for offset in self.read(copy)]

    def done(self, identity: Identity) -> list[int]:
        """Forget a record that is done or dead: the next of its key is the head. Return as `written` does."""
        entry = self._entries.pop(identity, None)
        if entry is None:
            return []
        self._remove(entry)
        obsolete = [entry.offset] if entry.phase in IN_QUEUE else []  # the record that has ended was not read there
        if entry.early is not None:
            obsolete.append(entry.early.offset)
        return obsolete if entry.later is None else obsolete + self.read(entry.later)

    def _forget(self, entry: Entry) -> list[int]:
        """Forget a record with all copies that lie in the queue; return their offsets."""
        later, entry.later = entry.later, None
        return self.done(entry.identity) + ([] if later is None else [later.offset])

    # --- the queue is read -------------------------------------------------------------------------------------------

    def read(self, copy: QueuedCopy) -> list[int]:
        """Take in a copy of the queue. Return the offsets of copies that mean nothing any more, which are done."""
        entry = self._entries.get(copy.identity)
        if entry is None:
            self._insert(self._queued(copy))
            return []
        if copy.counts < entry.counts or copy.key != entry.key:
            return [copy.offset]
        if entry.phase is Phase.WRITING and copy.counts == entry.counts:
            before, entry.early = entry.early, copy
            return [] if before is None else [before.offset]
        if entry.phase in (Phase.EXPECTED, Phase.QUEUED):
            return self._replace(entry, copy)
        if copy.counts == entry.counts:  # the lane has the same record already
            return [copy.offset]
        before, entry.later = entry.later, copy if entry.later is None else max(entry.later, copy, key=_rank)
        return [] if before is None else [min(before, copy, key=_rank).offset]

    def _replace(self, entry: Entry, copy: QueuedCopy) -> list[int]:
        """Put a copy in the place of an older one; nothing of the record is out."""
        obsolete = [] if entry.offset < 0 else [entry.offset]
        same = _moved(copy.identity, copy.order) == entry.moved
        if same and entry.due_ms == NO_COPY:  # no heap knows it
            entry.phase, entry.counts, entry.offset = Phase.QUEUED, copy.counts, copy.offset
            entry.due_ms, entry.written_ms, entry.weight = copy.due_ms, *self._shared(copy)
            if self._parked or copy.due_ms >= NEVER:
                self._note(entry)
            self._offer(self._lines[entry.key])
            return obsolete
        new = self._queued(copy)
        if not same:  # the older one was forged, or this one is
            del self._entries[entry.identity]
            self._remove(entry)
            self._insert(new)
            return obsolete
        line = self._lines[entry.key]
        new.identity, new.moved, new.key = entry.identity, entry.moved, entry.key  # equal, and held already
        line.entries[self._index(line, entry)] = new
        self._note(new)
        self._offer(line)
        return obsolete

    def _queued(self, copy: QueuedCopy) -> Entry:
        moved, counts = _moved(copy.identity, copy.order), UNCOUNTED if copy.counts == UNCOUNTED else copy.counts
        where = (copy.offset, copy.due_ms, *self._shared(copy))
        return Entry(copy.identity, copy.key, moved, counts, Phase.QUEUED, *where)

    def _shared(self, copy: QueuedCopy) -> tuple[int, int]:
        """Return time and weight of a copy, rounded so that most records share them with others."""
        written_ms, weight = (
            copy.written_ms - copy.written_ms % AGE_STEP_MS,
            -(-copy.weight // WEIGHT_STEP) * WEIGHT_STEP,
        )
        if written_ms != self._written_ms:
            self._written_ms = written_ms
        if weight != self._weight:
            self._weight = weight
        return self._written_ms, self._weight

    # --- heads go out ------------------------------------------------------------------------------------------------

    def advance(self, steady_ms: int, read_to: int, under_way: Callable[[bytes], bool]) -> None:
        """Find the heads that may go out now.

        `read_to`: as the field. `under_way`: whether main records of a key are in the lane's memory.
        """
        self.read_to = read_to
        while self._unread and self._unread[0][0] <= read_to:
            self._pass(heappop(self._unread)[2], under_way)
        while self._due and self._due[0][0] <= steady_ms:
            self._pass(heappop(self._due)[2], under_way)

    def lowest_ahead_of_main(self) -> int:
        """Return the lowest offset up to which a head that is due waits for main to be read; NEVER if none does."""
        return self._unread[0][0] if self._unread else NEVER

    def take_as_former(self, offset: int, under_way: Callable[[bytes], bool]) -> None:
        """Let heads go that wait for main to be read up to `offset` or further: it has no such offsets."""
        self._former_from, waiting = offset, self._unread
        self._unread = []
        for *_, entry in waiting:
            self._pass(entry, under_way)

    def _is_ahead_of_main(self, entry: Entry) -> bool:
        """Return whether main records may come that stand before an entry."""
        return self.read_to < entry.order.offset < self._former_from

    @property
    def waits_for_keys(self) -> bool:
        """Whether heads that are due wait until no main record of their key is under way."""
        return bool(self._behind_main)

    def main_ended(self, key: bytes) -> bool:
        """Note that no main record of a key is under way any more; return whether a head has waited for it."""
        if (entry := self._behind_main.pop(key, None)) is None:
            return False
        self._wanted.append(entry)
        return True

    def ask(
        self, under_way: Callable[[bytes], bool], is_held: Callable[[bytes], bool] = lambda _key: False
    ) -> Entry | None:
        """Return the next head whose payload is to be read now; None if there is none.

        `is_held`: whether an operator holds the records of a key. They stay here until `let_held`.
        """
        while self._wanted:
            entry = self._wanted.popleft()
            if not self._is_free_head(entry):
                entry.listed = False
            elif is_held(entry.key):
                self._held.append(entry)
            elif self._is_ahead_of_main(entry) or under_way(entry.key):
                self._pass(entry, under_way)
            else:
                entry.listed, entry.phase = False, Phase.REQUESTED
                self._lines[entry.key].out = entry
                return entry
        return None

    def let_held(self) -> None:
        """Have the heads asked for again that were held: the holds are others."""
        self._wanted.extend(self._held)
        self._held.clear()

    def take_aside(self, entry: Entry) -> bool:
        """Have the payload of a record read that is to be written again, or settled; False if one of its key is out."""
        line = self._lines[entry.key]
        if line.out is not None or entry.phase is not Phase.QUEUED:
            return False
        entry.listed, entry.phase, line.out = False, Phase.REQUESTED, entry
        return True

    def taken(self, identity: Identity, offset: int) -> bool:
        """Note that the payload of a head was read; return whether it is still wanted from this offset."""
        entry = self._entries.get(identity)
        if entry is None or entry.phase is not Phase.REQUESTED or entry.offset != offset:
            return False
        entry.phase = Phase.TAKEN
        return True

    def let_go(self, identity: Identity) -> None:
        """Note that the lane has dropped a record, or cannot read it now: it goes out later."""
        entry = self._entries.get(identity)
        if entry is not None and entry.phase in OUT:
            self._leave_out(entry)
            entry.phase = Phase.QUEUED
            self._offer(self._lines[entry.key])

    def _pass(self, entry: Entry, under_way: Callable[[bytes], bool]) -> None:
        """Let a head that is due go one step further: main is read up to it, nothing of its key is under way."""
        if not self._is_free_head(entry):
            entry.listed = False
        elif self._is_ahead_of_main(entry):
            heappush(self._unread, (entry.order.offset, next(self._numbers), entry))
        elif under_way(entry.key):
            if (before := self._behind_main.get(entry.key)) is not None:
                before.listed = False  # it is not the head any more
            self._behind_main[entry.key] = entry
        else:
            self._wanted.append(entry)

    def _is_free_head(self, entry: Entry) -> bool:
        line = self._lines.get(entry.key)
        if line is None or line.out is not None or line.entries[0] is not entry:
            return False
        return entry.listed and entry.phase is Phase.QUEUED

    # --- lines -------------------------------------------------------------------------------------------------------

    def _insert(self, entry: Entry) -> None:
        self._note(entry)
        if (line := self._lines.get(entry.key)) is None:
            line = self._lines[entry.key] = KeyLine([entry])
            if entry.phase is Phase.WRITING:
                return  # as after nearly each first failure
        else:
            entry.key = line.entries[0].key  # one object for the whole line
            if line.entries[-1].at < entry.at:  # as nearly always
                line.entries.append(entry)
            else:
                insort(line.entries, entry, key=_AT)
        self._offer(line)

    def _note(self, entry: Entry) -> None:
        self._entries[entry.identity] = entry
        if entry.due_ms >= NEVER:  # until another copy of it is read, also while it is written again
            self._parked[entry.identity] = entry
        elif self._parked:
            self._parked.pop(entry.identity, None)

    def _index(self, line: KeyLine, entry: Entry) -> int:
        return 0 if line.entries[0] is entry else bisect_left(line.entries, entry.at, key=_AT)

    def _remove(self, entry: Entry) -> None:
        line = self._lines[entry.key]
        del line.entries[self._index(line, entry)]
        self._parked.pop(entry.identity, None)
        if not line.entries:
            del self._lines[entry.key]
            return
        self._leave_out(entry)
        self._offer(line)

    def _leave_out(self, entry: Entry) -> None:
        line = self._lines[entry.key]
        if line.out is entry:
            line.out = None

    def _offer(self, line: KeyLine) -> None:
        """List the head of a line, if it lies in the queue, is not parked, and nothing of its key is out."""
        head = line.entries[0]
        if line.out is None and head.phase is Phase.QUEUED and not head.listed and not head.is_parked:
            head.listed = True
            heappush(self._due, (head.due_ms, next(self._numbers), head))

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        parked = {entry.identity for entry in self._entries.values() if entry.due_ms >= NEVER}
        ensure(self._parked.keys() == parked, "what is parked is known")
        offsets = [entry.offset for entry in self._entries.values() if entry.offset >= 0]
        ensure(len(offsets) == len(set(offsets)), "no two records that wait have one copy")
        ensure(sum(len(line.entries) for line in self._lines.values()) == len(self), "each record is in one line")
        for key, line in self._lines.items():
            ensure(bool(line.entries), "no line is empty")
            ensure(line.entries == sorted(line.entries, key=_AT), "a line is in the order of its records")
            ensure(all(entry.key == key for entry in line.entries), "a line has no other keys")
            out = [entry for entry in line.entries if entry.phase in OUT]
            ensure(out == ([] if line.out is None else [line.out]), "one record of a key is out at most")
            head = line.entries[0]
            waits = head.phase is Phase.QUEUED and line.out is None and not head.is_parked
            ensure(head.listed or not waits, f"the head at {head.order} is listed")
            for entry in line.entries:
                ensure(
                    (entry.offset >= 0) == (entry.phase in (Phase.QUEUED, *OUT)),
                    f"{entry.identity} has its copy's order",
                )


def _moved(identity: Identity, order: Order) -> Order | None:
    """Return the order of a record that was redriven; None for any other."""
    return None if order[0] == identity[0] and not order[1] else order


def _copy_of(entry: Entry) -> QueuedCopy:
    """Return the copy at which a record lies in the queue."""
    what = (entry.offset, entry.identity, entry.key, entry.order, entry.counts)
    return QueuedCopy(*what, entry.due_ms, entry.written_ms, entry.weight)


def _rank(copy: QueuedCopy) -> tuple[tuple[int, int], int]:
    return copy.counts, copy.offset
