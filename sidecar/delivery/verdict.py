"""Turn the service's answer into an Outcome (contract 1.5). Pure: no clock, no socket.

The rule, from top to bottom: the header `Reconsume-Verdict`, else a body that is a verdict of ours, else the status. A
body changes an outcome only if it is such a verdict: an answer of the service's own that looks like one says nothing.
The words that decide must match exactly. The fields beside them are read leniently: a request to retry with an
unreadable delay still is a request to retry. Nothing of the answer's body reaches an outcome's text here, except a
`reason` that the service wrote for this purpose; `failure_text.py` adds what the operator wants of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.core.outcome import (
    COMMITTED,
    Committed,
    Failed,
    Outcome,
    Postponed,
    Rejected,
    Throttled,
    output_refused,
)
from reconsume.sidecar.delivery.outputs import OutputsRefusedError, read_outputs
from reconsume.sidecar.delivery.verdict_fields import (
    USUAL_THROTTLE_MS,
    delay_of,
    expiry_of,
    level_of,
    reason_of,
    retry_after_ms,
)
from reconsume.topics.outputs import OutputTopics
from reconsume.topics.reasons import one_line

VerdictHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
"""The answer's headers that matter here, in their order, with names in lower case."""

FailureText: TypeAlias = Literal["none", "problem", "body"]
"""`deliver.failure_text`: nothing; what a JSON body gives as its reason; the beginning of a text or JSON body."""

VERDICT = b"reconsume-verdict"
CONTENT_TYPE = b"content-type"
CONTENT_ENCODING = b"content-encoding"
RETRY_AFTER = b"retry-after"
LOCATION = b"location"
OUR_TYPE = b"application/vnd.reconsume+json"
"""The content type that is ours alone. What is unreadable in it was meant for us."""
JSON_TYPES = (b"application/json", OUR_TYPE)
WORDS = frozenset({"commit", "retry", "postpone", "dead-letter"})
"""The words of a verdict."""

# Kinds of what looks like a verdict and is none; labels of `reconsume_odd_verdicts_total`.
HEADER, UNKNOWN_WORD, NOT_JSON, ENCODED, TOO_LONG = "header", "unknown-word", "not-json", "encoded", "too-long"
UNKNOWN_ID, NO_ID, DELAY, EXPIRES, HTML, ACCEPTED = "unknown-id", "no-id", "delay", "expires", "html", "accepted"
ODD_KINDS = (HEADER, UNKNOWN_WORD, NOT_JSON, ENCODED, TOO_LONG, UNKNOWN_ID, NO_ID, DELAY, EXPIRES, HTML, ACCEPTED)
ACCEPTED_STATUS = 202
"""A service that answers so may still have the work before it, and the record is done: it is counted as odd."""

# A service that asks for no pause at all is still overloaded. Without a minimum the same request comes back at once.
SHORTEST_THROTTLE_MS = 100

SHORTEST_POSTPONEMENT, USUAL_POSTPONEMENT, LONGEST_POSTPONEMENT = 1_000, 10_000, 900_000
"""ms that the word `postpone` may ask for. A wait below 10 s is in memory, a longer one costs a copy."""

ASKED_RETRY = "retry-asked"
ASKED_DEAD_LETTER = "dead-letter-asked"
DLQ_LEVEL = -1
"""The level by which a retry asks for the DLQ, as in RocketMQ."""


class VerdictRules(msgspec.Struct, frozen=True):
    """The operator's rules for answers. Times are in milliseconds."""

    dead_letter_statuses: frozenset[int] = frozenset()
    throttle_statuses: frozenset[int] = frozenset({429})
    longest_throttle_ms: int = 300_000
    longest_body: int = 64 * 1024
    """Bytes of a body that may be a verdict, at most."""
    bodies: bool = True
    """Whether a body may be a verdict (`deliver.verdicts: all`)."""
    failure_text: FailureText = "none"
    """What is taken from the body of a failing answer, for people (`failure_text.py`)."""
    outputs: OutputTopics | None = None
    """Where an answer's records may go (`deliver.outputs`); None: nowhere."""
    in_place: bool = False
    """Whether a failure is retried in place, without a transaction that an output could go in."""


