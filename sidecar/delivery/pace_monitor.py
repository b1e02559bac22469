"""Report the pace to operators, and what the service rejects; poll the health URL while the pace waits for it.

The pace is shown in `/status`, and each change of it in a log line.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.lane.lane import Lane
from reconsume.sidecar.core.pace.pace import AWAY, Change, Pace, State
from reconsume.sidecar.core.pace.refusals import Refused, hint_of
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.delivery.push.access import Access
from reconsume.sidecar.delivery.push.health_check import USUAL_TIMEOUT, HealthCheck
from reconsume.sidecar.delivery.push.target import Target

_LOG = logging.getLogger("reconsume.pace")


class PaceMonitor:
    """Report the pace and run the health check. Made and called on the event loop.

    `health`: the health URL, if any; `timeout`: ms that its answer may take; `access`: how it is called.
    """

    def __init__(
        self,
        pace: Pace,
        lanes: Sequence[Lane],
        health: Target | None,
        timeout: int = USUAL_TIMEOUT,
        access: Access | None = None,
    ) -> None:
        self._pace = pace
        self._lanes = lanes
        self._health = None if health is None else HealthCheck(health, pace, self._tick, now, timeout, access)
        pace.changed = self._changed
        if self._health is not None:
            pace.ask = self._health.ask_at_once

    def start(self) -> None:
        """Ask the health URL for the first time, before any delivery."""
        if self._health is not None:
            self._health.watch()

    def close(self) -> None:
        """Stop asking the health URL."""
        if self._health is not None:
            self._health.close()

    def status(self) -> dict[str, object]:
        """Return the pace for `/status`: its state, since when (epoch ms), and why it is not open."""
        pace = self._pace
        return {"pace": str(pace.state), "pace_since": pace.since.wall_ms, "pace_reason": pace.reason or None}

    def _tick(self, moment: Now) -> None:
        for lane in self._lanes:
            lane.tick(moment)

    def _changed(self, change: Change) -> None:
        if not {change.was, change.state} <= AWAY:  # a line for each outage, not for each probe
            log_change(change, sum(lane.shown.waiting() for lane in self._lanes))
        if change.state is State.OUTAGE and self._health is not None:
            self._health.watch()


def log_change(change: Change, waiting: int) -> None:
    """Log one change of the pace. `waiting`: records in memory that may not be delivered yet."""
    extra = {
        "event": f"pace-{change.state}",
        "was": "outage" if change.was in AWAY else str(change.was),
        "seconds": round(change.lasted_ms / 1000, 1),
        "waiting": waiting,
    }
    match change.state:
        case State.OUTAGE:
            _LOG.warning("an outage begins; one record at a time is sent as a probe: %s", change.reason, extra=extra)
        case State.THROTTLED:
            _LOG.warning("deliveries slow down: %s", change.reason, extra=extra)
        case _:
            _LOG.info("deliveries go on after %s s of %s", extra["seconds"], extra["was"], extra=extra)


def log_refused(refused: Refused) -> None:
    """Log that the service rejects every record of a topic."""
    sent, hint = refused.sent, hint_of(refused.status)
    text = "all of the last %d deliveries of %s failed with status %d; sent was %s %s with %s: %s"
    extra = {
        "event": "all-refused",
        "topic": refused.topic,
        "status": refused.status,
        "deliveries": refused.deliveries,
        "method": sent.method,
        "path": sent.path,
        "content_type": sent.content_type,
        "hint": hint,
    }
    kind = f"content type {sent.content_type}" if sent.content_type else "no content type"
    what = (refused.deliveries, refused.topic, refused.status, sent.method, sent.path, kind, hint)
    _LOG.warning(text, *what, extra=extra)
