"""Read the answers of one connection, from bytes to outcomes. No socket and no timer here.

Built on httptools, whose callbacks cost more than its parsing. So there are as few callbacks as possible. An answer
that came before, byte for byte, is not parsed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import httptools

from sidecar.core.outcome import COMMITTED, CONNECTION_LOST, Failed, Outcome
from sidecar.core.record import Now
from sidecar.delivery.push.batch_verdicts import Verdicts
from sidecar.delivery.push.verdict import (
    CONTENT_TYPE,
    RETRY_AFTER,
    VERDICT,
    VerdictHeaders,
    VerdictRules,
    is_json,
    verdict_from_response,
)

LONGEST_HEAD = 16 * 1024
"""Bytes of an answer outside its body, at most: status line, headers, interim answers, chunk framing."""
LONGEST_PLAIN = 512
"""Bytes of an answer that is remembered whole, at most."""
PLAIN_REMEMBERED = 32

FRAMING = (b"content-length", b"transfer-encoding")
LENGTHS = frozenset(map(len, (VERDICT, CONTENT_TYPE, RETRY_AFTER, *FRAMING)))

LOST = Failed(CONNECTION_LOST, "the service closed the connection before its answer was complete", "broken_answer")
BROKEN = Failed("broken-answer", "the answer is not HTTP/1.1", "broken_answer")
TOO_LONG = Failed("broken-answer", "the answer's head or body is longer than a verdict can be", "broken_answer")

Judged: TypeAlias = Outcome | Verdicts
"""The meaning of an answer: one outcome for all that was sent, or one for each record of a batch."""
Interpret: TypeAlias = Callable[[int, VerdictHeaders, bytes, VerdictRules, int], Judged]
"""From status, headers, body, rules and wall time (epoch ms) to the meaning of a complete answer. Never raises."""

Plain: TypeAlias = dict[bytes, Judged]
"""Whole answers that were judged by their status alone, each with its judgement. All connections of a pool share them.
At the start of a message, what a parser makes of one read depends on its bytes alone. So the same bytes in one read
mean the same again. Most services answer most requests with the same bytes (the `Date` changes once a second)."""


class ResponseReader:
    """Read the answers of one connection, one after the other."""

    __slots__ = (
        "_body",
        "_clock",
        "_framed",
        "_longest_body",
        "_noted",
        "_outcome",
        "_parser",
        "_plain",
        "_received",
        "_rules",
        "_size",
        "_status",
        "judge",
        "keep_alive",
    )

    def __init__(self, rules: VerdictRules, clock: Callable[[], Now], plain: Plain, longest_body: int) -> None:
        self._rules = rules
        self._clock = clock
        self._plain = plain
        self._longest_body = longest_body
        self._parser: Any = httptools.HttpResponseParser(self)
        self.judge: Interpret = verdict_from_response
        """Reads the next answer. For an envelope or a batch it knows what was sent."""
        self._restart()

    def _restart(self) -> None:
        self._received = self._size = self._status = 0
        self._framed = False
        self._outcome: Judged | None = None
        self._noted: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self.keep_alive = True
        """After an outcome: whether the connection may carry another request."""

    def feed(self, data: bytes) -> Judged | None:
        """Read on. Return the outcome once the answer is complete, broken or too long, else None. Never raises.

        After an outcome with `keep_alive` the next bytes are the next answer. After one without it, feed no more.
        """
        if self._received == 0 and (known := self._plain.get(data)) is not None:
            return known
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.keep_alive = False
            return self._outcome or BROKEN
        if self._received > LONGEST_HEAD and self._is_too_long():
            self.keep_alive = False
            return TOO_LONG
        outcome = self._outcome
        if outcome is not None and self.keep_alive:
            if not self._noted and self._received == len(data) <= LONGEST_PLAIN:
                self._remember(data, outcome)
            self._restart()
        return outcome

    def end(self) -> Judged:
        """Return the outcome of an answer that ends here, because the service closed the connection.

        The answer is complete only if nothing else marks its end.
        """
        self.keep_alive = False
        return self._judge() if self._status >= 200 and not self._framed else LOST

    def close(self) -> None:
        """Release the parser."""
        # Parser and reader refer to each other, and would wait for the cycle collector.
        self._parser = None

    def _is_too_long(self) -> bool:
        return self._size > self._longest_body or self._received - self._size > LONGEST_HEAD

    def _remember(self, answer: bytes, outcome: Judged) -> None:
        if len(self._plain) >= PLAIN_REMEMBERED:
            self._plain.clear()
        self._plain[answer] = outcome

    def _judge(self) -> Judged:
        if not self._noted and 200 <= self._status < 300:
            return COMMITTED
        body = b"".join(self._body)
        return self.judge(self._status, self._noted, body, self._rules, self._clock().wall)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Handle bytes after a complete answer: the connection is out of step, and is not used again."""
        if self._outcome is not None:
            self.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note the few headers that matter."""
        # The length alone rules out most other headers.
        if len(name) not in LENGTHS or self._status > 0:  # after the head: a trailer, which decides nothing
            return
        small = name.lower()
        if small in FRAMING:
            self._framed = True
        elif small in (VERDICT, RETRY_AFTER) or (small == CONTENT_TYPE and is_json(value)):
            self._noted.append((small, value))

    def on_headers_complete(self) -> None:
        """Read the status."""
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Count the body's bytes; keep them only if the body may be a verdict."""
        self._size += len(data)
        if self._noted:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """Skip an interim answer (1xx); judge a final one."""
        if self._outcome is not None:
            return
        if self._status < 200:
            self._status, self._framed, self._noted = 0, False, []
            return
        self.keep_alive = self._parser.should_keep_alive()
        self._outcome = self._judge()
