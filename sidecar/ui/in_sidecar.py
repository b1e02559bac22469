"""The dashboard beside the lanes, in a running sidecar: on a thread and an event loop of its own.

A page that takes long holds up no record: nothing of it runs on the sidecar's loop, and what it reads from Kafka takes
a quarter of a processor at most. It starts and stops as the sidecar's other servers do. Only what is needed is loaded
where there is none.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sidecar.core.policy import Policy
from sidecar.observability.thread_watch import WatchedThread
from sidecar.settings.model import Settings

if TYPE_CHECKING:
    from sidecar.http.server import Server
    from sidecar.view.follower import ViewFollower

SHARE = 0.25
"""Of a processor, for one question to Kafka: the lanes need the same interpreter."""

_LOG = logging.getLogger("reconsume.ui")


class Served(Protocol):
    """What is served: the dashboard. Both are called on the loop of its thread, once each."""

    server: Server

    async def start(self) -> None:
        """Listen. Raises SetupError."""

    async def stop(self, within: float) -> None:
        """End, in so many seconds."""


class DashboardThread:
    """Serves a dashboard from a thread of its own. `start` and `stop` are called on the sidecar's loop, once each."""

    def __init__(self, dashboard: Served) -> None:
        self._dashboard = dashboard
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    async def start(self) -> None:
        """Listen. Raises SetupError when the address is taken, or is not ours to take."""
        self._thread.start()
        try:
            await self._there(self._dashboard.start())
        except BaseException:
            self._end()
            raise
        server = self._dashboard.server
        where = f"unix:{server.path}" if server.path is not None else f"port {server.port}"
        _LOG.info("the dashboard listens on %s", where, extra={"event": "dashboard", "port": server.port})

    async def stop(self, grace: float = 1.0) -> None:
        """Answer no more. A redrive under way ends between two transactions if `grace` seconds are enough for that.

        Else Kafka ends its transaction, and the next redrive goes on where it was.
        """
        await self._there(self._dashboard.stop(grace))
        self._end()
        await asyncio.to_thread(self._thread.join, grace)

    def watched(self) -> list[WatchedThread]:
        """Its thread."""
        return [WatchedThread("dashboard", self._thread)]

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _there(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def build_dashboards(settings: Settings, policy: Policy, topic: ViewFollower | None) -> list[DashboardThread]:
    """The dashboard, where one is wanted. `topic`: who follows the group's view already, if anybody does."""
    ui = settings.ui
    if not ui.enabled:
        return []
    from sidecar.ui.app import (
        Dashboard,
        DashboardOptions,
    )  # templates and all: memory that a sidecar without it need not have

    tokens = None if ui.token_file is None else Path(ui.token_file)
    # Without a token nothing can be done, and nothing is written.
    wanted = DashboardOptions(ui.place, tokens, Path(ui.audit_file or "/dev/null"), ui.hosts)
    return [DashboardThread(Dashboard(settings, policy, wanted, topic, SHARE))]
