"""Leases of pull mode: which records may be received, which are leased until when, and how each lease ended.

Pure: no clock and no handles. Times come in as steady ms. Each lease has a number, which is never used again.
`queue.py` turns numbers into handles and wakes waiting callers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from enum import IntEnum, StrEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from reconsume.sidecar.core.ports import Reply
from reconsume.sidecar.core.record import NEVER, Partition, Record

REMEMBERED = 1 << 20
"""Ends of leases that are remembered, the latest ones, at one byte each. At 10 000 leases a second this is about 105 s.
A forgotten lease is answered as `expired`, whatever its end was."""


class LeaseEnd(IntEnum):
    """The ways in which a lease can end. The first five are verdicts of the service."""

    ACKED = 1
    NACKED = 2
    RETRIED = 3
    CONDEMNED = 4
    RELEASED = 5
    EXPIRED = 6
    FENCED = 7


class HandleStatus(StrEnum):
    """The answer to a call with a handle (contract 6.5).

    ok: the lease was held, or the same verdict was given before. expired: the lease ended before the call. fenced: the
    handle is no longer valid for the record. Its assignment is over, the handle was replaced, or another verdict was
    given with it. unknown: the text is not a handle.
    """

    OK = "ok"
    EXPIRED = "expired"
    FENCED = "fenced"
    UNKNOWN = "unknown"


class ReadyRecord(NamedTuple):
    """A record that may be received, and the callback for its outcome."""

    record: Record
    reply: Reply


class Lease(NamedTuple):
    """A leased record. `since` is when the service received it, `until` is when the lease ends; both in steady ms."""

    number: int
    record: Record
    reply: Reply
    since: int
    until: int


class LeaseTable:
    """Hold all records of pull mode: those ready to be received, and those that are leased.

    Records are received in the order in which they became ready.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self.ready: deque[ReadyRecord] = deque()
        self._out: dict[int, Lease] = {}
        self._ends: list[tuple[int, int]] = []
        """(until, number) pairs, as a heap. Entries of ended leases stay until they reach the top or become too
        many."""
        self._fates = bytearray(remembered)
        self._next = 0

    def __len__(self) -> int:
        """Return the number of current leases."""
        return len(self._out)

    @property
    def next_end(self) -> int:
        """The time (steady ms) to look for expired leases: at the end of the first current lease, or before it."""
        return self._ends[0][0] if self._ends else NEVER

    def add_ready(self, record: Record, reply: Reply) -> None:
        """Make a record ready to be received."""
        self.ready.append(ReadyRecord(record, reply))

    def lease_records(self, most: int, weight: int, invisible: int, now: int) -> list[Lease]:
        """Lease at most `most` records until `now` + `invisible` ms.

        They have at most `weight` bytes together, unless the first record alone has more.
        """
        taken: list[Lease] = []
        while self.ready and len(taken) < most:
            weight -= self.ready[0].record.weight
            if weight < 0 and taken:
                break
            record, reply = self.ready.popleft()
            taken.append(self._lease(record, reply, now, now + invisible))
        return taken

    def settle(self, number: int, verdict: LeaseEnd) -> tuple[HandleStatus, Lease | None]:
        """End a lease by a verdict; also return the lease if this call has ended it."""
        lease = self._end_lease(number, verdict)
        if lease is not None:
            return HandleStatus.OK, lease
        return self._status(number, verdict), None

    def change(self, number: int, invisible: int, now: int) -> Lease | HandleStatus:
        """Replace a lease by one that ends `invisible` ms from now. Return the status if the lease is over."""
        lease = self._end_lease(number, LeaseEnd.FENCED)
        if lease is None:
            return self._status(number, None)
        return self._lease(lease.record, lease.reply, lease.since, now + invisible)

    def expire(self, now: int) -> list[Lease]:
        """End the leases whose time is over, and return them."""
        over = []
        while self._ends and self._ends[0][0] <= now:
            lease = self._end_lease(heappop(self._ends)[1], LeaseEnd.EXPIRED)
            if lease is not None:
                over.append(lease)
        return over

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> list[ReadyRecord]:
        """Take back the ready records of some partitions. If `lost`, end the leases of these partitions too."""
        back = self.withdraw(lambda record: record.source in partitions)
        return [*back, *self._fence(partitions)] if lost else back

    def withdraw(self, leaves: Callable[[Record], bool]) -> list[ReadyRecord]:
        """Take back the ready records that leave."""
        back, stays = list[ReadyRecord](), deque[ReadyRecord]()
        for waiting in self.ready:
            (back if leaves(waiting.record) else stays).append(waiting)
        self.ready = stays
        return back

    def _fence(self, partitions: Collection[Partition]) -> Iterable[ReadyRecord]:
        for lease in [lease for lease in self._out.values() if lease.record.source in partitions]:
            self._end_lease(lease.number, LeaseEnd.FENCED)
            yield ReadyRecord(lease.record, lease.reply)

    def _lease(self, record: Record, reply: Reply, since: int, until: int) -> Lease:
        number, self._next = self._next, self._next + 1
        lease = self._out[number] = Lease(number, record, reply, since, until)
        self._fates[number % len(self._fates)] = 0
        heappush(self._ends, (until, number))
        return lease

    def _end_lease(self, number: int, fate: LeaseEnd) -> Lease | None:
        lease = self._out.pop(number, None)
        if lease is None:
            return None
        if self._remembers(number):
            self._fates[number % len(self._fates)] = fate
        if len(self._ends) > 2 * len(self._out) + 64:  # else entries of long leases, answered at once, would pile up
            self._ends = [(lease.until, lease.number) for lease in self._out.values()]
            heapify(self._ends)
        return lease

    def _remembers(self, number: int) -> bool:
        return number >= self._next - len(self._fates)

    def _status(self, number: int, verdict: LeaseEnd | None) -> HandleStatus:
        """Return the status of a lease that is over: expired if its end is no longer remembered."""
        fate = self._fates[number % len(self._fates)] if self._remembers(number) else LeaseEnd.EXPIRED
        if fate == verdict:
            return HandleStatus.OK
        return HandleStatus.EXPIRED if fate == LeaseEnd.EXPIRED else HandleStatus.FENCED
