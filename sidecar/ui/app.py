"""The dashboard as one application: its parts, the table of its pages, and how it is served until it is stopped.

`GroupPages` are the pages of one group, and `Dashboard` serves those of a single group, from its settings; the
dashboard of many groups opens them on demand (`groups_app.py`). `reconsume ui` serves either with `serve`, on the main
thread; a running sidecar serves its own with `DashboardThread`, on a thread and an event loop of its own. Either way
all pages are rendered on one event loop, and their queries to Kafka run on threads (`endpoint.py`). Who has signed in,
and these threads, are shared by all pages of a process (`SharedParts`).

Without a token file no user can sign in, and the routes that change something do not exist. Where a proxy serves the
dashboard below a path (`ui.base_path`), every route exists twice, with and without that path: some proxies pass it on
unchanged, others strip it. No page begins with the path, because the setting refuses one whose first segment is a
page's.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import uvloop
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router

from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.http.access import LOOPBACK_NAMES, Access, AccessMiddleware
from reconsume.sidecar.http.server import Server
from reconsume.sidecar.http.tokens import Tokens
from reconsume.sidecar.observability.thread_watch import WatchedThread
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.addresses import Listen, is_loopback
from reconsume.sidecar.ui.audit_log import AuditLog
from reconsume.sidecar.ui.control_pages import ControlPages
from reconsume.sidecar.ui.endpoint import ERRORS, MOST_SCANS, Endpoints, Page, Site, ThreadQueries, Visitors
from reconsume.sidecar.ui.find_page import FindPage
from reconsume.sidecar.ui.form_kinds import kinds_of
from reconsume.sidecar.ui.key_pages import KeyPages
from reconsume.sidecar.ui.letter_pages import LetterPages
from reconsume.sidecar.ui.operation_forms import JOBS, OperationForms
from reconsume.sidecar.ui.overview import LastAlarms
from reconsume.sidecar.ui.pages import Pages
from reconsume.sidecar.ui.queries import Queries
from reconsume.sidecar.ui.security import HEADERS, Sessions, ValueGate
from reconsume.sidecar.ui.sign_in import SignIn
from reconsume.sidecar.ui.templating import FOLDER, Renderer
from reconsume.sidecar.view.follower import ViewFollower
from reconsume.sidecar.view.query import MOST_WAITING as VIEW_QUERIES
from reconsume.sidecar.view.query import THREADS as VIEW_THREADS
from reconsume.sidecar.view.query import QueryPool
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


class SharedParts:
    """What all pages of a process share: who has signed in, the visitors, and the threads of queries.

    `scan` runs one scan of a whole topic at a time, because each uses some of the memory that all share. Raises
    ConfigError if the dashboard would be open to the network without a token.
    """

    def __init__(self, wanted: DashboardOptions) -> None:
        if wanted.token_file is None and not wanted.near:
            needed = "needs --token-file or operators.token_file, and --host NAME or ui.hosts"
            raise ConfigError([f"--listen {wanted.listen.host}: outside loopback the dashboard {needed}"])
        if wanted.token_file is None and wanted.read == "signed-in":
            needed = "needs --token-file, or operators.token_file: nobody could sign in"
            raise ConfigError([f"ui.read = signed-in: {needed}"])
        self.wanted, self.gate = wanted, ValueGate(wanted.read)
        self.tokens = None if wanted.token_file is None else Tokens(wanted.token_file)
        self.sessions = Sessions(self.tokens, far=not wanted.near, path=wanted.base_path or "/")
        self.visitors, self.everyone_reads = Visitors(), wanted.near
        self.ask, self.scan = ThreadQueries(), ThreadQueries(1, MOST_SCANS, threading.Lock())
        self.view = ThreadQueries(VIEW_THREADS, VIEW_QUERIES)

    def close(self) -> None:
        """Accept no more queries."""
        for threads in (self.view, self.ask, self.scan):
            threads.close()

    def access(self, render: Renderer) -> Access:
        """Return the rules of access. Forms check their own media type, and each action writes its own audit line."""
        return Access(
            hosts=tuple(name.lower() for name in (*LOOPBACK_NAMES, *self.wanted.hosts)),
            schemes=("http", "https"),
            media_type=None,
            audit=False,
            unknown_host=partial(render, "unknown_host.html", 421),
        )


class GroupPages:
    """The pages of one group, as an application that is not listening. Call `start` and `stop` on the event loop.

    `topic`: a follower of the view that already runs and continues after this ends; None: they start their own.
    `share`: the part of a processor that one query to Kafka may use. `is_one_of_many`: the pages are below
    `/groups/NAME/`; otherwise they are all that there is.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        shared: SharedParts,
        topic: ViewFollower | None = None,
        share: float = 1.0,
        *,
        is_one_of_many: bool = False,
    ) -> None:
        wanted, prefix = shared.wanted, f"/groups/{settings.group}" if is_one_of_many else ""
        self._shared, self._wanted, self._is_one_of_many = shared, wanted, is_one_of_many
        self._topic = topic or ViewFollower(
            settings.kafka, settings.names, None, "reconsume-ui", source=Source(settings.view.source)
        )
        self._own = None if topic is not None else self._topic
        self._readers = QueryPool(self._topic, shared.view)
        self._last_alarms = LastAlarms()
        values = {
            "last_alarms": self._last_alarms.known,
            "group": settings.group,
            "labels": settings.labels,
            "topics": settings.topic_names,
            "levels": settings.delays,
            "ordered": settings.order_by is not None,
            "may_be_held": not settings.deliver.broadcast,
            "may_change": wanted.token_file is not None,
            "session": None,
            "among_many": is_one_of_many,
        }
        self._site = Site(
            render=Renderer(values, shared.gate, wanted.base_path, prefix),
            ask=shared.ask,
            scan=shared.scan,
            looks=Queries(settings, policy, share),
            gate=shared.gate,
            audit=AuditLog(wanted.audit_file, settings.group if is_one_of_many else ""),
        )
        self._forms, self._control = OperationForms(self._site), ControlPages(self._site)
        self.front = Endpoints(self._site.render, shared)
        """What stands before each page."""

    @property
    def is_busy(self) -> bool:
        """Whether a redrive or a dismissal is under way."""
        return self._forms.is_busy

    def start(self) -> None:
        """Follow the view."""
        if self._own is not None:
            self._own.start()

    async def stop(self, within: float = STOPPED_WITHIN) -> None:
        """Stop everything. A redrive under way ends between two transactions, if it needs at most `within` seconds."""
        if self._own is not None:
            self._own.stop()
        await on_own_thread("stop", lambda: self._forms.close(within))
        if (own := self._own) is not None and own.is_alive():  # it never started if listening failed
            await on_own_thread("stop", lambda: own.join(VIEW_WITHIN))

    def app(self) -> Starlette:
        """Return the application, with access rules if these pages are all that there is."""
        shared, front, pages, forms = self._shared, self.front, self._pages(), dict[str, Page]()
        if shared.tokens is not None:
            pages["/sign-in"], forms = sign_in_pages(self._site.render, self._site.audit, shared)
            self._add_actions(pages, forms)
        routes = routes_of(front, pages, forms)
        if self._is_one_of_many:
            return application(routes, front)
        return application(below(self._wanted.base_path, routes), front, shared.access(self._site.render))

    def _pages(self) -> dict[str, Page]:
        """Return the pages that only show."""
        pages = Pages(self._site, self._topic, self._readers, self._last_alarms)
        letters = LetterPages(self._site)
        shown: dict[str, Page] = {
            "/": pages.group,
            "/part/group": partial(pages.group, template="group_part.html"),
            "/part/alarms": pages.alarms_part,
            "/records": pages.records,
            "/record": pages.record,
            "/record/journey": pages.journey,
            "/find": FindPage(self._site).find,
            "/dlq": letters.letters,
            "/dlq/letter": letters.letter,
            "/holds": self._control.holds,
            "/policy": pages.policy,
            "/instances": pages.instances,
            "/part/instances": partial(pages.instances, template="instances_part.html"),
        }
        if self._wanted.token_file is not None:
            shown["/activity"] = pages.activity
        if self._site.looks.settings.order_by is not None:
            keys = KeyPages(self._site)
            shown |= {"/keys": keys.keys, "/keys/queue": keys.queue}
        return shown

    def _add_actions(self, pages: dict[str, Page], forms: dict[str, Page]) -> None:
        """Add the forms that change something, and the pages that show what becomes of it."""
        control = self._control
        pages[f"{JOBS}/{{job}}"] = self._forms.show_job
        forms |= self._forms.pages_of(kinds_of(self._site, self._last_alarms))
        if not self._site.looks.settings.deliver.broadcast:
            pages |= {
                "/records/settle": control.decisions,
                "/records/settle/{decision}": control.decision,
                "/records/reset": control.resets,
                "/records/reset/{reset}": control.reset,
            }
            forms["/records/settle/{decision}/end"] = control.end_decision


