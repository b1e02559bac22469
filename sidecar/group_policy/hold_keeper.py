"""Keep the holds that are in force in this instance, on the event loop.

In force is what the control log says, and what this instance knows and a recreated log lacks. A release is final: the
last record of a key counts, so a hold that a frozen instance writes again over its release is in force until an
instance that knows of the release has written that again, which each does at once. Each instance goes by its own clock.
All runs on the event loop, but for what is said to be called on the topic's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from reconsume.sidecar.core.holds import Holds
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.group_policy.state import HoldsHeard, HoldsInForce, in_force_of, rows_of
from reconsume.topics.durations import render_duration
from reconsume.topics.hold_record import HoldRecord, hold_key, render_hold

LOOK_AT_LEAST_S = 5.0
"""Seconds between two looks whether a hold is over, at most: the wall clock may be set meanwhile."""

Obey: TypeAlias = Callable[[Holds], None]

_LOG = logging.getLogger("reconsume.policy")


class HoldKeeper:
    """The holds in force. `obey` has the lanes take them in."""

    def __init__(self, obey: Obey, clock: Callable[[], Now]) -> None:
        self.in_force = HoldsInForce({})
        self._obey, self._clock = obey, clock
        self._heard = HoldsHeard(0)
        """What the log has said since it was read from its beginning."""
        self._known: dict[str, HoldRecord] = {}
        """Holds and releases that the log said before that, and has not said since, by id."""
        self._unwritten: deque[tuple[bytes, bytes]] = deque()
        self._sent: set[str] = set()
        """The ids of what was written again, each once until the log is read from its beginning."""
        self._timer: asyncio.TimerHandle | None = None

    # --- what the log says -------------------------------------------------------------------------------------------

    def begin(self, holds: HoldsHeard) -> None:
        """Note that the log is read from its beginning into `holds`: it may be another one."""
        self._known |= self._heard.released | self._heard.live
        self._heard = holds
        self._sent.clear()

    def hear(self, ident: str, record: HoldRecord | None) -> None:
        """Note what the log said of a hold, after `heard` has taken it in; `take` obeys it."""
        release = self._heard.released.get(ident) or self._known.get(ident)
        if record is None or record.released:
            self._known.pop(ident, None)
        elif release is not None and release.released:
            self._write_again(ident, release)
        else:
            self._known.pop(ident, None)

    def take(self, *, caught_up: bool) -> None:
        """Obey what was heard. `caught_up`: the log was read to its end."""
        wall = self._clock().wall_ms
        self._known = {ident: record for ident, record in self._known.items() if record.until > wall}
        if caught_up:
            for ident, record in self._known.items():
                if ident not in self._sent:
                    self._write_again(ident, record)
        self._look()

    def _write_again(self, ident: str, record: HoldRecord) -> None:
        self._sent.add(ident)
        self._unwritten.append((hold_key(ident), render_hold(record)))

    def unwritten(self) -> list[tuple[bytes, bytes]]:
        """Return the keys and values that are to be written to the topic, each once. For the topic's thread."""
        records = []
        while self._unwritten:
            records.append(self._unwritten.popleft())
        return records

    def status(self) -> dict[str, object]:
        """Return the holds' part of `/status`."""
        return {"holds": rows_of(self.in_force.records), "holds_ignored": next(iter(self.in_force.ignored), "")}

    def since(self) -> list[int]:
        """Return when each hold in force began (epoch ms)."""
        return [record.since for record in self.in_force.records.values()]

    # --- what is in force --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Obey what is in force now, and look again when that changes."""
        wall, before = self._clock().wall_ms, self.in_force
        known = {ident: record for ident, record in self._known.items() if not record.released}
        self.in_force = in_force_of(known | self._heard.live, self._heard.ignored(wall), wall)
        if before.records != self.in_force.records:
            self._log_changes(before, wall)
            self._obey(self.in_force.holds)
        if self.in_force.ignored and before.ignored[:1] != self.in_force.ignored[:1]:
            _LOG.warning("%s", self.in_force.ignored[0], extra={"event": "hold-ignored"})
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.in_force.records or self.in_force.ignored:
            end = min((record.until for record in self.in_force.records.values()), default=2**63)
            wait_s = min(max(0, end - wall) / 1000, LOOK_AT_LEAST_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _log_changes(self, before: HoldsInForce, wall: int) -> None:
        for ident, record in self.in_force.records.items():
            if ident not in before.records:
                text = "hold %s by %s: %s gets no delivery for %s, because %s"
                lasts = render_duration(max(0, record.until - wall) // 1000 * 1000)
                extra = {"event": "hold", "hold": ident, "about": [ident], "who": record.who, "until": record.until}
                _LOG.warning(text, ident, record.who, record.what, lasts, record.why, extra=extra)
        for ident, record in before.records.items():
            if ident not in self.in_force.records:
                text = "hold %s is over: %s may be delivered again"
                _LOG.warning(text, ident, record.what, extra={"event": "hold-over", "hold": ident, "about": [ident]})
