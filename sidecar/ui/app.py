"""The dashboard as one application: its parts, the table of its pages, and how it is served until it is stopped.

`Dashboard` is made once, from the settings of a group. `reconsume ui` serves it with `serve`, on the main thread; a
running sidecar serves it with `DashboardThread`, on a thread and an event loop of its own. Either way all pages are
rendered on one event loop, and their queries to Kafka run on threads (`endpoint.py`).

Without a token file no user can sign in, and the routes that change something do not exist. Where a proxy serves the
dashboard below a path (`ui.base_path`), every route exists twice, with and without that path: some proxies pass it on
unchanged, others strip it. No page begins with the path, because the setting refuses one whose first segment is a
page's.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import uvloop
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router

from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.dlq.redriver import why
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.http.access import LOOPBACK_NAMES, Access, AccessMiddleware
from reconsume.sidecar.http.server import Server
from reconsume.sidecar.http.tokens import Tokens
from reconsume.sidecar.observability.thread_watch import WatchedThread
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.addresses import Listen, is_loopback
from reconsume.sidecar.ui.audit_log import AuditLog
from reconsume.sidecar.ui.endpoint import ERRORS, MOST_SCANS, Endpoints, Page, Site, ThreadQueries
from reconsume.sidecar.ui.find_page import FindPage
from reconsume.sidecar.ui.hold_forms import HoldForms, HoldPage
from reconsume.sidecar.ui.key_pages import KeyPages, SettleForm
from reconsume.sidecar.ui.letter_actions import LetterActions, LetterForms
from reconsume.sidecar.ui.letter_pages import LetterPages
from reconsume.sidecar.ui.overview import LastAlarms
from reconsume.sidecar.ui.pages import Pages
from reconsume.sidecar.ui.queries import Queries
from reconsume.sidecar.ui.security import HEADERS, Sessions, ValueGate
from reconsume.sidecar.ui.sign_in import SignIn
from reconsume.sidecar.ui.templating import FOLDER, Renderer
from reconsume.sidecar.view.follower import ViewFollower
from reconsume.sidecar.view.query_pool import MOST_WAITING as VIEW_QUERIES
from reconsume.sidecar.view.query_pool import THREADS as VIEW_THREADS
from reconsume.sidecar.view.query_pool import QueryPool
from reconsume.sidecar.view.source import Source

STOPPED_WITHIN = 15.0
"""Seconds that a redrive under way has to end its transaction."""
VIEW_WITHIN = 2.0
"""Seconds to wait for the thread that follows the view; it keeps nothing but a temporary file."""
ASSETS = {
    "style.css": "text/css",
    "htmx.min.js": "text/javascript",
    "live.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "LICENSE": "text/plain",
}
"""The files that are served unchanged; no other file is served."""

_LOG = logging.getLogger("reconsume.ui")


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """How the dashboard is served. `hosts`: further host names that requests may use. `setting`: where `listen` comes
    from."""

    listen: Listen
    token_file: Path | None
    audit_file: Path
    hosts: tuple[str, ...] = ()
    setting: str = "--listen"
    read: Literal["open", "signed-in"] = "open"
    """Who may see keys, values and headers (`ValueGate`)."""
    base_path: str = ""
    """The path below which a proxy serves it (`ui.base_path`)."""

    @property
    def near(self) -> bool:
        """Whether only this machine can reach it."""
        return self.listen.path is not None or is_loopback(self.listen.host)


class Dashboard:
    """The parts of the dashboard. Call `start` and `stop` on the event loop. Raises ConfigError if it would be open to
    the network without a token.

    `topic`: a follower of the view that already runs and continues after this ends; None: the dashboard starts its own.
    `share`: the part of a processor that one query to Kafka may use.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        wanted: DashboardOptions,
        topic: ViewFollower | None = None,
        share: float = 1.0,
    ) -> None:
        if wanted.token_file is None and not wanted.near:
            needed = "needs --token-file or operators.token_file, and --host NAME or ui.hosts"
            raise ConfigError([f"--listen {wanted.listen.host}: outside loopback the dashboard {needed}"])
        if wanted.token_file is None and wanted.read == "signed-in":
            needed = "needs --token-file, or operators.token_file: nobody could sign in"
            raise ConfigError([f"ui.read = signed-in: {needed}"])
        self._wanted = wanted
        self._topic = topic or ViewFollower(
            settings.kafka, settings.names, None, "reconsume-ui", source=Source(settings.view.source)
        )
        self._own = None if topic is not None else self._topic
        self._readers = QueryPool(self._topic, ThreadQueries(VIEW_THREADS, VIEW_QUERIES))
        self._last_alarms, gate = LastAlarms(), ValueGate(wanted.read)
        shared = {
            "last_alarms": self._last_alarms.known,
            "group": settings.group,
            "topics": settings.topic_names,
            "levels": settings.delays,
            "ordered": settings.order_by is not None,
            "may_be_held": not settings.deliver.broadcast,
            "may_change": wanted.token_file is not None,
            "session": None,
            "why": why,
        }
        self._site = Site(
            render=Renderer(shared, gate, wanted.base_path),
            ask=ThreadQueries(),
            scan=ThreadQueries(1, MOST_SCANS, threading.Lock()),
            looks=Queries(settings, policy, share),
            gate=gate,
            audit=AuditLog(wanted.audit_file),
        )
        self._actions = LetterActions(self._site.looks, self._site.audit)
        self.server = Server(self._app(), wanted.listen, setting=wanted.setting, headers=HEADERS)

    async def start(self) -> None:
        """Listen, and follow the view. Raises SetupError if it cannot listen."""
        await self.server.start()
        if self._own is not None:
            self._own.start()

    async def stop(self, within: float = STOPPED_WITHIN) -> None:
        """Stop everything. A redrive under way ends between two transactions, if it needs at most `within` seconds."""
        await self.server.stop()
        if self._own is not None:
            self._own.stop()
        for threads in (self._readers, self._site.ask, self._site.scan):
            threads.close()
        await on_own_thread("stop", lambda: self._actions.close(within))
        if (own := self._own) is not None and own.is_alive():  # it never started if listening failed
            await on_own_thread("stop", lambda: own.join(VIEW_WITHIN))

    def _app(self) -> Starlette:
        wanted, site = self._wanted, self._site
        tokens = None if wanted.token_file is None else Tokens(wanted.token_file)
        sessions = Sessions(tokens, far=not wanted.near, path=wanted.base_path or "/")
        front = Endpoints(site.render, sessions, site.gate, everyone_reads=wanted.near)
        pages, forms = self._pages(), dict[str, Page]()
        if tokens is not None:
            sign_in = SignIn(site.render, site.ask, site.audit, sessions, tokens)
            pages["/sign-in"] = sign_in.ask_token
            forms = {"/sign-in": sign_in.sign_in, "/sign-out": sign_in.sign_out}
            self._add_actions(pages, forms)
        routes: list[BaseRoute] = [
            Route(
                f"/static/{name}", Response((FOLDER / "static" / name).read_bytes(), media_type=kind), methods=["GET"]
            )
            for name, kind in ASSETS.items()
        ]
        for method, table in (("GET", pages), ("POST", forms)):
            for path, page in table.items():
                endpoint = front(page, open_to_all=path == "/sign-in", is_private=path == "/keys/queue")
                routes.append(Route(path, endpoint, methods=[method]))
        if base := wanted.base_path:
            inside = Mount(base, Router(routes, redirect_slashes=False))
            routes = [*routes, Route(base, front(pages["/"]), methods=["GET"]), inside]
        # Forms check their own media type, and each action writes its own audit line.
        access = Access(
            hosts=tuple(name.lower() for name in (*LOOPBACK_NAMES, *wanted.hosts)),
            schemes=("http", "https"),
            media_type=None,
            audit=False,
            unknown_host=partial(site.render, "unknown_host.html", 421),
        )
        app = Starlette(
            routes=routes,
            middleware=[Middleware(AccessMiddleware, access=access)],
            exception_handlers=dict.fromkeys((HTTPException, *ERRORS), front.error_page),
        )
        app.router.redirect_slashes = False  # the redirect would name the host that the caller sent
        return app

    def _pages(self) -> dict[str, Page]:
        """Return the pages that only show."""
        render, scan, looks, gate = self._site.render, self._site.scan, self._site.looks, self._site.gate
        pages = Pages(self._site, self._topic, self._readers, self._last_alarms)
        letters = LetterPages(render, scan, looks, gate)
        shown: dict[str, Page] = {
            "/": pages.group,
            "/part/group": partial(pages.group, template="group_part.html"),
            "/part/alarms": pages.alarms_part,
            "/records": pages.records,
            "/record": pages.record,
            "/record/journey": pages.journey,
            "/find": FindPage(render, scan, looks, gate).find,
            "/dlq": letters.letters,
            "/dlq/letter": letters.letter,
            "/holds": HoldPage(render, self._site.ask, looks).holds,
            "/policy": pages.policy,
            "/instances": pages.instances,
            "/part/instances": partial(pages.instances, template="instances_part.html"),
        }
        if self._wanted.token_file is not None:
            shown["/activity"] = pages.activity
        if looks.settings.order_by is not None:
            keys = KeyPages(render, scan, looks)
            shown |= {"/keys": keys.keys, "/keys/queue": keys.queue}
        return shown

    def _add_actions(self, pages: dict[str, Page], forms: dict[str, Page]) -> None:
        """Add the forms that change something, and the page of a redrive in progress."""
        render, ask, scan = self._site.render, self._site.ask, self._site.scan
        looks, audit = self._site.looks, self._site.audit
        letters = LetterForms(render, ask, scan, looks, self._actions)
        holds = HoldForms(render, ask, looks, audit, self._last_alarms)
        pages["/dlq/redrives/{job}"] = letters.job
        forms |= {
            "/dlq/plan": letters.plan,
            "/dlq/redrive": letters.redrive,
            "/dlq/redrives/{job}/stop": letters.stop,
            "/dlq/dismissal": letters.plan_dismissal,
            "/dlq/dismiss": letters.dismiss,
            "/dlq/export": letters.export,
            "/holds/begin": holds.begin,
            "/holds/release": holds.release,
        }
        if looks.settings.order_by is not None:
            forms["/keys/settle"] = SettleForm(render, scan, looks, audit).settle


