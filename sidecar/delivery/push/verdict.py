"""Turn the service's answer into an Outcome (INTERFACE §2). Pure: no clock, no socket.

The verdict header wins over a JSON body, which wins over the status. The words that decide must match exactly. The
fields beside them are read leniently: a request to retry with an unreadable delay still is a request to retry. Nothing
of the answer's body reaches an outcome's text, except a `reason` that the service wrote for this purpose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias

import msgspec

from sidecar.core.outcome import COMMITTED, Failed, Outcome, Rejected, Throttled
from topics.durations import parse_duration

VerdictHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
"""The answer's headers that matter here, in their order, with names in lower case."""

VERDICT = b"reconsume-verdict"
CONTENT_TYPE = b"content-type"
RETRY_AFTER = b"retry-after"
JSON_TYPES = (b"application/json", b"application/vnd.reconsume+json")

# A service that asks for no pause at all is still overloaded. Without a minimum the same request comes back at once.
SHORTEST_THROTTLE_MS = 100
USUAL_THROTTLE_MS = 1_000

LONGEST_FIELD = 32
LONGEST_REASON_TEXT = 256
# A class goes into metrics and into a header: a word, never a sentence.
REASON_CLASS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SECONDS = re.compile(r"[0-9]{1,18}")
LEVEL = re.compile(r"-?[0-9]{1,4}")

ASKED_RETRY = "retry-asked"
ASKED_DEAD_LETTER = "dead-letter-asked"


class VerdictRules(msgspec.Struct, frozen=True):
    """The operator's rules for answers. Times are in milliseconds."""

    dead_letter_statuses: frozenset[int] = frozenset()
    longest_throttle_ms: int = 300_000


class VerdictFields(msgspec.Struct, gc=False):
    """The fields of a verdict as the service wrote them; also the JSON body. Any field may hold any JSON value."""

    verdict: Any = None
    delay: Any = None
    level: Any = None
    reason: Any = None
    id: Any = None
    verdicts: Any = None


NOTHING = VerdictFields()
UNREADABLE = Failed("unreadable-verdict", label="broken_answer")
MISSING = Failed("missing-verdict", "the answer has a list of verdicts, and none for this record", "broken_answer")
BODY = msgspec.json.Decoder(VerdictFields)


def verdict_from_response(
    status: int, noted: VerdictHeaders, body: bytes, rules: VerdictRules, wall: int, identity: str = ""
) -> Outcome:
    """Return the outcome of a complete answer that came at `wall` (epoch ms). Never raises.

    `identity` is the id of the record if it was sent in an envelope, whose answer may be a list of verdicts; else
    empty.
    """
    said = said_by(noted, body)
    if not isinstance(said, VerdictFields):
        return said
    if identity and said.verdict is None and isinstance(said.verdicts, list):
        return entry_of(said.verdicts, identity)
    return status_of(status, noted, rules, wall) if said.verdict is None else verdict_of(said)


def said_by(noted: VerdictHeaders, body: bytes) -> VerdictFields | Failed:
    """Return the verdict in the header, else the one in a JSON body; NOTHING if there is none."""
    words = [value for name, value in noted if name == VERDICT]
    if words:
        return read_header(words[0]) if len(words) == 1 else UNREADABLE
    if body and any(name == CONTENT_TYPE and is_json(value) for name, value in noted):
        return read_body(body)
    return NOTHING


def verdict_of(said: VerdictFields) -> Outcome:
    """Return the outcome that a verdict's fields ask for. An unknown word is one retry by the ladder."""
    reason, text = reason_of(said.reason)
    match said.verdict:
        case "commit":
            return COMMITTED
        case "retry":
            delay, level = delay_of(said.delay), level_of(said.level)
            return Failed(reason or ASKED_RETRY, text, delay=delay, level=level, asked=True)
        case "dead-letter":
            return Rejected(reason or ASKED_DEAD_LETTER, text)
        case _:
            return UNREADABLE


