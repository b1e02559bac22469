"""The pages of what operators have told the group: holds, decisions about what waits, and resets of positions.

Each shows what the control log has, whoever wrote it and however often it is loaded. The forms on these pages are in
`form_kinds.py`; here is only the one that ends a decision.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.dlq.settle_request import LEVELS
from reconsume.sidecar.group_policy.decisions import DecisionStore
from reconsume.sidecar.group_policy.position_reset import FORMS, PositionStore, ResetProgress, expect_movable
from reconsume.sidecar.hints import hint
from reconsume.sidecar.ui.endpoint import Site, sound
from reconsume.sidecar.ui.security import Session, read_signed
from reconsume.topics.durations import render_duration
from reconsume.topics.hold_record import WORDS
from reconsume.topics.reset_record import ResetRequest

MOST_NAMED = 10
"""Records that are not obeyed, which the page of holds names."""
MOST_RESETS = 20
"""Resets that a page lists, the newest first."""


class ControlPages:
    """The endpoints of these pages."""

    def __init__(self, site: Site) -> None:
        self._site, self._settings = site, site.looks.settings
        self._delays = tuple(map(render_duration, self._settings.delays))

    async def holds(self, request: Request, session: Session | None) -> Response:
        """Show the holds, those that nobody obeys, and the form for a new one."""
        site, is_ordered = self._site, self._settings.order_by is not None
        there = await site.ask(site.looks.hold_store.read)
        levels = (*(word for word in WORDS if is_ordered or word != "ordered"), *self._delays)
        return site.render(
            "holds.html", session=session, here="/holds", rows=there.records.items(),
            ignored=there.ignored[:MOST_NAMED], held_levels=levels,
        )  # fmt: skip

    async def decisions(self, request: Request, session: Session | None) -> Response:
        """Show the open decisions, and the form for a new one."""
        statuses = await self._site.scan(lambda: self._decisions().open_decisions())
        rows, levels = [status.row for status in statuses], (*self._delays, *LEVELS)
        return self._site.render("settle.html", session=session, here="/records", rows=rows, wait_levels=levels)

    async def decision(self, request: Request, session: Session | None) -> Response:
        """Show how far a decision is."""
        ident = request.path_params["decision"]
        status = await self._site.scan(lambda: sound(lambda: self._decisions().status(ident)))
        return self._site.render("decision.html", session=session, here="/records", decision=ident, row=status.row)

    async def end_decision(self, request: Request, session: Session | None) -> Response:
        """End a decision."""
        form, ident = await read_signed(request, session), request.path_params["decision"]

        def end() -> None:
            with self._site.audit.recorder(form.actor).noted("end-settle", form.actor.who, ident):
                sound(lambda: self._decisions().end(ident, f"{form.actor.who}@ui"))

        await self._site.scan(end)
        return self._site.render.redirect(f"/records/settle/{ident}")

    def _decisions(self) -> DecisionStore:
        """Return a store for one query: one that is kept would go on from where it has read a former policy topic."""
        return DecisionStore(self._site.looks.cluster, self._settings.names)

    async def resets(self, request: Request, session: Session | None) -> Response:
        """Show the newest requests, and the form for a new one."""
        found = await self._site.ask(lambda: sound(self._requests))
        newest = sorted(found.items(), key=lambda one: one[1].at, reverse=True)[:MOST_RESETS]
        return self._site.render("reset.html", session=session, here="/records", rows=newest, forms=FORMS)

    def _requests(self) -> Mapping[str, ResetRequest]:
        expect_movable(self._settings)
        return PositionStore(self._site.looks.cluster, self._settings.names).state().resets

    async def reset(self, request: Request, session: Session | None) -> Response:
        """Show what became of a reset in each partition."""
        ident = request.path_params["reset"]
        reached = await self._site.ask(lambda: sound(lambda: self._reached(ident)))
        export = hint(f"reset --follow {ident} --export FILE")
        return self._site.render("reset_state.html", session=session, here="/records", reached=reached, export=export)

    def _reached(self, ident: str) -> ResetProgress:
        store = PositionStore(self._site.looks.cluster, self._settings.names)
        return store.progress_of(ident, store.find(ident))
