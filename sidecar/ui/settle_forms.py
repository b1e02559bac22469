"""The forms that settle records that wait, and the page of a decision.

All that fit some conditions are settled from a page next to that of records. A plan comes first, and its form says the
conditions again, since a decision is about what waits when it is written. One record is settled from the page of its
key. Each decision is logged, with its reason, and has a page that shows how far it is.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.dlq.settle_request import LEVELS, Settled, SettleRequest, settle_request, waiting_request
from reconsume.sidecar.dlq.settle_waiting import DecisionCalls, SettleWaiting
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.endpoint import ThreadQueries, sound
from reconsume.sidecar.ui.letter_form import BadFormError, RefusedError
from reconsume.sidecar.ui.queries import LONGEST, Queries
from reconsume.sidecar.ui.security import Session, SignedForm, read_signed
from reconsume.sidecar.ui.templating import Renderer
from reconsume.topics.durations import render_duration

INPUTS = {"topic": "topic", "reason": "reason", "level": "level", "key": "key", "key_base64": "base64"}
"""The conditions, and the names of their inputs."""
PAGE = "/records"


class SettleForms:
    """The endpoints of these forms; created only if there is a token file."""

    def __init__(self, render: Renderer, scans: ThreadQueries, looks: Queries, audit: AuditLog) -> None:
        # On the thread of the scans: a plan reads all that waits.
        self._render, self._scan, self._looks, self._audit = render, scans, looks, audit
        self._calls = DecisionCalls(looks.letters, looks.settings)

    async def show(self, request: Request, session: Session | None) -> Response:
        """Show the open decisions, and the form for a new one."""
        rows = await self._scan(self._calls.open_decisions)
        levels = (*map(render_duration, self._looks.settings.delays), *LEVELS)
        return self._render("settle.html", session=session, here=PAGE, rows=rows, wait_levels=levels)

    async def plan(self, request: Request, session: Session | None) -> Response:
        """Show what a decision would settle; nothing is written."""
        form = await read_signed(request, session)
        wanted = self._wanted(form)
        plan = await self._scan(lambda: sound(lambda: self._planned(wanted, form.actor)))
        given = {name: text for name in (*INPUTS.values(), "rate") if (text := form.fields.get(name, ""))}
        return self._render("settle_plan.html", session=form.session, here=PAGE, wanted=wanted, plan=plan, given=given)

    def _planned(self, wanted: SettleRequest, actor: Actor) -> SettleWaiting:
        self._audit.write("settle-plan", actor, how=wanted.how)
        return self._calls.plan(wanted, self._looks.within(LONGEST))

    async def decide(self, request: Request, session: Session | None) -> Response:
        """Write a decision about all that fit, then show how far it is."""
        form = await read_signed(request, session)
        settled = await self._scan(lambda: self._carry_out(self._wanted(form), form.actor))
        if not settled.decision:
            raise RefusedError("nothing that waits fits any more")
        return self._render.redirect(f"{PAGE}/settle/{settled.decision}")

    def _wanted(self, form: SignedForm) -> SettleRequest:
        """Return the decision about many records that a form asks for. A key's blanks count; no other text's do."""
        fields = form.fields
        texts = {name: fields.get(given, "") for name, given in INPUTS.items()}
        conditions = {name: (text if name == "key" else text.strip()) or None for name, text in texts.items()}
        why, rate = fields.get("why", "").strip(), fields.get("rate", "").strip()
        topics = self._looks.settings.topic_names
        try:
            return waiting_request(conditions, fields.get("how"), why, f"{form.actor.who}@ui", rate, topics)
        except ValueError as fault:
            raise BadFormError(str(fault)) from None

    async def settle_one(self, request: Request, session: Session | None) -> Response:
        """Settle the first record of a key, then show what became of it."""
        form = await read_signed(request, session)
        fields, why = form.fields, form.fields.get("why", "").strip()
        try:
            wanted = settle_request(fields.get("record"), fields.get("how"), why, f"{form.actor.who}@ui")
        except ValueError as fault:
            raise BadFormError(str(fault)) from None
        settled = await self._scan(lambda: self._carry_out(wanted, form.actor))
        if settled.done is False:
            raise RefusedError("the record had ended, or was delivered before")
        return self._render(
            "settled.html",
            session=form.session,
            here="/keys",
            wanted=wanted,
            settled=settled,
            end=settled.rows[0]["is"],
            coded=fields.get("base64", ""),
        )

    def _carry_out(self, wanted: SettleRequest, actor: Actor) -> Settled:
        """Decide, and log it. Raises RefusedError if it cannot be, BrokerError and SetupError."""
        recorder = self._audit.recorder(actor, record=wanted.id or None, how=wanted.how)
        with recorder.noted("settle", actor.who, why=wanted.why) as tally:
            settled = sound(lambda: self._calls.settle(wanted, dry_run=False))
            tally.what, tally.records = settled.decision, int(settled.done is True)
        return settled

    async def decision(self, request: Request, session: Session | None) -> Response:
        """Show how far a decision is."""
        ident = request.path_params["decision"]
        row = await self._scan(lambda: sound(lambda: self._calls.status(ident)))
        return self._render("decision.html", session=session, here=PAGE, decision=ident, row=row)

    async def end(self, request: Request, session: Session | None) -> Response:
        """End a decision."""
        form, ident = await read_signed(request, session), request.path_params["decision"]

        def end() -> None:
            with self._audit.recorder(form.actor).noted("end-settle", form.actor.who, ident):
                sound(lambda: self._calls.end(ident, f"{form.actor.who}@ui"))

        await self._scan(end)
        return self._render.redirect(f"{PAGE}/settle/{ident}")
