"""`POST /v1/retry` (contract 6.10): a record that a relay's service read itself and could not handle.

Only the request is read here, on the event loop; `delivery/relay/posts.py` decides what follows. There are two forms:

- JSON (`Post`), which carries everything; bytes are base64.
- Raw (`application/octet-stream`): the body is the value, and the rest is in request headers, as push sends them. So a
  service can send back what it got, without JSON and base64. What headers cannot carry (a null key beside an empty one,
  the order of headers, odd bytes) needs the JSON form.

A field that cannot be read is refused. In the response to a push it is not, because there the service does not wait for
a refusal. No refusal repeats a word of the request.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Protocol, TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.delivery.relay.post_writer import NotWrittenError, RefusedError, TooLargeError, UnknownError
from reconsume.sidecar.delivery.relay.posts import NotOursError, PostResult
from reconsume.sidecar.delivery.verdict import ASKED_DEAD_LETTER, ASKED_RETRY, VerdictFields, read_header
from reconsume.sidecar.delivery.verdict_fields import LONGEST_FIELD, reason_of
from reconsume.sidecar.http.access import RAW
from reconsume.sidecar.http.bodies import LONGEST
from reconsume.sidecar.http.calls import Call, Caller
from reconsume.sidecar.http.json_answer import json_answer
from reconsume.sidecar.http.json_body import fault_of_json
from reconsume.sidecar.http.problems import problem
from reconsume.topics.durations import parse_duration
from reconsume.topics.expiry import parse_expiry
from reconsume.topics.retry_headers import LARGEST_LONG, LARGEST_PARTITION, Headers, RetryState
from reconsume.topics.tags import HEADER as TAGS

RETRY = "/v1/retry"
HEAD_ROOM = 64 * 1024
"""Bytes of a post beside key and value."""
RETRY_AFTER = {"retry-after": "1"}
TRACE = ("traceparent", "tracestate", "baggage")
REFUSALS = {
    NotOursError: (400, "topic must be a main topic of this group, or its ready topic."),
    TooLargeError: (413, "Kafka does not take a record of this size: {}"),
    RefusedError: (422, "Kafka does not take this record: {}"),
    NotWrittenError: (503, "{}; post it again."),
    UnknownError: (503, "It is not known whether it was written ({}); post it again."),
}
"""What a caller is told of a post that is not written."""

PartitionNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_PARTITION)]
Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_LONG)]
Timestamp: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=LARGEST_LONG)]
"""Epoch ms; −1 for a record without one."""
Times: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=999_999)]


class RetryFields(msgspec.Struct, kw_only=True):
    """What the service asks for."""

    delay: str | None = None
    level: Annotated[int, msgspec.Meta(ge=-9_999, le=9_999)] | None = None
    reason: str | None = None
    expires: str | None = None


class Post(RetryFields, kw_only=True, forbid_unknown_fields=True):
    """The body of the JSON form. Bytes are base64 in JSON."""

    topic: str
    partition: PartitionNumber
    offset: Offset
    key_base64: bytes | None
    value_base64: bytes | None
    headers: Headers
    timestamp: Timestamp


class RawRecord(msgspec.Struct):
    """The headers `Reconsume-Topic` and so on, which say of the raw form which record it is."""

    topic: Annotated[str, msgspec.Meta(min_length=1)]
    partition: PartitionNumber
    offset: Offset
    timestamp: Timestamp = -1
    times: Times = 0
    redrives: Times = 0
    cycle: Times = 0


_BODY = msgspec.json.Decoder(Post)


class Posts(Protocol):
    """The part of the sidecar that takes posts."""

    async def post(self, record: Record, failure: Failed) -> PostResult:
        """Write what follows from the failure of a record."""


def retry_routes(posts: Posts) -> list[Call]:
    """Return the route of the call."""

    async def retry(request: Request) -> Response:
        try:
            record, failure = await read_post(request)
        except ValueError as fault:
            return problem(400, f"The body is not a record to retry: {fault}.")
        try:
            placed = await posts.post(record, failure)
        except tuple(REFUSALS) as fault:
            status, text = next(refusal for kind, refusal in REFUSALS.items() if isinstance(fault, kind))
            return problem(status, text.format(fault), RETRY_AFTER if status == 503 else None)
        return json_answer(placed._asdict(), 201)

    return [Call(RETRY, retry, Caller.SERVICE, "POST")]


def longest_post(largest: int) -> int:
    """Return the bytes of a post's body for topics that take records of `largest` bytes: base64 makes 4 bytes of 3."""
    return max(LONGEST, largest * 4 // 3 + HEAD_ROOM)


async def read_post(request: Request) -> tuple[Record, Failed]:
    """Return the record of a post, and the failure that it reports. Raises ValueError, without a word of the post."""
    body = await request.body()
    try:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == RAW:
            headers = {name: request.headers[name] for name in request.headers}
            return raw_record(headers, body), failure_of(raw_fields(headers))
        post = _BODY.decode(body)
    except msgspec.MsgspecError as fault:
        raise ValueError(fault_of_json(fault)) from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    # The Kafka client would cut the name at the NUL. (It cannot take lone surrogates either; they are refused as JSON.)
    if any("\0" in name for name, _ in post.headers):
        raise ValueError("a header's name has a NUL")
    source = Partition(post.topic, post.partition)
    record = Record(source, post.offset, 0, post.timestamp, post.key_base64, post.value_base64, post.headers, None)
    return record, failure_of(post)


def failure_of(fields: RetryFields) -> Failed:
    """Return the failure that a post reports. Raises ValueError if its delay or its expires cannot be read."""
    try:
        delay = None if fields.delay is None else parse_duration(fields.delay[:LONGEST_FIELD])
    except ValueError:
        raise ValueError("delay must be a duration such as 90s") from None
    try:
        expires = None if fields.expires is None else parse_expiry(fields.expires)
    except ValueError as fault:
        raise ValueError(f"expires {fault}") from None
    reason, text = reason_of(fields.reason)
    usual = ASKED_DEAD_LETTER if fields.level == -1 else ASKED_RETRY
    return Failed(reason or usual, text, delay=delay, level=fields.level, asked=True, expires=expires)


# --- the raw form -----------------------------------------------------------------------------------------------------


def raw_record(headers: Mapping[str, str], body: bytes) -> Record:
    """Return the record that a raw post carries. `headers`: of the request, in lower case. Raises ValueError and
    ValidationError."""
    named = {name.removeprefix("reconsume-"): text for name, text in headers.items() if name.startswith("reconsume-")}
    raw = msgspec.convert(named, RawRecord, strict=False)
    identity = f"{raw.topic}:{raw.partition}:{raw.offset}"
    if named.get("id", identity) != identity:
        raise ValueError("Reconsume-Id must be topic:partition:offset, of the three headers for these")
    state = None
    if raw.times or raw.redrives or raw.cycle:
        state = RetryState(
            identity, raw.topic, raw.times, raw.redrives, timestamp=raw.timestamp, first_failed_at=wall(),
            cycle=raw.cycle,
        )  # fmt: skip
    value = None if named.get("null", "").lower() == "value" else body
    source = Partition(raw.topic, raw.partition)
    own = _own(headers)
    if (tags := _bytes_of(named, "tags")) is not None:
        own.append((TAGS, tags))
    return Record(source, raw.offset, 0, raw.timestamp, _key(named), value, own, state)


def raw_fields(headers: Mapping[str, str]) -> RetryFields:
    """Return what `Reconsume-Verdict` asks for. Raises ValueError and ValidationError."""
    said = read_header([headers.get("reconsume-verdict", "retry").encode("latin-1", "replace")])
    if not isinstance(said, VerdictFields) or said.verdict not in ("retry", "dead-letter"):
        raise ValueError(
            "Reconsume-Verdict must be retry or dead-letter, perhaps with delay, level, reason and expires"
        )
    fields = {"delay": said.delay, "level": said.level, "reason": said.reason, "expires": said.expires}
    if said.verdict == "dead-letter":
        fields["level"] = -1
    return msgspec.convert(fields, RetryFields, strict=False)


def _key(named: Mapping[str, str]) -> bytes | None:
    """Return the key. `named`: the headers `Reconsume-...` without that prefix."""
    if "key-omitted" in named:
        raise ValueError("the key was too long for a header: post the JSON form")
    return _bytes_of(named, "key")


def _bytes_of(named: Mapping[str, str], name: str) -> bytes | None:
    """Return what push sends under a name, or as base64 under `<name>-Base64`."""
    if (packed := named.get(f"{name}-base64")) is not None:
        try:
            return base64.b64decode(packed, validate=True)
        except binascii.Error:
            raise ValueError(f"reconsume-{name}-base64 is no base64") from None
    plain = named.get(name)
    return None if plain is None else plain.encode("latin-1", "replace")


def _own(headers: Mapping[str, str]) -> Headers:
    """Return the record's own headers that push sends without being asked: CloudEvents and the trace."""
    own: Headers = []
    for name, text in headers.items():
        if name.startswith("ce-"):
            own.append((f"ce_{name.removeprefix('ce-')}", unquote_to_bytes(text)))
        elif name in TRACE:
            own.append((name, text.encode("latin-1", "replace")))
    return own
