"""Push in batches: gather the records that the lanes deliver, and send many in one request (contract 6.1).

A batch is *formed* until it is full, has waited long enough, or the dispatcher can give no more records. Then it waits
until one more request may be in flight; usually it need not wait. Records that are not sent can be recalled. So a
request never holds records of two assignments of one partition. `pool.py` decides how a request is sent and what its
loss means; `batch_request.py` halves a batch that is refused as a whole. The outcome of a request is that of each of
its records, unless the answer has one for each (`batch_verdicts.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial

import msgspec

from sidecar.core.outcome import CANCELLED, WITHDRAWN, NotSent, Outcome
from sidecar.core.pace.dispatcher import Dispatcher
from sidecar.core.pace.pace import State
from sidecar.core.ports import Reply
from sidecar.core.record import Now, Partition, Record
from sidecar.delivery.push.batch_request import BatchRequest, is_too_large, may_be_one_record
from sidecar.delivery.push.batch_verdicts import read_batch_answer
from sidecar.delivery.push.pool import Push
from sidecar.delivery.push.request import RenderBatch
from sidecar.delivery.push.response_reader import Judged

AWAY = NotSent("outage")
"""The outcome of records that were gathered when an outage began. They must not be sent with the probe: if the service
answers with failures, each of them would spend a retry."""


class Limits(msgspec.Struct, frozen=True):
    """When a batch is sent, and how many requests may be in flight."""

    max_size: int
    """Records in one request."""
    max_bytes: int
    """Bytes of one request's body; a single larger record is sent alone."""
    max_wait: float
    """Seconds from a batch's first record; 0: until the end of the event loop's present round."""
    requests: int
    """Requests in flight at most. A request may hold one record only, so the limit on records does not limit them
    enough."""
    split: bool = False
    """Whether a batch that fails by its status is sent again in halves (`deliver.batch.on_failure: split`)."""


