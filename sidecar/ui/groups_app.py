"""The dashboard of many groups: a table of all as its first page, and the pages of each below `/groups/NAME/`.

`reconsume ui` makes it from a configuration with `ui.groups`. `GroupsSurvey` looks at the groups on a thread of its
own; the table and `/metrics` show its rows. `/metrics` is served to every caller by any name, without a sign-in, as the
sidecar serves its own: it has names of groups and counts. So these metrics are there while no pod of a group runs.

The pages of a group are those of its own dashboard (`GroupPages`). `OpenGroups` opens them when somebody asks for one,
which starts to follow the group's view, and closes them when nobody has asked for `IDLE_S`, or when others need their
place: at most `MOST_OPEN` are open. A group in which a redrive is under way stays open. All of them share their readers
and their threads (`SharedParts`), so that scans run one by one, whatever group they are of.

Everything here runs on one event loop; questions to Kafka run on the threads of `SharedParts`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from reconsume.sidecar.background import background, on_own_thread
from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import BusyError
from reconsume.sidecar.groups.discovery import is_wanted, settings_of_group
from reconsume.sidecar.groups.survey import GroupRow, GroupsSurvey
from reconsume.sidecar.hints import PRESENT_GROUP
from reconsume.sidecar.http.server import Server
from reconsume.sidecar.observability.metric_builders import gauge
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.sidecar.ui.app import (
    STOPPED_WITHIN,
    DashboardOptions,
    GroupPages,
    SharedParts,
    application,
    below,
    routes_of,
    sign_in_pages,
)
from reconsume.sidecar.ui.audit_log import AuditLog
from reconsume.sidecar.ui.endpoint import Endpoints, Page
from reconsume.sidecar.ui.security import HEADERS, Session, is_foreign
from reconsume.sidecar.ui.templating import Renderer

MOST_OPEN = 4
"""Groups of which the pages are open, and whose views are followed."""
IDLE_S = 600.0
"""Seconds without a request after which the pages of a group are closed."""
LOOK_EVERY_S = 30.0
SURVEY_WITHIN_S = 2.0
"""Seconds to wait for the thread that looks at the groups."""


class OpenGroup:
    """The pages of a group that somebody looks at. `used`: when a page was asked for last (monotonic seconds)."""

    def __init__(self, settings: Settings, shared: SharedParts, share: float) -> None:
        self.settings, self.used = settings, time.monotonic()
        self.pages = GroupPages(settings, build_policy(settings, "ui"), shared, share=share, is_one_of_many=True)
        self.app = self.pages.app()
        self.pages.start()


class OpenGroups:
    """The groups whose pages are open, the one that was used last at the end. Used on the event loop.

    `known` and `share`: as in `GroupsDashboard`.
    """

    def __init__(self, base: Settings, shared: SharedParts, known: Mapping[str, Settings], share: float) -> None:
        self._base, self._shared, self._known, self._share = base, shared, known, share
        self._open: OrderedDict[str, OpenGroup] = OrderedDict()
        self._turn = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Close what is not used, from time to time."""
        self._closing = background(self._close_idle(), "open-groups")

    async def of(self, group: str) -> OpenGroup:
        """Return a group, and open it if it is not open. Raises BusyError if there is no place for it.

        Raises ConfigError, ContractError and BrokerError if Kafka does not say what the group is.
        """
        async with self._turn:
            opened = self._open.get(group)
            if opened is None:
                await self._make_room()
                settings = self._known.get(group)
                if settings is None:
                    settings = await self._shared.ask(lambda: settings_of_group(self._base, group))
                opened = self._open[group] = OpenGroup(settings, self._shared, self._share)
            self._open.move_to_end(group)
            opened.used = time.monotonic()
            return opened

    async def _make_room(self) -> None:
        while len(self._open) >= MOST_OPEN:
            unused = next((name for name, one in self._open.items() if not one.pages.is_busy), None)
            if unused is None:
                raise BusyError("a redrive is under way in each group that is open: try again when one has ended")
            await self._open.pop(unused).pages.stop(0)

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            async with self._turn:
                now = time.monotonic()
                idle = [name for name, one in self._open.items() if now - one.used > IDLE_S and not one.pages.is_busy]
                for name in idle:
                    await self._open.pop(name).pages.stop(0)

    async def stop(self, within: float) -> None:
        """Close all groups."""
        if self._closing is not None:
            self._closing.cancel()
        await asyncio.gather(*(one.pages.stop(within) for one in self._open.values()))
        self._open.clear()


