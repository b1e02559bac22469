"""The names and globs of `deliver.forward_headers`: which are refused, and which names none of them sends. Pure.

A producer chooses the names of a record's headers. So the operator says which ones are sent (contract 1.4), and a glob
must show what it is about: it has at least three plain characters. `*` alone means CloudEvents. No glob sends a header
that frames the request, describes its body or negotiates the response, nor one that the sidecar writes itself. Names
are compared without case and with `_` as `-`, as CGI, WSGI and gateways read them.
"""

from __future__ import annotations

import re

PLAIN_LEAST = 3
"""Characters of a glob, outside `*`, `?` and brackets, at least."""
EVENTS = "ce-*"
"""What `*` alone means next to the trace, which is always sent: the attributes of CloudEvents."""
AUTHORIZATION = "authorization"
SIGNATURE = frozenset({"webhook-id", "webhook-timestamp", "webhook-signature"})
"""The headers of a signature (Standard Webhooks)."""
RESERVED = re.compile(
    "|".join(
        (
            *("connection", "keep-alive", "te", "trailers?", "transfer-.*", "upgrade.*", "http2-settings", "expect"),
            *("host", "via", "max-forwards", "early-data", "alt-.*", "priority", "proxy-.*"),
            *("content-.*", "range", "if-.*", "accept.*", "prefer", "pragma", "cache-control"),
            *("x-http-method.*", "x-method-override", "http-.*", "reconsume-.*", "idempotency-key"),
        )
    )
)
"""What frames a request, describes its body, negotiates its response or makes another call of it; and our own names."""
WILD = re.compile(r"\*|\?|\[[^\]]*\]")
OTHER = re.compile(r"[^a-z0-9]")


def as_servers_read(name: str) -> str:
    """Return a name with `-` for every other sign, as the most lenient of servers read it."""
    return OTHER.sub("-", name.lower())


def is_reserved(name: str) -> bool:
    """Return whether no record's header of this name is sent, in any spelling that a server may take for it."""
    return RESERVED.fullmatch(as_servers_read(name)) is not None


def compared(name: str) -> str:
    """Return a name or glob as it is compared: in lower case, with `-` for `_`."""
    return name.lower().replace("_", "-")


def check_header_glob(text: str) -> str:
    """Return the text. Raises ValueError if it is a glob of too many names, or names what is never sent."""
    if is_reserved(text):
        raise ValueError("is a header that frames the request, or that Reconsume writes: it is never sent")
    plain = WILD.sub("", text)
    if text not in ("*", plain) and len(plain) < PLAIN_LEAST:
        raise ValueError(
            f"has {len(plain)} plain characters, and a glob needs {PLAIN_LEAST}, so that it shows what it is about; "
            "* alone means CloudEvents and the trace"
        )
    return text
