"""A batch push client behind a real gate, driven from a test: the part of a lane is played by `Feeder`."""

from __future__ import annotations

import json
from typing import Any

from reconsume.sidecar.core.outcome import Outcome
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import Now, Record
from reconsume.sidecar.delivery.push import parse_target
from reconsume.sidecar.delivery.push.batch import BatchPush, Limits
from reconsume.sidecar.delivery.push.request import RenderBatch
from reconsume.sidecar.delivery.push.topic_call import TopicCalls
from tests.support.service.stub_service import StubService
from tests.support.sidecar.push_client import a_push, now, settled

FOREVER = 450.0
"""Seconds. A test that sees its batch sent has not waited for this."""


class Feeder:
    """Delivers records through the gate as a lane does, and keeps what came of them, by offset."""

    has_open = True

    def __init__(self, url: str, *, places: int = 1_000, pace: Pace | None = None, **limits: Any) -> None:
        self.ready = ReadyFlows()
        self.found: dict[int, Outcome] = {}
        self.told: list[Now] = []
        self.gate = Dispatcher(pace or Pace(places))
        self.gate.join(self)
        timeout, access = limits.pop("timeout_ms", 10_000), limits.pop("access", None)
        calls: TopicCalls = limits.pop("calls", {})
        usual: dict[str, Any] = {"max_size": 3, "max_bytes": 1 << 20, "max_wait": 0.0, "requests": 8}
        bounds = Limits(**{**usual, **limits})
        push = a_push(url, access, timeout_ms=timeout, batch_size=bounds.max_size, calls=calls)
        render = RenderBatch(parse_target(url, False), "billing", timeout)
        self.batches = BatchPush(push, render, bounds, self.gate, now, calls)
        self._inside = False
        self._out: dict[int, Record] = {}

    def send(self, record: Record, _now: Now) -> bool:
        """What the gate calls: the delivery itself must not answer."""
        self._inside = True
        self._out[id(record)] = record
        self.batches(record, self._reply)
        self._inside = False
        return True

    def answered_in_bulk(self, now: Now) -> None:
        """What the gate calls when all outcomes of a batch are told."""
        self.gate.dispatch(now)

    def feed(self, *records: Record) -> None:
        """Records that may be delivered now."""
        for record in records:
            self.ready.append(record)
        self.gate.dispatch(now())

    async def answered(self, count: int) -> None:
        """Wait for so many outcomes."""
        await settled(lambda: len(self.found) >= count)

    def _reply(self, record: Record, outcome: Outcome, at: Now) -> None:
        assert not self._inside, "replied from inside the call"
        assert self._out.pop(id(record), None) is not None, "replied twice"
        self.found[record.offset] = outcome
        self.gate.answered(record, outcome, at)
        self.told.append(at)
        self.gate.dispatch(at)


def offsets(request: bytes) -> list[int]:
    """The offsets of the records in one request."""
    return [record["offset"] for record in json.loads(request.partition(b"\r\n\r\n")[2])["records"]]


def batches(service: StubService) -> list[list[int]]:
    """The offsets in each request that came."""
    return [offsets(request) for request in service.requests]
