"""Sign in to the dashboard and out of it: by a name and a token, or by a link that works once.

A link is for programs that start a dashboard for the user who is there (`reconsume dev up`). Whoever has a token can
make one without the dashboard: it proves the token and does not contain it. The proof is an HMAC of the user's name,
the end of the link and a random number, with the token as its key. The dashboard checks it against the tokens that are
valid now, and remembers the links that were used until they would have ended. So a link that is left in a history, in a
log or on a screen opens nothing, and one of a token that was taken out of the file neither. After a restart of the
dashboard a link works once more, until it ends.

Every sign-in, refusal and sign-out is logged before it happens. All of it runs on the dashboard's event loop, except
that the audit log is written on a thread.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from hashlib import sha256
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import wall
from reconsume.sidecar.http.audit import peer_of
from reconsume.sidecar.http.tokens import Token, Tokens
from reconsume.sidecar.ui.audit_log import Actor, AuditLog
from reconsume.sidecar.ui.endpoint import ThreadQueries, count_as_user
from reconsume.sidecar.ui.security import Session, Sessions, name_of, read_form, read_signed
from reconsume.sidecar.ui.templating import Renderer

VALID_S = 12 * 3_600
"""Seconds for which a link is valid."""
MOST_USED = 1_024
"""Links that were used and have not ended; beyond that no link is accepted."""


def query_of_link(secret: str, who: str, now: float) -> str:
    """Return the query of a link to `/sign-in` that signs in once as `who`. `now`: epoch seconds."""
    until, nonce = str(int(now) + VALID_S), secrets.token_urlsafe(16)
    proof = _proof(secret.encode(), who, until, nonce)
    return urlencode({"who": who, "until": until, "nonce": nonce, "proof": proof})


def _proof(secret: bytes, *words: str) -> str:
    text = "\n".join(("sign-in", *(word.encode(errors="surrogatepass").hex() for word in words)))
    return hmac.new(secret, text.encode(), sha256).hexdigest()


class SignIn:
    """The endpoints by which users sign in and out; created only if there is a token file."""

    def __init__(
        self,
        render: Renderer,
        asker: ThreadQueries,
        audit: AuditLog,
        sessions: Sessions,
        tokens: Tokens,
        first_page: str = "/dlq",
    ) -> None:
        """`first_page`: where the form leads to."""
        self._first_page = first_page
        self._render, self._ask, self._audit = render, asker, audit
        self._sessions, self._tokens = sessions, tokens

    async def ask_token(self, request: Request, session: Session | None) -> Response:
        """Show the sign-in form, or sign in by a link."""
        if "proof" not in request.query_params:
            return self._form(200, "", session)
        who = name_of(request.query_params.get("who", ""))
        token = None if who is None else self._token_of_link(request.query_params, wall() / 1000)
        fault = "This link was used already, or is too old. Sign in with the token."
        return await self._opened(request, "" if who is None or token is None else who, token, "/", fault)

    async def sign_in(self, request: Request, session: Session | None) -> Response:
        """Check the token and open a session."""
        fields = (await read_form(request)).fields
        who, secret = name_of(fields.get("who", "")), fields.get("token", "").strip().encode()
        if who is None:
            return self._form(400, "Give your name.")
        name = self._tokens.name_of(secret)
        token = None if name is None else Token(name, secret)
        return await self._opened(request, who, token, self._first_page, "This is not the token.")

    async def sign_out(self, request: Request, session: Session | None) -> Response:
        """End the session of this user."""
        form = await read_signed(request, session)
        self._sessions.close(form.session)
        await self._ask(lambda: self._audit.write("sign-out", form.actor))
        response = self._render.redirect("/")
        sessions = self._sessions
        response.delete_cookie(
            sessions.cookie, path=sessions.path, httponly=True, samesite="strict", secure=sessions.far
        )
        return response

    async def _opened(self, request: Request, who: str, token: Token | None, page: str, fault: str) -> Response:
        """Open a session and lead to a page. Without a token, log that the user was refused, within limits, and show
        the form again, with the `fault`."""
        actor = Actor(who, "" if token is None else token.name, peer_of(request.scope))
        if token is None:
            if self._sessions.failed(actor.peer):
                return self._form(429, "This is not the token, and neither were many others from your address.")
            await self._ask(lambda: self._audit.write("sign-in-refused", actor))
            return self._form(403, fault)
        count_as_user()
        await self._ask(lambda: self._audit.write("sign-in", actor))
        opened = self._sessions.open(who, token)
        response = self._render.redirect(page)
        sessions = self._sessions
        response.set_cookie(
            sessions.cookie, opened.id, httponly=True, samesite="strict", path=sessions.path, secure=sessions.far
        )
        return response

    def _form(self, status: int, fault: str, session: Session | None = None) -> Response:
        return self._render("sign_in.html", status, session=session, here="/sign-in", fault=fault)

    def _token_of_link(self, query: Mapping[str, str], now: float) -> Token | None:
        """Return the token that a link proves; None if it proves none, is too old, or was used. `now`: epoch
        seconds."""
        who, until, nonce, proof = (query.get(name, "") for name in ("who", "until", "nonce", "proof"))
        if not (until.isascii() and until.isdecimal() and len(until) < 16 and 0 < int(until) - now <= VALID_S):
            return None
        self._sessions.used_links = {used: end for used, end in self._sessions.used_links.items() if end > now}
        token = self._tokens.first(lambda secret: hmac.compare_digest(proof, _proof(secret, who, until, nonce)))
        if token is None or proof in self._sessions.used_links or len(self._sessions.used_links) >= MOST_USED:
            return None
        self._sessions.used_links[proof] = int(until)
        return token
