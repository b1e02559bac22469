"""The pages that only show. Each reads data, renders it, and changes nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.group_policy.state import SILENT_AFTER
from reconsume.sidecar.ui.alarms import Alarm, LastAlarms, alarms, held
from reconsume.sidecar.ui.charts import due_picture, minutes_picture
from reconsume.sidecar.ui.endpoint import ThreadQueries
from reconsume.sidecar.ui.journey_chart import journey_picture
from reconsume.sidecar.ui.queries import GroupNews, Queries
from reconsume.sidecar.ui.security import Session, ValueGate
from reconsume.sidecar.ui.summary import MINUTES, summarize
from reconsume.sidecar.ui.templating import Renderer
from reconsume.sidecar.view.follower import ViewFollower
from reconsume.sidecar.view.query import Filters
from reconsume.sidecar.view.query_pool import QueryPool, UnknownError
from reconsume.sidecar.view.storm import RULE
from reconsume.topics.events import State

ROWS = 50
LONGEST_TEXT = 1_024
OLD = 60_000
"""ms after which the view counts as behind."""


class Pages:
    """The endpoints of these pages."""

    def __init__(
        self,
        render: Renderer,
        asker: ThreadQueries,
        scans: ThreadQueries,
        looks: Queries,
        topic: ViewFollower,
        readers: QueryPool,
        last_alarms: LastAlarms,
        gate: ValueGate,
    ) -> None:
        self._render, self._ask, self._scan, self._looks = render, asker, scans, looks
        self._topic, self._readers, self._last_alarms = topic, readers, last_alarms
        self._gate = gate
        view = looks.settings.view
        self._source, self._delays = view.source, looks.settings.delays

    async def group(self, request: Request, session: Session | None) -> Response:
        """Show the overview of the group."""
        live = request.query_params.get("live") != "off"
        return self._render("group.html", session=session, here="/", live=live, **await self._group())

    async def group_part(self, request: Request, session: Session | None) -> Response:
        """Render the part of the overview that reloads."""
        return self._render("group_part.html", session=session, **await self._group())

    async def _group(self) -> dict[str, Any]:
        now = wall()
        try:
            summary, origin = await self._readers.ask(lambda query: summarize(query, now, RULE, self._delays))
        except UnknownError as unknown:
            return {"summary": None, "problem": str(unknown), "wish": self._source, "now": now}
        return {
            "summary": summary,
            "origin": origin,
            "old": now - origin.as_of > OLD,
            "problem": self._topic.status.problem,
            "bad": sum(self._topic.status.bad.values()),
            "picture": due_picture(summary.lanes, summary.known),
            "minutes": minutes_picture(summary.minutes, summary.first_minute, MINUTES),
            "rule": RULE,
            "now": now,
        }

    async def records(self, request: Request, session: Session | None) -> Response:
        """Filter the records of the view by state, level, topic, reason."""
        fields = fields_of(request.query_params, ("state", "level", "topic", "reason", "cursor"))
        state = fields.get("state", str(State.WAITING_RETRY))
        filters = Filters(
            State(state) if state in list(State) else None,
            fields.get("level"),
            fields.get("topic"),
            fields.get("reason"),
        )
        page, origin = await self._readers.ask(lambda query: query.messages(filters, ROWS, fields.get("cursor")))
        rows = [msgspec.json.decode(value) for value in page.values]
        kept = {name: value for name, value in fields.items() if name != "cursor"}
        more = None if page.cursor is None else {**kept, "cursor": page.cursor}
        return self._render(
            "records.html", session=session, here="/records", rows=rows, asked=fields, state=state, states=list(State),
            more=more, origin=origin,
        )  # fmt: skip

    async def record(self, request: Request, session: Session | None) -> Response:
        """Show one record as it is in the view; the page loads its journey separately."""
        key = request.query_params.get("id", "")[:LONGEST_TEXT]
        try:
            value, origin = await self._readers.ask(lambda query: query.message(key))
        except UnknownError:  # the journey may still be readable
            value, origin = None, None
        row = None if value is None else msgspec.json.decode(value)
        return self._render("record.html", session=session, here="/records", key=key, row=row, origin=origin)

    async def journey(self, request: Request, session: Session | None) -> Response:
        """Show a record's journey, as a part of a page or as a page of its own."""
        key, since = request.query_params.get("id", "")[:LONGEST_TEXT], request.query_params.get("since", "")
        first = int(since) if since.isascii() and since.isdecimal() and len(since) <= 15 else None
        scan = await self._scan(lambda: self._looks.journey(key, first))
        page = "journey_part.html" if "hx-request" in request.headers else "journey.html"
        if not self._gate.opens_to(session):
            scan = scan._replace(events=tuple(msgspec.structs.replace(event, text=None) for event in scan.events))
        picture = journey_picture(scan.events, wall()) if scan.events else None
        return self._render(page, session=session, here="/records", key=key, scan=scan, picture=picture)

    async def policy(self, request: Request, session: Session | None) -> Response:
        """Show the policy in force and the history of its changes."""
        rules = await self._ask(self._looks.rules)
        return self._render("policy.html", session=session, here="/policy", rules=rules)

    async def instances(self, request: Request, session: Session | None) -> Response:
        """Show the instances and the group's progress."""
        live = request.query_params.get("live") != "off"
        return self._render("instances.html", session=session, here="/instances", live=live, **await self._running())

    async def instances_part(self, request: Request, session: Session | None) -> Response:
        """Render the part of the instances page that reloads."""
        return self._render("instances_part.html", session=session, **await self._running())

    async def alarms_part(self, request: Request, session: Session | None) -> Response:
        """Render what is wrong now, for the head of every page; with `fleet` also the instances, for the first page."""
        news = await self._ask(self._looks.heartbeats)
        fleet = request.query_params.get("fleet") == "1"
        instances = undelivered = None
        if fleet:
            with suppress(ReconsumeError):  # what is wrong is said also where this user may not see the group's members
                instances = await self._ask(lambda: self._looks.instances(news.beats))
                undelivered = await self._ask(lambda: self._looks.undelivered(news.beats))
        raised, now = self._raised(news)
        return self._render(
            "alarms_part.html", session=session, alarms=raised, fleet=instances, undelivered=undelivered, now=now
        )

    def _raised(self, news: GroupNews) -> tuple[list[Alarm], int]:
        """Return what is wrong and what is held, and the time of that (epoch ms)."""
        now = wall()
        raised = [*alarms(news.beats, now - SILENT_AFTER), *held(news.holds)]
        self._last_alarms.note(raised, now)
        return raised, now

    async def _running(self) -> dict[str, Any]:
        news = await self._ask(self._looks.heartbeats)
        instances = await self._ask(lambda: self._looks.instances(news.beats))
        raised, now = self._raised(news)
        return {
            "instances": instances,
            "lags": await self._ask(self._looks.lags),
            "alarms": raised,
            "fleet": None,
            "undelivered": None,
            "now": now,
        }


def fields_of(query: QueryParams, known: tuple[str, ...]) -> dict[str, str]:
    """Return the fields of a search that have a value."""
    return {name: text for name in known if (text := query.get(name, "").strip()[:LONGEST_TEXT])}
