"""The dashboard as one application: its parts, its routes, and how it is served until it is stopped.

Without a token file no user can sign in, and the routes that change something do not exist.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import uvloop
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.dlq.redriver import why
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.http.access import LOOPBACK_NAMES, Access, AccessMiddleware
from reconsume.sidecar.http.server import Server
from reconsume.sidecar.http.tokens import Tokens
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.addresses import Listen, is_loopback
from reconsume.sidecar.ui.alarms import LastAlarms
from reconsume.sidecar.ui.audit_log import AuditLog
from reconsume.sidecar.ui.endpoint import Endpoints, Page, ThreadQueries
from reconsume.sidecar.ui.find_page import FindPage
from reconsume.sidecar.ui.forms import Forms
from reconsume.sidecar.ui.hold_forms import HoldForms, HoldPage
from reconsume.sidecar.ui.key_pages import KeyPages, SettleForm
from reconsume.sidecar.ui.letter_actions import LetterActions, LetterForms
from reconsume.sidecar.ui.letter_pages import LetterPages
from reconsume.sidecar.ui.pages import Pages
from reconsume.sidecar.ui.queries import Queries
from reconsume.sidecar.ui.security import Hardened, Sessions, ValueGate
from reconsume.sidecar.ui.templating import ASSETS, FOLDER, Renderer
from reconsume.sidecar.ui.urls import Urls, WithoutBasePath
from reconsume.sidecar.view.follower import ViewFollower
from reconsume.sidecar.view.query_pool import MOST_WAITING as VIEW_QUERIES
from reconsume.sidecar.view.query_pool import THREADS as VIEW_THREADS
from reconsume.sidecar.view.query_pool import QueryPool
from reconsume.sidecar.view.source import Source

STOPPED_WITHIN = 15.0
"""Seconds that a redrive under way has to end its transaction."""
VIEW_WITHIN = 2.0
"""Seconds to wait for the thread that follows the view; it keeps nothing but a temporary file."""


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
        if not wanted.near and wanted.token_file is None:
            raise ConfigError(
                [
                    f"--listen {wanted.listen.host}: outside loopback the dashboard needs --token-file or "
                    "operators.token_file, and --host NAME or ui.hosts"
                ]
            )
        if wanted.read == "signed-in" and wanted.token_file is None:
            raise ConfigError(
                ["ui.read = signed-in: needs --token-file, or operators.token_file: nobody could sign in"]
            )
        self._looks = Queries(settings, policy, share)
        self._asker, self._scans = ThreadQueries(), ThreadQueries.one_by_one()
        self._topic = topic or ViewFollower(
            settings.kafka, settings.names, None, "reconsume-ui", source=Source(settings.view.source)
        )
        self._own = self._topic if topic is None else None
        self._readers = QueryPool(self._topic, ThreadQueries(VIEW_THREADS, VIEW_QUERIES))
        self._audit = AuditLog(wanted.audit_file)
        self._actions = LetterActions(self._looks, self._audit)
        self._tokens = None if wanted.token_file is None else Tokens(wanted.token_file)
        url = Urls(wanted.base_path)
        self._sessions = Sessions(self._tokens, far=not wanted.near, path=url.cookie_path)
        self._last_alarms, self._gate = LastAlarms(), ValueGate(wanted.read)
        self._render = Renderer(
            {
                "last_alarms": self._last_alarms.known,
                "group": settings.group,
                "topics": settings.topic_names,
                "levels": settings.delays,
                "ordered": settings.order_by is not None,
                "may_be_held": not settings.deliver.broadcast,
                "may_change": wanted.token_file is not None,
                "session": None,
                "why": why,
            },
            self._gate,
            url,
        )
        self._wanted = wanted
        self.server = Server(self._app(), wanted.listen, setting=wanted.setting)

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
        self._readers.close()
        self._asker.close()
        self._scans.close()
        await on_own_thread("stop", lambda: self._actions.close(within))
        if (own := self._own) is not None and own.is_alive():  # it never started if listening failed
            await on_own_thread("stop", lambda: own.join(VIEW_WITHIN))

    def _app(self) -> Starlette:
        wanted = self._wanted
        front = Endpoints(self._render, self._sessions, self._gate, everyone_reads=wanted.near)
        pages = Pages(
            self._render,
            self._asker,
            self._scans,
            self._looks,
            self._topic,
            self._readers,
            self._last_alarms,
            self._gate,
        )
        routes = [*_assets(), *_showing(front, pages, LetterPages(self._render, self._scans, self._looks, self._gate))]
        if is_ordered := self._looks.settings.order_by is not None:
            keys = KeyPages(self._render, self._scans, self._looks)
            routes += _pages(front, {"/keys": keys.keys})
            routes.append(Route("/keys/queue", front(keys.queue, is_private=True), methods=["GET"]))
        search = FindPage(self._render, self._scans, self._looks, self._gate)
        routes += _pages(front, {"/find": search.find})
        routes += _pages(front, {"/holds": HoldPage(self._render, self._asker, self._looks).holds})
        if self._tokens is not None:
            forms = Forms(self._render, self._asker, self._looks, self._audit, self._sessions, self._tokens)
            letters = LetterForms(self._render, self._asker, self._scans, self._looks, self._actions)
            routes += [*_signing(front, forms), *_acting(front, letters)]
            holding = HoldForms(self._render, self._asker, self._looks, self._audit)
            acts = {"/holds/begin": holding.begin, "/holds/release": holding.release}
            if is_ordered:
                acts["/keys/settle"] = SettleForm(self._render, self._scans, self._looks, self._audit).settle
            routes += [Route(path, front(form), methods=["POST"]) for path, form in acts.items()]
        hosts = tuple(name.lower() for name in (*LOOPBACK_NAMES, *wanted.hosts))
        # Forms check their own media type, and each action writes its own audit line.
        access = Access(
            hosts=hosts,
            schemes=("http", "https"),
            media_type=None,
            audit=False,
            unknown_host=partial(self._render, "unknown_host.html", 421),
        )
        app = Starlette(
            routes=routes,
            middleware=[
                Middleware(Hardened),
                Middleware(WithoutBasePath, base=wanted.base_path),
                Middleware(AccessMiddleware, access=access),
            ],
            exception_handlers={HTTPException: self._on_http_error, Exception: self._on_fault},
        )
        app.router.redirect_slashes = False
        return app

    async def _on_http_error(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):  # starlette gives all handlers one type
            raise error
        text = {404: "There is no such page.", 405: "This page is not asked for like that."}
        return self._render("error.html", error.status_code, here="", text=text.get(error.status_code, error.detail))

    async def _on_fault(self, request: Request, fault: Exception) -> Response:
        return self._render("error.html", 500, here="", text="A fault of the dashboard itself; its log says more.")


def _showing(front: Endpoints, pages: Pages, letters: LetterPages) -> Sequence[Route]:
    shown = {
        "/": pages.group,
        "/part/group": pages.group_part,
        "/records": pages.records,
        "/record": pages.record,
        "/record/journey": pages.journey,
        "/dlq": letters.letters,
        "/dlq/letter": letters.letter,
        "/policy": pages.policy,
        "/instances": pages.instances,
        "/part/instances": pages.instances_part,
        "/part/alarms": pages.alarms_part,
    }
    return _pages(front, shown)


def _pages(front: Endpoints, shown: Mapping[str, Page]) -> Sequence[Route]:
    return [Route(path, front(page), methods=["GET"]) for path, page in shown.items()]


def _signing(front: Endpoints, doing: Forms) -> Sequence[Route]:
    return [
        Route("/sign-in", front(doing.ask_token, open_to_all=True), methods=["GET"]),
        Route("/sign-in", front(doing.sign_in, open_to_all=True), methods=["POST"]),
        Route("/sign-out", front(doing.sign_out), methods=["POST"]),
        Route("/activity", front(doing.activity), methods=["GET"]),
    ]


def _acting(front: Endpoints, doing: LetterForms) -> Sequence[Route]:
    forms = {
        "/dlq/plan": doing.plan,
        "/dlq/redrive": doing.redrive,
        "/dlq/redrives/{job}/stop": doing.stop,
        "/dlq/dismissal": doing.plan_dismissal,
        "/dlq/dismiss": doing.dismiss,
        "/dlq/export": doing.export,
    }
    return [
        *(Route(path, front(form), methods=["POST"]) for path, form in forms.items()),
        Route("/dlq/redrives/{job}", front(doing.job), methods=["GET"]),
    ]


def _assets() -> Sequence[Route]:
    def served(name: str, kind: str) -> Route:
        content = (FOLDER / "static" / name).read_bytes()

        async def asset(_request: Request) -> Response:
            return Response(content, media_type=kind)

        return Route(f"/static/{name}", asset, methods=["GET"])

    return [served(name, kind) for name, kind in ASSETS.items()]


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

    uvloop.run(run())  # as in `in_sidecar.py`
