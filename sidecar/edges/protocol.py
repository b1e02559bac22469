"""uvicorn's HTTP/1.1 protocol with the limits it lacks: against callers that are slow, endless or too many.

httptools reads on however long a head gets and however slowly it comes; uvicorn knows no deadline but for idle
keep-alive connections. Its plain-text 400 becomes a problem document here.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sidecar.edges.problems import MEDIA_TYPE, problem_body

LONGEST_HEAD = 32 * 1024
"""Bytes of request line and headers, counted by reads: one read (at most 256 KiB) may pass it by itself."""
LINGER = 1.0
"""Seconds that a caller may go on sending a body after its answer; closing at once could destroy the answer unread."""

UPGRADE = re.compile(rb"(?:^|(?<=\r\n))upgrade(?=[ \t]*:)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one listener allows."""

    head_within: float = 10.0
    """Seconds from the connection, or from the first byte of a later request, to the end of the head."""
    connections: int = 128
    """At once: the API serves one pod."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    limits = Limits()
    _head = 0
    _in_head = True
    _messages = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first head; refuse one connection too many."""
        super().connection_made(transport)
        self._arm(self.limits.head_within)
        if len(self.connections) > self.limits.connections:
            self._refuse(503, "The sidecar has too many connections.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, and count what a head has had that is still not whole."""
        begun, messages = self._in_head, self._messages
        super().data_received(_without_upgrade(data) if begun else data)
        # What completed a call was not head alone, and its body may have been long.
        if begun and self._in_head and self._messages == messages and not self.transport.is_closing():
            self._head += len(data)
            if self._deadline is None:
                self._arm(self.limits.head_within)
            if self._head > LONGEST_HEAD:
                self._refuse(431, f"The head of a call may have at most {LONGEST_HEAD // 1024} KiB.")

    def on_message_begin(self) -> None:
        """See the first byte of a head."""
        super().on_message_begin()
        self._in_head, self._head = True, 0
        if self._deadline is None:
            self._arm(self.limits.head_within)

    def on_headers_complete(self) -> None:
        """See the end of a head."""
        self._disarm()
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """See the end of a body."""
        self._in_head, self._head = True, 0
        self._messages += 1
        if self.cycle.response_complete:  # it was lingering, and may make its next call
            self._disarm()
            self._arm(self.limits.head_within)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Answered: a body that still comes may do so for a moment only."""
        super().on_response_complete()
        if not self._in_head:
            self._disarm()
            self._arm(LINGER)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also one whose caller does not take its answer."""
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(400, "This is not a valid HTTP/1.1 request.")

    def _arm(self, seconds: float) -> None:
        self._deadline = self.loop.call_later(seconds, self._expired)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._arm(self.limits.head_within)  # an answer is under way; the next head may wait with it
        elif self._in_head and self._head > 0:
            self._refuse(408, "The head of the call did not come in time.")
        else:
            self.transport.close()

    def _refuse(self, status: int, detail: str) -> None:
        if self.transport.is_closing():
            return
        body = problem_body(status, detail)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _without_upgrade(data: bytes) -> bytes:
    """A part of a head with its `Upgrade` renamed: we have nothing to upgrade to, so it is ignored (RFC 9110 §7.8).

    Java's client asks for HTTP/2 that way with each first call, and the parser would take such a call to have no body.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return UPGRADE.sub(b"x-grade", head) + end + rest