class BatchPush:
    """Deliver records in batches; implements `core.ports.Delivery` for both lanes. Made on the event loop.

    `dispatcher` is the dispatcher that the records come from. When it can give no more, waiting for more is useless.
    """

    def __init__(
        self, push: Push, render: RenderBatch, limits: Limits, dispatcher: Dispatcher, clock: Callable[[], Now]
    ) -> None:
        self.durations = push.durations
        """Seconds from a request to its answer: one value for each batch that was sent."""
        self.odd_verdicts = push.odd_verdicts
        push.render = lambda batch: render(batch.parts)
        self._push, self._render, self._limits, self._dispatcher, self._clock = push, render, limits, dispatcher, clock
        self._loop = asyncio.get_running_loop()
        self._empty = render.empty
        self._forming = BatchRequest(self._empty)
        self._sealed: deque[BatchRequest] = deque()
        """Closed batches, which wait until one more request may be in flight."""
        self._out = 0
        self._due = False
        """Whether the forming batch is sent as soon as one more request may be in flight."""
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False
        self._closed = False

    def __call__(self, record: Record, reply: Reply) -> None:
        """Gather one record; `reply` gets its outcome later, exactly once."""
        if self._closed:
            self._cancel([(record, reply)])
            return
        part, limits = self._render.part(record), self._limits
        if self._forming.records and self._forming.size + len(part) > limits.max_bytes:
            self._close_batch()
        forming = self._forming
        forming.add(record, reply, part)
        if len(forming.records) >= limits.max_size or forming.size >= limits.max_bytes:
            self._close_batch()
        elif not self._looking:
            self._look_later()

    def set_limits(self, timeout_ms: int, requests: int) -> None:
        """Set the timeout (ms) of requests that begin from now on, and how many may be in flight."""
        self._push.set_timeout(timeout_ms)
        self._limits = msgspec.structs.replace(self._limits, requests=requests)

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Cancel the partitions' records that are not sent. Those that are sent stay until they are answered."""
        self._cancel(self._take_out(lambda record: record.source in partitions))

    def withdraw(self, is_held: Callable[[Record], bool]) -> None:
        """Give back the records that are held and not sent."""
        self._cancel(self._take_out(is_held), WITHDRAWN)

    def _take_out(self, leaves: Callable[[Record], bool]) -> list[tuple[Record, Reply]]:
        """Remove records that are not sent, and return them."""
        taken: list[tuple[Record, Reply]] = []
        self._forming, gone = self._forming.without(leaves, self._empty)
        taken += gone
        if not self._forming.records:
            self._unset()
        sealed, self._sealed = self._sealed, deque()
        for parcel in sealed:
            kept, gone = parcel.without(leaves, self._empty)
            taken += gone
            if kept.records:
                self._sealed.append(kept)
        return taken

    def close(self) -> None:
        """Take no more records. Those not sent are cancelled; those sent stay until they are answered."""
        self._closed = True
        for parcel in self._gathered():
            self._cancel(zip(parcel.records, parcel.replies, strict=True))
        self._push.close()

    # When a batch is sent.

    def _look_later(self) -> None:
        """Look at the end of the loop's present round, when all records that come together are there."""
        self._looking = True
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        if self._dispatcher.pace.state is State.OUTAGE:
            now = self._clock()
            for parcel in self._gathered():
                parcel.tell(AWAY, now)
            return
        if self._forming.records:
            if self._limits.max_wait == 0 or self._dispatcher.full:
                self._due = True
            elif self._timer is None:
                self._timer = self._loop.call_later(self._limits.max_wait, self._ring)
        self._go()

    def _ring(self) -> None:
        self._timer, self._due = None, True
        self._look()

    def _close_batch(self) -> None:
        self._sealed.append(self._take())
        self._go()

    def _take(self) -> BatchRequest:
        """Return the batch that was being formed, and begin another one."""
        parcel, self._forming = self._forming, BatchRequest(self._empty)
        self._unset()
        return parcel

    def _unset(self) -> None:
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _gathered(self) -> list[BatchRequest]:
        """Return all batches that are not sent, and keep none of them."""
        parcels = [*self._sealed, self._take()]
        self._sealed.clear()
        return parcels

    # How a batch is sent.

    def _go(self) -> None:
        """Send the batches that may be sent, unless there is an outage."""
        while self._out < self._limits.requests and self._dispatcher.pace.state is not State.OUTAGE:
            if self._sealed:
                self._send(self._sealed.popleft())
            elif self._due and self._forming.records:
                self._send(self._take())
            else:
                return

    def _send(self, parcel: BatchRequest) -> None:
        self._out += 1
        self._push.post((parcel, self._ended), self._render(parcel.parts), partial(read_batch_answer, parcel.records))

    def _ended(self, parcel: BatchRequest, judged: Judged, now: Now) -> None:
        self._out -= 1
        if len(parcel.records) > 1 and self._splits(judged):
            self._split(parcel)
        else:
            self._dispatcher.answer_together(lambda: parcel.tell(judged, now), now)
        if not self._looking:
            self._look_later()

    def _splits(self, judged: Judged) -> bool:
        if is_too_large(judged):
            return True
        return self._limits.split and self._dispatcher.pace.state is State.OPEN and may_be_one_record(judged)

    def _split(self, parcel: BatchRequest) -> None:
        """Send a batch again in halves, before any other. In an outage or a drain its records are given back instead.

        It is the same attempt: nothing is counted before a record has its own answer.
        """
        if self._closed:
            self._cancel(zip(parcel.records, parcel.replies, strict=True))
        else:
            self._sealed.extendleft(reversed(parcel.halves(self._empty)))
            self._go()

    def _cancel(self, deliveries: Iterable[tuple[Record, Reply]], outcome: Outcome = CANCELLED) -> None:
        for record, reply in deliveries:
            self._loop.call_soon(reply, record, outcome, self._clock())