class GroupsDashboard:
    """The dashboard of the groups of `ui.groups`. Call `start` and `stop` on the event loop. Raises as `SharedParts`
    does.

    `known`: the settings of groups that have files; those of others come from Kafka. `share`: the part of a processor
    that one query to Kafka may use.
    """

    def __init__(
        self,
        base: Settings,
        wanted: DashboardOptions,
        known: Mapping[str, Settings] = MappingProxyType({}),
        share: float = 1.0,
    ) -> None:
        self._wanted_groups = base.ui.groups
        self._shared = SharedParts(wanted)
        self._survey = GroupsSurvey(base)
        self._open = OpenGroups(base, self._shared, known, share)
        values = {
            "group": "", "may_change": wanted.token_file is not None, "ordered": False, "may_be_held": False,
            "session": None, "among_many": True,
        }  # fmt: skip
        self._render = Renderer(values, self._shared.gate, wanted.base_path)
        self.server = Server(self._app(wanted), wanted.listen, setting=wanted.setting, headers=HEADERS)

    async def start(self) -> None:
        """Listen, and look at the groups. Raises SetupError if it cannot listen."""
        await self.server.start()
        self._survey.start()
        self._open.start()

    async def stop(self, within: float = STOPPED_WITHIN) -> None:
        """Stop everything. A redrive under way ends between two transactions, if it needs at most `within` seconds."""
        await self.server.stop()
        self._survey.stop()
        self._shared.close()
        await self._open.stop(within)
        if self._survey.is_alive():
            await on_own_thread("stop", lambda: self._survey.join(SURVEY_WITHIN_S))

    def _app(self, wanted: DashboardOptions) -> ASGIApp:
        render, front = self._render, Endpoints(self._render, self._shared)
        pages: dict[str, Page] = {
            "/": self._groups,
            "/part/groups": partial(self._groups, template="groups_part.html"),
            "/groups/{group}": self._redirect,
        }
        forms = dict[str, Page]()
        if self._shared.tokens is not None:
            pages["/sign-in"], forms = sign_in_pages(render, AuditLog(wanted.audit_file), self._shared, "/")
        routes = [*routes_of(front, pages, forms), Mount("/groups/{group}", app=self._of_group)]
        app = application(below(wanted.base_path, routes), front, self._shared.access(render))
        metrics = Route("/metrics", self._metrics, methods=["GET"])
        paths = {"/metrics", f"{wanted.base_path}/metrics"}

        async def entry(scope: Scope, receive: Receive, send: Send) -> None:
            is_scraped = scope["type"] == "http" and scope["path"] in paths and scope["method"] == "GET"
            await (metrics.app if is_scraped else app)(scope, receive, send)

        return entry

    async def _groups(self, request: Request, session: Session | None, template: str = "groups.html") -> Response:
        """Show the table of all groups."""
        live = request.query_params.get("live") != "off"
        rows, problem = self._survey.rows, self._survey.problem
        return self._render(
            template, session=session, here="/", live=live, rows=rows, problem=problem, wanted=self._wanted_groups,
            now=wall(),
        )  # fmt: skip

    async def _redirect(self, request: Request, _session: Session | None) -> Response:
        return self._render.redirect(f"/groups/{request.path_params['group']}/")

    async def _of_group(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to a page of one group. Whoever may not read gets the sign-in form before it is opened."""
        group, request = scope["path_params"]["group"], Request(scope)
        session = request.state.session = self._shared.sessions.of(request)
        is_reader = self._shared.everyone_reads or session is not None
        if is_foreign(request):
            await Response(status_code=403)(scope, receive, send)
            return
        if not is_wanted(group, self._wanted_groups) or not is_reader:
            response: ASGIApp = self._render.redirect("/" if is_reader else "/sign-in")
        else:
            PRESENT_GROUP.set(group)
            response = (await self._open.of(group)).app
        await response(scope, receive, send)

    async def _metrics(self, _request: Request) -> Response:
        registry = CollectorRegistry()
        registry.register(RowsCollector(self._survey.current()))
        return PlainTextResponse(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class RowsCollector(Collector):
    """The metrics of groups, from their rows. A figure that is not known has no series, nor has a group that never
    ran."""

    def __init__(self, rows: Iterable[GroupRow]) -> None:
        self._rows = [row for row in rows if row.started]

    def collect(self) -> Iterable[Metric]:
        """Yield the families, in the order of docs/metrics.md."""
        rows, labels = self._rows, ["group"]
        members = {(row.group,): row.members for row in rows if row.members is not None}
        lags = {(row.group,): row.backlog.lag for row in rows if row.backlog.lag is not None}
        ages = {(row.group,): row.backlog.oldest_ms / 1000 for row in rows if row.backlog.oldest_ms is not None}
        yield gauge("group_members", "Members of the group, by Kafka.", labels, members)
        yield gauge("group_lag", "Offsets of the main topics behind what the group has committed.", labels, lags)
        text = (
            "How long the oldest record has waited that could be delivered: of main topics, and retries that are due."
        )
        yield gauge("group_undelivered_seconds", text, labels, ages)
