"""Keep the holds of the group in this instance: obey them, end them in time, write them again to a topic made anew.

Runs on the event loop, but for `unwritten`, which the topic's thread calls. Each instance goes by its own clock.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeAlias

from reconsume.sidecar.core.holds import Holds
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.group_policy.hold_book import HoldBook, InForce
from reconsume.sidecar.printable import plural
from reconsume.topics.durations import render_duration
from reconsume.topics.hold_record import HoldRecord, hold_key, render_hold

LOOK_AT_LEAST_S = 5.0
"""Seconds between two looks whether a hold is over, at most: the wall clock may be set meanwhile."""

Obey: TypeAlias = Callable[[Holds], None]

_LOG = logging.getLogger("reconsume.policy")


class HoldKeeper:
    """The holds in force. `obey` has the lanes take them in."""

    def __init__(self, obey: Obey, clock: Callable[[], Now]) -> None:
        self.in_force = InForce({}, 0)
        self.ignored = ""
        """Why a hold is not obeyed, as one sentence; empty if all are."""
        self._obey, self._clock = obey, clock
        self._book = HoldBook()
        self._refused: dict[str, str] = {}
        self._unwritten: deque[tuple[bytes, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    # --- what the topic tells ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that the topic is read from its beginning."""
        self._book.begin()
        self._refused.clear()

    def hear(self, ident: str, record: HoldRecord | None) -> None:
        """Take in what the topic says of a hold; `take` obeys it."""
        if why := self._book.hear(ident, record, self._clock().wall_ms):
            self._refused.setdefault(ident if len(self._refused) < 10 else "…", why)
        else:
            self._refused.pop(ident, None)

    def take(self, *, caught_up: bool) -> None:
        """Obey what was heard. `caught_up`: the topic was read to its end."""
        wall = self._clock().wall_ms
        if caught_up:
            for ident, record in self._book.absent(wall).items():
                self._book.note_present(ident)
                self._unwritten.append((hold_key(ident), render_hold(record)))
        self._look()

    def unwritten(self) -> list[tuple[bytes, bytes]]:
        """Return the keys and values that are to be written to the topic, each once. For the topic's thread."""
        records = []
        while self._unwritten:
            records.append(self._unwritten.popleft())
        return records

    def status(self) -> dict[str, object]:
        """Return the holds' part of `/status`."""
        return {"holds": rows_of(self.in_force.records), "holds_ignored": self.ignored}

    def since(self) -> list[int]:
        """Return when each hold in force began (epoch ms)."""
        return [record.since for record in self.in_force.records.values()]

    # --- what is in force --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Obey what is in force now, and look again when that changes."""
        now = self._clock()
        before, self.in_force = self.in_force, self._book.in_force(now.wall_ms)
        if before.records != self.in_force.records:
            self._tell_changes(before, now.wall_ms)
            self._obey(self.in_force.holds)
        self._tell_ignored()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (end := self.in_force.next_end) is not None:
            wait_s = min(max(0, end - now.wall_ms) / 1000, LOOK_AT_LEAST_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _tell_changes(self, before: InForce, wall: int) -> None:
        for ident, record in self.in_force.records.items():
            if ident not in before.records:
                tell_of_hold(ident, record, wall)
        for ident, record in before.records.items():
            if ident not in self.in_force.records:
                text = "hold %s is over: %s is delivered again"
                _LOG.warning(text, ident, record.what, extra={"event": "hold-over", "hold": ident, "about": [ident]})

    def _tell_ignored(self) -> None:
        why = next(iter(self._refused.values()), "")
        if self.in_force.ignored:
            why = f"{plural(self.in_force.ignored, 'hold')} left out: 100 are in force at a time"
        if why and why != self.ignored:
            _LOG.warning("%s", why, extra={"event": "hold-ignored"})
        self.ignored = why


def tell_of_hold(ident: str, record: HoldRecord, wall: int) -> None:
    """Log that a hold begins here."""
    text = "hold %s by %s: %s gets no delivery for %s, because %s"
    lasts = render_duration(max(0, record.until - wall) // 1000 * 1000)
    extra = {"event": "hold", "hold": ident, "about": [ident], "who": record.who, "until": record.until}
    _LOG.warning(text, ident, record.who, record.what, lasts, record.why, extra=extra)


def rows_of(records: Mapping[str, HoldRecord]) -> list[dict[str, object]]:
    """Return holds by id as rows of types that JSON has."""
    return [
        {
            "id": ident,
            "what": record.what,
            "topic": record.topic,
            "level": record.level,
            "key_base64": None if record.key is None else b64encode(record.key).decode(),
            "since": record.since,
            "until": record.until,
            "who": record.who,
            "why": record.why,
        }
        for ident, record in records.items()
    ]
