"""Pull mode on the event loop: records wait to be received, go out under leases, and verdicts or the clock end these.

The rules of leases are `lease_table.py`; the calls of the service are `api/pull.py`. A lease's end is an outcome like
that of a push: what follows from it is the lane's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from sidecar.core.counters import Histogram
from sidecar.core.outcome import CANCELLED, EXPIRED, Outcome
from sidecar.core.ports import Reply
from sidecar.core.record import NEVER, Now, Partition, Record
from sidecar.delivery.pull.handles import ReceiptHandles
from sidecar.delivery.pull.lease_table import HandleStatus, Lease, LeaseEnd, LeaseTable, ReadyRecord
from sidecar.delivery.pull.long_poll import LongPollQueue

DURATION_BOUNDS = (0.01, 0.1, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 43_200.0)
"""Seconds from the receive to the end of the lease, up to the longest one."""
MOST_BYTES = 4 << 20
"""Of records in one answer, unless a single one has more: a larger answer would keep everybody else waiting."""


class Received(NamedTuple):
    """A record that the service has got, and the handle to answer with."""

    handle: str
    record: Record


class PullQueue:
    """Implements `core.ports.Delivery`: the service asks for records and answers by their handles."""

    def __init__(self, clock: Callable[[], Now]) -> None:
        self.durations = Histogram(DURATION_BOUNDS)
        self.fenced = 0
        """Verdicts that came too late: their partition is somebody else's by now, or their handle was replaced."""
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._table = LeaseTable()
        self._handles = ReceiptHandles()
        self._line = LongPollQueue(lambda: bool(self._table.ready))
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = NEVER
        self._closed = False

    # --- what the lanes ask ------------------------------------------------------------------------------------------

    def __call__(self, record: Record, reply: Reply) -> None:
        """Make a record ready to be received; `reply` gets what comes of it later, exactly once."""
        if self._closed:
            self._cancel([ReadyRecord(record, reply)])
            return
        self._table.add(record, reply)
        self._line.wake_next()

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Give back what was not received; when `lost`, fence the leases too: no verdict would count."""
        self._cancel(self._table.recall(partitions, lost=lost))

    def close(self) -> None:
        """Give back what was not received, and let the calls that wait go. What is out may still be answered."""
        self._closed = True
        self._line.wake_all()
        self._cancel(self._table.ready)
        self._table.ready.clear()

    # --- what the service asks ---------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether there will be no more records: the sidecar drains."""
        return self._closed

    @property
    def waiting(self) -> int:
        """How many calls wait for records."""
        return len(self._line)

    def turn(self, seconds: float, gone: asyncio.Future[None]) -> AbstractAsyncContextManager[None]:
        """Wait for records, at most so many seconds; see `LongPollQueue.turn`."""
        return self._line.turn(0 if self._closed else seconds, gone)

    def receive(self, most: int, invisible: int) -> list[Received]:
        """Lease what is ready, at most `most` records, for `invisible` ms."""
        leases = self._table.take(most, MOST_BYTES, invisible, self._now().steady)
        self._set_alarm()
        return [Received(self._handle(lease), lease.record) for lease in leases]

    def settle(self, handle: str, verdict: LeaseEnd, outcome: Outcome) -> HandleStatus:
        """End a lease by a verdict of the service, which is worth `outcome`; the same one again is harmless."""
        now = self._now()
        number = self._handles.decode(handle)
        if isinstance(number, HandleStatus):
            return self._told(number)
        status, lease = self._table.settle(number, verdict)
        if lease is not None:
            self._end(lease, outcome, now)
        return self._told(status)

    def change(self, handle: str, invisible: int) -> str | HandleStatus:
        """Let a lease end `invisible` ms from now instead; the handle that replaces this one, or why there is none."""
        now = self._now()
        number = self._handles.decode(handle)
        if isinstance(number, HandleStatus):
            return self._told(number)
        lease = self._table.change(number, invisible, now.steady)
        if isinstance(lease, HandleStatus):
            return self._told(lease)
        self._set_alarm()
        return self._handle(lease)

    # --- time --------------------------------------------------------------------------------------------------------

    def _now(self) -> Now:
        """The time, with all leases ended whose time is over: a call may come before a timer that is late."""
        now = self._clock()
        for lease in self._table.expire(now.steady):
            self._end(lease, EXPIRED, now)
        return now

    def _end(self, lease: Lease, outcome: Outcome, now: Now) -> None:
        self.durations.add((now.steady - lease.since) / 1000)
        lease.reply(lease.record, outcome, now)

    def _set_alarm(self) -> None:
        """See that somebody looks when the first lease ends; one timer for all."""
        at = self._table.next_end
        if at >= self._alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_later(max(1, at - self._clock().steady) / 1000, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm, self._alarm_at = None, NEVER
        self._now()
        self._set_alarm()

    # --- the rest ----------------------------------------------------------------------------------------------------

    def _handle(self, lease: Lease) -> str:
        return self._handles.encode(lease.record.epoch, lease.number)

    def _told(self, status: HandleStatus) -> HandleStatus:
        self.fenced += status is HandleStatus.FENCED
        return status

    def _cancel(self, back: Iterable[ReadyRecord]) -> None:
        for record, reply in back:
            self._loop.call_soon(self._cancelled, record, reply)

    def _cancelled(self, record: Record, reply: Reply) -> None:
        reply(record, CANCELLED, self._clock())