class VerdictFields(msgspec.Struct, gc=False):
    """The fields of a verdict as the service wrote them: texts, numbers, true, false, None, or OTHER.

    `produce` and `verdicts` are JSON that is read later, by its own types (`msgspec.Raw`).
    """

    verdict: Any = None
    delay: Any = None
    level: Any = None
    reason: Any = None
    expires: Any = None
    produce: Any = None
    id: Any = None
    verdicts: Any = None


NOT_GIVEN = msgspec.Raw()
NOTHING = VerdictFields()
UNREADABLE = Failed("unreadable-verdict", label="broken_answer")
MISSING = Failed("missing-verdict", "the answer has a list of verdicts, and none for this record", "broken_answer")
OTHER = object()
"""Stands for an object or a list where a single value belongs, and for a number that is none of ours."""
LONGEST_NUMBER = 64
"""Characters of a number that is read."""


class VerdictBody(msgspec.Struct, gc=False):
    """A JSON body as it came. Nothing of it is decoded but what a verdict can have; other fields are skipped.

    A response of 15 MiB would take 30 times its size as Python's lists and dictionaries.
    """

    verdict: msgspec.Raw = NOT_GIVEN
    delay: msgspec.Raw = NOT_GIVEN
    level: msgspec.Raw = NOT_GIVEN
    reason: msgspec.Raw = NOT_GIVEN
    expires: msgspec.Raw = NOT_GIVEN
    produce: msgspec.Raw = NOT_GIVEN
    id: msgspec.Raw = NOT_GIVEN
    verdicts: msgspec.Raw = NOT_GIVEN

    def fields(self) -> VerdictFields:
        """Return the fields. Raises msgspec.DecodeError or UnicodeDecodeError for a text that is none."""
        return VerdictFields(
            verdict=single_value(self.verdict),
            delay=single_value(self.delay),
            level=single_value(self.level),
            reason=single_value(self.reason),
            expires=single_value(self.expires),
            produce=non_null(self.produce),
            id=single_value(self.id),
            verdicts=non_null(self.verdicts),
        )


def non_null(raw: msgspec.Raw) -> msgspec.Raw | None:
    """Return JSON; None if it is null or was not given."""
    return None if bytes(memoryview(raw)[:5]) in (b"", b"null") else raw


def single_value(raw: msgspec.Raw) -> Any:
    """Return a text, number, true, false or None; OTHER for anything else."""
    first = bytes(memoryview(raw)[:1])
    if not first:
        return None
    if first in b"{[" or (first != b'"' and len(memoryview(raw)) > LONGEST_NUMBER):
        return OTHER
    return msgspec.json.decode(raw)


BODY = msgspec.json.Decoder(VerdictBody)
BESIDE_HEADER = object()
"""What stands for the outputs of a body beside a verdict in the header."""


class OddAnswer(NamedTuple):
    """The meaning of an answer in which something looks like a verdict and is none."""

    judged: Any
    """The meaning: an outcome, or one for each record of a batch."""
    kinds: tuple[str, ...]
    """Of `ODD_KINDS`, one for each thing found."""


class Unreadable(NamedTuple):
    """A header or body that looks like a verdict and is none. `ours`: it was meant for us, so the record is retried."""

    kind: str
    ours: bool


def verdict_from_response(
    status: int, noted: VerdictHeaders, body: bytes, rules: VerdictRules, wall: int
) -> Outcome | OddAnswer:
    """Return the outcome of a complete answer to one record that came at `wall` (epoch ms). Never raises."""
    said = said_by(noted, body, rules)
    if isinstance(said, Unreadable):
        return unreadable(said, rules) or OddAnswer(status_of(status, noted, rules, wall), (said.kind,))
    if said.verdict is None:
        if status == ACCEPTED_STATUS and said.produce is None:
            return OddAnswer(COMMITTED, (ACCEPTED,))
        return without_verdict(said, rules) or status_of(status, noted, rules, wall)
    return meaning_of(said, rules)


