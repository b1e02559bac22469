"""Look for a storm in the local copy of the view every few seconds, and signal it to the pace (`view.storm_outage`).

If the copy cannot be read, that is no storm: a lost or old copy must not hold deliveries back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from sidecar.background import background
from sidecar.clock import now
from sidecar.view.query_pool import QueryPool, UnknownError
from sidecar.view.storm import Alarm, Rule, Storm, storm_of

LOOK_EVERY = 5.0
"""Seconds. Failures take about as long to come through Spark."""

_LOG = logging.getLogger("reconsume.view")


class StormWatch:
    """A watch for storms, created and called on the event loop. It calls `tell` when there is a storm."""

    def __init__(self, readers: QueryPool, rule: Rule, tell: Callable[[], None], every: float = LOOK_EVERY) -> None:
        self._readers, self._rule, self._tell, self._every = readers, rule, tell, every
        self._alarm = Alarm(rule.window)
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._looking = background(self._look_on(), "storm-watch")

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    async def _look_on(self) -> None:
        while True:
            try:
                self._heed(await self._storm())
            except Exception:  # noqa: BLE001 - an optional signal must not end with one fault of its own
                _LOG.exception("looking for storms failed; it is tried again", extra={"event": "storm-fault"})
            await asyncio.sleep(self._every)

    async def _storm(self) -> Storm | None:
        until = now().wall
        try:
            failures, _ = await self._readers.ask(lambda query: query.failures(until - self._rule.window, until))
        except UnknownError:
            return None
        return storm_of(failures, self._rule)

    def _heed(self, storm: Storm | None) -> None:
        if self._alarm.rings(storm is not None, now().steady):
            self._tell()