def sign_in_pages(
    render: Renderer, audit: AuditLog, shared: SharedParts, first_page: str = "/dlq"
) -> tuple[Page, dict[str, Page]]:
    """Return the page that asks for a token, and the forms by which users sign in and out. Call it with tokens only.

    `first_page`: where the form leads to.
    """
    assert shared.tokens is not None
    sign_in = SignIn(render, shared.ask, audit, shared.sessions, shared.tokens, first_page)
    return sign_in.ask_token, {"/sign-in": sign_in.sign_in, "/sign-out": sign_in.sign_out}


def routes_of(front: Endpoints, pages: Mapping[str, Page], forms: Mapping[str, Page]) -> list[BaseRoute]:
    """Return the routes of static files, pages and forms."""
    routes: list[BaseRoute] = [
        Route(f"/static/{name}", Response((FOLDER / "static" / name).read_bytes(), media_type=kind), methods=["GET"])
        for name, kind in ASSETS.items()
    ]
    for method, table in (("GET", pages), ("POST", forms)):
        for path, page in table.items():
            endpoint = front(page, open_to_all=path == "/sign-in", is_private=path == "/keys/queue")
            routes.append(Route(path, endpoint, methods=[method]))
    return routes


def below(base_path: str, routes: list[BaseRoute]) -> list[BaseRoute]:
    """Return the routes, and once more below the path of a proxy, if there is one."""
    if not base_path:
        return routes
    (first,) = (one for one in routes if isinstance(one, Route) and one.path == "/")
    root = Route(base_path, first.endpoint, methods=["GET"])
    return [*routes, root, Mount(base_path, Router(routes, redirect_slashes=False))]


