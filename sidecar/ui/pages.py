"""The pages that only show. Each reads data, renders it, and changes nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.ui.endpoint import Site
from reconsume.sidecar.ui.overview import LastAlarms, attempts_told, summarize
from reconsume.sidecar.ui.security import Session
from reconsume.sidecar.view.follower import ViewFollower
from reconsume.sidecar.view.query import Filters, QueryPool, UnknownError
from reconsume.topics.agreement import SILENT_AFTER
from reconsume.topics.events import State

ROWS = 50
LONGEST_TEXT = 1_024
FIRST_S = 3.0
"""Seconds for which the first page waits for what is so now. What comes later is brought by the part of its alarms."""
FAILED_WITHIN_MS = 300_000
"""ms in which a record has failed last that the first page counts by its reason."""
OLD = 60_000
"""ms after which the view counts as behind."""


class Pages:
    """The endpoints of these pages. A `template` that ends in `_part` is the part of the page that reloads itself."""

    def __init__(self, site: Site, topic: ViewFollower, readers: QueryPool, last_alarms: LastAlarms) -> None:
        self._render, self._ask, self._scan, self._looks = site.render, site.ask, site.scan, site.looks
        self._gate, self._audit = site.gate, site.audit
        self._topic, self._readers, self._last_alarms = topic, readers, last_alarms

    async def group(self, request: Request, session: Session | None, template: str = "group.html") -> Response:
        """Show the overview of the group; as a whole page with what is so now, for readers without JavaScript."""
        of_now = await self._in_time() if template == "group.html" else {}
        now, settings = wall(), self._looks.settings
        page: dict[str, Any] = {
            "session": session,
            "here": "/",
            "live": request.query_params.get("live") != "off",
            "now": now,
            "not_delivered": None,
            "unknown_why": "not asked yet",
            **of_now,
        }
        try:
            ordered = settings.order_by is not None
            summary, origin = await self._readers.ask(
                lambda query: summarize(query, now, FAILED_WITHIN_MS, settings.delays, ordered=ordered)
            )
        except UnknownError as unknown:
            return self._render(template, summary=None, problem=str(unknown), view_source=settings.view.source, **page)
        status = self._topic.status
        return self._render(
            template, summary=summary, origin=origin, old=now - origin.as_of > OLD, problem=status.problem,
            bad=sum(status.bad.values()), window=FAILED_WITHIN_MS, **page,
        )  # fmt: skip

    async def _in_time(self) -> dict[str, Any]:
        """Return the alarms of now and what is not delivered yet, as far as Kafka answers in FIRST_S."""
        query = asyncio.ensure_future(self._of_now())
        query.add_done_callback(lambda done: done.cancelled() or done.exception())  # an error that comes late is none
        await asyncio.wait({query}, timeout=FIRST_S)
        if not query.done():
            return {"unknown_why": "Kafka has not answered yet"}
        try:
            return query.result()
        except ReconsumeError as fault:
            return {"unknown_why": str(fault)}

    async def _of_now(self) -> dict[str, Any]:
        news = await self._ask(self._looks.heartbeats)
        page: dict[str, Any] = {"alarms": self._last_alarms.raise_alarms(news.beats, news.holds, wall(), news.end)}
        try:
            there = await self._ask(lambda: self._looks.undelivered(news.beats))
        except ReconsumeError as fault:
            return page | {"unknown_why": str(fault)}
        return page | {"not_delivered": there, "unknown_why": "this user may not see the group's progress"}

    async def records(self, request: Request, session: Session | None) -> Response:
        """Filter the records of the view by state, level, topic, reason."""
        fields = fields_of(request.query_params, ("state", "level", "topic", "reason", "cursor"))
        state = fields.get("state", str(State.WAITING_RETRY))
        state = state.upper() if state.upper() in list(State) else state
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
        return self._render(page, session=session, here="/records", key=key, scan=scan)

    async def policy(self, request: Request, session: Session | None) -> Response:
        """Show the policy in force and the history of its changes."""
        rules = await self._ask(self._looks.rules)
        return self._render("policy.html", session=session, here="/policy", rules=rules)

    async def instances(self, request: Request, session: Session | None, template: str = "instances.html") -> Response:
        """Show the instances, and the progress of the group."""
        live = request.query_params.get("live") != "off"
        news = await self._ask(self._looks.heartbeats)
        instances = await self._ask(lambda: self._looks.instances(news.beats))
        lags = await self._ask(self._looks.lags)
        now = wall()
        alarms = self._last_alarms.raise_alarms(news.beats, news.holds, now, news.end)
        return self._render(
            template, session=session, here="/instances", live=live, instances=instances, lags=lags, alarms=alarms,
            fleet=None, undelivered=None, attempts=None, now=now,
        )  # fmt: skip

    async def alarms_part(self, request: Request, session: Session | None) -> Response:
        """Render what is wrong now, for the head of every page; with `fleet` also the instances, for the first page."""
        news = await self._ask(self._looks.heartbeats)
        fleet = request.query_params.get("fleet") == "1"
        instances = undelivered = attempts = None
        now = wall()
        if fleet:
            attempts = attempts_told(news.beats, now - SILENT_AFTER)
            with suppress(ReconsumeError):  # what is wrong is said also where this user may not see the group's members
                instances = await self._ask(lambda: self._looks.instances(news.beats))
                undelivered = await self._ask(lambda: self._looks.undelivered(news.beats))
        alarms = self._last_alarms.raise_alarms(news.beats, news.holds, now, news.end)
        return self._render(
            "alarms_part.html", session=session, alarms=alarms, fleet=instances, undelivered=undelivered,
            attempts=attempts, now=now,
        )  # fmt: skip

    async def activity(self, request: Request, session: Session | None) -> Response:
        """Show who did what: on this dashboard, and what the policy topic has of the command line and the API."""
        rows, problem = await self._ask(self._audit.last), ""
        try:
            rows = merged(rows, await self._ask(self._looks.changes))
        except ReconsumeError as fault:  # the file is here, and is shown whatever Kafka says
            problem = str(fault)
        return self._render(
            "activity.html", session=session, here="/activity", rows=rows, problem=problem, path=str(self._audit.path)
        )


def fields_of(query: QueryParams, known: tuple[str, ...]) -> dict[str, str]:
    """Return the fields of a search that have a value."""
    return {name: text for name in known if (text := query.get(name, "").strip()[:LONGEST_TEXT])}


def merged(rows: list[dict[str, Any]], changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the actions on this dashboard and the changes in the policy topic, the newest first.

    A hold that was begun or released here is in both: the line of this dashboard says more.
    """
    actions = {"hold-result": "hold", "release": "release"}
    here = {
        (actions.get(str(row.get("action"))), str(row.get("what")).partition(" ")[0], f"{row.get('who')}@ui")
        for row in rows
    }
    others = [change for change in changes if (change["action"], change.get("hold"), change["who"]) not in here]
    return sorted([*rows, *others], key=lambda row: row["at"] if isinstance(row.get("at"), int) else 0, reverse=True)
