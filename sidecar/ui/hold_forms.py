"""The page of holds, and the forms that begin and release one. Each is logged, a hold with its reason and its end."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.errors import ContractError, RecordError
from reconsume.sidecar.group_policy.operations import BeginHold, ReleaseHolds, planned_hold
from reconsume.sidecar.operation import no_report, run_recorded
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.endpoint import ThreadQueries
from reconsume.sidecar.ui.letter_form import BadFormError, RefusedError
from reconsume.sidecar.ui.overview import LastAlarms
from reconsume.sidecar.ui.queries import Queries
from reconsume.sidecar.ui.security import Session, read_signed
from reconsume.sidecar.ui.templating import Renderer
from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.hold_record import WORDS, HoldRecord

MOST_NAMED = 10
"""Instances, and records that are not obeyed, that the page names."""
PAGE = "/holds"


class HoldPage:
    """The page that shows which holds are in force, and has the form for a new one."""

    def __init__(self, render: Renderer, asker: ThreadQueries, looks: Queries) -> None:
        self._render, self._ask, self._looks = render, asker, looks
        words = WORDS if looks.settings.order_by is not None else tuple(word for word in WORDS if word != "ordered")
        self._levels = (*words, *map(render_duration, looks.settings.delays))

    async def holds(self, request: Request, session: Session | None) -> Response:
        """Show the holds, those that nobody obeys, and the form."""
        there = await self._ask(self._looks.hold_store.read)
        return self._render(
            "holds.html",
            session=session,
            here=PAGE,
            rows=there.records.items(),
            ignored=there.ignored[:MOST_NAMED],
            held_levels=self._levels,
        )


class HoldForms:
    """The endpoints of the forms; created only if there is a token file."""

    def __init__(
        self, render: Renderer, asker: ThreadQueries, looks: Queries, audit: AuditLog, last_alarms: LastAlarms
    ) -> None:
        self._render, self._ask, self._looks, self._audit = render, asker, looks, audit
        self._last_alarms = last_alarms

    async def _show(self, page: str) -> Response:
        """Go to a page whose head has the holds that are in force now, before it asks for all alarms."""
        there = await self._ask(self._looks.hold_store.read)
        self._last_alarms.change_holds(there.records)
        return self._render.redirect(page)

    async def begin(self, request: Request, session: Session | None) -> Response:
        """Begin a hold, then show the page of holds."""
        form = await read_signed(request, session)
        planned = hold_in(form.fields, f"{form.actor.who}@ui", self._looks.settings.topic_names)
        lasts = render_duration(planned.until - planned.since)
        operation = BeginHold(self._looks.hold_store, planned)
        await self._ask(lambda: self._carry_out(operation, form.actor, lasts=lasts))
        return await self._show(PAGE)

    async def release(self, request: Request, session: Session | None) -> Response:
        """Release a hold, then show the first page."""
        form = await read_signed(request, session)
        operation = ReleaseHolds(self._looks.hold_store, [form.fields.get("hold", "")], f"{form.actor.who}@ui")
        await self._ask(lambda: self._carry_out(operation, form.actor))
        return await self._show("/")

    def _carry_out(self, operation: BeginHold | ReleaseHolds, actor: Actor, **facts: str) -> None:
        """Hold or release. Raises RefusedError if it may not be, BrokerError and SetupError."""
        try:
            run_recorded(operation, actor.who, self._audit.recorder(actor, **facts), no_report, threading.Event())
        except (ContractError, RecordError) as fault:
            raise RefusedError(str(fault)) from fault


def hold_in(fields: Mapping[str, str], who: str, topics: Sequence[str]) -> HoldRecord:
    """Return the hold that a form asks for. `topics`: the main topics. Raises BadFormError.

    An empty field is not given. A key's blanks count; no other text's do.
    """
    inputs = {"topic": "topic", "level": "level", "key_base64": "base64"}
    named = {name: fields.get(field, "").strip() or None for name, field in inputs.items()}
    named["key"] = fields.get("key") or None
    if not (lasts := fields.get("for", "").strip()):
        raise BadFormError("say when the hold ends by itself: 1s to 7d")
    try:
        return planned_hold(
            named,
            everything=fields.get("all") == "yes",
            lasts=parse_duration(lasts),
            why=fields.get("why", "").strip(),
            who=who,
            topics=topics,
        )
    except (ContractError, ValueError) as fault:
        raise BadFormError(str(fault)) from fault
