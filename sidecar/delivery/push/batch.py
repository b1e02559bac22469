"""Push in batches: gather the records that the lanes deliver, and send many in one request (contract 6.1).

A batch is *formed* until it is full, has waited long enough, or the dispatcher can give no more records. Then it waits
until one more request may be in flight; usually it need not wait. Each main topic has batches of its own; with
`deliver.batch.mix` those share them whose requests do not differ, by path or timeout (`topic_call.py`). Records that
are not sent can be recalled. So a request never holds records of two assignments of one partition. `pool.py` decides
how a request is sent and what its loss means; `batch_request.py` halves a batch that is refused as a whole. The outcome
of a request is that of each of its records, unless the answer has one for each (`batch_verdicts.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from functools import partial

import msgspec

from reconsume.sidecar.core.counters import Histogram
from reconsume.sidecar.core.outcome import CANCELLED, WITHDRAWN, NotSent, Outcome
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import State
from reconsume.sidecar.core.ports import Reply
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.delivery.push.batch_request import (
    BatchRequest,
    FormingBatch,
    is_lost,
    is_too_large,
    may_be_one_record,
)
from reconsume.sidecar.delivery.push.batch_verdicts import read_batch_answer
from reconsume.sidecar.delivery.push.deaths import DeathWatch
from reconsume.sidecar.delivery.push.odd_verdicts import OddVerdicts
from reconsume.sidecar.delivery.push.pool import Push, RequestForm
from reconsume.sidecar.delivery.push.request import RenderBatch
from reconsume.sidecar.delivery.push.response_reader import Judged
from reconsume.sidecar.delivery.push.topic_call import USUAL, TopicCall, TopicCalls

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
    mix: bool = False
    """Whether one request may hold records of several main topics (`deliver.batch.mix`)."""


class BatchPush:
    """Deliver records in batches; implements `core.ports.Delivery` for both lanes. Made on the event loop.

    `dispatcher` is the dispatcher that the records come from. When it can give no more, waiting for more is useless.
    """

    def __init__(
        self,
        push: Push,
        render: RenderBatch,
        limits: Limits,
        dispatcher: Dispatcher,
        clock: Callable[[], Now],
        calls: TopicCalls | None = None,
    ) -> None:
        """`calls`: what main topics have of their own, as `push` has it too."""
        push.form = RequestForm(
            lambda batch: render(batch.parts, batch.call),
            topic_of=lambda batch: batch.records[0].main_topic,
            kind_of=lambda batch: (batch.call.path, len(batch.records).bit_length()),
            count_records=lambda batch: len(batch.records),
            set_timeout=render.set_timeout,
        )
        self._push, self._render, self._limits, self._dispatcher, self._clock = push, render, limits, dispatcher, clock
        self._loop = asyncio.get_running_loop()
        self._empty = render.empty
        self._calls = calls or {}
        self._forming: dict[str | TopicCall, FormingBatch] = {}
        """The batches that are being formed, by main topic; by what their topics have of their own where they mix."""
        self._sealed: deque[BatchRequest] = deque()
        """Closed batches, which wait until one more request may be in flight."""
        self._out = 0
        self._out_of: Counter[TopicCall] = Counter()
        """Requests in flight of the topics that may have only so many."""
        self._looking = False
        self._closed = False

    @property
    def durations(self) -> Histogram:
        """Seconds from a request to its answer: one value for each batch that was sent."""
        return self._push.durations

    @property
    def odd_verdicts(self) -> OddVerdicts:
        """The responses that look like a verdict and are none."""
        return self._push.odd_verdicts

    @property
    def deaths(self) -> DeathWatch:
        """What watches for the death of the service."""
        return self._push.deaths

    def __call__(self, record: Record, reply: Reply) -> None:
        """Gather one record; `reply` gets its outcome later, exactly once."""
        if self._closed:
            self._cancel([(record, reply)])
            return
        part, limits = self._render.part(record), self._limits
        # As `main_topic` says, which most records need not be asked for.
        forming = self._forming_of(record.source.topic if record.retry_state is None else record.main_topic)
        if forming.batch.records and forming.batch.size + len(part) > limits.max_bytes:
            self._close_batch(forming)
        batch = forming.batch
        batch.add_record(record, reply, part)
        if len(batch.records) >= limits.max_size or batch.size >= limits.max_bytes:
            self._close_batch(forming)
        elif not self._looking:
            self._look_later()

    def _forming_of(self, topic: str) -> FormingBatch:
        key = self._calls.get(topic, USUAL) if self._limits.mix else topic
        forming = self._forming.get(key)
        if forming is None:
            forming = self._forming[key] = FormingBatch(self._empty, self._calls.get(topic, USUAL))
        return forming

    def set_limits(self, timeout_ms: int, requests: int) -> None:
        """Set the timeout (ms) of requests that begin from now on, and how many may be in flight."""
        self._push.set_timeout(timeout_ms)
        self._limits = msgspec.structs.replace(self._limits, requests=requests)
        if not self._looking:  # what waits may go now, and the requests that are out may hang
            self._look_later()

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Cancel the partitions' records that are not sent. Those that are sent stay until they are answered."""
        self._cancel(self._take_out(lambda record: record.source in partitions))

    def withdraw(self, is_held: Callable[[Record], bool]) -> None:
        """Give back the records that are held and not sent."""
        self._cancel(self._take_out(is_held), WITHDRAWN)

    def _take_out(self, leaves: Callable[[Record], bool]) -> list[tuple[Record, Reply]]:
        """Remove records that are not sent, and return them."""
        taken: list[tuple[Record, Reply]] = []
        for forming in self._forming.values():
            taken += forming.take_out(leaves)
        sealed, self._sealed = self._sealed, deque()
        for batch in sealed:
            kept, gone = batch.without(leaves, self._empty)
            taken += gone
            if kept.records:
                self._sealed.append(kept)
        return taken

    def close(self) -> None:
        """Take no more records. Those not sent are cancelled; those sent stay until they are answered."""
        self._closed = True
        for batch in self._gathered():
            self._cancel(zip(batch.records, batch.replies, strict=True))
        self._push.close()

    # When a batch is sent.

    def _look_later(self) -> None:
        """Look at the end of the loop's present round, when all records that come together are there."""
        self._looking = True
        self._loop.call_soon(self._look_at_batches)

    def _look_at_batches(self) -> None:
        self._looking = False
        if self._dispatcher.pace.state is State.OUTAGE:
            now = self._clock()
            for batch in self._gathered():
                batch.tell(AWAY, now)
            return
        for forming in self._forming.values():
            if not forming.batch.records:
                continue
            if self._limits.max_wait == 0 or self._dispatcher.full:
                forming.due = True
            elif forming.timer is None:
                forming.timer = self._loop.call_later(self._limits.max_wait, self._ring, forming)
        self._go()

    def _ring(self, forming: FormingBatch) -> None:
        forming.timer, forming.due = None, True
        self._look_at_batches()

    def _close_batch(self, forming: FormingBatch) -> None:
        self._sealed.append(forming.take_batch())
        self._go()

    def _gathered(self) -> list[BatchRequest]:
        """Return all batches that are not sent, and keep none of them."""
        batches = [*self._sealed, *(forming.take_batch() for forming in self._forming.values())]
        self._sealed.clear()
        return batches

    # How a batch is sent.

    def _go(self) -> None:
        """Send the batches that may be sent, unless there is an outage."""
        most = min(self._limits.requests, self._dispatcher.most_requests)
        while self._out < most and self._dispatcher.pace.state is not State.OUTAGE:
            batch = self._next()
            if batch is None:
                return
            self._send_batch(batch)

    def _next(self) -> BatchRequest | None:
        """Remove and return the next batch that may be sent; None if there is none."""
        for number, sealed in enumerate(self._sealed):
            if self._may_send(sealed.call):
                del self._sealed[number]
                return sealed
        for forming in self._forming.values():
            if forming.due and forming.batch.records and self._may_send(forming.batch.call):
                return forming.take_batch()
        return None

    def _may_send(self, call: TopicCall) -> bool:
        return call.requests is None or self._out_of[call] < call.requests

    def _send_batch(self, batch: BatchRequest) -> None:
        self._out += 1
        if batch.call.requests is not None:
            self._out_of[batch.call] += 1
        self._push.post(
            (batch, self._ended),
            self._render(batch.parts, batch.call),
            partial(read_batch_answer, batch.records),
        )

    def _ended(self, batch: BatchRequest, judged: Judged, now: Now) -> None:
        self._out -= 1
        if batch.call.requests is not None:
            self._out_of[batch.call] -= 1
        if len(batch.records) > 1 and self._splits(judged):
            self._split(batch)
        else:
            self._dispatcher.answer_together(lambda: batch.tell(judged, now), now)
        if not self._looking:
            self._look_later()

    def _splits(self, judged: Judged) -> bool:
        if is_too_large(judged) or (is_lost(judged) and self._dispatcher.pace.state is not State.OUTAGE):
            return True
        return self._limits.split and self._dispatcher.pace.state is State.OPEN and may_be_one_record(judged)

    def _split(self, batch: BatchRequest) -> None:
        """Send a batch again in halves, before any other. In an outage or a drain its records are given back instead.

        It is the same attempt: nothing is counted before a record has its own answer.
        """
        if self._closed:
            self._cancel(zip(batch.records, batch.replies, strict=True))
        else:
            self._sealed.extendleft(reversed(batch.halves(self._empty)))
            self._go()

    def _cancel(self, deliveries: Iterable[tuple[Record, Reply]], outcome: Outcome = CANCELLED) -> None:
        for record, reply in deliveries:
            self._loop.call_soon(reply, record, outcome, self._clock())