def unreadable(said: Unreadable, rules: VerdictRules) -> OddAnswer | None:
    """Return the meaning of what looks like a verdict and cannot be read; None if the status decides.

    Where a service may ask for outputs, such an answer may have some: they must not be lost in silence.
    """
    if said.ours:
        return OddAnswer(UNREADABLE, (said.kind,))
    if rules.outputs is not None and said.kind != UNKNOWN_WORD:
        return OddAnswer(output_refused(f"the answer cannot be read ({said.kind})"), (said.kind,))
    return None


def without_verdict(said: VerdictFields, rules: VerdictRules) -> Failed | None:
    """Return the failure of an answer that asks for outputs and has no verdict; None if it asks for none."""
    if said.produce is None or rules.outputs is None:
        return None
    return output_refused("produce needs a verdict of the same body")


def said_by(noted: VerdictHeaders, body: bytes, rules: VerdictRules) -> VerdictFields | Unreadable:
    """Return the verdict in the header, else the one in the body; NOTHING if there is none."""
    words = [value for name, value in noted if name == VERDICT]
    if words:
        return beside_header(read_header(words), noted, body, rules)
    if body and (content_type := type_of(noted)):
        ours = content_type == OUR_TYPE
        if is_encoded(noted):
            return Unreadable(ENCODED, ours)
        if len(body) > rules.longest_body:
            return Unreadable(TOO_LONG, ours)
        return read_body(body, ours=ours)
    return NOTHING


def beside_header(
    said: VerdictFields | Unreadable, noted: VerdictHeaders, body: bytes, rules: VerdictRules
) -> VerdictFields | Unreadable:
    """Return the verdict of a header, with the outputs of the body, which are refused there."""
    if rules.outputs is None or isinstance(said, Unreadable) or not type_of(noted) or not body:
        return said
    fields = Unreadable(TOO_LONG, ours=False) if len(body) > rules.longest_body else read_body(body, ours=False)
    if isinstance(fields, VerdictFields) and fields.produce is not None:
        said.produce = BESIDE_HEADER
    return said


def may_be_verdict(noted: VerdictHeaders, rules: VerdictRules) -> bool:
    """Return whether the body must be read to know what the answer means."""
    return bool(type_of(noted)) and (rules.outputs is not None or not any(name == VERDICT for name, _ in noted))


def is_encoded(noted: VerdictHeaders) -> bool:
    """Return whether the body is packed. A header that names no encoding packs nothing."""
    return any(name == CONTENT_ENCODING and value.strip().lower() not in (b"", b"identity") for name, value in noted)


def type_of(noted: VerdictHeaders) -> bytes:
    """Return the content type under which a verdict may stand; empty for any other."""
    media_type = next((value for name, value in noted if name == CONTENT_TYPE), b"").partition(b";")[0].strip().lower()
    return media_type if media_type in JSON_TYPES else b""


def verdict_of(said: VerdictFields) -> Outcome:
    """Return the outcome that a verdict's fields ask for. An unknown word is one retry by the ladder."""
    reason, text = reason_of(said.reason)
    match said.verdict:
        case "commit":
            return COMMITTED
        case "retry":
            delay, level = delay_of(said.delay), level_of(said.level)
            expires = expiry_of(said.expires)
            usual = ASKED_DEAD_LETTER if level == DLQ_LEVEL else ASKED_RETRY
            return Failed(reason or usual, text, delay=delay, level=level, asked=True, expires=expires)
        case "postpone":
            delay = USUAL_POSTPONEMENT if said.delay is None else delay_of(said.delay) or USUAL_POSTPONEMENT
            return Postponed(min(max(delay, SHORTEST_POSTPONEMENT), LONGEST_POSTPONEMENT))
        case "dead-letter":
            return Rejected(reason or ASKED_DEAD_LETTER, text)
        case _:
            return UNREADABLE