def application(routes: list[BaseRoute], front: Endpoints, access: Access | None = None) -> Starlette:
    """Return an application that shows errors as pages. `access`: None where another one has looked before."""
    app = Starlette(
        routes=routes,
        middleware=[] if access is None else [Middleware(AccessMiddleware, access=access)],
        exception_handlers=dict.fromkeys((HTTPException, *ERRORS), front.error_page),
    )
    app.router.redirect_slashes = False  # the redirect would name the host that the caller sent
    return app


class Served(Protocol):
    """A dashboard that listens."""

    server: Server

    async def start(self) -> None:
        """Listen. Raises SetupError."""

    async def stop(self, within: float = STOPPED_WITHIN) -> None:
        """Stop everything."""


class Dashboard:
    """The dashboard of one group. Call `start` and `stop` on the event loop. Raises as `SharedParts` does.

    `topic`, `share`: as in `GroupPages`.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        wanted: DashboardOptions,
        topic: ViewFollower | None = None,
        share: float = 1.0,
    ) -> None:
        self._shared = SharedParts(wanted)
        self._pages = GroupPages(settings, policy, self._shared, topic, share)
        self.server = Server(self._pages.app(), wanted.listen, setting=wanted.setting, headers=HEADERS)

    async def start(self) -> None:
        """Listen, and follow the view. Raises SetupError if it cannot listen."""
        await self.server.start()
        self._pages.start()

    async def stop(self, within: float = STOPPED_WITHIN) -> None:
        """Stop everything. A redrive under way ends between two transactions, if it needs at most `within` seconds."""
        await self.server.stop()
        self._shared.close()
        await self._pages.stop(within)


def serve(dashboard: Served, started: Callable[[Server], None]) -> None:
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

    def __init__(self, dashboard: Served) -> None:
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

    def keep_listener(self) -> tuple[str, socket.socket]:
        """Return what `Server.keep_listener` returns."""
        return self._dashboard.server.keep_listener()

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
