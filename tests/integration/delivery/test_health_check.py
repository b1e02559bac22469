"""The health URL: asked over a real socket while deliveries wait for it, and at no other time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, Failed
from reconsume.sidecar.core.pace.pace import WELL_FOR_MS, Pace, State
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.delivery.push import parse_target
from reconsume.sidecar.delivery.push.health_check import HealthCheck
from tests.sim.samples import record
from tests.support.service import stub_service as stub
from tests.support.service.stub_service import Behaviour, StubService
from tests.support.sidecar.push_client import now, run, settled

ROUNDS = 60.0
"""Seconds in which a few questions are asked, one a second."""


class Asked:
    """A guarded pace with its health URL; `ticked` as the lanes would be."""

    def __init__(self, url: str) -> None:
        self.pace = Pace(8, failures=3, guarded=True)
        self.ticks = 0
        self.health = HealthCheck(parse_target(url, False), self.pace, self._tick, now)
        self.pace.health.ask = self.health.ask_at_once
        self.health.watch()

    def _tick(self, moment: Now) -> None:
        self.ticks += 1
        self.pace.tick(moment, 0)

    async def until(self, predicate: Callable[[], bool]) -> None:
        async with asyncio.timeout(ROUNDS):
            while not predicate():
                await asyncio.sleep(0.01)


def ask(url: str, story: Callable[[Asked], Awaitable[None]]) -> None:
    async def work() -> None:
        asked = Asked(url)
        await story(asked)
        asked.health.close()
        await settled(lambda: asked.health.connections == 0)

    run(work)


async def healthy(asked: Asked) -> None:
    await asked.until(lambda: asked.pace.state is State.PROBING)


@pytest.mark.parametrize(
    "behaviour",
    [
        stub.answer(301, "Location: /events/"),
        stub.answer(304),
        stub.answer(200, body=b"b" * (2 << 20)),
        stub.answer(200, "Content-Type: application/json", body=b'{"verdict": "retry"}'),
        stub.answer(200, "Reconsume-Verdict: retry"),
    ],
)
def test_a_service_is_well_by_its_status_alone(behaviour: Behaviour) -> None:
    """Given a redirect, which is not followed, or a large answer, then a probe goes, as a kubelet's would."""
    with StubService([behaviour]) as service:
        ask(service.url, healthy)
        assert len(service.requests) == 1


def test_a_slow_answer_counts_as_long_as_its_timeout_says() -> None:
    """Given a service that checks its own database for seconds, then it is well with the time that is set for it."""
    with StubService([stub.drip(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")]) as service:
        ask(service.url, healthy)


@pytest.mark.parametrize("unix", [False, True])
def test_a_2xx_lets_a_probe_go(tmp_path: Path, unix: bool) -> None:
    with StubService([stub.answer(204)], tmp_path / "app.sock" if unix else None) as service:
        ask(service.url, healthy)
        assert service.requests[0].startswith(b"GET /events HTTP/1.1\r\nHost: ")


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (stub.answer(503), "http-503"),
        (stub.answer(429), "http-429"),
        (stub.answer(404), "http-404"),
        (stub.answer(500, "Reconsume-Verdict: commit"), "http-500"),
        (stub.close_before, "connection-lost"),
        (stub.hang, "timeout"),
    ],
)
def test_anything_else_keeps_deliveries_back_and_is_asked_again(behaviour: Behaviour, reason: str) -> None:
    async def story(asked: Asked) -> None:
        await asked.until(lambda: asked.ticks >= 1)
        assert (asked.pace.state, asked.pace.limit) == (State.OUTAGE, 0)
        assert asked.pace.reason == f"health URL: {reason}"
        await healthy(asked)

    with StubService([behaviour, stub.ok]) as service:
        ask(service.url, story)
        assert [request.split(b" ")[1] for request in service.requests] == [b"/events", b"/events"]


def test_it_is_not_asked_while_deliveries_go_on() -> None:
    async def story(asked: Asked) -> None:
        await healthy(asked)
        probe = record(0)
        asked.pace.sent(probe, now())
        asked.pace.note(probe, COMMITTED, now())
        assert asked.pace.state is State.OPEN
        await asyncio.sleep(1.5)  # a question would have come by now

    with StubService([stub.ok]) as service:
        ask(service.url, story)
        assert len(service.requests) == 1


def test_a_service_that_does_not_listen_is_asked_until_it_does(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        await asked.until(lambda: asked.ticks >= 1)
        assert asked.pace.reason == "health URL: no-such-socket"
        with StubService([stub.ok], tmp_path / "late.sock"):
            await healthy(asked)

    ask(f"unix:{tmp_path / 'late.sock'}:/healthz", story)


def failing(asked: Asked) -> None:
    """Three different records fail in a row."""
    for offset in range(3):
        asked.pace.note(record(offset), Failed("http-500"), now())


async def opened(asked: Asked) -> None:
    """Deliveries go on, and the health URL's last word is too old to count."""
    await healthy(asked)
    probe = record(0)
    asked.pace.sent(probe, now())
    for _ in range(8):
        asked.pace.note(probe, COMMITTED, now())
    await asyncio.sleep(WELL_FOR_MS / 1000)
    assert (asked.pace.state, asked.pace.limit) == (State.OPEN, 8)


@pytest.mark.parametrize(("word", "then"), [(stub.ok, (State.OPEN, 8)), (stub.answer(503), (State.OUTAGE, 0))])
def test_a_row_of_failures_asks_at_once_whether_it_is_an_outage(word: Behaviour, then: tuple[State, int]) -> None:
    async def story(asked: Asked) -> None:
        await opened(asked)
        ticks = asked.ticks
        failing(asked)
        assert (asked.pace.state, asked.pace.limit) == (State.OPEN, 0)
        await asked.until(lambda: asked.ticks > ticks)
        assert (asked.pace.state, asked.pace.limit) == then

    with StubService([stub.ok, word]) as service:
        ask(service.url, story)
        assert len(service.requests) == 2
