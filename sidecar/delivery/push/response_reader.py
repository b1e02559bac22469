"""Read the answers of one connection, from bytes to outcomes. No socket and no timer here.

Built on httptools, whose callbacks cost more than its parsing. So there are as few callbacks as possible. An answer
that came before, byte for byte, is not parsed again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import httptools

from reconsume.sidecar.core.outcome import COMMITTED, CONNECTION_LOST, Failed, Outcome, Throttled
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.delivery.push.answer_room import UNCOUNTED, AnswerRoom
from reconsume.sidecar.delivery.push.batch_verdicts import Verdicts, WholeRefused
from reconsume.sidecar.delivery.push.failure_text import explained, kind_of, says_why
from reconsume.sidecar.delivery.push.repeated_length import without_repeated_length
from reconsume.sidecar.delivery.verdict import (
    ACCEPTED_STATUS,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    HTML,
    LOCATION,
    RETRY_AFTER,
    VERDICT,
    OddAnswer,
    VerdictHeaders,
    VerdictRules,
    is_json,
    may_be_verdict,
    verdict_from_response,
)

LONGEST_HEAD = 64 * 1024
"""Bytes of an answer without any of its body, at most: status line, headers, interim answers, trailers. The framing of
chunks that carry something costs nothing."""
LONGEST_DROPPED = 1 << 20
"""Bytes of a body that are read at most. What is longer than a verdict is dropped, and the connection serves again."""
CROWDED_FOR = 1_000
"""ms after which a record is delivered again whose answer had no room. It is no attempt that failed."""
LONGEST_PLAIN = 512
"""Bytes of an answer that is remembered whole, at most."""
PLAIN_REMEMBERED = 32

HTML_TYPE = b"text/html"
KEEP_ALIVE = b"keep-alive"
KEPT_FOR = re.compile(rb"\btimeout\s*=\s*(\d{1,6})\b", re.IGNORECASE)
FRAMING = (b"content-length", b"transfer-encoding")
DECIDING = (VERDICT, RETRY_AFTER, CONTENT_ENCODING, LOCATION)
LENGTHS = frozenset(map(len, (CONTENT_TYPE, KEEP_ALIVE, *DECIDING, *FRAMING)))

LOST = Failed(CONNECTION_LOST, "the service closed the connection before its answer was complete", "broken_answer")
BROKEN = Failed("broken-answer", "the answer is not HTTP/1.1", "broken_answer")
TOO_LONG = Failed("broken-answer", "the answer's head is longer than 64 KiB", "broken_answer")

Judged: TypeAlias = Outcome | Verdicts | WholeRefused
"""The meaning of an answer: one outcome for all that was sent, one for each record of a batch, or one that halves of
the batch may change."""
Interpret: TypeAlias = Callable[[int, VerdictHeaders, bytes, VerdictRules, int], Judged | OddAnswer]
"""From status, headers, body, rules and wall time (epoch ms) to the meaning of a complete answer. Never raises."""

Plain: TypeAlias = dict[bytes, Judged]
"""Whole answers that were judged by their status alone, each with its judgement. All connections of a pool share them.
At the start of a message, what a parser makes of one read depends on its bytes alone. So the same bytes in one read
mean the same again. Most services answer most requests with the same bytes (the `Date` changes once a second)."""


def ignore(_seconds: int) -> None:
    """Do nothing with what a response says of its connection."""


def forget(_kinds: tuple[str, ...]) -> None:
    """Do nothing with the kinds of an odd response: its connection is closed."""


class ResponseReader:
    """Read the answers of one connection, one after the other."""

    __slots__ = (
        "_bare",
        "_body",
        "_breaks",
        "_clock",
        "_crowded",
        "_framed",
        "_head",
        "_html",
        "_note_kept_for",
        "_noted",
        "_odd",
        "_outcome",
        "_parser",
        "_plain",
        "_received",
        "_room",
        "_rules",
        "_says_why",
        "_size",
        "_status",
        "_taken",
        "_type",
        "_undecided",
        "judge",
        "keep_alive",
        "status",
    )

    def __init__(
        self,
        rules: VerdictRules,
        clock: Callable[[], Now],
        plain: Plain,
        odd: Callable[[tuple[str, ...]], None],
        room: AnswerRoom | None = None,
        note_kept_for: Callable[[int], None] = ignore,
    ) -> None:
        """`note_kept_for`: called with the seconds after which the service closes an idle connection, if it says so."""
        self._rules = rules
        self._room, self._taken = room, 0
        self._clock = clock
        self._plain = plain
        self._odd, self._note_kept_for = odd, note_kept_for
        self._parser: Any = httptools.HttpResponseParser(self)
        self.judge: Interpret = verdict_from_response
        """Reads the next answer. For an envelope or a batch it knows what was sent."""
        self.status = 0
        """The status of the last response that was parsed; 0 if there was none."""
        self._restart()

    def _restart(self) -> None:
        self._received = self._size = self._status = self._bare = 0
        self._framed = self._undecided = self._breaks = self._says_why = self._crowded = False
        self._html: bool | None = False
        """Whether this is a page of HTML with a 2xx; None while only white space of its body has come."""
        self._give_back()
        self._type = b""
        self._outcome: Judged | None = None
        self._noted: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._head: bytearray | None = None
        self.keep_alive = True
        """After an outcome: whether the connection may carry another request."""

    @property
    def untouched(self) -> bool:
        """Whether no byte of the next answer has come."""
        return self._received == 0

    @property
    def has_head(self) -> bool:
        """Whether the head of the next answer is complete."""
        return self._status >= 200

    def feed(self, data: bytes) -> Judged | None:
        """Read on. Return the outcome once the answer is complete, broken or too long, else None. Never raises.

        After an outcome with `keep_alive` the next bytes are the next answer. After one without it, feed no more.
        """
        if self._received == 0 and (known := self._plain.get(data)) is not None:
            return known
        self._received += len(data)
        size = self._size
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return self._outcome_of_broken(data)
        outcome = self._outcome
        if outcome is None:
            return self._outcome_of_unfinished(data, size)
        self.status = self._status
        if self.keep_alive:
            is_odd = self._html or self._status == ACCEPTED_STATUS
            if not self._noted and not is_odd and self._received == len(data) <= LONGEST_PLAIN:
                self._remember(data, outcome)
            self._restart()
        return outcome

    def end_response(self, lost: Failed = LOST, *, whole: bool = True) -> Judged:
        """Return the outcome of an answer that ends here: `lost`, unless its head is complete and decides.

        `whole`: the service closed the connection in order, which ends a body that nothing else ends.
        """
        self.keep_alive, self.status = False, self._status
        if self._status < 200 or self._breaks:
            return lost
        if self._undecided and self._size <= self._rules.longest_body and (self._framed or not whole):
            return lost
        return self._judge_response()

    def close(self) -> None:
        """Release the parser."""
        self._give_back()
        # Parser and reader refer to each other, and would wait for the cycle collector.
        self._parser = None
        self._odd, self._note_kept_for = forget, ignore

    def _outcome_of_unfinished(self, data: bytes, size: int) -> Judged | None:
        """Return the outcome of an answer that is longer than it may be, else None.

        `size`: the bytes of its body before `data` came.
        """
        self._bare = 0 if self._size > size else self._bare + len(data)
        if self._bare > LONGEST_HEAD or self._size > max(LONGEST_DROPPED, self._rules.longest_body):
            return self.end_response(TOO_LONG, whole=False)
        if self._status == 0:
            self._head = (self._head or bytearray()) + data
        return None

    def _outcome_of_broken(self, data: bytes) -> Judged | None:
        """Return the outcome of bytes that the parser refuses.

        It refuses a length that is there twice. Where all say the same, the head is read again with one of them.
        """
        if self._outcome is None and self._status == 0:
            head = (self._head or bytearray()) + data
            mended = without_repeated_length(bytes(head))
            if mended:
                self._parser = httptools.HttpResponseParser(self)
                self._restart()
                return self.feed(mended)
            if mended is None and len(head) <= LONGEST_HEAD:  # its head goes on
                self._head = head
                return None
        self.keep_alive = False
        return self._outcome or self.end_response(BROKEN, whole=False)

    def _remember(self, answer: bytes, outcome: Judged) -> None:
        if len(self._plain) >= PLAIN_REMEMBERED:
            self._plain.clear()
        self._plain[answer] = outcome

    def _judge_response(self) -> Judged:
        if not self._noted and 200 <= self._status < 300 and (self._html or self._status != ACCEPTED_STATUS):
            if self._html:
                self._odd((HTML,))
            return COMMITTED
        if self._crowded:
            return Throttled(CROWDED_FOR)
        body = b"".join(self._body)
        self._breaks = True  # it must not break a second time, when the connection ends for it
        judged = self.judge(self._status, self._noted, body, self._rules, self._clock().wall_ms)
        self._breaks = False
        if isinstance(judged, OddAnswer):
            self._odd(judged.kinds)
            judged = judged.judged
        if self._status >= 300 and self._size and self._rules.failure_text != "none":
            judged = explained(judged, self._type, self._noted, body, self._size, self._rules.failure_text)
        settled: Judged = judged
        return settled

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
        elif small == CONTENT_TYPE:
            self._type = self._type or value
        elif small == KEEP_ALIVE and (said := KEPT_FOR.search(value)):
            self._note_kept_for(int(said[1]))
        if small in DECIDING or (small == CONTENT_TYPE and self._rules.bodies and is_json(value)):
            self._noted.append((small, value))

    def on_headers_complete(self) -> None:
        """Read the status, and whether the body matters."""
        self._status = self._parser.get_status_code()
        self._undecided = bool(self._noted) and may_be_verdict(self._noted, self._rules)
        if self._status >= 300:
            self._says_why = says_why(self._type, self._rules.failure_text)
        elif self._type and self._status >= 200 and kind_of(self._type) == HTML_TYPE:
            self._html = None

    def on_body(self, data: bytes) -> None:
        """Count the body's bytes; keep those of a verdict or a reason, and of one too long for it, its beginning."""
        if (self._undecided or self._says_why) and self._size <= self._rules.longest_body and not self._crowded:
            self._keep(data)
        self._size += len(data)
        if self._html is None and (begin := data.lstrip()):
            self._html = begin.startswith(b"<")

    def _keep(self, data: bytes) -> None:
        """Keep a part of a body. If large answers take too much memory together, this one counts as not given."""
        self._body.append(data)
        more = self._size + len(data) - UNCOUNTED - self._taken
        if more <= 0 or self._room is None:
            return
        if self._room.take_bytes(more):
            self._taken += more
        else:
            self._crowded = True
            self._body.clear()
            self._give_back()

    def _give_back(self) -> None:
        if self._taken and self._room is not None:
            self._room.give_bytes_back(self._taken)
        self._taken = 0

    def on_message_complete(self) -> None:
        """Skip an interim answer (1xx); judge a final one."""
        if self._outcome is not None:
            return
        if self._status < 200:
            self._status, self._framed, self._noted, self._type = 0, False, [], b""
            return
        self.keep_alive = self._parser.should_keep_alive()
        self._outcome = self._judge_response()
