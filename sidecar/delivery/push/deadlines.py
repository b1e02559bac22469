"""When a connection of the pool has waited too long: to be opened, for an answer, or for its next use.

The deadline itself is in the connection (`Connection.deadline`). Here is how long each step may take, and one timer for
all connections, which rings when the earliest deadline has come: a timer for each request would cost as much as the
request. The timer runs while the pool has connections (`run_timer`, `stop_timer`). Event loop alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from reconsume.sidecar.delivery.push.settings import PushSettings

if TYPE_CHECKING:
    from reconsume.sidecar.delivery.push.connection import Connection

LOOK_EVERY = 0.05
"""Seconds between two checks of the deadlines, at least. A timeout may be noticed this much late."""
LONGEST_IDLE = 60.0
"""Seconds for which an idle connection is kept at most, whatever the service says."""
GRAIN = 0.001
"""Seconds that the loop's clock may be behind: it counts milliseconds, and stands still while callbacks run. A check
comes so much later, or a timeout would end before its time."""


class Deadlines:
    """How long connections and requests may take, in seconds. `connections`: those of the pool, open or being opened.

    `expire`: called with each one that is past its deadline.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: PushSettings,
        connections: Collection[Connection],
        expire: Callable[[Connection], None],
    ) -> None:
        self.idle = settings.idle_ms / 1000
        """For which an idle connection is kept."""
        self.own_timeouts = {
            topic: call.timeout_ms / 1000 for topic, call in settings.calls.items() if call.timeout_ms is not None
        }
        """Of the topics that have a timeout of their own."""
        self._loop, self._settings, self._connections, self._expire = loop, settings, connections, expire
        self._timer: asyncio.TimerHandle | None = None
        self.set_timeout(settings.timeout_ms)

    def set_timeout(self, ms: int) -> None:
        """Set the timeout (ms) of deliveries that begin from now on, unless their topics have one of their own."""
        self.timeout = ms / 1000
        self._shortest = min((self.timeout, *self.own_timeouts.values()))
        self.connect = min(self._settings.connect_timeout_ms / 1000, self._shortest)
        self._look_every = min(LOOK_EVERY, self._shortest / 4, self._settings.idle_ms / 4000)
        if self._timer is not None:  # a deadline may come before the next check now
            self.stop_timer()
            self._look_later(self._loop.time())

    def note_kept_for(self, seconds: int) -> None:
        """Use no connection again that the service may be about to close: it closes idle ones after so many seconds."""
        # Contract 1.8: less a second, which a request may need on its way; of a very short time less a half.
        self.idle = min(LONGEST_IDLE, max(seconds - 1, seconds / 2))

    def run_timer(self, now: float) -> None:
        """Have the deadlines checked: there is a connection (`now`: loop time)."""
        if self._timer is None:
            self._look_later(now)

    def stop_timer(self) -> None:
        """Check nothing: there is no connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self, now: float) -> None:
        # A wake-up for nothing costs as much as a delivery's, so the next check is at the earliest deadline there is or
        # may come: that of a request, a connection or an idle time that begins now.
        soonest = now + min(self._shortest, self.connect, self.idle)
        soonest = min(soonest, min(connection.deadline for connection in self._connections))
        self._timer = self._loop.call_later(max(self._look_every, soonest - now + GRAIN), self._expire_connections)

    def _expire_connections(self) -> None:
        self._timer = None
        now = self._loop.time()
        for connection in tuple(self._connections):
            if connection.deadline <= now:
                self._expire(connection)
        if self._connections:
            self.run_timer(now)  # unless a reply has opened a connection
