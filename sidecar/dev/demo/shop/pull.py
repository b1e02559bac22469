"""Pull: the shop calls the sidecar for orders, leases them, and reports the outcome of each by another call."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from reconsume.sidecar.dev.demo.shop.behaviour import Answer, answer_to
from reconsume.sidecar.dev.demo.shop.order_log import Enveloped, OrderLog
from reconsume.sidecar.dev.demo.shop.web import post

CALLERS = 4
"""Calls for orders that wait at the same time."""
MOST = 16
WAIT = "5s"
LEASE_SECONDS = 2
DRAINING = 503
LOOK_SECONDS = 0.1
"""Seconds between two calls while the sidecar is away."""


class Received(msgspec.Struct, frozen=True):
    """The answer to a call for orders."""

    records: list[Enveloped]


class Handles(msgspec.Struct, frozen=True):
    """The sidecar's answer about one handle; `ok` if the call had its effect."""

    status: str = ""
    handles: list[Handles] = []

    @property
    def counts(self) -> bool:
        """Whether the lease was still valid."""
        return all(one.counts for one in self.handles) if self.handles else self.status == "ok"


class PullFront:
    """Calls for orders, several calls at once, and works on all of them at the same time."""

    def __init__(self, counter: OrderLog, port: int, tasks: asyncio.TaskGroup) -> None:
        self._counter, self._port, self._tasks = counter, port, tasks
        self._decode = msgspec.json.Decoder(Received).decode
        self._opened = 0
        """A counter that changes whenever the shop goes up or down: work from before a change is dropped."""

    async def open(self) -> None:
        """Start to call for orders."""
        self._opened += 1
        self._counter.opened()
        for _ in range(CALLERS):
            self._tasks.create_task(self._call())

    async def close(self) -> None:
        """Stop calling, and let the leases expire."""
        self._opened += 1
        self._counter.closed()

    async def _call(self) -> None:
        opened = self._opened
        while opened == self._opened:
            records = await self._receive()
            if records is None:
                await asyncio.sleep(LOOK_SECONDS)
            elif opened == self._opened:
                for record in records:
                    self._tasks.create_task(self._handle(record, opened))

    async def _receive(self) -> list[Enveloped] | None:
        """Return the next orders; None while the sidecar is away or drains. Raises RuntimeError if it refuses the
        call."""
        wanted = {"max": MOST, "invisible": f"{LEASE_SECONDS}s", "wait": WAIT}
        try:
            status, body = await post(self._port, "/v1/receive", msgspec.json.encode(wanted))
        except (OSError, EOFError):
            return None
        if status == DRAINING:
            return None
        if status != 200:
            raise RuntimeError(f"the sidecar answered {status}: {body.decode(errors='replace')}")
        return self._decode(body).records

    async def _handle(self, record: Enveloped, opened: int) -> None:
        order = record.order
        number = self._counter.came(order)
        answer = answer_to(order.case, order.times)
        if answer.after >= LEASE_SECONDS:
            return  # stuck: the lease expires
        await asyncio.sleep(answer.after)
        if opened != self._opened:
            return
        path, body = saying(answer, record.handle)
        _, reply = await post(self._port, path, msgspec.json.encode(body))
        if msgspec.json.decode(reply, type=Handles).counts:  # else the lease had expired, and the order comes again
            self._counter.answered(number, answer.verdict)


def saying(answer: Answer, handle: str) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of the call that reports the outcome of an order."""
    match answer.verdict:
        case "commit":
            return "/v1/ack", {"handles": [handle]}
        case "dead-letter":
            return "/v1/dead-letter", {"handles": [handle], **answer.fields}
        case _:
            return "/v1/reconsume-later", {"handles": [handle], **answer.fields}