def with_outputs(outcome: Outcome, said: VerdictFields, rules: VerdictRules) -> Outcome:
    """Return the outcome of a verdict with the records that it asks to be written; a failure if one may not be."""
    try:
        if said.produce is BESIDE_HEADER:
            raise OutputsRefusedError("produce needs the verdict of the body, and the header has one")
        if isinstance(outcome, Postponed):
            raise OutputsRefusedError("a postponed record is not done, and nothing is written for it")
        if isinstance(outcome, Failed) and rules.in_place:
            raise OutputsRefusedError("a failure is retried in place here, and nothing is written for it")
        outputs = read_outputs(said.produce, rules.outputs)
    except OutputsRefusedError as fault:
        return output_refused(str(fault))
    return replace(outcome, outputs=outputs) if isinstance(outcome, Committed | Failed | Rejected) else outcome


def meaning_of(said: VerdictFields, rules: VerdictRules) -> Outcome | OddAnswer:
    """Return the outcome that a verdict asks for, with its outputs.

    A postponement out of its bounds is counted as odd, and so is an expiry of a retry that cannot be read.
    """
    outcome = verdict_of(said)
    if said.produce is not None and outcome is not UNREADABLE:
        return with_outputs(outcome, said, rules)
    if said.verdict == "retry" and isinstance(outcome, Failed) and said.expires is not None and outcome.expires is None:
        return OddAnswer(outcome, (EXPIRES,))
    if not isinstance(outcome, Postponed) or said.delay is None or delay_of(said.delay) == outcome.after_ms:
        return outcome
    return OddAnswer(outcome, (DELAY,))


def status_of(status: int, noted: VerdictHeaders, rules: VerdictRules, wall: int) -> Outcome:
    """Return the outcome by the status. For a throttle, `Retry-After` counts too."""
    if 200 <= status < 300:
        return COMMITTED
    if status in rules.dead_letter_statuses:
        return Rejected(f"http-{status}")
    after = next((value for name, value in noted if name == RETRY_AFTER), None)
    if status in rules.throttle_statuses or (status == 503 and after is not None):
        wanted = USUAL_THROTTLE_MS if after is None else retry_after_ms(after, wall)
        return Throttled(max(SHORTEST_THROTTLE_MS, min(wanted, rules.longest_throttle_ms)))
    return Failed(f"http-{status}", redirect_of(noted) if 300 <= status < 400 else "")


def redirect_of(noted: VerdictHeaders) -> str:
    """Return a text about a redirect that is not followed: its path, without the host and what a query may hold."""
    target = next((value for name, value in noted if name == LOCATION), b"").decode("latin-1")
    try:
        path = urlsplit(target).path
    except ValueError:
        return ""
    return one_line(f"redirects to {path}") if path else ""


def read_header(values: Sequence[bytes]) -> VerdictFields | Unreadable:
    """Return the fields of `retry; delay=90s; reason=busy`. The same header twice counts once.

    A parameter that is unknown or has no value is ignored.
    """
    verdict, *rest = values[0].decode("latin-1").split(";")
    word = verdict.strip().lower()
    if word not in WORDS or any(value.strip() != values[0].strip() for value in values):
        return Unreadable(HEADER, ours=True)
    fields = {}
    for parameter in rest:
        name, _, text = parameter.partition("=")
        fields[name.strip().lower()] = text.strip().strip('"')
    return VerdictFields(word, fields.get("delay"), fields.get("level"), fields.get("reason"), fields.get("expires"))


def read_body(body: bytes, *, ours: bool) -> VerdictFields | Unreadable:
    """Return the fields of a JSON body. `ours`: it has our content type, so it must be a verdict.

    Under another type, JSON that is not an object is the service's own.
    """
    try:
        fields = BODY.decode(body).fields()
    except msgspec.ValidationError:
        return Unreadable(NOT_JSON, ours) if ours else NOTHING
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Unreadable(NOT_JSON, ours)
    return fields if fields.verdict is None or is_word(fields.verdict) else Unreadable(UNKNOWN_WORD, ours)


def is_word(value: Any) -> bool:
    """Return whether a field holds one of our words."""
    return isinstance(value, str) and value in WORDS


def is_json(value: bytes) -> bool:
    """Return whether a content type says that the body may be a verdict."""
    return value.partition(b";")[0].strip().lower() in JSON_TYPES
