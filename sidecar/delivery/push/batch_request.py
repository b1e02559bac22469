"""The records of one request, and what becomes of them when they are answered, recalled or halved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from reconsume.sidecar.core.outcome import CONNECTION_LOST, Failed, Rejected
from reconsume.sidecar.core.ports import Reply
from reconsume.sidecar.core.record import Now, Record
from reconsume.sidecar.delivery.push.batch_verdicts import Verdicts, WholeRefused
from reconsume.sidecar.delivery.push.response_reader import Judged
from reconsume.sidecar.delivery.push.topic_call import TopicCall

TOO_LARGE = 413
AWAY_FOR_ALL = (429, 503)
"""Statuses that say something of the service and nothing of a record. No half would fare better."""


class BatchRequest:
    """The records of one request, each with its callback and its rendered part of the body.

    `call`: what their topics have of their own.
    """

    __slots__ = ("call", "parts", "records", "replies", "size")

    def __init__(self, size: int, call: TopicCall) -> None:
        self.call = call
        self.records: list[Record] = []
        self.replies: list[Reply] = []
        self.parts: list[bytes] = []
        self.size = size
        """Bytes of the body."""

    def without(self, leaves: Callable[[Record], bool], empty: int) -> tuple[BatchRequest, list[tuple[Record, Reply]]]:
        """Return the batch without the records that leave it, and those.

        `empty`: bytes of a body without records.
        """
        kept, taken = BatchRequest(empty, self.call), []
        for record, reply, part in zip(self.records, self.replies, self.parts, strict=True):
            if leaves(record):
                taken.append((record, reply))
            else:
                kept.add_record(record, reply, part)
        return kept, taken

    def add_record(self, record: Record, reply: Reply, part: bytes) -> None:
        self.records.append(record)
        self.replies.append(reply)
        self.parts.append(part)
        self.size += len(part) + 1

    def tell(self, judged: Judged, now: Now) -> None:
        """Reply to each record with its outcome."""
        if isinstance(judged, WholeRefused):
            judged = judged.outcome
        if isinstance(judged, Verdicts):
            for record, reply, outcome in zip(self.records, self.replies, judged.outcomes, strict=True):
                reply(record, outcome, now)
        else:
            for record, reply in zip(self.records, self.replies, strict=True):
                reply(record, judged, now)

    def halves(self, empty: int) -> tuple[BatchRequest, BatchRequest]:
        """Return two batches with the same records in their order. `empty`: bytes of a body without records."""
        first, second = BatchRequest(empty, self.call), BatchRequest(empty, self.call)
        middle = len(self.records) // 2
        for number, delivery in enumerate(zip(self.records, self.replies, self.parts, strict=True)):
            (first if number < middle else second).add_record(*delivery)
        return first, second


class FormingBatch:
    """The batch that is being formed of topics whose calls are equal. `empty`: bytes of a body without records.

    A batch without records is not due, and has no timer.
    """

    def __init__(self, empty: int, call: TopicCall) -> None:
        self.batch = BatchRequest(empty, call)
        self.due = False
        """Whether it is sent as soon as one more request may be in flight."""
        self.timer: asyncio.TimerHandle | None = None
        self._empty = empty

    def take_batch(self) -> BatchRequest:
        """Return the batch, and begin another one."""
        batch, self.batch = self.batch, BatchRequest(self._empty, self.batch.call)
        self._unset()
        return batch

    def take_out(self, leaves: Callable[[Record], bool]) -> list[tuple[Record, Reply]]:
        """Remove and return the records that leave."""
        self.batch, gone = self.batch.without(leaves, self._empty)
        if not self.batch.records:
            self._unset()
        return gone

    def _unset(self) -> None:
        self.due = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def is_too_large(judged: Judged) -> bool:
    """Return whether a batch was refused for its size, which says nothing of any record."""
    return isinstance(judged, WholeRefused) and judged.status == TOO_LARGE


def is_lost(judged: Judged) -> bool:
    """Return whether the connection ended without the whole response: one record may have ended its worker."""
    return isinstance(judged, Failed) and judged.reason == CONNECTION_LOST


def may_be_one_record(judged: Judged) -> bool:
    """Return whether a batch failed by a status that a single one of them may have caused."""
    if not isinstance(judged, WholeRefused) or judged.status in AWAY_FOR_ALL:
        return False
    return isinstance(judged.outcome, Failed | Rejected)
