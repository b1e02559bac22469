"""Choose which of a record's own headers are sent as HTTP headers, and write them. Pure.

Any client that may produce to the topic can set a record's headers. So they are sent by an allow-list only
(`settings/header_globs.py`). None of them frames the request or has a name that the sidecar writes, and none can end a
line. A value that HTTP cannot carry is sent as base64; an attribute of a CloudEvent percent-encoded, as its HTTP
binding says. A header that does not fit is left out. Headers of a trace and of a CloudEvent are sent once, and first.
If a record has one of them twice, the last one counts, as for Kafka's clients: HTTP servers would join both into an
invalid value. The header TAGS, or what `tags_header` names instead, is always sent, as `Reconsume-Tags`, so that a
service which takes several tags can tell them from each other (contract 6.12). The envelope form carries all headers.
"""

from __future__ import annotations

import base64
import fnmatch
import re
from collections.abc import Container
from functools import lru_cache
from urllib.parse import quote

import msgspec

from reconsume.sidecar.delivery.verdict import OUR_TYPE
from reconsume.sidecar.settings.deliver import EVENTS, as_servers_read, compared, is_reserved
from reconsume.topics.render_headers import DROPPED
from reconsume.topics.retry_headers import Headers
from reconsume.topics.tags import HEADER as TAGS

LONGEST_NAME = 128
TOKEN = re.compile(rf"[!#$%&'*+.^_`|~0-9A-Za-z-]{{1,{LONGEST_NAME}}}")
TRACE = frozenset({"traceparent", "tracestate", "baggage"})
CLOUD_EVENT, CLOUD_EVENT_ON_WIRE = "ce_", "ce-"
TAGS_ON_WIRE = "Reconsume-Tags"
"""The record's last header of tags; `Reconsume-Tags-Base64` if it is not printable ASCII."""
WITH_ENVELOPE = TRACE | {TAGS_ON_WIRE}
"""What is sent beside an envelope, whose body has all headers."""
TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C's form. Versions after 00 may add fields behind another hyphen."""
BINDING_SAFE = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")
"""What the HTTP binding of CloudEvents (1.0.2, 3.1.3.2) leaves as it is: printable ASCII but space, quote, percent."""

# Node allows 16 KiB of headers, Tomcat 8 KiB and 100 headers, Python's http.server 100. Beyond that the service answers
# 431 to every attempt. The record would then be dead-lettered for the size of its headers.
BUDGET_BYTES = 8 * 1024
"""Bytes of the whole head: request line, our headers, the key, and the record's own headers that are sent."""
BUDGET_HEADERS = 64
LONGEST_CONTENT_TYPE = 256
CONTENT_TYPES_REMEMBERED = 64
"""Of which it is known what is sent. A producer has few."""
# Names come from records: a producer that invents names must not fill our memory.
NAMES_REMEMBERED = 1024

# The name on the wire says how a header is handled: it is one of these two, or the name to send.
DROP = ""
CONTENT_TYPE = "Content-Type"


class Own(msgspec.Struct, frozen=True, gc=False):
    """A record's own headers as HTTP header lines (ASCII), and its content type; empty if it brings none."""

    lines: str
    content_type: str


NOTHING = Own("", "")


