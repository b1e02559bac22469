"""Report the pace to operators, and what the service rejects; poll the health URL while the pace waits for it.

The pace is shown in `/status`, and its changes in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reconsume.sidecar.clock import now, utc
from reconsume.sidecar.core.lane import Lane
from reconsume.sidecar.core.pace.pace import AWAY, Cause, Change, Pace, State
from reconsume.sidecar.core.pace.refusals import Refused, hint_of, quoted
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.delivery.push.access import Access
from reconsume.sidecar.delivery.push.deaths import DeathWatch
from reconsume.sidecar.delivery.push.health_check import USUAL_TIMEOUT, HealthCheck
from reconsume.sidecar.delivery.push.target import Target
from reconsume.sidecar.printable import ago, plural

SHORT = 1.0
"""Seconds. An outage that begins with a death of the service, and is over by then, has no line of its own."""
QUIET = 30.0
"""Seconds between two lines about the pace, after the first: a service that flaps changes it every few seconds."""
OUTAGES = {
    Cause.UNREACHABLE: "the service is unreachable; one record at a time probes it, and no retries are used up",
    Cause.FAILING: "the service fails everything; one record a second is delivered, and each delivery is an attempt",
    Cause.UNWELL: "the health URL does not say that the service is well; nothing is sent, and no retries are used up",
}

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
        self._log = PaceLog(lambda: sum(lane.shown.waiting() for lane in self._lanes))
        pace.changed = self._changed
        if self._health is not None:
            pace.health.ask = self._health.ask_at_once

    def start(self) -> None:
        """Ask the health URL for the first time, before any delivery."""
        if self._health is not None:
            self._health.watch()

    def close(self) -> None:
        """Stop asking the health URL, and log what was not logged yet."""
        self._log.flush()
        if self._health is not None:
            self._health.close()

    def status(self) -> dict[str, object]:
        """Return the pace for `/status`: its state, since when (epoch ms), why, and the cause of an outage.

        `idle_since`: epoch ms since when no record is there to probe the service with; None if one is in flight.
        """
        pace = self._pace
        return {
            "pace": str(pace.state.shown),
            "pace_since": pace.since.wall_ms,
            "pace_reason": pace.reason or None,
            "outage": None
            if pace.cause is None
            else {"cause": str(pace.cause), "idle_since": pace.idle_since(now().wall_ms)},
        }

    def watch_deaths(self, deaths: DeathWatch) -> None:
        """Log deaths of the service, with the number of records that it had, before the pace hears of them."""
        deaths.at_death = self._log.service_died
        self._log.looks_for_death = lambda: deaths.is_looking

    def _tick(self, moment: Now) -> None:
        for lane in self._lanes:
            lane.tick(moment)

    def _changed(self, change: Change) -> None:
        if change.was is change.state or not {change.was, change.state} <= AWAY:  # not for each probe
            self._log.changed(change)
        if change.was is not change.state and change.state is State.OUTAGE and self._health is not None:
            self._health.watch()


class HeldOutage(NamedTuple):
    """The beginning of an outage that is not logged yet: its line, as of `log_change`, and when that is written."""

    timer: asyncio.TimerHandle
    began_at: float
    """Loop time (seconds)."""
    change: Change
    waiting: int
    at: int


class PaceLog:
    """Log the changes of the pace: the first at once, then one line in `QUIET` seconds at most.

    `waiting`: returns how many records in memory may not be delivered yet. Used on the event loop.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._waiting = waiting
        self._loop = asyncio.get_running_loop()
        self._quiet: asyncio.TimerHandle | None = None
        self._last: tuple[Change, int, int] | None = None
        """The last change that was not logged, how many records waited then, and when that was (epoch ms)."""
        self._changes = 0
        """How many were not logged."""
        self.looks_for_death: Callable[[], bool] = lambda: False
        """Returns whether it is being found out if the service has died."""
        self._died_at = -SHORT
        """Loop time (seconds) of the last death of the service."""
        self._outage: HeldOutage | None = None
        """The outage under way, if it may have begun with a death, and may be short."""

    def service_died(self, records: int) -> None:
        """Log a death of the service, with the number of records that it had."""
        self._died_at = self._loop.time()
        text = "the service died while it had %s: no retries are used up"
        _LOG.warning(text, plural(records, "record"), extra={"event": "service-died", "suspects": records})

    def changed(self, change: Change) -> None:
        """Log a change, or keep it for the next line."""
        waiting, at = self._waiting(), now().wall_ms
        if (held := self._outage) is not None:
            self._outage = None
            held.timer.cancel()
            if change.state not in AWAY and self._died_at > held.began_at - SHORT / 10:
                return  # the line about the death has said it all
            self._write_or_keep(held.change, held.waiting, held.at)
        elif change.state in AWAY and (self.looks_for_death() or self._loop.time() - self._died_at < SHORT / 10):
            timer = self._loop.call_later(SHORT, self._end_hold)
            self._outage = HeldOutage(timer, self._loop.time(), change, waiting, at)
            return
        self._write_or_keep(change, waiting, at)

    def _end_hold(self) -> None:
        if (held := self._outage) is not None:
            self._outage = None
            held.timer.cancel()
            self._write_or_keep(held.change, held.waiting, held.at)

    def _write_or_keep(self, change: Change, waiting: int, at: int) -> None:
        if self._quiet is None:
            log_change(change, waiting, at)
            self._quiet = self._loop.call_later(QUIET, self._end_quiet)
        else:
            self._last, self._changes = (change, waiting, at), self._changes + 1

    def flush(self) -> None:
        """Log what was kept."""
        self._end_hold()
        if self._last is not None:
            log_change(*self._last, self._changes)
            self._last, self._changes = None, 0

    def _end_quiet(self) -> None:
        self._quiet = None
        if self._last is not None:
            self.flush()
            self._quiet = self._loop.call_later(QUIET, self._end_quiet)


def log_change(change: Change, waiting: int, at: int, changes: int = 1) -> None:
    """Log one change of the pace, which was `at` (epoch ms), perhaps some time ago.

    `waiting`: records in memory that could not be delivered then. `changes`: of how many it is the last.
    """
    facts = {
        "was": str(change.was.shown),
        "seconds": round(change.lasted_ms / 1000, 1),
        "waiting": waiting,
        "changes": changes,
        "changed_at": utc(at),
    }
    since = now().wall_ms - at
    before = f"{ago(since)} ago" if since >= 1_000 else ""
    flaps = f"{before}: " if before else ""
    if changes > 1:
        flaps = f"the pace changed {changes} times{', the last time ' * bool(before)}{before}; since then "
    if change.cause is not None:
        extra = {**facts, "event": "pace-outage", "cause": str(change.cause)}
        _LOG.warning("%san outage: %s: %s", flaps, OUTAGES[change.cause], change.reason, extra=extra)
    elif change.state is State.THROTTLED:
        text = "%sdeliveries slow down: %s"
        _LOG.warning(text, flaps, change.reason, extra={**facts, "event": "pace-throttled"})
    elif change.reason:
        text = "%sthe outage is over after %s s: %s"
        _LOG.info(text, flaps, facts["seconds"], change.reason, extra={**facts, "event": "pace-open"})
    else:
        text = "%sdeliveries go on after %s s of %s"
        _LOG.info(text, flaps, facts["seconds"], facts["was"], extra={**facts, "event": "pace-open"})


def log_refused(refused: Refused) -> None:
    """Log that the service rejects every record of a topic."""
    sent, hint = refused.sent, hint_of(refused.status, quoted(refused.text))
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
