"""Who may call the HTTP API, and with how much: checked before a call reaches its endpoint (http-delivery §8).

In this order: `Host` (a page that rebinds its name to loopback), `Origin` (a page that posts from elsewhere), the
token, and the body, which is read here within a size and a time, so that no endpoint meets more. Bodies are never
decompressed.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sidecar.edges.problems import problem
from sidecar.edges.tokens import Tokens
from sidecar.settings.addresses import is_loopback

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
LONGEST_BODY = 1024 * 1024
"""Bytes; the largest call is a batch of handles or one record."""
BODY_WITHIN = 10.0
"""Seconds for the whole body: a neighbour that drips one in must not hold a connection for ever."""
READS = frozenset({"GET", "HEAD", "OPTIONS"})
TOKENLESS = frozenset({"/drain"})
"""Changing calls that need no token from this pod: a preStop hook has no secret at hand (DECISIONS)."""

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::[0-9]{1,5})?")
_BEARER = re.compile(rb"bearer +([\x21-\x7e]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Access:
    """The rules. `hosts`: every name by which we may be called, in lower case, IPv6 in brackets, without a port."""

    token_file: Path | None = None
    hosts: tuple[str, ...] = LOOPBACK_NAMES
    body_within: float = BODY_WITHIN


class Guard:
    """ASGI middleware that answers by itself whatever may not come in."""

    def __init__(self, app: ASGIApp, access: Access | None) -> None:
        """`access` None: anyone may call by any name, for an app that only answers what everybody may know."""
        self._app = app
        self._hosts = None if access is None else frozenset(name.lower() for name in access.hosts)
        self._body_within = BODY_WITHIN if access is None else access.body_within
        self._tokens = None if access is None or access.token_file is None else Tokens(access.token_file)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a call in, with its whole body at hand, or refuse it."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        refusal = self._refusal(scope, headers) or _body_refusal(headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        body = await _read(receive, self._body_within) if _has_body(headers) else b""
        if isinstance(body, Response):
            await body(scope, receive, send)
        elif body is not None:
            await self._app(scope, _replay(body, receive), send)

    def _refusal(self, scope: Scope, headers: list[tuple[bytes, bytes]]) -> Response | None:
        refusal = self._host_refusal(headers)
        if refusal is not None or scope["method"] in READS:
            return refusal
        return self._origin_refusal(headers) or self._token_refusal(scope, headers)

    def _host_refusal(self, headers: list[tuple[bytes, bytes]]) -> Response | None:
        if self._hosts is None:
            return None
        hosts = _values(headers, b"host")
        if len(hosts) != 1:
            return problem(400, "The call must have exactly one Host header.")
        name = host_name(hosts[0].decode("latin-1"))
        if name is None:
            return problem(400, "The Host header must be a name or an address, with or without a port.")
        if name not in self._hosts:
            return problem(421, "This sidecar is not called by the name in the Host header; try localhost.")
        return None

    def _origin_refusal(self, headers: list[tuple[bytes, bytes]]) -> Response | None:
        """A browser says where a page comes from that posts without asking (a "simple" request needs no CORS)."""
        for origin in _values(headers, b"origin"):
            if self._hosts is not None and _origin_name(origin.decode("latin-1")) not in self._hosts:
                return problem(403, "Pages of another origin may not call this sidecar.")
        return None

    def _token_refusal(self, scope: Scope, headers: list[tuple[bytes, bytes]]) -> Response | None:
        if self._tokens is None or (scope["path"] in TOKENLESS and is_near(scope)):
            return None
        given = _values(headers, b"authorization")
        match = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        if match is None:
            challenge = {"www-authenticate": 'Bearer realm="reconsume"'}
            return problem(401, "A call that changes something needs Authorization: Bearer TOKEN.", challenge)
        if not self._tokens.accepts(match[1]):
            challenge = {"www-authenticate": 'Bearer realm="reconsume", error="invalid_token"'}
            return problem(401, "The bearer token is not valid.", challenge)
        return None


def host_name(host: str) -> str | None:
    """The name in a Host header, in lower case, without its port; None for what is none."""
    match = _HOST.fullmatch(host.lower())
    if match is None:
        return None
    if match[1].startswith("["):
        try:
            return f"[{IPv6Address(match[1][1:-1])}]"
        except AddressValueError:
            return None
    return match[1]


def is_near(scope: Scope) -> bool:
    """Whether the caller shares this pod: it came over loopback or a Unix socket.

    The listener tells a Unix socket, not the caller: a TCP caller that is gone already has no address either.
    """
    server, client = scope.get("server"), scope.get("client")
    if server is not None and server[1] is None:
        return True
    return client is not None and is_loopback(client[0])


def _origin_name(origin: str) -> str | None:
    try:
        return host_name(urlsplit(origin).netloc)
    except ValueError:
        return None


def _values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value.strip() for key, value in headers if key == name]


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(key in (b"content-length", b"transfer-encoding") for key, _ in headers)


def _too_long() -> Response:
    return problem(413, "The body of a call may have at most 1 MiB.")


def _body_refusal(headers: list[tuple[bytes, bytes]]) -> Response | None:
    """What the head alone tells about a body that will not be read."""
    if any(value.lower() != b"identity" for value in _values(headers, b"content-encoding")):
        return problem(415, "Bodies are not decompressed; send them as they are.")
    lengths = _values(headers, b"content-length")  # the parser let only digits through
    return _too_long() if any(int(length) > LONGEST_BODY for length in lengths) else None


async def _read(receive: Receive, within: float) -> bytes | Response | None:
    """The whole body; an answer when it is too long or too slow; None when the caller has gone."""
    body = bytearray()
    try:
        async with asyncio.timeout(within):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > LONGEST_BODY:
                    return _too_long()
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        return problem(408, "The body did not come in time.", {"connection": "close"})


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read already, then goes on with the real one."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
