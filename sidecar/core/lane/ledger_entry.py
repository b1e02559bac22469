"""A record that waits in a queue as the ledger keeps it, and a copy of it as it was read there. Values, no rules."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec

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
    """Where a record of the ledger is; `key_ledger.py` has the table."""

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


class Entry(msgspec.Struct, eq=False, gc=False):
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


def copy_of(entry: Entry) -> QueuedCopy:
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
