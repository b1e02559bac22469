"""Leases (pull mode): which records may be received, which are out until when, and what has become of a lease.

Pure: no clock and no handles. Times come in as steady ms; a lease is known by its number, which is never used again.
`queue.py` turns numbers into handles and wakes who waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from enum import IntEnum, StrEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from sidecar.core.ports import Reply
from sidecar.core.record import NEVER, Partition, Record

REMEMBERED = 1 << 20
"""The fate of so many leases, the latest, is kept, at one byte each: some minutes at ten thousand a second."""


class LeaseEnd(IntEnum):
    """How a lease ended. The first four are verdicts of the service."""

    ACKED = 1
    NACKED = 2
    RETRIED = 3
    CONDEMNED = 4
    EXPIRED = 5
    FENCED = 6


class HandleStatus(StrEnum):
    """What a call with a handle is told (INTERFACE §3).

    ok: it holds, or the same verdict was given before. expired: the lease ended before it. fenced: the handle does not
    speak for the record: its assignment is over, it was replaced, or another verdict was given with it.
    """

    OK = "ok"
    EXPIRED = "expired"
    FENCED = "fenced"
    UNKNOWN = "unknown"


class ReadyRecord(NamedTuple):
    """A record that may be received, and whom to tell what comes of it."""

    record: Record
    reply: Reply


class Lease(NamedTuple):
    """A record that is out. `since` is when it was received, `until` when the lease ends; steady ms."""

    number: int
    record: Record
    reply: Reply
    since: int
    until: int


class LeaseTable:
    """All records of pull mode, in the order in which they became ready."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self.ready: deque[ReadyRecord] = deque()
        self._out: dict[int, Lease] = {}
        self._ends: list[tuple[int, int]] = []
        """(until, number); entries of leases that are over stay until they are met, or become too many."""
        self._fates = bytearray(remembered)
        self._next = 0

    def __len__(self) -> int:
        """How many leases are out."""
        return len(self._out)

    @property
    def next_end(self) -> int:
        """When to look for expired leases: not after the first one's end."""
        return self._ends[0][0] if self._ends else NEVER

    def add(self, record: Record, reply: Reply) -> None:
        """A record may be received."""
        self.ready.append(ReadyRecord(record, reply))

    def take(self, most: int, weight: int, invisible: int, now: int) -> list[Lease]:
        """Lease at most `most` records, of at most `weight` bytes after the first, until `now` + `invisible` ms."""
        taken: list[Lease] = []
        while self.ready and len(taken) < most:
            weight -= self.ready[0].record.weight
            if weight < 0 and taken:
                break
            record, reply = self.ready.popleft()
            taken.append(self._lease(record, reply, now, now + invisible))
        return taken

    def settle(self, number: int, verdict: LeaseEnd) -> tuple[HandleStatus, Lease | None]:
        """End a lease by a verdict; with the lease when this call has ended it."""
        lease = self._end(number, verdict)
        if lease is not None:
            return HandleStatus.OK, lease
        return self._status(number, verdict), None

    def change(self, number: int, invisible: int, now: int) -> Lease | HandleStatus:
        """A new lease of the record, from now on, in place of this one; else why not."""
        lease = self._end(number, LeaseEnd.FENCED)
        if lease is None:
            return self._status(number, None)
        return self._lease(lease.record, lease.reply, lease.since, now + invisible)

    def expire(self, now: int) -> list[Lease]:
        """End the leases whose time is over."""
        over = []
        while self._ends and self._ends[0][0] <= now:
            lease = self._end(heappop(self._ends)[1], LeaseEnd.EXPIRED)
            if lease is not None:
                over.append(lease)
        return over

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> list[ReadyRecord]:
        """Take back what may be received of some partitions; when `lost`, end their leases too."""
        back = [waiting for waiting in self.ready if waiting.record.source in partitions]
        if back:
            self.ready = deque(waiting for waiting in self.ready if waiting.record.source not in partitions)
        return [*back, *self._fence(partitions)] if lost else back

    def _fence(self, partitions: Collection[Partition]) -> Iterable[ReadyRecord]:
        for lease in [lease for lease in self._out.values() if lease.record.source in partitions]:
            self._end(lease.number, LeaseEnd.FENCED)
            yield ReadyRecord(lease.record, lease.reply)

    def _lease(self, record: Record, reply: Reply, since: int, until: int) -> Lease:
        number, self._next = self._next, self._next + 1
        lease = self._out[number] = Lease(number, record, reply, since, until)
        self._fates[number % len(self._fates)] = 0
        heappush(self._ends, (until, number))
        return lease

    def _end(self, number: int, fate: LeaseEnd) -> Lease | None:
        lease = self._out.pop(number, None)
        if lease is None:
            return None
        if self._remembers(number):
            self._fates[number % len(self._fates)] = fate
        if len(self._ends) > 2 * len(self._out) + 64:  # leases of hours that were answered at once would pile up
            self._ends = [(lease.until, lease.number) for lease in self._out.values()]
            heapify(self._ends)
        return lease

    def _remembers(self, number: int) -> bool:
        return number >= self._next - len(self._fates)

    def _status(self, number: int, verdict: LeaseEnd | None) -> HandleStatus:
        """What to say of a lease that is over; expired where that is so long ago that its fate is forgotten."""
        fate = self._fates[number % len(self._fates)] if self._remembers(number) else LeaseEnd.EXPIRED
        if fate == verdict:
            return HandleStatus.OK
        return HandleStatus.EXPIRED if fate == LeaseEnd.EXPIRED else HandleStatus.FENCED
