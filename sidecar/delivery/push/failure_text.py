"""Take from the body of a failing answer why it failed, for people: bounded, printable, on one line. Pure.

The text goes behind the class into RETRY_REASON, events, log lines and pages. The service writes it, so nothing in the
text is trusted: it never reaches a metric, a sum, or the class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.core.outcome import Failed, Rejected
from reconsume.sidecar.delivery.push.batch_verdicts import WholeRefused
from reconsume.sidecar.delivery.verdict import FailureText, VerdictHeaders, is_encoded
from reconsume.sidecar.masking import text_without_secrets
from reconsume.topics.reasons import LONGEST_TEXT, one_line

FIRST_CHARACTERS = 1_024
"""Characters of a body that are looked at for its begin, which leaves room for indented JSON."""
PROBLEM = b"application/problem+json"
JSON = b"application/json"


class Problem(msgspec.Struct, gc=False):
    """The members of a problem (RFC 9457) that are for people. Each may hold any JSON value."""

    title: Any = None
    detail: Any = None


READ = msgspec.json.Decoder(Problem)


def says_why(content_type: bytes, wanted: FailureText) -> bool:
    """Return whether an answer of this content type may hold a text that is wanted."""
    if wanted == "none":
        return False
    kind = kind_of(content_type)
    return kind == PROBLEM or (wanted == "body" and (is_json(kind) or kind.startswith(b"text/")))


def failure_text(content_type: bytes, noted: VerdictHeaders, body: bytes, wanted: FailureText) -> str:
    """Return why an answer fails, in at most LONGEST_TEXT bytes of printable UTF-8; empty if it does not say. Never
    raises.

    `body` may be cut off. A body in another encoding than `identity` is not unpacked. Passwords in URLs are masked.
    """
    if not says_why(content_type, wanted):
        return ""
    if is_encoded(noted):
        return ""
    told = problem_text(body) if kind_of(content_type) == PROBLEM else ""
    if not told and wanted == "body":
        told = body[: FIRST_CHARACTERS * 4].decode(errors="replace")[:FIRST_CHARACTERS]
    return one_line(text_without_secrets(told), LONGEST_TEXT)


def problem_text(body: bytes) -> str:
    """Return `title: detail` of a problem, or the one that is there; empty if the body is no such object."""
    try:
        problem = READ.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""
    return ": ".join(texts(problem))


def texts(problem: Problem) -> Iterator[str]:
    """Yield the members that are texts. The length of each is bounded."""
    for value in (problem.title, problem.detail):
        if isinstance(value, str) and value.strip():
            yield value[:FIRST_CHARACTERS].strip()


def with_text(judged: Any, text: str) -> Any:
    """Return a judgement with the text, where it is a failure that has none of its own.

    The verdicts of a batch stay as they are: the answer's body holds what the service says of each record.
    """
    match judged:
        case Failed(text="") | Rejected(text=""):
            return replace(judged, text=text)
        case WholeRefused(outcome=Failed(text="") | Rejected(text="")):
            return judged._replace(outcome=replace(judged.outcome, text=text))
        case _:
            return judged


def kind_of(content_type: bytes) -> bytes:
    """Return a content type without its parameters, in lower case."""
    return content_type.partition(b";")[0].strip().lower()


def is_json(kind: bytes) -> bool:
    """Return whether a content type is JSON, or a format on top of it."""
    return kind == JSON or kind.endswith(b"+json")
