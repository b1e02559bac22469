"""The pages that change something: sign-in, dry runs, redrives. Each reads a form of the dashboard itself, and is
logged."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sidecar.clock import wall
from sidecar.http.audit import peer_of
from sidecar.http.tokens import Tokens
from sidecar.ui.audit_log import Actor, AuditLog
from sidecar.ui.endpoint import ThreadQueries
from sidecar.ui.pages import letter_filter
from sidecar.ui.redrives import Redrives, RefusedError
from sidecar.ui.security import Session, Sessions, expect_token, name_of, read_form
from sidecar.ui.templating import Renderer

NOBODY = "visitor"


class Forms:
    """The endpoints of the forms; created only if there is a token file."""

    def __init__(
        self,
        render: Renderer,
        asker: ThreadQueries,
        scans: ThreadQueries,
        redrives: Redrives,
        audit: AuditLog,
        sessions: Sessions,
        tokens: Tokens,
    ) -> None:
        self._render, self._ask, self._scan, self._redrives = render, asker, scans, redrives
        self._audit, self._sessions, self._tokens = audit, sessions, tokens

    async def ask_token(self, request: Request, session: Session | None) -> Response:
        """Show the sign-in form."""
        return self._render("sign_in.html", session=session, here="/sign-in", fault="")

    async def sign_in(self, request: Request, session: Session | None) -> Response:
        """Check the token and open a session."""
        fields = await read_form(request)
        who = name_of(fields.get("who", ""))
        if who is None:
            return self._render("sign_in.html", 400, session=None, here="/sign-in", fault="Give your name.")
        secret = fields.get("token", "").strip().encode()
        token = self._tokens.name_of(secret)
        actor = Actor(who, token or "", peer_of(request.scope))
        if token is None:
            if self._sessions.failed(actor.peer):
                fault = "This is not the token, and neither were many others from your address."
                return self._render("sign_in.html", 429, session=None, here="/sign-in", fault=fault)
            await self._ask(lambda: self._audit.write("sign-in-refused", actor))
            return self._render("sign_in.html", 403, session=None, here="/sign-in", fault="This is not the token.")
        await self._ask(lambda: self._audit.write("sign-in", actor))
        opened = self._sessions.open(who, token, secret)
        answer = RedirectResponse("/dlq", 303)
        sessions = self._sessions
        answer.set_cookie(sessions.cookie, opened.id, httponly=True, samesite="strict", path="/", secure=sessions.far)
        return answer

    async def sign_out(self, request: Request, session: Session | None) -> Response:
        signed_in = expect_token(session, await read_form(request))
        self._sessions.close(signed_in)
        await self._ask(lambda: self._audit.write("sign-out", _actor(request, signed_in)))
        answer = RedirectResponse("/", 303)
        sessions = self._sessions
        answer.delete_cookie(sessions.cookie, path="/", httponly=True, samesite="strict", secure=sessions.far)
        return answer

    async def plan(self, request: Request, session: Session | None) -> Response:
        """Make a dry run and show its plan."""
        fields = await read_form(request)
        signed_in = expect_token(session, fields)
        actor = _actor(request, signed_in)
        plan = await self._scan(lambda: self._redrives.plan(letter_filter(fields), actor))
        return self._render("plan.html", session=signed_in, here="/dlq", plan=plan)

    async def redrive(self, request: Request, session: Session | None) -> Response:
        """Carry out a plan."""
        fields = await read_form(request)
        signed_in = expect_token(session, fields)
        actor = _actor(request, signed_in)
        job = await self._ask(lambda: self._redrives.carry_out(fields.get("plan", ""), actor))
        return RedirectResponse(f"/dlq/redrives/{job.id}", 303)

    async def job(self, request: Request, session: Session | None) -> Response:
        """Show the progress of a redrive, as a page or as the part of it that reloads."""
        job = self._redrives.job(request.path_params["job"])
        if job is None or session is None:
            raise RefusedError("this redrive is not known here, or you are not signed in; the audit log has it")
        page = "job_part.html" if "hx-request" in request.headers else "job.html"
        results = list(job.counts.results)
        return self._render(page, session=session, here="/dlq", job=job, results=results, now=wall())

    async def stop(self, request: Request, session: Session | None) -> Response:
        """Stop a redrive between two transactions."""
        signed_in = expect_token(session, await read_form(request))
        job = self._redrives.job(request.path_params["job"])
        if job is None or job.ended is not None:
            raise RefusedError("it has ended already")
        await self._ask(lambda: self._redrives.stop(job, _actor(request, signed_in)))
        return RedirectResponse(f"/dlq/redrives/{job.id}", 303)

    async def audit(self, request: Request, session: Session | None) -> Response:
        """Show the log of the actions on this dashboard."""
        rows = await self._ask(self._audit.last)
        return self._render("audit.html", session=session, here="/audit", rows=rows, path=str(self._audit.path))


def _actor(request: Request, session: Session) -> Actor:
    return Actor(session.who, session.token, peer_of(request.scope))
