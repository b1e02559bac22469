"""Read the body of a call within a size and a time, and hold few bytes of all bodies together.

No endpoint gets more. Bodies are never decompressed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.responses import Response
from starlette.types import Message, Receive

from reconsume.sidecar.http.problems import problem

LONGEST = 1024 * 1024
"""Bytes. The largest call is a batch of handles or one record; where services post records, it follows from their
topics' limits."""
MOST = 16 * LONGEST
"""Bytes of all bodies that are read or answered at the same time. Each one alone may be small: it is their sum that
fills the memory."""
WITHIN = 10.0
"""Seconds for the whole body. A caller that sends it byte by byte must not hold a connection for ever."""
RETRY_AFTER = {"retry-after": "1", "connection": "close"}

RawHeaders = list[tuple[bytes, bytes]]


def values(headers: RawHeaders, name: bytes) -> list[bytes]:
    """Return the values of a header, without blanks around them."""
    return [value.strip() for key, value in headers if key == name]


def sends_body(headers: RawHeaders) -> bool:
    """Whether a body comes that is not empty."""
    return bool(values(headers, b"transfer-encoding")) or any(map(_length, values(headers, b"content-length")))


def is_too_long(headers: RawHeaders, longest: int = LONGEST) -> bool:
    """Whether the head says that the body is too long."""
    return any(_length(length) > longest for length in values(headers, b"content-length"))


def refusal_of(headers: RawHeaders, longest: int = LONGEST) -> Response | None:
    """Return the refusal of a body that is not read because of the head alone; None if it may be read."""
    if any(value.lower() != b"identity" for value in values(headers, b"content-encoding")):
        return problem(415, "Bodies are not decompressed; send them as they are.")
    return _too_long(longest) if is_too_long(headers, longest) else None


class Bodies:
    """The bodies of all calls of one app."""

    def __init__(self, within: float = WITHIN, longest: Callable[[], int] = lambda: LONGEST) -> None:
        self._within, self._longest = within, longest
        self._held = 0

    @asynccontextmanager
    async def body(self, headers: RawHeaders, receive: Receive) -> AsyncIterator[bytearray | Response | None]:
        """Yield the whole body; a refusal if it is too long, too slow or one too many; None if the caller has gone.

        Its bytes count until the block ends.
        """
        body = bytearray()
        try:
            yield await self._read(receive, body) if sends_body(headers) else body
        finally:
            self._held -= len(body)

    async def _read(self, receive: Receive, body: bytearray) -> bytearray | Response | None:
        longest = self._longest()
        most = max(MOST, 2 * longest)
        try:
            async with asyncio.timeout(self._within):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunk = message.get("body", b"")
                    if len(body) + len(chunk) > longest:
                        return _too_long(longest)
                    if self._held + len(chunk) > most:
                        return problem(503, "The bodies of all calls under way are too long together.", RETRY_AFTER)
                    body += chunk
                    self._held += len(chunk)
                    if not message.get("more_body", False):
                        return body
        except TimeoutError:
            return problem(408, "The body did not come in time.", {"connection": "close"})


def replay(body: bytearray, receive: Receive) -> Receive:
    """Return a `receive` that gives the body that was read already, then continues with the real one."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def _length(text: bytes) -> int:
    # The HTTP parser has let only digits of a number of 64 bits pass, but any zeros before them.
    return int(text.lstrip(b"0") or b"0")


def _too_long(longest: int) -> Response:
    size = f"{longest >> 20} MiB" if longest % LONGEST == 0 else f"{longest} bytes"
    return problem(413, f"The body of a call may have at most {size}.")
