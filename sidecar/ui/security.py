"""Access control of the dashboard: headers of every response, sessions, and tokens against forged forms (contract
14.4).

`http/access.py` checks `Host`, the size of bodies and foreign origins. Here a page may load only the dashboard's own
style and script. A form is accepted only with its session's own token, from the dashboard's own origin.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple
from urllib.parse import parse_qs

from starlette.requests import Request

from reconsume.sidecar.http.audit import peer_of
from reconsume.sidecar.http.tokens import Token, Tokens
from reconsume.sidecar.ui.audit_log import Actor
from reconsume.sidecar.ui.letter_form import MOST_PICKED, BadFormError

COOKIE = "reconsume-ui"
IDLE, LONGEST = 1_800.0, 28_800.0
"""Seconds after which a session ends: without a request, and in any case."""
MOST_SESSIONS = 64
MOST_TRIES, TRIES_WITHIN = 10, 60.0
"""Wrong tokens from one address that are logged, and the seconds in which they are counted; more are only refused.

The right token is accepted all the same. Behind a proxy all users have one address, and guesses by one user must not
lock out the others.
"""
MOST_ADDRESSES = 1_024
MOST_FIELDS = 32
TICKED = "place"
"""The check boxes of a list: the only field that a form may have more than once."""
LONGEST_NAME = 64

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: browsers then send `Origin: null` with forms, which could come from any page.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""Headers of every response, which the server adds: to pages, files, refusals and faults."""


class ValueGate:
    """Decides which readers may see keys, values and headers of records, and search in them.

    The others see ids, states and counts. `read`: `open` to every reader, or only to those who have `signed-in`.
    """

    def __init__(self, read: Literal["open", "signed-in"]) -> None:
        self._read = read

    def opens_to(self, session: Session | None) -> bool:
        """Whether a reader may see them; `session`: None for a visitor."""
        return self._read == "open" or session is not None


class ForgedError(Exception):
    """A form that does not come from the dashboard's own page, or comes from a session that has ended."""


@dataclass
class Session:
    """A user who gave a token. Times are monotonic seconds."""

    id: str
    who: str
    token: Token
    csrf: str
    began: float
    seen: float


class Sessions:
    """The users who are signed in. Sessions live in memory: a restart signs every user out.

    A session ends with its token: who takes a token out of the file wants nobody to act by it any more.
    """

    def __init__(self, tokens: Tokens | None, *, far: bool = False, path: str = "/") -> None:
        self._tokens = tokens
        self.far = far
        """Whether pages go over a network; the cookie is then sent over TLS only."""
        self.path = path
        """The path of the cookie: `ui.base_path`, so that no other tool below the same host name gets it."""
        self.cookie = f"{('__Host-' if path == '/' else '__Secure-') if far else ''}{COOKIE}"
        """The cookie's name. Because of the prefix, browsers accept it only over TLS, and with `__Host-` only from this
        host (RFC 6265bis). `__Host-` requires the path /."""
        self._sessions: dict[str, Session] = {}
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        self.used_links: dict[str, int] = {}
        """The proofs of links that were used, and when they end (epoch seconds)."""

    def open(self, who: str, token: Token) -> Session:
        """Sign a user in. If there are MOST_SESSIONS, the session that was idle longest ends."""
        moment = time.monotonic()
        self._sweep(moment)
        if len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[min(self._sessions.values(), key=lambda one: one.seen).id]
        session = Session(secrets.token_urlsafe(32), who, token, secrets.token_urlsafe(32), moment, moment)
        self._sessions[session.id] = session
        return session

    def of(self, request: Request) -> Session | None:
        """Close the sessions that are over, and return that of a request; None for a visitor."""
        moment = time.monotonic()
        self._sweep(moment)
        session = self._sessions.get(request.cookies.get(self.cookie, ""))
        if session is None:
            return None
        if self._tokens is None or self._tokens.name_of(session.token.secret) != session.token.name:
            self.close(session)
            return None
        if "hx-request" not in request.headers:  # a part that reloads itself is no action of the user
            session.seen = moment
        return session

    def close(self, session: Session) -> None:
        """Sign a user out."""
        self._sessions.pop(session.id, None)

    def failed(self, address: str) -> bool:
        """Record a wrong token from an address; return whether there are too many."""
        moment = time.monotonic()
        recent = [at for at in self._failures.pop(address, []) if moment - at < TRIES_WITHIN]
        if len(self._failures) >= MOST_ADDRESSES:
            self._failures.popitem(last=False)
        too_many = len(recent) >= MOST_TRIES
        self._failures[address] = recent if too_many else [*recent, moment]
        return too_many

    def _sweep(self, moment: float) -> None:
        for session in list(self._sessions.values()):
            if moment - session.seen > IDLE or moment - session.began > LONGEST:
                self.close(session)


class Form(NamedTuple):
    """The fields of a form, each there once, and the values of its check boxes TICKED."""

    fields: Mapping[str, str]
    positions: tuple[str, ...]


async def read_form(request: Request) -> Form:
    """Return a form. Raises ForgedError if no page of the dashboard could have sent it, and BadFormError if it has too
    many fields."""
    # A browser names the origin of a form, and `http/access.py` has compared it with this host and port. To a browser,
    # a page on another port of this host is the same site, and it sends the dashboard's cookie with that page's forms.
    if "origin" not in request.headers:
        raise ForgedError("the form comes from another page")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ForgedError("the form has another type than our pages send")
    body = await request.body()
    if body.count(b"&") >= MOST_FIELDS + MOST_PICKED:
        raise BadFormError(f"at most {MOST_PICKED} can be ticked at once")
    try:
        text = body.decode()
        fields = parse_qs(text, keep_blank_values=True, strict_parsing=bool(text))
    except ValueError:
        raise ForgedError("the form cannot be read") from None
    positions = tuple(fields.pop(TICKED, ()))
    if len(fields) > MOST_FIELDS or any(len(values) > 1 for values in fields.values()):
        raise ForgedError("a field is there twice, or there are too many")
    return Form({name: values[0] for name, values in fields.items()}, positions)


class SignedForm(NamedTuple):
    """A form of a user who has signed in: who sends it, its fields, and the ticked positions of dead letters."""

    session: Session
    actor: Actor
    fields: Mapping[str, str]
    positions: Collection[str]


async def read_signed(request: Request, session: Session | None) -> SignedForm:
    """Read a form. Raises ForgedError unless a page of this dashboard has sent it for a user who has signed in."""
    form = await read_form(request)
    if session is None:
        raise ForgedError("you are not signed in any more")
    if not hmac.compare_digest(form.fields.get("csrf", "").encode(), session.csrf.encode()):
        raise ForgedError("the form was not made for this session")
    actor = Actor(session.who, session.token.name, peer_of(request.scope))
    return SignedForm(session, actor, form.fields, form.positions)


def is_foreign(request: Request) -> bool:
    """Whether a page of another origin requests it without the user's intent, for example as an image. Links are
    allowed."""
    whence, how = request.headers.get("sec-fetch-site", ""), request.headers.get("sec-fetch-mode", "")
    return whence in ("cross-site", "same-site") and how != "navigate"


def name_of(text: str) -> str | None:
    """Return the name of the user who signs in; None if it is empty, too long or not printable."""
    name = text.strip()
    return name if 1 <= len(name) <= LONGEST_NAME and name.isprintable() else None