def serve(dashboard: Dashboard, started: Callable[[Server], None]) -> None:
    """Serve until SIGINT or SIGTERM; call `started` once the server listens. Raises SetupError if it cannot listen."""

    async def run() -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end.set)
        try:
            await dashboard.start()
            started(dashboard.server)
            await end.wait()
        finally:
            await dashboard.stop()

    uvloop.run(run())  # as in `DashboardThread`


class DashboardThread:
    """A dashboard inside a running sidecar. Call `start` and `stop` once each, on the sidecar's event loop.

    A slow page delays no record: none of its code runs on the sidecar's event loop, and its scans pause after each 5 ms
    of work, because all threads share the interpreter.
    """

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        # asyncio's own loop accepts all callers that wait before it reads from one, so a flood would evict all others.
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    async def start(self) -> None:
        """Listen. Raises SetupError if the address is in use or not permitted."""
        self._thread.start()
        await self._on_thread(self._dashboard.start())
        server = self._dashboard.server
        where = f"unix:{server.path}" if server.path is not None else f"port {server.port}"
        _LOG.info("the dashboard listens on %s", where, extra={"event": "dashboard", "port": server.port})

    async def stop(self, grace: float = 1.0) -> None:
        """Stop serving. A redrive under way ends between two transactions, if it needs at most `grace` seconds.

        Otherwise Kafka aborts its transaction, and the next redrive continues from there.
        """
        await self._on_thread(self._dashboard.stop(grace))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await on_own_thread("stop", lambda: self._thread.join(grace))

    def watched(self) -> list[WatchedThread]:
        """Return its thread, for the thread watch."""
        return [WatchedThread("dashboard", self._thread)]

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _on_thread(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
