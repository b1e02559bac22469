"""Pull mode on the event loop: hold records until they are received, lease them, end leases by verdict or time.

The rules of leases are in `lease_table.py`. The calls of the service are in `api/pull.py`. The end of a lease is an
outcome, like the end of a push. The lane decides what follows from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from reconsume.sidecar.core.counters import Histogram
from reconsume.sidecar.core.outcome import CANCELLED, EXPIRED, WITHDRAWN, Outcome, released
from reconsume.sidecar.core.pace.rates import DeliveryLimits
from reconsume.sidecar.core.ports import Reply
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.sidecar.delivery.pull.handles import ReceiptHandles
from reconsume.sidecar.delivery.pull.lease_table import HandleStatus, Lease, LeaseEnd, LeaseTable, ReadyRecord
from reconsume.sidecar.delivery.pull.long_poll import LongPollQueue

DURATION_BOUNDS = (0.01, 0.1, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 43_200.0)
"""Seconds from the receive to the end of the lease. The last bound is the longest lease."""
MOST_BYTES = 4 << 20
"""Bytes of the records in one answer, unless a single record has more. A larger answer would make all other callers
wait."""


class Received(NamedTuple):
    """A record that the service has received, and the handle for its answer."""

    handle: str
    record: Record
    expires_at_ms: int
    """When the lease ends, epoch ms."""


class Changed(NamedTuple):
    """A lease that ends at another time: the handle that replaces the former one, and that time (epoch ms)."""

    handle: str
    expires_at_ms: int


class PullQueue:
    """The delivery of pull mode; implements `core.ports.Delivery`.

    The service asks for records and answers by their handles.
    """

    def __init__(self, clock: Callable[[], Now], limits: DeliveryLimits | None = None) -> None:
        """`limits`: those of the dispatcher that the records come from."""
        self.durations = Histogram(DURATION_BOUNDS)
        self.fenced = 0
        """Calls that came too late: the partition has another owner now, the handle was replaced, or another verdict
        was given."""
        self.at_receive: Callable[[], None] = lambda: None
        """Called at the next receive, once: the service is known to be there."""
        self.was_asked = False
        """Whether the service has called to receive."""
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._table = LeaseTable()
        self._limits = DeliveryLimits() if limits is None else limits
        self._handles = ReceiptHandles()
        self._line = LongPollQueue(lambda: bool(self._table.ready))
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = NEVER
        self._closed = False

    # --- called by the lanes -----------------------------------------------------------------------------------------

    def __call__(self, record: Record, reply: Reply) -> None:
        """Make a record ready to be received. `reply` gets its outcome later, exactly once."""
        if self._closed:
            self._limits.withdrawn((record,))
            self._cancel([ReadyRecord(record, reply)])
            return
        self._table.add_ready(record, reply)
        self._line.wake_next()

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Cancel the ready records of some partitions.

        If `lost`, fence the leases of these partitions too: no verdict on them would count.
        """
        self._limits.withdrawn(one.record for one in self._table.ready if one.record.source in partitions)
        self._cancel(self._table.recall(partitions, lost=lost))

    def withdraw(self, is_held: Callable[[Record], bool]) -> None:
        """Give back the ready records that are held."""
        taken = self._table.withdraw(is_held)
        self._limits.withdrawn(one.record for one in taken)
        self._cancel(taken, WITHDRAWN)

    def close(self) -> None:
        """Cancel the records that were not received, and wake waiting calls. Leased records may still be answered."""
        self._closed = True
        self._line.wake_all()
        self._limits.withdrawn(one.record for one in self._table.ready)
        self._cancel(self._table.ready)
        self._table.ready.clear()

    # --- called for the service --------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether no more records will come, because the sidecar drains."""
        return self._closed

    @property
    def waiting(self) -> int:
        """Number of calls that wait for records."""
        return len(self._line)

    def wait_for_records(self, seconds: float, gone: asyncio.Future[None]) -> AbstractAsyncContextManager[None]:
        """Wait for records for at most `seconds`; see `LongPollQueue.wait_for_turn`."""
        self.was_asked = True
        self.at_receive()
        self.at_receive = lambda: None
        return self._line.wait_for_turn(0 if self._closed else seconds, gone)

    def receive(self, most: int, invisible: int) -> list[Received]:
        """Lease at most `most` ready records for `invisible` ms."""
        now = self._now()
        leases = self._table.lease_records(most, MOST_BYTES, invisible, now.steady_ms)
        self._limits.received([lease.record for lease in leases], now)
        self._set_alarm()
        return [Received(self._handle(lease), lease.record, now.wall_ms + invisible) for lease in leases]

    def settle(self, handle: str, verdict: LeaseEnd, outcome: Outcome | None) -> HandleStatus:
        """End a lease by a verdict of the service, which means `outcome`. The same verdict again is harmless.

        None: the record is given back, and is due when the lease would have ended.
        """
        now = self._now()
        number = self._handles.decode(handle)
        if isinstance(number, HandleStatus):
            return self._told(number)
        status, lease = self._table.settle(number, verdict)
        if lease is not None:
            self._end_lease(lease, outcome or released(max(0, lease.until - now.steady_ms)), now)
        return self._told(status)

    def change(self, handle: str, invisible: int) -> Changed | HandleStatus:
        """Let a lease end `invisible` ms from now instead; return the status that says why if it does not."""
        now = self._now()
        number = self._handles.decode(handle)
        if isinstance(number, HandleStatus):
            return self._told(number)
        lease = self._table.change(number, invisible, now.steady_ms)
        if isinstance(lease, HandleStatus):
            return self._told(lease)
        self._set_alarm()
        return Changed(self._handle(lease), now.wall_ms + invisible)

    # --- time --------------------------------------------------------------------------------------------------------

    def _now(self) -> Now:
        """Return the time, after ending all leases whose time is over."""
        now = self._clock()
        # A call may come before a timer that is late.
        for lease in self._table.expire(now.steady_ms):
            self._end_lease(lease, EXPIRED, now)
        return now

    def _end_lease(self, lease: Lease, outcome: Outcome, now: Now) -> None:
        self.durations.add((now.steady_ms - lease.since) / 1000)
        lease.reply(lease.record, outcome, now)

    def _set_alarm(self) -> None:
        """Set the one timer to the end of the first lease, unless it is set to an earlier time."""
        at = self._table.next_end
        if at >= self._alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_later(max(1, at - self._clock().steady_ms) / 1000, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm, self._alarm_at = None, NEVER
        self._now()
        self._set_alarm()

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _handle(self, lease: Lease) -> str:
        return self._handles.encode(lease.record.epoch, lease.number)

    def _told(self, status: HandleStatus) -> HandleStatus:
        self.fenced += status is HandleStatus.FENCED
        return status

    def _cancel(self, back: Iterable[ReadyRecord], outcome: Outcome = CANCELLED) -> None:
        for record, reply in back:
            self._loop.call_soon(self._cancelled, record, reply, outcome)

    def _cancelled(self, record: Record, reply: Reply, outcome: Outcome) -> None:
        reply(record, outcome, self._clock())
