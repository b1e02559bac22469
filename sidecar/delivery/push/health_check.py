"""Poll the service's health URL (`deliver.health_url`) while deliveries are stopped, and never while they go on.

A push client of its own sends the GET. So connections and addresses are handled as for records: no redirect, no proxy.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from reconsume.sidecar.core.outcome import COMMITTED, CONNECTION_LOST, Cancelled, Died, Failed, NotSent, Outcome
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.delivery.push.access import Access
from reconsume.sidecar.delivery.push.pool import Push, RequestForm
from reconsume.sidecar.delivery.push.settings import PushSettings
from reconsume.sidecar.delivery.push.target import Target
from reconsume.sidecar.delivery.verdict import VerdictHeaders, VerdictRules

ASK_EVERY = 1.0
"""Seconds between two requests, plus or minus a tenth. Without that, the sidecars of many pods would ask at the same
time."""
HEALTH = "health URL: "
"""What stands before the cause in the reason of a pace that a health URL holds back."""
USUAL_TIMEOUT = 5_000
"""ms. A service that starts, or checks its own database for each call, may take seconds."""

_LOG = logging.getLogger("reconsume.health")


class HealthCheck:
    """Poll one URL while the pace waits for it. Made and called on the event loop.

    `tick` makes the lanes check the pace again, after each answer. `timeout`: ms that an answer may take.
    `access`: needed if the target has TLS.
    """

    def __init__(
        self,
        target: Target,
        pace: Pace,
        tick: Callable[[Now], None],
        clock: Callable[[], Now],
        timeout: int = USUAL_TIMEOUT,
        access: Access | None = None,
    ) -> None:
        self._pace = pace
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._asking = self._closed = False
        self._told = ""
        settings = PushSettings("", timeout, connect_timeout_ms=timeout, verdict_bodies=False)
        self._request = f"GET {target.path} HTTP/1.1\r\nHost: {target.authority}\r\nAccept: */*\r\n\r\n".encode("ascii")
        self._push = Push(target, settings, clock, access)
        self._push.form = RequestForm(lambda _question: self._request)

    @property
    def connections(self) -> int:
        """Number of connections that are open or being opened."""
        return self._push.connections

    def watch(self) -> None:
        """Ask now, and again until deliveries may go. A call while it asks already is harmless."""
        if self._timer is None and not self._asking:
            self._ask_service()

    def ask_at_once(self) -> None:
        """Ask now, however short ago the last request was: deliveries stand still until there is an answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.watch()

    def close(self) -> None:
        """Send no more requests."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._push.close()

    def _ask_service(self) -> None:
        self._timer = None
        if self._pace.unsure and not self._closed:
            self._asking = True
            self._push.post((None, self._answered), self._request, by_status)

    def _answered(self, _question: None, outcome: Outcome, now: Now) -> None:
        self._asking = False
        if self._closed or isinstance(outcome, Cancelled):
            return
        self._timer = self._loop.call_later(ASK_EVERY * random.uniform(0.9, 1.1), self._ask_service)
        if isinstance(outcome, NotSent | Failed | Died):
            self._fails(outcome.reason or CONNECTION_LOST, now)
        else:
            self._told = ""
            self._pace.healthy(now)
        self._tick(now)

    def _fails(self, reason: str, now: Now) -> None:
        self._pace.unhealthy(f"{HEALTH}{reason}", now)
        if reason != self._told:
            # With `was` each line is news, though it may say the same as the one before.
            extra = {"event": "health-url", "reason": reason, "was": self._told or "well"}
            self._told = reason
            _LOG.warning("the health URL fails: %s", reason, extra=extra)


def by_status(status: int, _noted: VerdictHeaders, _body: bytes, _rules: VerdictRules, _wall: int) -> Outcome:
    """Return the outcome that a health URL's answer means: its status alone counts, as for the probes of a kubelet.

    A redirect says that the service answers, such as one to the same path with a slash.
    """
    return COMMITTED if 200 <= status < 400 else Failed(f"http-{status}")
