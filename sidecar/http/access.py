"""Check each call of the HTTP API before it reaches its endpoint: its caller and its size (contract 14.4).

The checks come in this order. `Host` refuses a page that rebinds its name to loopback. `Origin` refuses a page that
posts from elsewhere. Then come the token, by the kind of the call (`calls.py`), and the body, which `bodies.py` reads.
Bodies must have the type that the app reads, because a page may post other types without asking.

There are two files of tokens. The service's opens calls of the service and reads, an operator's opens calls of
operators and reads. Neither opens the calls of the other: whoever may give verdicts on its own records must not settle
those of the group, and whoever may operate the group must not pass as the service. A token in both files is the
service's alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from typing import Literal, NamedTuple

from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from reconsume.sidecar.http.audit import TOKEN_NAME, audited, tell_refused
from reconsume.sidecar.http.bodies import LONGEST, WITHIN, Bodies, is_too_long, refusal_of, replay, sends_body, values
from reconsume.sidecar.http.calls import READS, VALUES, Caller, Wanted, wanted_of
from reconsume.sidecar.http.json_body import MEDIA_TYPE
from reconsume.sidecar.http.problems import problem
from reconsume.sidecar.http.tokens import Tokens

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
UNKNOWN_CALLER = (401, 403)
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
OWN_SITE = (b"same-origin", b"none")
"""Values of `Sec-Fetch-Site` that a browser sends for a call of our own page, or of its user."""

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::[0-9]{1,5})?")
_BEARER = re.compile(rb"bearer +([\x21-\x7e]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of access.

    `hosts`: every name by which callers may call, in lower case, IPv6 in brackets, without a port. `schemes`: those by
    which our own pages are called; a proxy may speak TLS for us. `media_type`: the type of bodies; None: any. `audit`:
    write a line for each call that changes something; an app that writes its own does not need it.
    """

    token_file: Path | None = None
    """The service's tokens; None: its calls and reads need none."""
    hosts: tuple[str, ...] = LOOPBACK_NAMES
    schemes: tuple[str, ...] = ("http",)
    media_type: str | None = MEDIA_TYPE
    longest: Callable[[], int] = lambda: LONGEST
    """Bytes of a body at most."""
    body_within: float = WITHIN
    audit: bool = True
    operators: Path | None = None
    """Operators' tokens; None: nobody can make their calls."""
    read: Literal["open", "signed-in"] = "open"
    """Who may see keys, values, headers and texts: every caller that may read, or only those with a token."""
    unknown_host: Callable[[], Response] | None = None
    """Makes the response to a call by a name that is not one of `hosts`; None: a problem in JSON."""


class Holder(NamedTuple):
    """Whose token a caller has: the service's or an operator's, and the token's name."""

    caller: Caller
    name: str


