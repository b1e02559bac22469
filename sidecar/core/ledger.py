"""What waits in one partition's queue, by key: which record of a key is its head, and whether it may go out.

A record that failed waits in the queue topic, and later ones of its key behind it (`topics/retry_order.py`). The ledger
knows of each its order among those of its key, its attempt, and where its copy lies; the payload is read when it is
due.
Order comes from RETRY_ORDER alone, so that copies may be read, repeated and written again in any order.

    phase     | what happens                        | then
    ----------|-------------------------------------|----------
    none      | it fails, or comes behind its head  | writing
    none      | its copy is read in the queue       | queued
    writing   | its copy is committed               | expected
    writing   | the same, and all before it is read | queued
    writing   | its copy is read, then committed    | queued
    writing   | it ends otherwise                   | none
    expected  | its copy is read in the queue       | queued
    queued    | a newer copy is read                | queued
    queued    | it is the head, due, and asked for  | requested
    requested | its payload is read                 | taken
    requested | its record is dropped               | queued
    taken     | its record is dropped               | queued
    taken     | it fails                            | writing
    taken     | it is done or dead                  | none

One record of a key is asked or taken at a time, and only the head: the lowest of its key. Main records of a key wait
while one below them is here.

The lines of the keys say which keys are blocked: a key whose line is not empty is blocked for main records behind its
head (contract 5.5). The heads say what may go out. Each head is listed in one of these, and passes from one to the
next:

    due          its time
    unread       the main partition to be read up to it, so that it overtakes nothing of its key (contract 5.5)
    behind main  the main records of its key that are under way
    wanted       to be asked for
    far          progress to reach its copy: the first records of the queue hop before
    held         an operator to let it go (contract 10.4)

Nothing is searched in them: an entry that is no head any more when its turn comes is dropped then.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from heapq import heappop, heappush, nlargest, nsmallest
from itertools import chain, count
from operator import attrgetter
from typing import TypeAlias

import msgspec

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.record import NEVER, Record
from reconsume.topics.attempt import Attempt
from reconsume.topics.group_rules import offset_of
from reconsume.topics.retry_order import LARGEST_OFFSET, LAST, Order

Identity: TypeAlias = tuple[int, int]
"""A record of the main partition: its offset and its timestamp. The timestamp tells it from a record at the same offset
of a former log, after the main topic was deleted and made anew."""


BITS = 63
"""Of an offset, or a timestamp: neither is negative, nor larger than a long."""


class Phase(Enum):
    """Where a record of the ledger is; the head of this file has the table."""

    WRITING = "writing"
    """Its copy is on its way into Kafka. The lane has the record."""
    EXPECTED = "expected"
    """Its copy is in Kafka, and was not read back yet."""
    QUEUED = "queued"
    """Its copy lies in the queue at `WaitingEntry.offset`."""
    REQUESTED = "requested"
    """Its copy is being read by its offset."""
    TAKEN = "taken"
    """The lane has the record."""


OUT = (Phase.REQUESTED, Phase.TAKEN)
IN_QUEUE = (Phase.QUEUED, Phase.REQUESTED)
"""The phases in which the lane has not the record, but its copy alone."""
NO_COPY = -1
"""The due time of a record whose copies were never read."""
FIRST_ATTEMPT = Attempt(0, 0, 0)
"""The first attempt at a record, which was never delivered."""


class QueuedCopy(msgspec.Struct, frozen=True, gc=False):
    """A copy as it was read in the queue. `due_ms`: the steady time at which the record may go out."""

    offset: int
    identity: Identity
    key: bytes
    order: Order
    attempt: Attempt
    """Of several copies of a record the one with the latest attempt counts, then the last one."""
    due_ms: int
    """NEVER: it is parked, and waits for a person."""
    written_ms: int = 0
    """When the copy was written, epoch ms."""
    weight: int = 0
    """The bytes that its record takes in memory."""


class WaitingEntry(msgspec.Struct, eq=False, gc=False):
    """One record that waits. Thousands may wait behind one head, so what they have in common is one object.

    `number`: its identity in one number (`packed`). `moved`: the order of one that was redriven; None: its order is its
    offset. `offset`: of its copy (−1: none is known). `extent`: that copy's `written_ms` and `weight`, rounded.

    The ledger writes all of it, but for `listed`, which the heads write, and `key`, which its line may replace.
    """

    number: int
    key: bytes
    moved: Order | None
    attempt: Attempt
    phase: Phase
    offset: int = -1
    due_ms: int = NO_COPY
    extent: tuple[int, int] = (0, 0)
    listed: bool = False
    """Whether it waits for its time, for main records before it, or to be asked for."""

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
        """Whether its copy lies in the queue and waits for a person."""
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


def copy_of(entry: WaitingEntry) -> QueuedCopy:
    """Return the copy at which a record lies in the queue."""
    what = (entry.offset, entry.identity, entry.key, entry.order, entry.attempt)
    return QueuedCopy(*what, entry.due_ms, *entry.extent)


def rank_of_copy(copy: QueuedCopy) -> tuple[Attempt, int]:
    """Return what copies of one record are compared by: the greatest stands."""
    return copy.attempt, copy.offset


def identity_of(record: Record) -> Identity:
    """Return which record of the main partition this is, or is a copy of."""
    if (state := record.retry_state) is None:
        return record.offset, record.timestamp if record.timestamp > 0 else 0
    # Of a copy that was read the timestamp is no negative one, and its order is its offset unless it was redriven.
    return state.order.offset if state.order and not state.order.sequence else offset_of(state.id), state.timestamp


_AT = attrgetter("at")


class KeyLine(msgspec.Struct, eq=False, gc=False):
    """The records of one key, the head first. `out`: the one that is asked or taken."""

    entries: list[WaitingEntry]
    out: WaitingEntry | None = None


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

    def is_head(self, entry: WaitingEntry) -> bool:
        """Return whether an entry is the lowest of its key."""
        return self._lines[entry.key].entries[0] is entry

    def is_free_head(self, entry: WaitingEntry) -> bool:
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

    def insert(self, entry: WaitingEntry) -> KeyLine:
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

    def replace(self, old: WaitingEntry, new: WaitingEntry) -> KeyLine:
        """Put `new` where `old` stands, which has the same key and order, and is not out."""
        line = self._lines[old.key]
        line.entries[_index(line, old)] = new
        return line

    def remove(self, entry: WaitingEntry) -> KeyLine | None:
        """Take an entry away; return None if its line is empty, and gone."""
        line = self._lines[entry.key]
        del line.entries[_index(line, entry)]
        if not line.entries:
            del self._lines[entry.key]
            return None
        if line.out is entry:
            line.out = None
        return line

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


def _index(line: KeyLine, entry: WaitingEntry) -> int:
    # What ends is nearly always the head: without this each end behind a hot key would search its line.
    return 0 if line.entries[0] is entry else bisect_left(line.entries, entry.at, key=_AT)


class DueHeads:
    """The heads of the lines of one partition. Only these write `WaitingEntry.listed`.

    Invariants: a head that is queued is listed, unless it is parked, or another of its key is out; a head that is
    listed stands in one of the lists at least.
    """

    def __init__(self, lines: KeyLines) -> None:
        self._lines = lines
        self.read_to = 0
        """Every record of the main partition below this offset was read."""
        self._former_from = NEVER
        """Heads from this offset on are of a former log of the main partition, which has no such offsets now."""
        self._numbers = count()
        """Of two heads of one time the one that came first goes first; entries themselves have no order."""
        self._due: list[tuple[int, int, WaitingEntry]] = []
        """Heads, by when they are due."""
        self._unread: list[tuple[int, int, WaitingEntry]] = []
        """Heads that are due, by the offset up to which the main partition must be read before."""
        self._behind_main: dict[bytes, WaitingEntry] = {}
        """Heads that are due, while main records of their keys are under way."""
        self._wanted: deque[WaitingEntry] = deque()
        """Heads that may go out."""
        self._far: list[tuple[int, int, WaitingEntry]] = []
        """Heads that could go out, by the offsets of their copies, which progress could not reach."""
        self._held: list[WaitingEntry] = []
        """Heads that could go out, and that an operator holds."""

    # --- questions --------------------------------------------------------------------------------------------------

    def next_at(self) -> int:
        """Return the steady time (ms) at which the next head is due; NEVER if none waits for its time."""
        return self._due[0][0] if self._due else NEVER

    def waits_for_main(self) -> bool:
        """Return whether a head that is due waits until more of the main partition is read."""
        return bool(self._unread)

    def lowest_ahead_of_main(self) -> int:
        """Return the lowest offset up to which a head that is due waits for main to be read; NEVER if none does."""
        return self._unread[0][0] if self._unread else NEVER

    @property
    def waits_for_keys(self) -> bool:
        """Whether heads that are due wait until no main record of their key is under way."""
        return bool(self._behind_main)

    def nearest_far(self) -> int:
        """Return the lowest offset that progress must reach for a head to go out; −1 if no head waits for that."""
        return self._far[0][0] if self._far else -1

    @property
    def held(self) -> int:
        """How many heads could go out, and are held."""
        return sum(self._is_free(entry) for entry in self._held)

    def oldest_due(self) -> int:
        """Return the steady time (ms) since when the oldest head waits that could go out; NEVER if none is listed.

        A head that is not due yet counts with the time at which it will be. Those that are held do not count. Slow: it
        looks at all heads that are due.
        """
        heaps = chain(self._unread, self._far)
        passed = chain((entry for *_, entry in heaps), self._behind_main.values(), self._wanted)
        return min((entry.due_ms for entry in passed if self._is_free(entry)), default=self.next_at())

    def _is_free(self, entry: WaitingEntry) -> bool:
        return entry.listed and self._lines.is_free_head(entry)

    # --- what heads wait for comes -----------------------------------------------------------------------------------

    def offer(self, line: KeyLine) -> None:
        """List the head of a line, if it lies in the queue, is not parked, and nothing of its key is out."""
        head = line.entries[0]
        # Not `is_parked`: this is asked for each copy, and would be a call more.
        if line.out is None and head.phase is Phase.QUEUED and not head.listed and head.due_ms < NEVER:
            head.listed = True
            heappush(self._due, (head.due_ms, next(self._numbers), head))

    def withdraw(self, entry: WaitingEntry) -> None:
        """Take an entry off: it goes out without its turn. It is offered anew when it comes back."""
        entry.listed = False

    def advance(self, steady_ms: int, read_to: int, under_way: Callable[[bytes], bool]) -> None:
        """Find the heads that may go out now.

        `read_to`: as the field. `under_way`: whether main records of a key are in the lane's memory.
        """
        self.read_to = read_to
        while self._unread and self._unread[0][0] <= read_to:
            self._pass(heappop(self._unread)[2], under_way)
        while self._due and self._due[0][0] <= steady_ms:
            self._pass(heappop(self._due)[2], under_way)

    def take_as_former(self, offset: int, under_way: Callable[[bytes], bool]) -> None:
        """Let heads go that wait for main to be read up to `offset` or further: it has no such offsets."""
        self._former_from, waiting = offset, self._unread
        self._unread = []
        for *_, entry in waiting:
            self._pass(entry, under_way)

    def main_ended(self, key: bytes) -> bool:
        """Note that no main record of a key is under way any more; return whether a head has waited for it."""
        if (entry := self._behind_main.pop(key, None)) is None:
            return False
        self._wanted.append(entry)
        return True

    def let_held(self) -> None:
        """Have the heads asked for again that were held: the holds are others."""
        self._wanted.extend(self._held)
        self._held.clear()

    def _pass(self, entry: WaitingEntry, under_way: Callable[[bytes], bool]) -> None:
        """Let a head that is due go one step further: main is read up to it, nothing of its key is under way."""
        if not self._is_free(entry):
            entry.listed = False
        elif self._is_ahead_of_main(entry):
            heappush(self._unread, (entry.order.offset, next(self._numbers), entry))
        elif under_way(entry.key):
            if (before := self._behind_main.get(entry.key)) is not None:
                before.listed = False  # it is not the head any more
            self._behind_main[entry.key] = entry
        else:
            self._wanted.append(entry)

    def _is_ahead_of_main(self, entry: WaitingEntry) -> bool:
        """Return whether main records may come that stand before an entry."""
        return self.read_to < entry.order.offset < self._former_from

    # --- the next one ------------------------------------------------------------------------------------------------

    def take(
        self, under_way: Callable[[bytes], bool], is_held: Callable[[bytes], bool], reach: int = NEVER
    ) -> WaitingEntry | None:
        """Take off the next head that may go out now; None if there is none. As `KeyLedger.ask`."""
        # One that has another copy by now is looked at anew.
        while self._far and (self._far[0][0] < reach or self._far[0][0] != self._far[0][2].offset):
            self._wanted.append(heappop(self._far)[2])
        while self._wanted:
            entry = self._wanted.popleft()
            if not self._is_free(entry):
                entry.listed = False
            elif is_held(entry.key):
                self._held.append(entry)
            elif self._is_ahead_of_main(entry) or under_way(entry.key):
                # A main record of the key has begun since, or its log is another one and was read less far.
                self._pass(entry, under_way)
            elif entry.offset >= reach:
                heappush(self._far, (entry.offset, next(self._numbers), entry))
            else:
                entry.listed = False
                return entry
        return None

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        standing = {id(entry) for heap in (self._due, self._unread, self._far) for *_, entry in heap}
        standing |= {id(entry) for some in (self._behind_main.values(), self._wanted, self._held) for entry in some}
        for line in self._lines.lines():
            head = line.entries[0]
            waits = head.phase is Phase.QUEUED and line.out is None and not head.is_parked
            ensure(head.listed or not waits, f"the head at {head.order} is listed")
            ensure(not head.listed or id(head) in standing, f"the head at {head.order} that is listed stands in a list")


AGE_STEP_MS, WEIGHT_STEP = 60_000, 256
"""The steps in ms and bytes in which age and weight of a record are known."""
_OFFSET = attrgetter("offset")


class KeyLedger:
    """The ledger of one partition. `lines` says which keys are blocked, `heads` what may go out and when.

    Invariants: each entry stands in the line of its key, once; two entries never have one copy; what is parked is
    known; those of `lines` and of `heads`.
    """

    def __init__(self) -> None:
        self.lines = KeyLines()
        self.heads = DueHeads(self.lines)
        self._entries: dict[int, WaitingEntry] = {}
        """The records that wait, by `packed`."""
        self._parked: dict[int, WaitingEntry] = {}
        """Those whose copy in the queue says that they are parked."""
        self.early: dict[int, QueuedCopy] = {}
        """By `packed`: copies that were read before the lane knows that they are committed."""
        self.later: dict[int, QueuedCopy] = {}
        """By `packed`: copies of later attempts than those that the lane has."""
        self._extent = (0, 0)
        """That of the copy that was taken in last, as `_shared` rounds it."""

    def __len__(self) -> int:
        return len(self._entries)

    # --- questions --------------------------------------------------------------------------------------------------

    def knows(self, identity: Identity, key: bytes) -> bool:
        """Return whether this record of a key waits here."""
        entry = self._entries.get(packed(identity))
        return entry is not None and entry.key == key

    def has_other_key(self, identity: Identity, key: bytes) -> bool:
        """Return whether a record waits here under another key: what has these two is no copy of it."""
        entry = self._entries.get(packed(identity))
        return entry is not None and entry.key != key

    def fault_of(self, identity: Identity, key: bytes, attempt: Attempt) -> str:
        """Return why a copy in the queue cannot be one of what waits here; empty if it may be.

        An owner writes each copy of a record behind the one before, and of no earlier attempt. So one that names an
        earlier attempt was forged, or its dead letter was brought back twice, or while main was read anew.
        """
        entry = self._entries.get(packed(identity))
        if entry is None or (entry.key == key and entry.attempt <= attempt):
            return ""
        return "its key is not the one of" if entry.key != key else "it says fewer attempts than"

    def entry(self, identity: Identity) -> WaitingEntry | None:
        """Return the record of this identity, if it waits here."""
        return self._entries.get(packed(identity))

    def entries(self) -> Iterator[WaitingEntry]:
        """Return all records that wait."""
        return iter(self._entries.values())

    def lowest(self, most: int) -> list[WaitingEntry]:
        """Return the records whose copies lie lowest in the queue, and are not being read."""
        queued = (entry for entry in self._entries.values() if entry.phase is Phase.QUEUED)
        return nsmallest(most, queued, key=_OFFSET)

    def parked(self) -> list[WaitingEntry]:
        """Return the records that are parked."""
        return list(self._parked.values())

    @property
    def parked_keys(self) -> int:
        """How many keys have a head that is parked. A redriven letter may be ahead of a parked record."""
        return sum(map(self.lines.is_head, self._parked.values()))

    # --- the lane writes copies --------------------------------------------------------------------------------------

    def writing(self, identity: Identity, key: bytes, order: Order, attempt: Attempt) -> list[int]:
        """Note that a copy of a record is on its way into Kafka: its key is blocked from now on. Return as `written`
        does. If it waits under another key, that copy was forged: the lane has the record itself."""
        number = identity[0] << BITS | identity[1]  # `packed`, without a call for each failure
        entry = self._entries.get(number)
        if entry is not None and entry.key != key:
            return self._forget(entry) + self.writing(identity, key, order, attempt)
        if entry is None:
            entry = self._entries[number] = WaitingEntry(
                number, key, moved_order(identity, order), attempt, Phase.WRITING
            )
            self.lines.insert(entry)  # a head is offered only once its copy was read
            return []
        # While this owner was frozen the next one has written a copy, which was read before the answer came.
        early = self.early.pop(number, None)
        theirs = copy_of(entry) if entry.phase in IN_QUEUE else early
        line = self.lines.come_back(entry)
        entry.phase, entry.attempt, entry.offset = Phase.WRITING, attempt, -1
        self.heads.offer(line)  # a record that is written again as it is need not have been the head
        return [] if theirs is None else self.read(theirs)

    def written(self, identity: Identity, copy: QueuedCopy | None = None) -> list[int]:
        """Note that the copy of a record is in Kafka. Return the offsets of copies that mean nothing any more.

        `copy`: what would be read of it, where all before it was taken in; None: it is to be read.
        """
        number = identity[0] << BITS | identity[1]
        entry = self._entries.get(number)
        if entry is None or entry.phase is not Phase.WRITING:
            return [] if copy is None else self.read(copy)
        late = self._take_late(number) if self.early or self.later else []
        if copy is not None and entry.due_ms == NO_COPY and not late:  # as nearly always
            self._lies(entry, copy)
            return []
        entry.phase = Phase.EXPECTED
        return [offset for one in (late if copy is None else [*late, copy]) for offset in self.read(one)]

    def _take_late(self, number: int) -> list[QueuedCopy]:
        """Remove and return the copies of a record that were read before they could stand for it."""
        late = (self.early.pop(number, None), self.later.pop(number, None))
        return [copy for copy in late if copy is not None]

    def done(self, identity: Identity) -> list[int]:
        """Forget a record that is done or dead: the next of its key is the head. Return as `written` does."""
        entry = self._entries.get(number := packed(identity))
        if entry is None:
            return []
        self._remove(entry)
        obsolete = [entry.offset] if entry.phase in IN_QUEUE else []  # the record that has ended was not read there
        if (early := self.early.pop(number, None)) is not None:
            obsolete.append(early.offset)
        later = self.later.pop(number, None)
        return obsolete if later is None else obsolete + self.read(later)

    def _forget(self, entry: WaitingEntry) -> list[int]:
        """Forget a record with all copies that lie in the queue; return their offsets."""
        later = self.later.pop(entry.number, None)
        return self.done(entry.identity) + ([] if later is None else [later.offset])

    # --- the queue is read -------------------------------------------------------------------------------------------

    def read(self, copy: QueuedCopy) -> list[int]:
        """Take in a copy of the queue. Return the offsets of copies that mean nothing any more, which are done."""
        entry = self._entries.get(number := packed(copy.identity))
        if entry is None:
            self._insert(self._queued(copy))
            return []
        if copy.attempt < entry.attempt or copy.key != entry.key:
            return [copy.offset]
        if entry.phase is Phase.WRITING and copy.attempt == entry.attempt:
            before, self.early[number] = self.early.get(number), copy
            return [] if before is None else [before.offset]
        if entry.phase in (Phase.EXPECTED, Phase.QUEUED):
            return self._replace(entry, copy) if number not in self.later else self._replace_late(entry, copy)
        if copy.attempt == entry.attempt:  # the lane has the same record already
            return [copy.offset]
        before = self.later.get(number)
        self.later[number] = copy if before is None else max(before, copy, key=rank_of_copy)
        return [] if before is None else [min(before, copy, key=rank_of_copy).offset]

    def _replace_late(self, entry: WaitingEntry, copy: QueuedCopy) -> list[int]:
        """Put the greatest in the place of an older copy, of this one and the one that was read while the record was
        out, which was let go since."""
        late = self.later.pop(entry.number)
        lesser, greatest = sorted((late, copy), key=rank_of_copy)
        return [lesser.offset, *self._replace(entry, greatest)]

    def _replace(self, entry: WaitingEntry, copy: QueuedCopy) -> list[int]:
        """Put a copy in the place of an older one; nothing of the record is out."""
        obsolete = [] if entry.offset < 0 else [entry.offset]
        same = moved_order(copy.identity, copy.order) == entry.moved
        if same and entry.due_ms == NO_COPY:
            self._lies(entry, copy)
            return obsolete
        new = self._queued(copy)
        if not same:  # the older one was forged, or this one is
            self._remove(entry)
            self._insert(new)
            return obsolete
        new.number, new.moved, new.key = entry.number, entry.moved, entry.key  # equal, and held already
        self._note(new)
        # An entry of its own: the heads still have the old one, at the time when that was due.
        self.heads.offer(self.lines.replace(entry, new))
        return obsolete

    def _lies(self, entry: WaitingEntry, copy: QueuedCopy) -> None:
        """Note where a record lies of which no copy was known, so that the heads have never had it."""
        entry.phase, entry.offset = Phase.QUEUED, copy.offset
        if copy.attempt != entry.attempt:  # else those are held already
            entry.attempt = copy.attempt
        entry.due_ms, entry.extent = copy.due_ms, self._shared(copy)
        if self._parked or copy.due_ms >= NEVER:
            self._note(entry)
        self.heads.offer(self.lines.by_key[entry.key])

    def _queued(self, copy: QueuedCopy) -> WaitingEntry:
        moved, attempt = (
            moved_order(copy.identity, copy.order),
            FIRST_ATTEMPT if copy.attempt == FIRST_ATTEMPT else copy.attempt,
        )
        where = (copy.offset, copy.due_ms, self._shared(copy))
        return WaitingEntry(packed(copy.identity), copy.key, moved, attempt, Phase.QUEUED, *where)

    def _shared(self, copy: QueuedCopy) -> tuple[int, int]:
        """Return time and weight of a copy, rounded so that most records share them with others."""
        written_ms, weight = copy.written_ms, copy.weight
        extent = written_ms - written_ms % AGE_STEP_MS, -(-weight // WEIGHT_STEP) * WEIGHT_STEP
        if extent != self._extent:
            self._extent = extent
        return self._extent

    def _insert(self, entry: WaitingEntry) -> None:
        self._note(entry)
        self.heads.offer(self.lines.insert(entry))

    def _note(self, entry: WaitingEntry) -> None:
        self._entries[entry.number] = entry
        if entry.due_ms >= NEVER:  # until another copy of it is read, also while it is written again
            self._parked[entry.number] = entry
        elif self._parked:
            self._parked.pop(entry.number, None)

    def _remove(self, entry: WaitingEntry) -> None:
        del self._entries[entry.number]
        self._parked.pop(entry.number, None)
        if (line := self.lines.remove(entry)) is not None:
            self.heads.offer(line)

    # --- records go out and come back --------------------------------------------------------------------------------

    def ask(
        self,
        under_way: Callable[[bytes], bool],
        is_held: Callable[[bytes], bool] = lambda _key: False,
        reach: int = NEVER,
    ) -> WaitingEntry | None:
        """Return the next head whose payload is to be read now; None if there is none.

        `under_way`: as in `DueHeads.advance`. `is_held`: whether an operator holds the records of a key. They stay here
        until `DueHeads.let_held`. `reach`: the offset from which on no record can be marked as done; heads there stay.
        """
        if (entry := self.heads.take(under_way, is_held, reach)) is not None:
            self.lines.go_out(entry)
            entry.phase = Phase.REQUESTED
        return entry

    def take_aside(self, entry: WaitingEntry) -> bool:
        """Have the payload of a record read that is to be written again, or settled; False if one of its key is out."""
        if entry.phase is not Phase.QUEUED or not self.lines.go_out(entry):
            return False
        self.heads.withdraw(entry)
        entry.phase = Phase.REQUESTED
        return True

    def taken(self, identity: Identity, offset: int) -> bool:
        """Note that the payload of a head was read; return whether it is still wanted from this offset."""
        entry = self._entries.get(packed(identity))
        if entry is None or entry.phase is not Phase.REQUESTED or entry.offset != offset:
            return False
        entry.phase = Phase.TAKEN
        return True

    def put_back(self, identity: Identity) -> None:
        """Note that the lane has dropped a record, or cannot read it now: it goes out later."""
        entry = self._entries.get(packed(identity))
        if entry is not None and entry.phase in OUT:
            entry.phase = Phase.QUEUED
            self.heads.offer(self.lines.come_back(entry))

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        parked = {entry.number for entry in self._entries.values() if entry.due_ms >= NEVER}
        ensure(self._parked.keys() == parked, "what is parked is known")
        ensure(self.early.keys() | self.later.keys() <= self._entries.keys(), "late copies are of what waits")
        offsets = [entry.offset for entry in self._entries.values() if entry.offset >= 0]
        ensure(len(offsets) == len(set(offsets)), "no two records that wait have one copy")
        in_lines = [entry for line in self.lines.lines() for entry in line.entries]
        ensure(len(in_lines) == len(self), "each record is in one line")
        for entry in in_lines:
            has_copy = entry.phase in (Phase.QUEUED, *OUT)
            ensure(self._entries.get(entry.number) is entry, f"{entry.identity} stands in its line as it is known")
            ensure((entry.offset >= 0) == has_copy, f"{entry.identity} has its copy's order")
        self.lines.check()
        self.heads.check()
