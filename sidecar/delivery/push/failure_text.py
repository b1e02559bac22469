"""Take from the body of a failing answer why it failed, for people: bounded, printable, on one line. Pure.

The text goes behind the class into RETRY_REASON, events, log lines and pages. The service writes it, so nothing in the
text is trusted: it never reaches a metric, a sum, or the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.core.outcome import Failed, Rejected
from reconsume.sidecar.delivery.push.batch_verdicts import WholeRefused
from reconsume.sidecar.delivery.verdict import FailureText, VerdictHeaders, is_encoded
from reconsume.topics.masking import text_without_secrets
from reconsume.topics.reasons import one_line

FIRST_CHARACTERS = 1_024
"""Characters of a body that are looked at for its begin, which leaves room for indented JSON."""
MOST_ENTRIES, MOST_NESTED = 3, 3
"""Entries of a list, and members of an object that does not say why, that are taken; lists and objects in each other
that are looked at."""
TOLD_BY = ("msg", "message", "detail", "error_description", "error", "reason", "title")
"""The members of an object that say why, the most telling first."""
DEEPEST, LONGEST_NAME = 8, 64
"""Members of the place of an error, and characters of each."""
HTTP = "http-"
"""How the class of a failure begins if the service gave a status and no word of its own."""
PROBLEM = b"application/problem+json"
JSON = b"application/json"
UNLABELLED = (b"", b"text/plain")
"""Content types under which services write JSON without saying so: Go and Node do, where no type is set."""


class Reasons(msgspec.Struct, gc=False):
    """The members of a JSON body in which frameworks write why they fail. Each may hold any JSON value."""

    title: Any = None
    detail: Any = None
    message: Any = None
    error: Any = None
    error_description: Any = None
    errors: Any = None


READ = msgspec.json.Decoder(Reasons)


def says_why(content_type: bytes, wanted: FailureText) -> bool:
    """Return whether a response of this content type may hold a text that is wanted."""
    if wanted == "none":
        return False
    kind = kind_of(content_type)
    return kind in UNLABELLED or is_json(kind) or (wanted == "body" and kind.startswith(b"text/"))


def failure_text(content_type: bytes, noted: VerdictHeaders, body: bytes, wanted: FailureText) -> str:
    """Return why a response fails, in at most LONGEST_TEXT characters on one line; empty if it does not say.

    Never raises. `body` may be cut off. A body in another encoding than `identity` is not unpacked. Passwords in URLs
    are masked.
    """
    if not says_why(content_type, wanted) or is_encoded(noted):
        return ""
    kind = kind_of(content_type)
    reason = ""
    if kind == PROBLEM or (wanted == "problem" and (is_json(kind) or body.lstrip().startswith(b"{"))):
        reason = text_of_json(body, problem=kind == PROBLEM)
    if not reason and wanted == "body" and kind:
        reason = body[: FIRST_CHARACTERS * 4].decode(errors="replace")[:FIRST_CHARACTERS]
    return one_line(text_without_secrets(reason))


def unkept(content_type: bytes, noted: VerdictHeaders, size: int, wanted: FailureText) -> str:
    """Return a text which says that a body could be kept as the reason and is not; empty if that is not so.

    `size`: bytes of the body. Without it a reader of `http-500` would think that the service had said nothing.
    """
    if wanted != "problem" or not size or is_encoded(noted) or not says_why(content_type, "body"):
        return ""
    kind = one_line(kind_of(content_type)[:LONGEST_NAME].decode("ascii", "replace"))
    return f"the {kind or 'unlabelled'} body is not kept (deliver.failure_text)"


def text_of_json(body: bytes, *, problem: bool) -> str:
    """Return the reason in a JSON object; empty if there is none. `problem`: it is a document of RFC 9457."""
    try:
        members = READ.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""
    if problem and (reason := ": ".join(filter(None, (text(members.title), text(members.detail))))):
        return reason
    return next(filter(None, reasons(members)), "")


def reasons(members: Reasons) -> Iterator[str]:
    """Yield the texts of the members that may hold a reason, the most telling first; empty for one without."""
    yield reason_of(members.detail)
    yield reason_of(members.message)
    yield text(member(members.error, "message"))
    yield text(members.error_description)
    yield reason_of(members.error)
    yield reason_of(members.errors[:1] if isinstance(members.errors, list) else members.errors)
    yield text(members.title)


def reason_of(value: Any, depth: int = 0) -> str:
    """Return a value of any form as one text: of a list its first entries, of an object the member that says why, with
    the place that FastAPI's errors name; of one without, its first members as `name: value`."""
    match value:
        case str():
            return text(value)
        case list() if depth <= MOST_NESTED:
            return joined(reason_of(entry, depth + 1) for entry in value[:MOST_ENTRIES])
        case dict() if depth <= MOST_NESTED:
            said = next(filter(None, (text(value.get(name)) for name in TOLD_BY)), "")
            return ": ".join(filter(None, (dotted(value.get("loc")), said))) or joined(
                f"{name[:LONGEST_NAME]}: {inner}"
                for name, one in list(value.items())[:MOST_ENTRIES]
                if (inner := scalar(one) or reason_of(one, depth + 1))
            )
        case _:
            return ""


def scalar(value: Any) -> str:
    """Return a number or a truth value as JSON has it; empty of another value."""
    return msgspec.json.encode(value).decode() if isinstance(value, bool | int | float) else ""


def text(value: Any) -> str:
    """Return the beginning of a text; empty of another value."""
    return value[:FIRST_CHARACTERS].strip() if isinstance(value, str) else ""


def member(value: Any, name: str) -> Any:
    """Return a member of an object; None if there is none."""
    return value.get(name) if isinstance(value, dict) else None


def joined(texts: Iterable[str]) -> str:
    """Return several texts as one."""
    return "; ".join(filter(None, texts))


def dotted(loc: Any) -> str:
    """Return where FastAPI found an error, as `body.sku`. A place may hold numbers, and is cut where it is deep."""
    names = loc[:DEEPEST] if isinstance(loc, list) else []
    return ".".join(str(name)[:LONGEST_NAME] for name in names if isinstance(name, str | int))


def explained(
    judged: Any, content_type: bytes, noted: VerdictHeaders, body: bytes, size: int, wanted: FailureText
) -> Any:
    """Return the judgement of a failing answer with its text: what the body says, or that the body is not kept.

    `body`: what was read of the body; `size`: its bytes. A word of the service's own needs no word about its body.
    """
    if kept := failure_text(content_type, noted, body, wanted):
        return with_text(judged, kept)
    outcome = judged.outcome if isinstance(judged, WholeRefused) else judged
    is_bare = isinstance(outcome, Failed | Rejected) and outcome.reason.startswith(HTTP)
    if is_bare and (note := unkept(content_type, noted, size, wanted)):
        return with_text(judged, note)
    return judged


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
