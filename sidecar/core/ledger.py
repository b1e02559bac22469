"""What waits in one partition's queue: which record, with which attempt, and where its copy is.

A record that failed waits in the queue topic, and later ones of its key behind it (`topics/retry_order.py`). The ledger
knows of each its order among those of its key, its attempt, and where its copy is; the payload is read when it is due.
Order comes from RETRY_ORDER alone, so copies may be read, repeated and written again in any order.

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

Of several copies of a record one counts: that of the latest attempt, of these the last one. The others are done. While
the lane has a record, or reads it, no other copy takes its place: only a later owner could write one, and what this
lane does is refused then. What the lane itself writes of a record replaces what is in the queue.

`lines` says which keys are blocked (`key_lines.py`), `heads` what may go out, and when (`due_heads.py`). `OwnedQueue`
(`owned_queue.py`) owns the ledger. Event loop alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nsmallest
from operator import attrgetter

import msgspec

from reconsume.sidecar.core.due_heads import DueHeads, UnderWay
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.key_lines import (
    BITS,
    OUT,
    Identity,
    KeyLines,
    Phase,
    WaitingEntry,
    moved_order,
    packed,
)
from reconsume.sidecar.core.record import NEVER, Record
from reconsume.topics.attempt import Attempt
from reconsume.topics.group_rules import offset_of
from reconsume.topics.retry_order import Order

FIRST_ATTEMPT = Attempt(0, 0, 0)
"""The first attempt at a record, which was never delivered."""
AGE_STEP_MS, WEIGHT_STEP = 60_000, 256
"""The steps in ms and bytes in which age and weight of a record are known."""
_OFFSET = attrgetter("offset")


class QueuedCopy(msgspec.Struct, frozen=True, gc=False):
    """A copy as it was read in the queue. `due_ms`: the steady time at which the record may go out."""

    offset: int
    identity: Identity
    key: bytes
    order: Order
    attempt: Attempt
    due_ms: int
    """NEVER: it is parked, and waits for an operator."""
    written_ms: int = 0
    """When the copy was written, epoch ms."""
    weight: int = 0
    """The bytes that its record takes in memory."""


def identity_of(record: Record) -> Identity:
    """Return which record of the main partition this is, or is a copy of."""
    if (state := record.retry_state) is None:
        return record.offset, record.timestamp if record.timestamp > 0 else 0
    # Of a copy that was read the timestamp is no negative one, and its order is its offset unless it was redriven.
    return state.order.offset if state.order and not state.order.sequence else offset_of(state.id), state.timestamp


class KeyLedger:
    """The ledger of one partition.

    Invariants: each entry is in the line of its key, once; two entries never have one copy; what is queued, requested
    or taken has one; what is parked is known; those of `lines` and of `heads`.
    """

    def __init__(self) -> None:
        self.lines = KeyLines()
        self.heads = DueHeads(self.lines)
        self._entries: dict[int, WaitingEntry] = {}
        """The records that wait, by `packed`."""
        self._parked: dict[int, WaitingEntry] = {}
        """Those whose copy in the queue says that they are parked."""
        self._extent = (0, 0)
        """That of the copy that was taken in last, as `_shared` rounds it."""

    def __len__(self) -> int:
        return len(self._entries)

    # --- questions --------------------------------------------------------------------------------------------------

    def entry(self, identity: Identity) -> WaitingEntry | None:
        """Return the record of this identity, if it waits here."""
        return self._entries.get(packed(identity))

    def entries(self) -> Iterator[WaitingEntry]:
        """Return all records that wait."""
        return iter(self._entries.values())

    def has_other_key(self, identity: Identity, key: bytes) -> bool:
        """Return whether a record waits here under another key: what has these two is no copy of it."""
        entry = self._entries.get(packed(identity))
        return entry is not None and entry.key != key

    def fault_of(self, identity: Identity, key: bytes, attempt: Attempt) -> str:
        """Return why a copy in the queue cannot be one of what waits here; empty if it may be.

        An owner writes each copy of a record behind the one before, and of no earlier attempt. So one that names an
        earlier attempt was forged, or its dead letter was brought back twice, or while main was read again. So was one
        of a later attempt than that of the record that this owner has: nobody else may write the next one.
        """
        entry = self._entries.get(packed(identity))
        if entry is None:
            return ""
        if entry.key != key:
            return "its key is not the one of"
        if attempt < entry.attempt:
            return "it says fewer attempts than"
        return "it says more attempts than" if attempt > entry.attempt and entry.phase in OUT else ""

    def lowest(self, most: int) -> list[WaitingEntry]:
        """Return the records whose copies are lowest in the queue, and are not being read."""
        queued = (entry for entry in self._entries.values() if entry.phase is Phase.QUEUED)
        return nsmallest(most, queued, key=_OFFSET)

    def parked(self) -> list[WaitingEntry]:
        """Return the records that are parked."""
        return list(self._parked.values())

    @property
    def parked_keys(self) -> int:
        """How many keys have a head that is parked. A redriven letter may be ahead of a parked record."""
        return sum(map(self.lines.is_head, self._parked.values()))

    # --- the lane writes copies: each returns the offsets of copies that mean nothing any more ------------------------

    def writing(self, identity: Identity, key: bytes, order: Order, attempt: Attempt) -> list[int]:
        """Note that a copy of a record is on its way into Kafka: its key is blocked from now on. If it waits under
        another key, that copy was forged: the lane has the record itself."""
        number = identity[0] << BITS | identity[1]  # `packed`, without a call for each failure
        entry = self._entries.get(number)
        if entry is not None and entry.key != key:
            return self.done(identity) + self.writing(identity, key, order, attempt)
        if entry is None:
            moved = moved_order(identity, order)
            entry = self._entries[number] = WaitingEntry(number, key, moved, attempt, Phase.WRITING)
            self.lines.insert(entry)  # a head is offered only once its copy was read
            return []
        obsolete = _copies_of(entry)
        line = self.lines.come_back(entry)
        self.heads.withdraw(entry)
        entry.phase, entry.attempt, entry.offset = Phase.WRITING, attempt, -1
        self.heads.offer(line)  # a record that is written again as it is need not have been the head
        return obsolete

    def written(self, identity: Identity, copy: QueuedCopy | None = None) -> list[int]:
        """Note that the copy of a record is in Kafka.

        `copy`: what would be read of it, where all before it was taken in; None: it is to be read.
        """
        entry = self._entries.get(identity[0] << BITS | identity[1])
        if entry is not None and entry.phase is Phase.WRITING:
            entry.phase = Phase.EXPECTED if entry.offset < 0 else Phase.QUEUED
            self.heads.offer(self.lines.by_key[entry.key])
        return [] if copy is None else self.read(copy)

    def done(self, identity: Identity) -> list[int]:
        """Forget a record that is done or dead: the next of its key is the head."""
        number = packed(identity)
        if (entry := self._entries.pop(number, None)) is None:
            return []
        self._parked.pop(number, None)
        if (line := self.lines.remove(entry)) is not None:
            self.heads.offer(line)
        return _copies_of(entry)

    # --- the queue is read -------------------------------------------------------------------------------------------

    def read(self, copy: QueuedCopy) -> list[int]:
        """Take in a copy of the queue. Return the offsets of copies that mean nothing any more, which are done."""
        entry = self._entries.get(number := packed(copy.identity))
        if entry is None:
            moved = moved_order(copy.identity, copy.order)
            entry = self._entries[number] = WaitingEntry(number, copy.key, moved, FIRST_ATTEMPT, Phase.QUEUED)
            self.lines.insert(entry)
        elif copy.attempt < entry.attempt or copy.key != entry.key or entry.phase in OUT:
            return [copy.offset]
        obsolete = [] if entry.offset < 0 else [entry.offset]
        if entry.phase is Phase.EXPECTED:
            entry.phase = Phase.QUEUED
        if (moved := moved_order(copy.identity, copy.order)) != entry.moved:  # the older one was forged, or this one is
            self._reorder(entry, moved)
        if copy.attempt != entry.attempt:  # else those are held already
            entry.attempt = copy.attempt
        if self._parked or copy.due_ms >= NEVER:
            self._note_parked(entry, copy)
        entry.offset, entry.due_ms, entry.extent = copy.offset, copy.due_ms, self._shared(copy)
        if entry.ticket:  # it waited for the time of the older one
            self.heads.withdraw(entry)
        self.heads.offer(self.lines.by_key[entry.key])
        return obsolete

    def _reorder(self, entry: WaitingEntry, moved: Order | None) -> None:
        self.heads.withdraw(entry)
        if (line := self.lines.remove(entry)) is not None:
            self.heads.offer(line)
        entry.moved = moved
        self.lines.insert(entry)

    def _shared(self, copy: QueuedCopy) -> tuple[int, int]:
        """Return time and weight of a copy, rounded so that most records share them with others."""
        written_ms, weight = copy.written_ms, copy.weight
        extent = written_ms - written_ms % AGE_STEP_MS, -(-weight // WEIGHT_STEP) * WEIGHT_STEP
        if extent != self._extent:
            self._extent = extent
        return self._extent

    def _note_parked(self, entry: WaitingEntry, copy: QueuedCopy) -> None:
        if copy.due_ms >= NEVER:  # until another copy of it is read, also while it is written again
            self._parked[entry.number] = entry
        else:
            self._parked.pop(entry.number, None)

    # --- records go out and come back --------------------------------------------------------------------------------

    def ask(
        self,
        under_way: UnderWay,
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
        """Note that the payload of a record was read; return whether it is still wanted from this offset."""
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
        offsets = [entry.offset for entry in self._entries.values() if entry.offset >= 0]
        ensure(len(offsets) == len(set(offsets)), "no two records that wait have one copy")
        in_lines = [entry for line in self.lines.by_key.values() for entry in line.entries]
        ensure(len(in_lines) == len(self), "each record is in one line")
        for entry in in_lines:
            ensure(self._entries.get(entry.number) is entry, f"{entry.identity} is in its line as it is known")
            is_in_queue = entry.phase in (Phase.QUEUED, *OUT)
            ensure(entry.phase is Phase.WRITING or (entry.offset >= 0) == is_in_queue, f"{entry.identity} has its copy")
        self.lines.check()
        self.heads.check()


def _copies_of(entry: WaitingEntry) -> list[int]:
    """Return the offset of the copy of a record that is in the queue, and not done with the record itself."""
    return [] if entry.offset < 0 or entry.phase is Phase.TAKEN else [entry.offset]
