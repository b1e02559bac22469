"""The dashboard inside a running sidecar, on a thread and an event loop of its own.

A slow page delays no record: none of its code runs on the sidecar's event loop, and its reads from Kafka take a quarter
of a processor at most. It starts and stops like the sidecar's other servers. If the dashboard is disabled, its modules
are not loaded.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import uvloop

from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.observability.thread_watch import WatchedThread
from reconsume.sidecar.settings.model import Settings

if TYPE_CHECKING:
    from reconsume.sidecar.http.server import Server
    from reconsume.sidecar.view.follower import ViewFollower

SHARE = 0.25
"""Share of a processor for one query to Kafka: the lanes need the same interpreter."""

_LOG = logging.getLogger("reconsume.ui")


class Served(Protocol):
    """A dashboard that can be served. Both methods are called once, on the event loop of its thread."""

    server: Server

    async def start(self) -> None:
        """Listen. Raises SetupError if the address cannot be used."""

    async def stop(self, within: float) -> None:
        """Stop within this many seconds."""


class DashboardThread:
    """A thread that serves a dashboard. Call `start` and `stop` once each, on the sidecar's event loop."""

    def __init__(self, dashboard: Served) -> None:
        self._dashboard = dashboard
        # Not the sidecar's loop: rendering a page would delay records. Scans pause after each 5 ms of work, because all
        # threads share the interpreter.
        # asyncio's own loop accepts all callers that wait before it reads from one, so a flood would evict all others.
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    async def start(self) -> None:
        """Listen. Raises SetupError if the address is in use or not permitted."""
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
        """Stop serving. A redrive under way ends between two transactions, if it needs at most `grace` seconds.

        Otherwise Kafka aborts its transaction, and the next redrive continues from there.
        """
        await self._there(self._dashboard.stop(grace))
        self._end()
        await on_own_thread("stop", lambda: self._thread.join(grace))

    def watched(self) -> list[WatchedThread]:
        """Return its thread, for the thread watch."""
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
    """Build the dashboard if it is enabled. `topic`: a follower of the group's view that already runs, if there is
    one."""
    ui = settings.ui
    if not ui.enabled:
        return []
    from reconsume.sidecar.ui.app import (
        Dashboard,
        DashboardOptions,
    )  # not loaded without a dashboard: templates and the like use memory

    operators = settings.operators
    tokens = None if operators.token_file is None else Path(operators.token_file)
    # Without a token no action is possible, so nothing is written to the audit log.
    wanted = DashboardOptions(
        ui.listen,
        tokens,
        Path(operators.audit_file or "/dev/null"),
        ui.hosts,
        "ui.listen",
        settings.read,
        ui.base_path,
    )
    return [DashboardThread(Dashboard(settings, policy, wanted, topic, SHARE))]