class AccessMiddleware:
    """ASGI middleware that answers every call that is not allowed."""

    def __init__(self, app: ASGIApp, access: Access | None, routes: Sequence[BaseRoute] = ()) -> None:
        """Wrap `app`. If `access` is None, any caller may call by any name.

        That is for an app whose answers every caller may know. `routes`: the calls of the app, with their kinds.
        """
        self._app, self._routes = app, routes
        self._access = access
        self._hosts = None if access is None else frozenset(name.lower() for name in access.hosts)
        self._longest = Access().longest if access is None else access.longest
        self._bodies = Bodies() if access is None else Bodies(access.body_within, access.longest)
        self._service = None if access is None or access.token_file is None else Tokens(access.token_file)
        self._operators = None if access is None or access.operators is None else Tokens(access.operators)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on with its whole body, or refuse it."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        wanted = wanted_of(scope, self._routes)
        refusal = self._refusal(scope, headers, wanted) or refusal_of(headers, self._longest())
        if refusal is not None:
            await self._refusal_of(refusal, wanted)(scope, receive, send)
            return
        async with self._bodies.body(headers, receive) as body:
            if isinstance(body, Response):
                await self._refusal_of(body, wanted)(scope, receive, send)
            elif body is not None:
                if self._access is not None and self._access.audit and scope["method"] not in READS:
                    send = audited(scope, send)
                await self._app(scope, replay(body, receive), send)

    def _refusal_of(self, refusal: Response, wanted: Wanted) -> ASGIApp:
        """Return what answers with a refusal, and writes its audit line: of each change, and of each missing token."""

        async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
            is_told = scope["method"] not in READS or refusal.status_code in UNKNOWN_CALLER
            if is_told and self._access is not None and self._access.audit:
                by_operator = wanted.caller is Caller.OPERATOR
                tell_refused(scope, wanted.path, refusal.status_code, operators=by_operator)
            await refusal(scope, receive, send)

        return refuse

    def _refusal(self, scope: Scope, headers: list[tuple[bytes, bytes]], wanted: Wanted) -> Response | None:
        if self._access is None and sends_body(headers):
            return problem(413, "A call of this address has no body.", {"connection": "close"})
        refusal = self._host_refusal(headers)
        if refusal is not None:
            return refusal
        if scope["method"] in READS:
            return self._token_refusal(scope, headers, wanted.caller)
        refused = self._origin_refusal(headers) or self._token_refusal(scope, headers, wanted.caller)
        return refused or self._type_refusal(headers, scope["path"].removeprefix(scope.get("root_path", "")))

    def _host_refusal(self, headers: list[tuple[bytes, bytes]]) -> Response | None:
        if self._hosts is None:
            return None
        hosts = values(headers, b"host")
        if len(hosts) != 1:
            return problem(400, "The call must have exactly one Host header.")
        name = host_name(hosts[0].decode("latin-1"))
        if name is None:
            return problem(400, "The Host header must be a name or an address, with or without a port.")
        if name not in self._hosts:
            if self._access is not None and self._access.unknown_host is not None:
                return self._access.unknown_host()
            return problem(421, "This sidecar is not called by the name in the Host header; try localhost.")
        return None

    def _origin_refusal(self, headers: list[tuple[bytes, bytes]]) -> Response | None:
        """Refuse a call of a page of another origin; return None if there is no reason to.

        A browser names the origin of a page that posts without asking (a "simple" request needs no CORS). Host and port
        must both be those of this call: another port of this host is another origin.
        """
        if self._access is None:
            return None
        (host,) = values(headers, b"host")
        own = {origin_of(f"{scheme}://{host.decode('latin-1')}") for scheme in self._access.schemes}
        foreign = any(origin_of(origin.decode("latin-1")) not in own for origin in values(headers, b"origin"))
        if foreign or any(site not in OWN_SITE for site in values(headers, b"sec-fetch-site")):
            return problem(403, "Pages of another origin may not call this sidecar.")
        return None

    def _type_refusal(self, headers: list[tuple[bytes, bytes]], path: str) -> Response | None:
        if self._access is None or self._access.media_type is None or is_too_long(headers, self._longest()):
            return None
        types = values(headers, b"content-type")
        kinds = [kind.partition(b";")[0].strip().lower().decode("latin-1") for kind in types]
        if kinds == [self._access.media_type] or not (kinds or sends_body(headers)):
            return None
        return problem(415, f"The body must have Content-Type: {self._access.media_type}.")

    def _token_refusal(self, scope: Scope, headers: list[tuple[bytes, bytes]], caller: Caller) -> Response | None:
        """Refuse a call that this caller may not make; note the caller's name, and whether it may see values."""
        if self._access is None or caller is Caller.PROBE:
            return None
        if caller is Caller.OPERATOR and self._operators is None:
            return problem(403, "Calls of operators need operators.token_file, which is not set for this sidecar.")
        tokens = values(headers, b"authorization")
        holder = self._holder(tokens)
        if holder is not None:
            scope[TOKEN_NAME] = holder.name
        if caller is Caller.READ:
            scope[VALUES] = holder is not None or self._access.read == "open"
            has_files = self._service is not None or self._operators is not None
            needs_token = self._service is not None or (bool(tokens) and has_files)
        else:
            needs_token = caller is Caller.OPERATOR or self._service is not None
        if not needs_token:
            return None
        if holder is None:
            return _not_known(tokens)
        if caller is Caller.OPERATOR and holder.caller is Caller.SERVICE:
            return problem(403, "The service's token makes no calls of operators; those of operators.token_file do.")
        if caller is Caller.SERVICE and holder.caller is Caller.OPERATOR:
            return problem(403, "An operator's token makes no calls of the service; those of api.token_file do.")
        return None

    def _holder(self, tokens: Sequence[bytes]) -> Holder | None:
        """Return whose token the caller has; None if it has none that is valid, or more than one."""
        match = _BEARER.fullmatch(tokens[0]) if len(tokens) == 1 else None
        if match is None:
            return None
        for caller, file in ((Caller.SERVICE, self._service), (Caller.OPERATOR, self._operators)):
            if file is not None and (name := file.name_of(match[1])) is not None:
                return Holder(caller, name)
        return None


def _not_known(tokens: Sequence[bytes]) -> Response:
    realm, text = 'Bearer realm="reconsume"', "This call needs Authorization: Bearer TOKEN."
    if len(tokens) == 1 and _BEARER.fullmatch(tokens[0]):
        realm, text = f'{realm}, error="invalid_token"', "The bearer token is not valid."
    return problem(401, text, {"www-authenticate": realm})


def host_name(host: str) -> str | None:
    """Return the name in a Host header, in lower case and without its port; None if it is not valid."""
    match = _HOST.fullmatch(host.lower())
    if match is None:
        return None
    if match[1].startswith("["):
        try:
            return f"[{IPv6Address(match[1][1:-1])}]"
        except AddressValueError:
            return None
    return match[1]


def origin_of(origin: str) -> tuple[str, str, str] | None:
    """Return scheme, host and port of an origin; None if it is not valid.

    Two texts for the same origin give the same result. A port that the scheme has by default may be left out (RFC
    6454).
    """
    scheme, separator, rest = origin.lower().partition("://")
    name = host_name(rest)
    if not separator or name is None:
        return None
    port = re.search(r":[0-9]+$", rest)
    return scheme, name, port[0] if port is not None else DEFAULT_PORTS.get(scheme, "")
