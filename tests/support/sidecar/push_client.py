"""A push client on uvloop, driven from a test: one delivery is one await, and every wait has an end."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from reconsume.sidecar.core.outcome import Outcome
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.delivery.push import Push, PushSettings, parse_target
from reconsume.sidecar.delivery.push.access import Access
from tests.support.service.stub_service import Behaviour, StubService

SECONDS = 30.0
"""No delivery of these tests takes as long."""
SHORT_MS = 300
"""The timeout where it is the timeout that is tested."""


def now() -> Now:
    """This process's clocks."""
    return Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)


def a_record(offset: int = 1024, value: bytes | None = b'{"sku": 1}') -> Record:
    """A good record of a main topic."""
    return Record(Partition("orders", 3), offset, 1, 1_763_690_000_000, b"customer-1", value, None, None)


def a_push(url: str, access: Access | None = None, **changes: Any) -> Push:
    """A client with these settings."""
    settings: dict[str, Any] = {"group": "billing", "timeout_ms": 10_000}
    return Push(parse_target(url, False), PushSettings(**{**settings, **changes}), now, access)


async def deliver(push: Push, record: Record) -> Outcome:
    """The outcome of one delivery; a second reply to it is a failure."""
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    inside = True

    def reply(answered: Record, outcome: Outcome, at: Now) -> None:
        assert not inside, "replied from inside the call"
        assert answered is record
        assert at.steady_ms > 0
        future.set_result(outcome)  # raises when there is a result already

    push(record, reply)
    inside = False
    return await asyncio.wait_for(future, SECONDS)


async def settled(predicate: Callable[[], bool]) -> None:
    """Wait for what the event loop will see by itself."""
    async with asyncio.timeout(SECONDS):
        while not predicate():
            await asyncio.sleep(0.005)


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run on uvloop; what fails in a callback of the loop fails the test, and so does what is left open.

    uvloop never returns from `close()` when its warning of an open transport is an error: so they are collected first.
    """
    faults: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        await work()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(watched())
    assert faults == []
    assert [str(warning.message) for warning in warned] == []


def outcomes(behaviours: list[Behaviour], count: int = 1, **changes: Any) -> tuple[list[Outcome], StubService]:
    """What `count` deliveries, one after the other, to such a service give."""
    found: list[Outcome] = []
    with StubService(behaviours) as service:

        async def work() -> None:
            push = a_push(service.url, **changes)
            for number in range(count):
                found.append(await deliver(push, a_record(number)))
            push.close()
            await settled(lambda: push.connections == 0)

        run(work)
    return found, service