class Forward:
    """The allow-list of headers, with a cache of the names seen."""

    __slots__ = ("_dropped", "_names", "_once", "_patterns", "_tags_header", "_tags_too", "_trace_only", "_written")

    def __init__(
        self,
        patterns: tuple[str, ...],
        trace_only: bool = False,
        dropped: Container[str] = DROPPED,
        written: Container[str] = (),
        tags_header: str = TAGS,
    ) -> None:
        """`written`: names of what the sidecar adds to each request, which no record may bring."""
        self._dropped, self._written = dropped, written
        self._patterns = tuple(EVENTS if pattern == "*" else compared(pattern) for pattern in patterns)
        self._trace_only = trace_only
        self._tags_header = tags_header
        self._tags_too = not trace_only and is_listed(tags_header, self._patterns)
        """Whether the operator wants the header of tags under its own name, too."""
        self._names: dict[str, str] = {}
        self._once: set[str] = set()
        """The names on the wire that a request has once at most, next to the content type."""

    def __call__(self, headers: Headers, budget: int = BUDGET_BYTES) -> Own:
        """Render the headers that may be sent, within the budget: trace and event, then the others in their order."""
        once: dict[str, bytes | None] = {}
        more: list[tuple[str, bytes]] = []
        names, given_type = self._names, None
        for key, value in headers:
            name = names[key] if key in names else self._learn(key)
            if name == DROP:  # most of them
                continue
            if name == CONTENT_TYPE:
                given_type = value
            elif name in self._once:
                once[name] = value
                if self._tags_too and name is TAGS_ON_WIRE and value is not None:
                    more.append((key, value))
            elif value is not None:
                more.append((name, value))
        content_type = content_type_of(given_type) if given_type else ""
        if not once and not more:  # a record that brings nothing, or nothing but its content type
            return Own("", content_type) if content_type else NOTHING
        lines: list[str] = []
        left = budget
        for name, value in (*once.items(), *more):
            line = "" if value is None else render_line(name, value)
            if line and len(line) <= left and len(lines) < BUDGET_HEADERS:
                lines.append(line)
                left -= len(line)
        return Own("".join(lines), content_type)

    def _learn(self, key: str) -> str:
        if len(key) > LONGEST_NAME:
            return DROP  # and not remembered: a name may be as long as a record
        if len(self._names) >= NAMES_REMEMBERED:
            self._names.clear()
            self._once.clear()
        name = TAGS_ON_WIRE if key == self._tags_header else wire_name(key, self._patterns, self._dropped)
        if (self._trace_only and name not in WITH_ENVELOPE) or as_servers_read(key) in self._written:
            name = DROP
        if name == TAGS_ON_WIRE or name in TRACE or name.startswith(CLOUD_EVENT_ON_WIRE):
            self._once.add(name)
        self._names[key] = name
        return name


def wire_name(key: str, patterns: tuple[str, ...], dropped: Container[str] = DROPPED) -> str:
    """Return the name under which headers called `key` are sent; DROP if they are not.

    `patterns`: the operator's names and globs, as they are `compared`.
    """
    small = key.lower()
    if small == "content-type":
        return CONTENT_TYPE
    if TOKEN.fullmatch(key) is None or key in dropped:
        return DROP
    if small.startswith(CLOUD_EVENT) and len(small) > len(CLOUD_EVENT):
        return CLOUD_EVENT_ON_WIRE + small[len(CLOUD_EVENT) :]
    if small in TRACE:
        return small
    if is_reserved(key) or not is_listed(key, patterns):
        return DROP
    return small if small.startswith(CLOUD_EVENT_ON_WIRE) else key


def is_listed(key: str, patterns: tuple[str, ...]) -> bool:
    """Return whether the operator's names and globs have a header's name."""
    return any(fnmatch.fnmatchcase(compared(key), pattern) for pattern in patterns)


def render_line(name: str, value: bytes) -> str:
    """Return one header line in ASCII; empty if the value cannot be sent.

    A value that is not plain ASCII text is sent as base64 under `<name>-Base64`. A malformed `traceparent` is not sent.
    """
    if name == "traceparent" and not is_traceparent(value):
        return ""
    if name.startswith(CLOUD_EVENT_ON_WIRE):
        return f"{name}: {quote(value[:BUDGET_BYTES], safe=BINDING_SAFE)}\r\n" if len(value) <= BUDGET_BYTES else ""
    plain = plain_text(value)
    if plain is not None:
        return f"{name}: {plain}\r\n"
    if len(value) > BUDGET_BYTES:
        return ""
    return f"{name}-Base64: {base64.b64encode(value).decode('ascii')}\r\n"


def is_traceparent(value: bytes) -> bool:
    """Return whether the value is a trace context in W3C's form."""
    match = TRACEPARENT.match(value)
    if match is None:
        return False
    rest = value[match.end() :]
    return not rest or (rest[:1] == b"-" and value[:2] != b"00")


def plain_text(value: bytes) -> str | None:
    """Return the value as text if an HTTP parser gives it back unchanged, else None.

    That is printable ASCII without spaces at its ends.
    """
    if not value.isascii():
        return None
    text = value.decode("ascii")
    return text if text.isprintable() and text.strip() == text else None


def content_type_of(value: bytes) -> str:
    """Return the record's content type if it can be sent unchanged, else an empty text.

    Ours is not the record's to choose: with it a producer would forge an envelope.
    """
    return "" if len(value) > LONGEST_CONTENT_TYPE else _short_content_type(value)


@lru_cache(CONTENT_TYPES_REMEMBERED)
def _short_content_type(value: bytes) -> str:
    return "" if value.partition(b";")[0].strip().lower() == OUR_TYPE else plain_text(value) or ""
