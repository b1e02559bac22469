"""uvicorn's HTTP/1.1 protocol with the limits that it lacks: against callers that are slow, endless or too many.

httptools reads a head of any length, at any speed. uvicorn has no deadline but that for idle keep-alive connections.
Its plain-text 400 becomes a problem document here.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from reconsume.sidecar.http.connections import PROBE_LIMITS, Admission, Connections, Limits
from reconsume.sidecar.http.problems import MEDIA_TYPE, problem, problem_body

__all__ = ["PROBE_LIMITS", "Limits", "Protocol", "protocol_of"]

LONGEST_HEAD = 32 * 1024
"""Bytes of request line and headers. A head that is not complete is counted by reads."""
MOST_HEADERS = 100
"""Each costs five times its bytes, and a browser behind two proxies sends forty."""
MOST_QUEUED = 8
"""Calls that may wait on a connection behind one that is not answered yet. uvicorn parses all that have come, and reads
on after each answer: a caller that never waits would fill the memory from one connection."""
LINGER = 1.0
"""Seconds that a caller may go on sending a body after its answer. Closing at once could destroy the unread answer."""

# httptools treats a request with this header as one without a body, so it is renamed.
UPGRADE = re.compile(rb"(?:^|(?<=\r\n))upgrade(?=[ \t]*:)", re.IGNORECASE)


RESERVED = frozenset({"/livez", "/readyz", "/startupz", "/drain"})
"""Calls that are answered while every place is taken. A flood must neither restart a pod nor prevent its drain."""


class ExcessError(Exception):
    """Raised to the parser, which then reads no further. The caller was answered, or its connection closed."""


class Protocol(HttpToolsProtocol):
    """One connection. `protocol_of` makes the class for one listener."""

    limits = Limits()
    others: Connections[Protocol]
    """All connections of the listener."""
    _admission = Admission.FULL
    _head = _parsed = 0
    _in_head = True
    _messages = 0
    _deadline: asyncio.TimerHandle | None = None
    _untaken: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first head, and find a place."""
        super().connection_made(transport)
        self._arm(self.limits.head_within)
        self._admission = self.others.enter(self, self.client[0] if self.client else "")
        if self._admission is Admission.RESERVE:
            self.app = _Reserve(self.app)
        elif self._admission is Admission.NONE:
            self._refuse_request(503, "This address has too many calls under way.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadline, and free the place."""
        self._disarm()
        self._taken()
        self.others.forget_connection(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, and count the bytes of a head that is not complete."""
        begun, messages = self._in_head, self._messages
        # uvicorn parses all calls that have come, and reads on after each answer: one caller that waits for no answer
        # filled 575 MB in 5 s. So calls that wait are counted where they are parsed, and a callback that raises ends
        # the parse.
        super().data_received(_without_upgrade(data) if begun else data)
        # Bytes that completed a call were not head alone: its body may have been long.
        if begun and self._in_head and self._messages == messages and not self.transport.is_closing():
            self._head += len(data)
            if self._deadline is None:
                self._arm(self.limits.head_within)
            if self._head > LONGEST_HEAD:
                self._refuse_head()

    def pause_writing(self) -> None:
        """Start the deadline of an answer that its caller does not take."""
        super().pause_writing()
        self._taken()
        self._untaken = self.loop.call_later(self.limits.taken_within, self.leave)
        self.others.stalled(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop the deadline of an answer that was taken."""
        self._taken()
        super().resume_writing()

    def on_message_begin(self) -> None:
        """Start the deadline of a head at its first byte. Raises ExcessError if too many calls wait."""
        if len(self.pipeline) >= MOST_QUEUED:
            self.leave()
            raise ExcessError
        super().on_message_begin()
        self._in_head, self._head, self._parsed = True, 0, 0
        if self._deadline is None:
            self._arm(self.limits.head_within)

    def on_url(self, url: bytes) -> None:
        """Count the bytes of the target. Raises ExcessError if the head is too long."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or one behind a body in chunks. Raises ExcessError if they are too many or too long."""
        self._count(len(name) + len(value))
        if len(self.headers) >= MOST_HEADERS:
            self._refuse_request(431, f"A call may have at most {MOST_HEADERS} headers.")
            raise ExcessError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the deadline at the end of a head."""
        self._disarm()
        self._in_head = False
        super().on_headers_complete()
        if self._admission is Admission.RESERVE:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """Note the end of a call."""
        self._in_head, self._head = True, 0
        self._messages += 1
        if self.cycle.response_complete:  # it was lingering, and may make its next call
            self._disarm()
            self._arm(self.limits.head_within)
            self.others.answered(self)
        else:
            # Of one group of several it stands below `/groups/NAME`.
            waits = bool(self.limits.waiting_path) and self.scope["path"].endswith(self.limits.waiting_path)
            self.others.called(self, waits=waits)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Note the end of an answer. A body that is still coming may go on for `LINGER` only."""
        last = not self.pipeline
        super().on_response_complete()
        if not self._in_head:
            self._disarm()
            self._arm(LINGER)
        elif last:
            self.others.answered(self)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        self.leave()

    def leave(self) -> None:
        """Close without sending anything that could be taken for the next answer."""
        # A caller that does not take its answer would delay a normal close.
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
        if not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP."""
        self._refuse_request(400, "This is not a valid HTTP/1.1 request.")

    def _arm(self, seconds: float) -> None:
        self._deadline = self.loop.call_later(seconds, self._expired)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _taken(self) -> None:
        self.others.took(self)
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    def _count(self, size: int) -> None:
        self._parsed += size
        if self._parsed > LONGEST_HEAD:
            self._refuse_head()
            raise ExcessError

    def _refuse_head(self) -> None:
        self._refuse_request(431, f"The head of a call may have at most {LONGEST_HEAD // 1024} KiB.")

    def _expired(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._arm(self.limits.head_within)  # an answer is under way; the next head may take as long
        elif self._in_head and self._head > 0:
            self._refuse_request(408, "The head of the call did not come in time.")
        else:
            self.transport.close()

    def _refuse_request(self, status: int, detail: str) -> None:
        if self.transport.is_closing():
            return
        body = problem_body(status, detail)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class _Reserve:
    """The app while every place is taken."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass reserved calls on, and refuse all others."""
        app = self._app
        if scope["path"] not in RESERVED:
            app = problem(503, "The sidecar has a call under way on every connection.", {"connection": "close"})
        await app(scope, receive, send)


def protocol_of(limits: Limits, base: type[Protocol] = Protocol) -> type[Protocol]:
    """Return the protocol class of one listener, whose connections are counted together."""
    everyone: Connections[Protocol] = Connections(limits, lambda connection: connection.leave())
    return type("Limited", (base,), {"limits": limits, "others": everyone})


def _without_upgrade(data: bytes) -> bytes:
    """Return a part of a head with its `Upgrade` renamed.

    There is nothing to upgrade to, so the header is ignored (RFC 9110 §7.8). Java's client asks for HTTP/2 that way
    with each first call. The parser would take such a call to have no body.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return UPGRADE.sub(b"x-grade", head) + end + rest
