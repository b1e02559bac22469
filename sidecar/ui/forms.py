"""The pages by which users sign in and out, and the log of what they have done. Each form is one of the dashboard
itself, and is logged."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from reconsume.sidecar.http.audit import peer_of
from reconsume.sidecar.http.tokens import Tokens
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.endpoint import ThreadQueries
from reconsume.sidecar.ui.security import Session, Sessions, expect_token, name_of, read_form
from reconsume.sidecar.ui.templating import Renderer

NOBODY = "visitor"


class Forms:
    """The endpoints of the forms; created only if there is a token file."""

    def __init__(
        self,
        render: Renderer,
        asker: ThreadQueries,
        audit: AuditLog,
        sessions: Sessions,
        tokens: Tokens,
    ) -> None:
        self._render, self._ask = render, asker
        self._audit, self._sessions, self._tokens = audit, sessions, tokens

    async def ask_token(self, request: Request, session: Session | None) -> Response:
        """Show the sign-in form."""
        return self._render("sign_in.html", session=session, here="/sign-in", fault="")

    async def sign_in(self, request: Request, session: Session | None) -> Response:
        """Check the token and open a session."""
        fields = (await read_form(request)).fields
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
        signed_in = expect_token(session, (await read_form(request)).fields)
        self._sessions.close(signed_in)
        await self._ask(lambda: self._audit.write("sign-out", actor_of(request, signed_in)))
        answer = RedirectResponse("/", 303)
        sessions = self._sessions
        answer.delete_cookie(sessions.cookie, path="/", httponly=True, samesite="strict", secure=sessions.far)
        return answer

    async def audit(self, request: Request, session: Session | None) -> Response:
        """Show the log of the actions on this dashboard."""
        rows = await self._ask(self._audit.last)
        return self._render("audit.html", session=session, here="/audit", rows=rows, path=str(self._audit.path))


def actor_of(request: Request, session: Session) -> Actor:
    """Return the user of an action."""
    return Actor(session.who, session.token, peer_of(request.scope))
