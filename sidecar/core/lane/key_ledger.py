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
    requested | its payload is let go               | queued
    taken     | its payload is let go               | queued
    taken     | it fails                            | writing
    taken     | it is done or dead                  | none

One record of a key is asked or taken at a time, and only the head: the lowest of its key. Main records of a key wait
while one below them is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nsmallest
from operator import attrgetter

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.due_heads import DueHeads
from reconsume.sidecar.core.lane.key_lines import KeyLines
from reconsume.sidecar.core.lane.ledger_entry import (
    BITS,
    FIRST_ATTEMPT,
    IN_QUEUE,
    NO_COPY,
    OUT,
    Entry,
    Identity,
    Phase,
    QueuedCopy,
    copy_of,
    moved_order,
    packed,
    rank_of_copy,
)
from reconsume.sidecar.core.record import NEVER
from reconsume.topics.attempt import Attempt
from reconsume.topics.retry_order import Order

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
        self._entries: dict[int, Entry] = {}
        """The records that wait, by `packed`."""
        self._parked: dict[int, Entry] = {}
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

    def entry(self, identity: Identity) -> Entry | None:
        """Return the record of this identity, if it waits here."""
        return self._entries.get(packed(identity))

    def entries(self) -> Iterator[Entry]:
        """Return all records that wait."""
        return iter(self._entries.values())

    def lowest(self, most: int) -> list[Entry]:
        """Return the records whose copies lie lowest in the queue, and are not being read."""
        queued = (entry for entry in self._entries.values() if entry.phase is Phase.QUEUED)
        return nsmallest(most, queued, key=_OFFSET)

    def parked(self) -> list[Entry]:
        """Return the records that are parked."""
        return list(self._parked.values())

    @property
    def parked_keys(self) -> int:
        """How many keys have a head that is parked. A redriven letter may be ahead of a parked record."""
        return sum(map(self.lines.is_head, self._parked.values()))

    # --- the lane writes copies --------------------------------------------------------------------------------------

    def writing(self, identity: Identity, key: bytes, order: Order, attempt: Attempt) -> list[int]:
        """Note that a copy of a record is on its way into Kafka: its key is blocked from now on. Return as `written`
        does. What waits under another key was forged: the lane has the record itself."""
        number = identity[0] << BITS | identity[1]  # `packed`, without a call for each failure
        entry = self._entries.get(number)
        if entry is not None and entry.key != key:
            return self._forget(entry) + self.writing(identity, key, order, attempt)
        if entry is None:
            entry = self._entries[number] = Entry(number, key, moved_order(identity, order), attempt, Phase.WRITING)
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

    def _forget(self, entry: Entry) -> list[int]:
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

    def _replace_late(self, entry: Entry, copy: QueuedCopy) -> list[int]:
        """Put the greatest in the place of an older copy, of this one and the one that was read while the record was
        out, which was let go since."""
        late = self.later.pop(entry.number)
        lesser, greatest = sorted((late, copy), key=rank_of_copy)
        return [lesser.offset, *self._replace(entry, greatest)]

    def _replace(self, entry: Entry, copy: QueuedCopy) -> list[int]:
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

    def _lies(self, entry: Entry, copy: QueuedCopy) -> None:
        """Note where a record lies of which no copy was known, so that the heads have never had it."""
        entry.phase, entry.offset = Phase.QUEUED, copy.offset
        if copy.attempt != entry.attempt:  # else those are held already
            entry.attempt = copy.attempt
        entry.due_ms, entry.extent = copy.due_ms, self._shared(copy)
        if self._parked or copy.due_ms >= NEVER:
            self._note(entry)
        self.heads.offer(self.lines.by_key[entry.key])

    def _queued(self, copy: QueuedCopy) -> Entry:
        moved, attempt = (
            moved_order(copy.identity, copy.order),
            FIRST_ATTEMPT if copy.attempt == FIRST_ATTEMPT else copy.attempt,
        )
        where = (copy.offset, copy.due_ms, self._shared(copy))
        return Entry(packed(copy.identity), copy.key, moved, attempt, Phase.QUEUED, *where)

    def _shared(self, copy: QueuedCopy) -> tuple[int, int]:
        """Return time and weight of a copy, rounded so that most records share them with others."""
        written_ms, weight = copy.written_ms, copy.weight
        extent = written_ms - written_ms % AGE_STEP_MS, -(-weight // WEIGHT_STEP) * WEIGHT_STEP
        if extent != self._extent:
            self._extent = extent
        return self._extent

    def _insert(self, entry: Entry) -> None:
        self._note(entry)
        self.heads.offer(self.lines.insert(entry))

    def _note(self, entry: Entry) -> None:
        self._entries[entry.number] = entry
        if entry.due_ms >= NEVER:  # until another copy of it is read, also while it is written again
            self._parked[entry.number] = entry
        elif self._parked:
            self._parked.pop(entry.number, None)

    def _remove(self, entry: Entry) -> None:
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
    ) -> Entry | None:
        """Return the next head whose payload is to be read now; None if there is none.

        `under_way`: as in `DueHeads.advance`. `is_held`: whether an operator holds the records of a key. They stay here
        until `DueHeads.let_held`. `reach`: the offset from which on no record can be marked as done; heads there stay.
        """
        if (entry := self.heads.take(under_way, is_held, reach)) is not None:
            self.lines.go_out(entry)
            entry.phase = Phase.REQUESTED
        return entry

    def take_aside(self, entry: Entry) -> bool:
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

    def let_go(self, identity: Identity) -> None:
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