def status_of(status: int, noted: VerdictHeaders, rules: VerdictRules, wall: int) -> Outcome:
    """Return the outcome by the status. For a throttle, `Retry-After` counts too."""
    if 200 <= status < 300:
        return COMMITTED
    if status in rules.dead_letter_statuses:
        return Rejected(f"http-{status}")
    after = next((value for name, value in noted if name == RETRY_AFTER), None)
    if status == 429 or (status == 503 and after is not None):
        wanted = USUAL_THROTTLE_MS if after is None else wait_of(after, wall)
        return Throttled(max(SHORTEST_THROTTLE_MS, min(wanted, rules.longest_throttle_ms)))
    return Failed(f"http-{status}")


def read_header(value: bytes) -> VerdictFields:
    """Return the fields of `retry; delay=90s; reason=busy`.

    A parameter that is unknown or has no value is ignored.
    """
    verdict, *rest = value.decode("latin-1").split(";")
    fields = {}
    for parameter in rest:
        name, _, text = parameter.partition("=")
        fields[name.strip().lower()] = text.strip().strip('"')
    return VerdictFields(verdict.strip().lower(), fields.get("delay"), fields.get("level"), fields.get("reason"))


def read_body(body: bytes) -> VerdictFields | Failed:
    """Return the fields of a JSON body, or the failure that it means.

    JSON that is not an object says nothing. A body that is not JSON, under a JSON content type, might have been a
    verdict. Taking it for a commit could lose a failure, so it is a retry.
    """
    try:
        return BODY.decode(body)
    except msgspec.ValidationError:
        return NOTHING
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return UNREADABLE


def entry_of(entries: list[Any], identity: str) -> Outcome:
    """Return the outcome of this record's entry. Without one it is retried. Entries of unknown ids are ignored."""
    mine = [entry for entry in entries if isinstance(entry, dict) and entry.get("id") == identity]
    if not mine:
        return MISSING
    return outcome_of(mine[0]) if len(mine) == 1 else UNREADABLE


def outcome_of(entry: dict[str, Any]) -> Outcome:
    """Return the outcome of one entry of a list of verdicts. An entry without a verdict is unreadable."""
    return verdict_of(VerdictFields(entry.get("verdict"), entry.get("delay"), entry.get("level"), entry.get("reason")))


def is_json(value: bytes) -> bool:
    """Return whether a content type says that the body may be a verdict."""
    return value.partition(b";")[0].strip().lower() in JSON_TYPES


def delay_of(wish: Any) -> int | None:
    """Return the delay in milliseconds; None (the ladder) if it is not a duration. The core checks its range."""
    if not isinstance(wish, str) or len(wish) > LONGEST_FIELD:
        return None
    try:
        return parse_duration(wish)
    except ValueError:
        return None


def level_of(wish: Any) -> int | None:
    """Return the level; None (the ladder) if it is not a whole number. The core checks its range."""
    if isinstance(wish, str) and LEVEL.fullmatch(wish) is not None:
        return int(wish)
    if isinstance(wish, int) and not isinstance(wish, bool) and -9_999 <= wish <= 9_999:
        return wish
    return None


def reason_of(wish: Any) -> tuple[str, str]:
    """Return the reason's class and text: a single word is a class, anything longer is text for people."""
    if not isinstance(wish, str) or not wish:
        return "", ""
    if REASON_CLASS.fullmatch(wish) is not None:
        return wish, ""
    return "", "".join(sign if sign.isprintable() else " " for sign in wish[:LONGEST_REASON_TEXT])


def wait_of(value: bytes, wall: int) -> int:
    """Return the ms of a `Retry-After`, in seconds or as an HTTP date; the usual pause if it is neither."""
    text = value.decode("latin-1").strip()
    if SECONDS.fullmatch(text) is not None:
        return int(text) * 1000
    try:
        date = parsedate_to_datetime(text)
        return int((date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp() * 1000) - wall
    except (ValueError, TypeError, OverflowError):
        return USUAL_THROTTLE_MS
