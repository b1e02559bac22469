"""`POST /v1/retry` (contract 6.10): a record that a relay's service read itself and could not handle.

Only the request is read here, on the event loop; `delivery/relay/posts.py` decides what follows. Bytes are base64.

A field that cannot be read is refused. In the response to a push it is not, because there the service does not wait for
a refusal. No refusal repeats a word of the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.delivery.relay.post_writer import NotWrittenError, RefusedError, TooLargeError, UnknownError
from reconsume.sidecar.delivery.relay.posts import NotOursError, PostResult
from reconsume.sidecar.delivery.verdict import ASKED_DEAD_LETTER, ASKED_RETRY
from reconsume.sidecar.delivery.verdict_fields import LONGEST_FIELD, reason_of
from reconsume.sidecar.http.bodies import LONGEST
from reconsume.sidecar.http.calls import Call, Caller
from reconsume.sidecar.http.json_answer import json_answer
from reconsume.sidecar.http.json_body import fault_of_json
from reconsume.sidecar.http.problems import problem
from reconsume.topics.durations import parse_duration
from reconsume.topics.expiry import parse_expiry
from reconsume.topics.retry_headers import LARGEST_LONG, LARGEST_PARTITION, Headers

RETRY = "/v1/retry"
HEAD_ROOM = 64 * 1024
"""Bytes of a post beside key and value."""
RETRY_AFTER = {"retry-after": "1"}
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
    """The body. Bytes are base64 in JSON."""

    topic: str
    partition: PartitionNumber
    offset: Offset
    key_base64: bytes | None
    value_base64: bytes | None
    headers: Headers
    timestamp: Timestamp


_BODY = msgspec.json.Decoder(Post)


def retry_routes(post: Callable[[Record, Failed], Awaitable[PostResult]]) -> list[Call]:
    """Return the route of the call. `post`: writes what follows from the failure of a record."""

    async def retry(request: Request) -> Response:
        try:
            record, failure = await read_post(request)
        except ValueError as fault:
            return problem(400, f"The body is not a record to retry: {fault}.")
        try:
            placed = await post(record, failure)
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
