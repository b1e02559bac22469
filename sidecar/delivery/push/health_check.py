"""Asks the service's health URL (`deliver.health_url`) while deliveries are stopped, and never while they go on.

The push client asks, with a GET of its own: the same connections, the same care about addresses, no redirect, no proxy.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from sidecar.core.outcome import COMMITTED, Cancelled, Failed, NotSent, Outcome
from sidecar.core.pace.pace import Pace
from sidecar.core.record import Now
from sidecar.delivery.push.pool import Push
from sidecar.delivery.push.settings import PushSettings
from sidecar.delivery.push.target import Target
from sidecar.delivery.push.verdict import VerdictHeaders, VerdictRules

ASK_EVERY = 1.0
"""Seconds between two questions, give or take a tenth, so that the sidecars of many pods do not ask in step."""
TIMEOUT_MS = 2_000

_LOG = logging.getLogger("reconsume.health")


class HealthCheck:
    """Polls one URL while the pace waits for it. Made and called on the event loop.

    `tick` has the lanes look at the pace anew, after each answer.
    """

    def __init__(self, target: Target, pace: Pace, tick: Callable[[Now], None], clock: Callable[[], Now]) -> None:
        self._pace = pace
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._asking = self._closed = False
        self._told = ""
        settings = PushSettings("", TIMEOUT_MS, 1, connect_timeout_ms=TIMEOUT_MS)
        self._request = f"GET {target.path} HTTP/1.1\r\nHost: {target.authority}\r\nAccept: */*\r\n\r\n".encode("ascii")
        self._push = Push(target, settings, clock)

    @property
    def connections(self) -> int:
        """How many connections stand or are being made."""
        return self._push.connections

    def watch(self) -> None:
        """Ask now, and again until deliveries may go; harmless while it does."""
        if self._timer is None and not self._asking:
            self._ask()

    def ask_at_once(self) -> None:
        """Ask now, however long ago the last question was: deliveries stand still until there is an answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.watch()

    def close(self) -> None:
        """Ask no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._push.close()

    def _ask(self) -> None:
        self._timer = None
        if self._pace.unsure and not self._closed:
            self._asking = True
            self._push.post((None, self._answered), self._request, by_status)

    def _answered(self, _question: None, outcome: Outcome, now: Now) -> None:
        self._asking = False
        if self._closed or isinstance(outcome, Cancelled):
            return
        self._timer = self._loop.call_later(ASK_EVERY * random.uniform(0.9, 1.1), self._ask)
        if isinstance(outcome, NotSent | Failed):
            self._fails(outcome.reason, now)
        else:
            self._told = ""
            self._pace.healthy(now)
        self._tick(now)

    def _fails(self, reason: str, now: Now) -> None:
        self._pace.unhealthy(f"health URL: {reason}", now)
        if reason != self._told:
            self._told = reason
            _LOG.warning("the health URL fails: %s", reason, extra={"event": "health-url", "reason": reason})


def by_status(status: int, _noted: VerdictHeaders, _body: bytes, _rules: VerdictRules, _wall: int) -> Outcome:
    """What a health URL's answer means: its status alone counts."""
    return COMMITTED if 200 <= status < 300 else Failed(f"http-{status}")
