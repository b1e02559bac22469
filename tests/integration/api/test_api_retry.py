"""`POST /v1/retry` on real sockets: what is read, what is refused, and what each end of a post is answered with."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconsume.sidecar.api.app import Access, build_app
from reconsume.sidecar.api.retry import longest_post, retry_routes
from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.delivery.relay.post_writer import NotWrittenError, RefusedError, TooLargeError, UnknownError
from reconsume.sidecar.delivery.relay.posts import NotOursError, PostResult
from reconsume.topics.expiry import Expiry
from tests.support.sidecar.running_api import Answer, Client, Operation, serving

GOOD: dict[str, object] = {
    "topic": "orders",
    "partition": 3,
    "offset": 1024,
    "key_base64": "aw==",
    "value_base64": None,
    "headers": [["tenant", "YWNtZQ=="], ["empty", ""], ["none", None]],
    "timestamp": 1763690000000,
}
PLACED = PostResult("orders:3:1024", "billing-RETRY-10s", 1, 1_763_690_010_000, "retry-asked")
MIB = 1 << 20
LARGEST = 3 * MIB


class Notes:
    """Takes posts: notes each, and answers as told."""

    def __init__(self) -> None:
        self.posts: list[tuple[Record, Failed]] = []
        self.error: Exception | None = None

    async def post(self, record: Record, failure: Failed) -> PostResult:
        self.posts.append((record, failure))
        if self.error is not None:
            raise self.error
        return PLACED


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def port(notes: Notes) -> Iterator[str | int]:
    access = Access(longest=lambda: longest_post(LARGEST))
    with serving(build_app(Operation(), bytes, access, calls=retry_routes(notes.post))) as place:
        yield place


def post(place: str | int, body: object, headers: dict[str, str] | None = None) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    usual = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(len(data))}
    head = {**usual, **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    with Client(place) as client:
        client.send(f"POST /v1/retry HTTP/1.1\r\n{lines}\r\n".encode() + data)
        return client.answer("POST")


def test_a_post_is_read_byte_for_byte_and_answered_with_what_was_done(port: int, notes: Notes) -> None:
    answer = post(port, {**GOOD, "delay": "90s", "level": 2, "reason": "no-stock"})
    assert (answer.status, answer.json) == (201, PLACED._asdict())
    [(record, failure)] = notes.posts
    headers = [("tenant", b"acme"), ("empty", b""), ("none", None)]
    assert record == Record(Partition("orders", 3), 1024, 0, 1_763_690_000_000, b"k", None, headers, None)
    assert failure == Failed("no-stock", delay=90_000, level=2, asked=True)


def test_a_post_may_say_when_its_record_expires(port: int, notes: Notes) -> None:
    for expires in ("6h", "2026-11-26T18:00:00Z"):
        assert post(port, {**GOOD, "expires": expires}).status == 201
    assert [failure.expires for _, failure in notes.posts] == [Expiry(after=21_600_000), Expiry(at=1_795_716_000_000)]
    answer = post(port, {**GOOD, "expires": "soon"})
    assert (answer.status, "expires must be a time such as" in answer.json["detail"]) == (400, True)


@pytest.mark.parametrize(("wish", "reason"), [({}, "retry-asked"), ({"level": -1}, "dead-letter-asked")])
def test_a_post_without_a_reason_has_the_usual_one(
    port: int, notes: Notes, wish: dict[str, object], reason: str
) -> None:
    assert post(port, {**GOOD, **wish}).status == 201
    assert notes.posts[0][1].reason == reason


BAD: dict[str, object] = {
    "no JSON": b"{",
    "no object": b"[]",
    "not UTF-8": b'{"topic": "\xff"}',
    "nested": b"[" * 100_000,
    "a key less": {name: value for name, value in GOOD.items() if name != "value_base64"},
    "a key more": {**GOOD, "retries": 3},
    "a negative partition": {**GOOD, "partition": -1},
    "a partition beyond int32": {**GOOD, "partition": 2**31},
    "an offset beyond int64": {**GOOD, "offset": 2**63},
    "an offset in text": {**GOOD, "offset": "5"},
    "no base64": {**GOOD, "key_base64": "k"},
    "headers as an object": {**GOOD, "headers": {"a": "YQ=="}},
    "a header of three": {**GOOD, "headers": [["a", "YQ==", 1]]},
    "a header's name with a NUL": {**GOOD, "headers": [["a\0b", "YQ=="]]},
    "a header's name with half a character": json.dumps({**GOOD, "headers": [["\ud800", "YQ=="]]}).encode(),
    "a delay in seconds": {**GOOD, "delay": 90},
    "a delay that is none": {**GOOD, "delay": "soon"},
    "a level in text": {**GOOD, "level": "3"},
    "a reason that is none": {**GOOD, "reason": 5},
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_read_is_400_and_reaches_nobody(port: int, notes: Notes, what: str) -> None:
    answer = post(port, BAD[what])
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert notes.posts == []


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (NotOursError(), 400, "topic must be a main topic"),
        (TooLargeError("billing-RETRY-10s: too large"), 413, "billing-RETRY-10s: too large"),
        (
            RefusedError("billing-RETRY-10s: invalid"),
            422,
            "Kafka does not take this record: billing-RETRY-10s: invalid",
        ),
        (
            NotWrittenError("topic billing-DLQ is missing; nothing was written"),
            503,
            "nothing was written; post it again",
        ),
        (UnknownError("timed out"), 503, "It is not known whether it was written"),
    ],
)
def test_each_end_of_a_post_has_its_answer(port: int, notes: Notes, error: Exception, status: int, words: str) -> None:
    notes.error = error
    answer = post(port, GOOD)
    assert answer.status == status
    assert words in answer.json["detail"]
    assert ("retry-after" in answer.headers) == (status == 503)


def test_a_body_over_the_limit_of_its_topics_is_413_and_says_the_limit(port: int, notes: Notes) -> None:
    answer = post(port, {**GOOD, "value_base64": "A" * longest_post(LARGEST)})
    assert (answer.status, notes.posts) == (413, [])
    assert str(longest_post(LARGEST)) in answer.json["detail"]


def test_with_a_token_file_a_post_needs_the_token(notes: Notes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-secret-long-enough\n")
    with serving(build_app(Operation(), bytes, Access(file), calls=retry_routes(notes.post))) as place:
        assert post(place, GOOD).status == 401
        assert notes.posts == []
        assert post(place, GOOD, {"Authorization": "Bearer a-secret-long-enough"}).status == 201


@pytest.mark.parametrize("apart", [False, True])
def test_a_caller_that_would_rather_speak_http2_is_answered_all_the_same(port: int, notes: Notes, apart: bool) -> None:
    """As Java's client asks with its first call, whose body the parser would pass over."""
    data = json.dumps(GOOD).encode()
    head = b"POST /v1/retry HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: %d\r\n" % len(data)
    head += b"Host: localhost\r\nContent-Type: application/json\r\n"
    head += b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\nUpgrade: h2c\r\n\r\n"
    with Client(port) as client:
        for part in (head, data) if apart else (head + data,):
            client.send(part)
        assert client.answer("POST").status == 201
        client.send(head + data)
        assert client.answer("POST").status == 201
    assert len(notes.posts) == 2


def test_a_post_may_be_as_large_as_the_topics_take(port: int, notes: Notes) -> None:
    value = base64.b64encode(bytes(LARGEST)).decode()
    assert post(port, {**GOOD, "value_base64": value}).status == 201
    assert [len(record.value or b"") for record, _ in notes.posts] == [LARGEST]
    assert post(port, bytes(LARGEST * 4 // 3 + MIB)).status == 413
