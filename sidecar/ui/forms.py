"""The pages by which users sign in and out, and the log of what they have done. Each form is one of the dashboard
itself, and is logged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.http.audit import peer_of
from reconsume.sidecar.http.tokens import Token, Tokens
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.endpoint import ThreadQueries, count_as_user
from reconsume.sidecar.ui.queries import Queries
from reconsume.sidecar.ui.security import Session, Sessions, expect_token, name_of, read_form
from reconsume.sidecar.ui.sign_in_link import SignInLinks
from reconsume.sidecar.ui.templating import Renderer

NOBODY = "visitor"


class Forms:
    """The endpoints of the forms; created only if there is a token file."""

    def __init__(
        self,
        render: Renderer,
        asker: ThreadQueries,
        looks: Queries,
        audit: AuditLog,
        sessions: Sessions,
        tokens: Tokens,
    ) -> None:
        self._render, self._ask, self._looks = render, asker, looks
        self._audit, self._sessions, self._tokens = audit, sessions, tokens
        self._links = SignInLinks(tokens)

    async def ask_token(self, request: Request, session: Session | None) -> Response:
        """Show the sign-in form, or sign in by a link that was made for this (`sign_in_link.py`)."""
        if "proof" not in request.query_params:
            return self._render("sign_in.html", session=session, here="/sign-in", fault="")
        by_link = self._links.use(request.query_params, wall() / 1000)
        who = None if by_link is None else name_of(by_link.who)
        if by_link is None or who is None:
            fault = "This link was used already, or is too old. Sign in with the token."
            return await self._refused(Actor("", "", peer_of(request.scope)), fault)
        count_as_user()
        await self._ask(lambda: self._audit.write("sign-in", Actor(who, by_link.token.name, peer_of(request.scope))))
        return self._opened(who, by_link.token, "/")

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
            return await self._refused(actor, "This is not the token.")
        count_as_user()
        await self._ask(lambda: self._audit.write("sign-in", actor))
        return self._opened(who, Token(token, secret), "/dlq")

    async def _refused(self, actor: Actor, fault: str) -> Response:
        """Write down that a user was refused, within limits, and show the form again."""
        if self._sessions.failed(actor.peer):
            fault = "This is not the token, and neither were many others from your address."
            return self._render("sign_in.html", 429, session=None, here="/sign-in", fault=fault)
        await self._ask(lambda: self._audit.write("sign-in-refused", actor))
        return self._render("sign_in.html", 403, session=None, here="/sign-in", fault=fault)

    def _opened(self, who: str, token: Token, page: str) -> Response:
        """Open a session, and lead to a page."""
        opened = self._sessions.open(who, token.name, token.secret)
        answer = self._render.redirect(page)
        sessions = self._sessions
        answer.set_cookie(
            sessions.cookie, opened.id, httponly=True, samesite="strict", path=sessions.path, secure=sessions.far
        )
        return answer

    async def sign_out(self, request: Request, session: Session | None) -> Response:
        signed_in = expect_token(session, (await read_form(request)).fields)
        self._sessions.close(signed_in)
        await self._ask(lambda: self._audit.write("sign-out", actor_of(request, signed_in)))
        answer = self._render.redirect("/")
        sessions = self._sessions
        answer.delete_cookie(sessions.cookie, path=sessions.path, httponly=True, samesite="strict", secure=sessions.far)
        return answer

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


def merged(rows: list[dict[str, Any]], changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the actions on this dashboard and the changes in the policy topic, the newest first.

    A hold that was begun or released here is in both: the line of this dashboard says more.
    """
    actions = {"hold-result": "hold", "release": "release"}
    here = {(actions.get(str(row.get("action"))), str(row.get("hold")), f"{row.get('who')}@ui") for row in rows}
    others = [change for change in changes if (change["action"], change.get("hold"), change["who"]) not in here]
    return sorted([*rows, *others], key=lambda row: row["at"] if isinstance(row.get("at"), int) else 0, reverse=True)


def actor_of(request: Request, session: Session) -> Actor:
    """Return the user of an action."""
    return Actor(session.who, session.token, peer_of(request.scope))


class SignedForm(NamedTuple):
    """A form of a user who has signed in: who sends it, its fields, and the ticked positions of dead letters."""

    session: Session
    actor: Actor
    fields: Mapping[str, str]
    positions: Collection[str]


async def read_signed(request: Request, session: Session | None) -> SignedForm:
    """Read a form. Raises ForgedError unless a page of this dashboard has sent it for a user who has signed in."""
    form = await read_form(request)
    signed_in = expect_token(session, form.fields)
    return SignedForm(signed_in, actor_of(request, signed_in), form.fields, form.positions)
