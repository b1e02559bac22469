"""The forms that move the position of the group in a topic (contract 10.11), and the page of a reset.

A plan comes first. Its form says again what was asked for, a duration back as the time that it meant, and names what
the plan is based on: if the topic was recreated or another reset was carried out since, nothing is written. The owners
of the partitions carry a reset out, and its page asks Kafka what became of it, whoever looks and however often. What a
reset has skipped is exported by the command alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import utc_ms, wall
from reconsume.sidecar.dlq.settle_request import fault_of_why
from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.group_policy.position_reset import (
    CHANGED,
    FORMS,
    MovePosition,
    PositionStore,
    ResetProgress,
    WantedReset,
    expect_movable,
    read_target,
)
from reconsume.sidecar.hints import hint
from reconsume.sidecar.operation import Plan, no_report
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.endpoint import ThreadQueries, sound
from reconsume.sidecar.ui.letter_form import BadFormError, RefusedError
from reconsume.sidecar.ui.queries import Queries
from reconsume.sidecar.ui.security import Session, SignedForm, read_signed
from reconsume.sidecar.ui.templating import Renderer
from reconsume.topics.reset_record import ResetRequest

PAGE = "/records"
MOST_SHOWN = 20
"""Requests that the page lists, the newest first."""


class ResetForms:
    """The endpoints of these forms; created only if there is a token file. Each query has a store of its own."""

    def __init__(self, render: Renderer, asker: ThreadQueries, looks: Queries, audit: AuditLog) -> None:
        self._render, self._ask, self._settings, self._audit = render, asker, looks.settings, audit

    async def show(self, request: Request, session: Session | None) -> Response:
        """Show the newest requests, and the form for a new one."""
        found = await self._ask(lambda: sound(self._requests))
        newest = sorted(found.items(), key=lambda one: one[1].at, reverse=True)[:MOST_SHOWN]
        return self._render("reset.html", session=session, here=PAGE, rows=newest, forms=FORMS)

    async def plan(self, request: Request, session: Session | None) -> Response:
        """Show where the positions would be moved; nothing is written."""
        form = await read_signed(request, session)
        wanted = self._wanted(form)
        move, plan = await self._ask(lambda: sound(lambda: self._planned(wanted, form.actor)))
        return self._render(
            "reset_plan.html", session=form.session, here=PAGE, wanted=wanted, plan=plan, based_on=move.based_on
        )

    async def move(self, request: Request, session: Session | None) -> Response:
        """Write a reset, then show what became of it."""
        form = await read_signed(request, session)
        wanted, based_on = self._wanted(form), form.fields.get("based_on", "")
        ident = await self._ask(lambda: sound(lambda: self._written(wanted, based_on, form.actor)))
        return self._render.redirect(f"{PAGE}/reset/{ident}")

    async def reset(self, request: Request, session: Session | None) -> Response:
        """Show what became of a reset in each partition."""
        ident = request.path_params["reset"]
        reached = await self._ask(lambda: sound(lambda: self._reached(ident)))
        export = hint(f"reset --follow {ident} --export FILE")
        return self._render("reset_state.html", session=session, here=PAGE, reached=reached, export=export)

    def _wanted(self, form: SignedForm) -> WantedReset:
        """Return what a form asks for. Raises BadFormError."""
        topic, number, to, why = (form.fields.get(name, "").strip() for name in ("topic", "partition", "to", "why"))
        if number and not (number.isascii() and number.isdecimal() and len(number) <= 10):
            raise BadFormError("a partition is a whole number; without one, all are moved")
        if bad := fault_of_why(why):
            raise BadFormError(bad)
        try:
            target = read_target(to, wall())
        except ContractError as fault:
            raise BadFormError(str(fault)) from None
        if target.at is not None:  # "2h" must not mean a later time when the plan is agreed to
            target = target._replace(text=utc_ms(target.at))
        return WantedReset(topic, int(number) if number else None, target, why, f"{form.actor.who}@ui")

    def _store(self) -> PositionStore:
        return PositionStore(self._settings.kafka, self._settings.names)

    def _requests(self) -> Mapping[str, ResetRequest]:
        expect_movable(self._settings)
        return self._store().state().resets

    def _reached(self, ident: str) -> ResetProgress:
        store = self._store()
        return store.progress_of(ident, store.find(ident))

    def _planned(self, wanted: WantedReset, actor: Actor) -> tuple[MovePosition, Plan]:
        move = MovePosition(self._store(), self._settings, wanted)
        self._audit.write("reset-plan", actor, what=move.what)
        return move, move.plan(no_report)

    def _written(self, wanted: WantedReset, based_on: str, actor: Actor) -> str:
        """Write a request as it was planned, and log it. Return its id. Raises RefusedError and as `MovePosition`."""
        move = MovePosition(self._store(), self._settings, wanted)
        plan = move.plan(no_report)
        if not plan.question:
            raise RefusedError(plan.nothing)
        if move.based_on != based_on:
            raise RefusedError(CHANGED)
        with self._audit.recorder(actor).noted(move.action, actor.who, move.what, move.why) as tally:
            try:
                move.write()
            finally:
                tally.what = move.what
        return move.written.ident
