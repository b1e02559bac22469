"""`POST /v1/retry` (contract 6.10): a record that a relay's service read itself and could not handle.

Only the JSON is read here; `delivery/relay/posts.py` decides what follows. A field that cannot be read is refused. In
the answer to a push it is not, because there the service does not wait for a refusal.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, Protocol, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from reconsume.sidecar.api.raw_post import TYPE, raw_record, raw_wish
from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.delivery.relay.post_writer import NotWrittenError, RefusedError, TooLargeError, UnknownError
from reconsume.sidecar.delivery.relay.posts import NotOursError, PostResult
from reconsume.sidecar.delivery.verdict import ASKED_DEAD_LETTER, ASKED_RETRY
from reconsume.sidecar.delivery.verdict_fields import LONGEST_FIELD, reason_of
from reconsume.sidecar.http.bodies import LONGEST
from reconsume.sidecar.http.calls import Call, Caller
from reconsume.sidecar.http.json_body import fault_of_json
from reconsume.sidecar.http.problems import problem
from reconsume.topics.durations import parse_duration
from reconsume.topics.expiry import Expiry, parse_expiry
from reconsume.topics.retry_headers import LARGEST_LONG, LARGEST_PARTITION, Headers

RETRY = "/v1/retry"
HEAD_ROOM = 64 * 1024
"""Bytes of a post beside key and value."""
RETRY_AFTER = {"retry-after": "1"}

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_LONG)]


class Post(msgspec.Struct, forbid_unknown_fields=True):
    """The body of the call. Bytes are base64 in JSON. `timestamp` is epoch ms, −1 for a record without one."""

    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_PARTITION)]
    offset: Number
    key_base64: bytes | None
    value_base64: bytes | None
    headers: Headers
    timestamp: Annotated[int, msgspec.Meta(ge=-1, le=LARGEST_LONG)]
    delay: str | None = None
    level: Annotated[int, msgspec.Meta(ge=-9_999, le=9_999)] | None = None
    reason: str | None = None
    expires: str | None = None


class RetryRequest(NamedTuple):
    """What the raw form asks for: as the fields of these names in `Post`."""

    delay: str | None
    level: int | None
    reason: str | None
    expires: str | None


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
        except NotOursError:
            return problem(400, "topic must be a main topic of this group, or its ready topic.")
        except TooLargeError as fault:
            return problem(413, f"Kafka does not take a record of this size: {fault}")
        except RefusedError as fault:
            return problem(422, f"Kafka does not take this record: {fault}")
        except NotWrittenError as fault:
            return problem(503, f"{fault}; post it again.", RETRY_AFTER)
        except UnknownError as fault:
            return problem(503, f"It is not known whether it was written ({fault}); post it again.", RETRY_AFTER)
        return Response(msgspec.json.encode(placed._asdict()), 201, media_type="application/json")

    return [Call(RETRY, retry, Caller.SERVICE, "POST")]


async def read_post(request: Request) -> tuple[Record, Failed]:
    """Return the record of a post, and the failure that it reports. Raises ValueError, without a word of the post."""
    body = await request.body()
    if is_raw(request):
        headers = {name: request.headers[name] for name in request.headers}
        return raw_record(headers, body, wall), failure_of(RetryRequest(**raw_wish(headers)))
    try:
        post = _BODY.decode(body)
    except msgspec.MsgspecError as fault:
        raise ValueError(fault_of_json(fault)) from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return record_of(post), failure_of(post)


def longest_post(largest: int) -> int:
    """Return the bytes of a post's body for topics that take records of `largest` bytes: base64 makes 4 bytes of 3."""
    return max(LONGEST, largest * 4 // 3 + HEAD_ROOM)


def record_of(post: Post) -> Record:
    """Return the record as the consumer would have made it. Raises ValueError if its headers cannot be written."""
    # The Kafka client would cut the name at the NUL. (It cannot take lone surrogates either; they are refused as JSON.)
    if any("\0" in name for name, _ in post.headers):
        raise ValueError("a header's name has a NUL")
    source = Partition(post.topic, post.partition)
    return Record(source, post.offset, 0, post.timestamp, post.key_base64, post.value_base64, post.headers, None)


def is_raw(request: Request) -> bool:
    """Whether the body is the value itself."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == TYPE


def failure_of(post: Post | RetryRequest) -> Failed:
    """Return the failure that the post reports. Raises ValueError if its delay or its expires cannot be read."""
    try:
        delay = None if post.delay is None else parse_duration(post.delay[:LONGEST_FIELD])
    except ValueError:
        raise ValueError("delay must be a duration such as 90s") from None
    reason, text = reason_of(post.reason)
    usual = ASKED_DEAD_LETTER if post.level == -1 else ASKED_RETRY
    expires = None if post.expires is None else read_expiry(post.expires)
    return Failed(reason or usual, text, delay=delay, level=post.level, asked=True, expires=expires)


def read_expiry(text: str) -> Expiry:
    """Return when a record expires. Raises ValueError with a sentence."""
    try:
        return parse_expiry(text)
    except ValueError as fault:
        raise ValueError(f"expires {fault}") from None
