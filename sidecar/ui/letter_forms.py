"""The forms that act on dead letters: dry runs, redrives, dismissals, exports. Each action is logged.

What an action is for is chosen on the list of dead letters: the ticked ones, or all that match its search.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import IO

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from reconsume.sidecar.background import BoundedThreads
from reconsume.sidecar.clock import wall
from reconsume.sidecar.http.calls import MOST
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.dismissals import Dismissals
from reconsume.sidecar.ui.endpoint import ThreadQueries
from reconsume.sidecar.ui.letter_form import LetterSearch, audit_facts, parse_rate, parse_selection
from reconsume.sidecar.ui.letter_queries import Export, LetterQueries
from reconsume.sidecar.ui.plans import RefusedError
from reconsume.sidecar.ui.queries import Queries
from reconsume.sidecar.ui.redrives import Redrives
from reconsume.sidecar.ui.security import Session, actor_of, expect_token, read_form
from reconsume.sidecar.ui.templating import Renderer

CHUNK = 64 * 1024
"""Bytes of an export that are read at once; each connection reads one chunk at a time."""


class LetterForms:
    """The endpoints of these forms; created only if there is a token file."""

    def __init__(
        self, render: Renderer, asker: ThreadQueries, scans: ThreadQueries, looks: Queries, audit: AuditLog,
        redrives: Redrives,
    ) -> None:  # fmt: skip
        self._render, self._ask, self._scan, self._redrives = render, asker, scans, redrives
        self._audit, self._topics, self._group = audit, looks.letters.topics, looks.settings.group
        self._letters = LetterQueries(looks)
        self._dismissals = Dismissals(looks, self._letters, audit)
        self._files = BoundedThreads("export", 1, MOST)

    async def plan(self, request: Request, session: Session | None) -> Response:
        """Make a dry run of a redrive and show its plan."""
        signed_in, actor, query = await self._selection(request, session)
        plan = await self._scan(lambda: self._redrives.plan(query, actor))
        return self._render("plan.html", session=signed_in, here="/dlq", plan=plan)

    async def redrive(self, request: Request, session: Session | None) -> Response:
        """Carry out the plan of a redrive."""
        fields = (await read_form(request)).fields
        signed_in = expect_token(session, fields)
        actor, rate = actor_of(request, signed_in), parse_rate(fields.get("rate", ""))
        job = await self._ask(lambda: self._redrives.carry_out(fields.get("plan", ""), actor, rate))
        return self._render.redirect(f"/dlq/redrives/{job.id}")

    async def job(self, request: Request, session: Session | None) -> Response:
        """Show the progress of a redrive, as a page or as the part of it that reloads."""
        job = self._redrives.job(request.path_params["job"])
        if job is None or session is None:
            raise RefusedError("this redrive is not known here, or you are not signed in; the audit log has it")
        page = "job_part.html" if "hx-request" in request.headers else "job.html"
        return self._render(page, session=session, here="/dlq", job=job, results=list(job.counts.results))

    async def stop(self, request: Request, session: Session | None) -> Response:
        """Stop a redrive between two transactions."""
        signed_in = expect_token(session, (await read_form(request)).fields)
        job = self._redrives.job(request.path_params["job"])
        if job is None or job.ended is not None:
            raise RefusedError("it has ended already")
        await self._ask(lambda: self._redrives.stop(job, actor_of(request, signed_in)))
        return self._render.redirect(f"/dlq/redrives/{job.id}")

    async def plan_dismissal(self, request: Request, session: Session | None) -> Response:
        """Show what would be dismissed, and ask for the reason."""
        signed_in, actor, query = await self._selection(request, session)
        plan = await self._scan(lambda: self._dismissals.plan(query, actor))
        return self._render("dismissal.html", session=signed_in, here="/dlq", plan=plan)

    async def dismiss(self, request: Request, session: Session | None) -> Response:
        """Carry out the plan of a dismissal."""
        fields = (await read_form(request)).fields
        signed_in = expect_token(session, fields)
        plan_id, why, actor = fields.get("plan", ""), fields.get("why", "").strip(), actor_of(request, signed_in)
        done = await self._scan(lambda: self._dismissals.carry_out(plan_id, why, actor))
        return self._render("dismissed.html", session=signed_in, here="/dlq", done=done, why=why)

    async def export(self, request: Request, session: Session | None) -> Response:
        """Send dead letters as JSON lines, as `dlq export` writes them."""
        _, actor, query = await self._selection(request, session)

        def write() -> Export:
            self._audit.write("export", actor, filter=audit_facts(query))
            export = self._letters.export(query)
            self._audit.write("export-end", actor, letters=export.letters, complete=export.complete)
            return export

        export = await self._scan(write)
        name = f"{self._group}-dead-letters{'' if export.complete else '-incomplete'}.jsonl"
        headers = {"content-disposition": f'attachment; filename="{name}"', "content-length": str(export.size)}
        return StreamingResponse(self._chunks(export.file), media_type="application/jsonl", headers=headers)

    async def _selection(self, request: Request, session: Session | None) -> tuple[Session, Actor, LetterSearch]:
        """Return who asks, and for which dead letters."""
        form = await read_form(request)
        signed_in = expect_token(session, form.fields)
        query = parse_selection(form.fields, form.positions, self._topics, wall())
        return signed_in, actor_of(request, signed_in), query

    async def _chunks(self, file: IO[bytes]) -> AsyncIterator[bytes]:
        """Yield the content of a file, and close it, even if the reader goes away."""
        try:
            while chunk := await self._files(lambda: file.read(CHUNK)):
                yield chunk
        finally:
            file.close()
