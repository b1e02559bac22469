"""Why an answer fails: what is taken from its body, and what a hostile one cannot do."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Rejected, Throttled
from reconsume.sidecar.core.record import Now
from reconsume.sidecar.delivery.push.batch_verdicts import (
    Verdicts,
    WholeRefused,
    read_batch_answer,
    read_envelope_answer,
)
from reconsume.sidecar.delivery.push.failure_text import failure_text
from reconsume.sidecar.delivery.push.response_reader import Interpret, Judged, ResponseReader
from reconsume.sidecar.delivery.verdict import FailureText, VerdictRules, verdict_from_response
from reconsume.topics.reasons import LONGEST_TEXT, reason_class, reason_text
from tests.support.sidecar.push_requests import a_record

PROBLEM, JSON, TEXT = "application/problem+json", "application/json", "text/plain; charset=utf-8"
RECORDS = [a_record(offset=offset) for offset in (7, 8)]
READERS: dict[str, Interpret] = {
    "bare": verdict_from_response,
    "envelope": partial(read_envelope_answer, RECORDS[0].id),
    "batch": partial(read_batch_answer, RECORDS),
}


def answer(status: int, kind: str, body: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def read(data: bytes, wanted: FailureText, reader: str = "bare", cut: int = 0) -> Judged:
    rules = VerdictRules(frozenset({422}), failure_text=wanted)
    reading = ResponseReader(rules, lambda: Now(0, 0), {}, lambda kinds: None)
    reading.judge = READERS[reader]
    pieces = [data] if cut == 0 else [data[:cut], data[cut:]]
    judged = None
    for piece in pieces:
        judged = reading.feed(piece)
    assert judged is not None, "the answer is whole"
    return judged.outcome if isinstance(judged, WholeRefused) else judged


def unkept(kind: str) -> str:
    """The text of a body that `deliver.failure_text: body` would keep, and `problem` does not."""
    return f"the {kind.partition(';')[0].lower() or 'unlabelled'} body is not kept (deliver.failure_text)"


TAKEN: list[tuple[str, bytes, str, str]] = [
    (PROBLEM, b'{"title": "Bad sku", "detail": "no sku 7"}', "Bad sku: no sku 7", "Bad sku: no sku 7"),
    (PROBLEM + "; charset=utf-8", b'{"detail": "no sku 7", "status": 400}', "no sku 7", "no sku 7"),
    ("Application/Problem+JSON", b'{"title": "Bad sku"}', "Bad sku", "Bad sku"),
    (PROBLEM, b'{"title": 7, "detail": ["x"]}', "x", "x"),
    (PROBLEM, b'{"title": 7, "detail": [[]]}', "", '{"title": 7, "detail": [[]]}'),
    (PROBLEM, b'["no", "object"]', "", '["no", "object"]'),
    (PROBLEM, b'{"title": "cut', "", '{"title": "cut'),
    (PROBLEM, b'{"title": " ", "detail": ""}', "", '{"title": " ", "detail": ""}'),
    (PROBLEM, b"", "", ""),
    (JSON, b'{\n  "error": "no sku",\n\t"id": 7\n}', "no sku", '{ "error": "no sku", "id": 7 }'),
    ("application/vnd.shop+json", b'{"error": "x"}', "x", '{"error": "x"}'),
    (TEXT, b"no such sku\r\nX-Evil: 1\n", "", "no such sku X-Evil: 1"),
    ("text/html", b"<h1>Oh</h1><script>alert(1)</script>", "", "<h1>Oh</h1><script>alert(1)</script>"),
    (TEXT, b"\x1b[31mred\x1b[0m\x00\x07 \xe2\x80\xaegnp", "", "[31mred [0m gnp"),
    (TEXT, b"\xff\xfe caf\xe9", "", "�� caf�"),
    (TEXT, "café ".encode() * 200, "", ("café " * 200)[:LONGEST_TEXT].rstrip()),
    (
        TEXT,
        b"cannot reach https://ann:secret@db.local/orders?key=1 now",
        "",
        "cannot reach https://********@db.local/orders?******** now",
    ),
    ("application/octet-stream", b"raw", "", ""),
    ("image/png", b"\x89PNG", "", ""),
]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("kind", "body", "problem", "whole"), TAKEN)
def test_what_is_taken_stands_beside_the_class(kind: str, body: bytes, problem: str, whole: str, reader: str) -> None:
    """Given a failing answer, then each setting takes its part, for a bare record, an envelope and a batch alike."""
    said: dict[FailureText, str] = {"none": "", "problem": problem or (whole and unkept(kind)), "body": whole}
    for wanted, text in said.items():
        assert read(answer(500, kind, body), wanted, reader) == Failed("http-500", text)
        assert read(answer(422, kind, body), wanted, reader) == Rejected("http-422", text)


@given(st.binary(max_size=3_000), st.sampled_from([PROBLEM, JSON, TEXT]), st.sampled_from(["problem", "body"]))
def test_whatever_the_body_is_the_text_is_short_printable_and_on_one_line(body: bytes, kind: str, wanted: Any) -> None:
    text = failure_text(kind.encode(), [], body, wanted)
    assert text.isprintable()
    assert len(text) <= LONGEST_TEXT
    assert len(text.encode()) <= 800
    reason = reason_text("http-500", text)
    assert reason_class(reason) == "http-500", "no text reaches the class"


FOUND = {
    "FastAPI, a model": (
        {"detail": [{"type": "missing", "loc": ["body", "sku"], "msg": "Field required", "input": {}}]},
        "body.sku: Field required",
    ),
    "FastAPI, a list": (
        {"detail": [{"loc": ["body", number, "x"], "msg": f"bad {number}"} for number in range(9)]},
        "body.0.x: bad 0; body.1.x: bad 1; body.2.x: bad 2",
    ),
    "FastAPI, HTTPException": ({"detail": "no sku", "message": "x", "title": "y"}, "no sku"),
    "FastAPI, an object": ({"detail": {"code": "no-sku", "message": "no sku 7"}}, "no sku 7"),
    "FastAPI, an object of its own": (
        {"detail": {"sku": "A-99", "left": 0, "known": False, "x": 1}},
        "sku: A-99; left: 0; known: false",
    ),
    "FastAPI, a list of texts": ({"detail": ["no sku", "no customer"]}, "no sku; no customer"),
    "FastAPI, a list of objects": ({"detail": [{"error": "no sku"}, {"sku": 7}]}, "no sku; sku: 7"),
    "Rails, Laravel, ASP.NET": (
        {"errors": {"sku": ["is unknown", "is short"], "qty": ["is 0"]}},
        "sku: is unknown; is short; qty: is 0",
    ),
    "NestJS": ({"message": ["a is bad", "b is bad", "c", "d"], "error": "Bad Request"}, "a is bad; b is bad; c"),
    "Spring": (
        {"timestamp": "2026", "status": 422, "error": "Unprocessable Content", "path": "/"},
        "Unprocessable Content",
    ),
    "Google": ({"error": {"code": 400, "message": "no sku"}}, "no sku"),
    "OAuth": ({"error": "invalid_request", "error_description": "no sku"}, "no sku"),
    "JSON:API": ({"errors": [{"detail": "no sku", "title": "x"}]}, "no sku"),
    "GraphQL": ({"errors": [{"message": "no sku"}, {"message": "other"}]}, "no sku"),
    "texts": ({"errors": ["no sku", "other"]}, "no sku"),
    "a title": ({"title": "Bad sku", "status": 400}, "Bad sku"),
    "none": ({"status": 400, "path": "/"}, ""),
    "odd": ({"detail": {"a": None}, "message": 7, "error": [], "errors": {"sku": [{}]}, "title": None}, ""),
    "deep": ({"detail": {"a": {"b": {"c": {"d": {"e": "f"}}}}}}, ""),
    "odd entries": ({"detail": [7, {"loc": 1, "msg": "m"}, {"loc": ["b", {}, None], "msg": []}, {"x": 1}]}, "m; b"),
    "no list": ({"message": [], "error": {"message": ""}, "errors": []}, ""),
}


@pytest.mark.parametrize(("body", "text"), FOUND.values(), ids=FOUND)
@pytest.mark.parametrize("kind", [JSON, "application/json; charset=utf-8", "text/plain; charset=utf-8", ""])
def test_the_reason_in_any_json_body_is_found(body: dict[str, Any], text: str, kind: str) -> None:
    """Given bodies as frameworks write them, with a content type of JSON or none, then one text is taken."""
    answered = answer(500, kind, json.dumps(body, indent=1).encode())
    assert read(answered, "problem") == Failed("http-500", text or unkept(kind))


def test_a_body_of_json_that_is_no_object_gives_no_reason() -> None:
    for body in (b'"no sku"', b"[1]", b"7", b"null", b"\xff{}", b'{"error": "x"', b""):
        assert read(answer(500, JSON, body), "problem") == Failed("http-500", (body and unkept(JSON)) or "")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inside: (
            st.lists(inside) | st.dictionaries(st.sampled_from(["loc", "msg", "message", "detail", "sku"]), inside)
        ),
        max_leaves=20,
    ),
    st.sampled_from(["detail", "message", "error", "error_description", "errors", "title"]),
)
def test_whatever_json_a_member_holds_the_text_is_short_printable_and_on_one_line(value: Any, name: str) -> None:
    text = failure_text(JSON.encode(), [], json.dumps({name: value}).encode(), "problem")
    assert text.isprintable()
    assert len(text) <= LONGEST_TEXT


@pytest.mark.parametrize("opening", [b"[", b'{"detail":', b'{"a":['])
@pytest.mark.parametrize("depth", [10, 300, 900, 5_000])
def test_a_reason_that_is_nested_deep_costs_no_recursion(opening: bytes, depth: int) -> None:
    closing = {b"[": b"]", b'{"a":[': b"]}"}.get(opening, b"}")
    body = b'{"detail": ' + opening * depth + b"1" + closing * depth + b"}"
    assert read(answer(500, JSON, body), "problem") == Failed("http-500", unkept(JSON))


DEEP = b'{"title": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
BOMBS = [
    *(b"x" * size for size in (300, 64 * 1024, 70 * 1024, 900 * 1024)),
    *(DEEP, b'{"title": "' + b"\\ud800" * 5_000 + b'"}', b'{"title": "' + b"x" * 60_000 + b'"}'),
]


@pytest.mark.parametrize("kind", [PROBLEM, JSON, TEXT])
@pytest.mark.parametrize("body", BOMBS, ids=lambda body: f"{body[:12]!r} {len(body)}")
def test_a_bomb_costs_a_bounded_buffer_and_the_connection_serves_on(kind: str, body: bytes) -> None:
    """Given bodies up to a MiB, deep or long, in pieces, then the class stands and what is kept is bounded."""
    rules = VerdictRules(failure_text="body")
    reading = ResponseReader(rules, lambda: Now(0, 0), {}, lambda kinds: None)
    data, judged = answer(500, kind, body), None
    for begin in range(0, len(data), 4_096):
        judged = reading.feed(data[begin : begin + 4_096])
        assert sum(map(len, reading._body)) <= rules.longest_body + 4_096
    assert isinstance(judged, Failed)
    assert judged.reason == "http-500"
    assert len(judged.text) <= LONGEST_TEXT
    assert reading.keep_alive
    assert reading.feed(b"HTTP/1.1 204 X\r\n\r\n") is COMMITTED


@given(st.integers(1, 200))
def test_the_text_is_the_same_however_the_answer_is_cut(cut: int) -> None:
    data = answer(400, PROBLEM, b'{"title": "Bad sku", "detail": "no sku 7, and no other one of this kind"}')
    assert read(data, "problem", cut=min(cut, len(data) - 1)) == read(data, "problem")


def test_a_body_that_is_cut_off_gives_what_came() -> None:
    """Given a failing answer whose connection breaks in its body, then its begin is the text: its head has decided."""
    rules = VerdictRules(failure_text="body")
    reading = ResponseReader(rules, lambda: Now(0, 0), {}, lambda kinds: None)
    assert reading.feed(answer(500, "text/plain", b"no such sku")[:-4]) is None
    assert reading.end_response(whole=False) == Failed("http-500", "no such")


def test_a_packed_body_is_not_read() -> None:
    packed = answer(500, PROBLEM, b'{"title": "x"}', "Content-Encoding: gzip\r\n")
    assert read(packed, "body") == Failed("http-500")


def test_a_text_that_the_service_wrote_for_us_stands() -> None:
    """Given a verdict with a reason of its own, then the body adds nothing; without one it does."""
    body = b'{"title": "Bad sku"}'
    told = answer(500, PROBLEM, body, "Reconsume-Verdict: retry; reason=stock is locked\r\n")
    assert read(told, "problem") == Failed("retry-asked", "stock is locked", asked=True)
    bare = answer(500, PROBLEM, body, "Reconsume-Verdict: dead-letter\r\n")
    assert read(bare, "problem") == Rejected("dead-letter-asked", "Bad sku")
    word = answer(500, PROBLEM, body, "Reconsume-Verdict: retry; reason=busy\r\n")
    assert read(word, "problem") == Failed("busy", "Bad sku", asked=True)


def test_what_is_no_failure_takes_no_text() -> None:
    body = b'{"title": "wait"}'
    assert read(answer(200, PROBLEM, body), "body") is COMMITTED
    assert isinstance(read(answer(429, PROBLEM, body), "body"), Throttled)
    assert read(answer(500, PROBLEM, body, "Reconsume-Verdict: commit\r\n"), "body") is COMMITTED


def test_each_record_of_a_batch_keeps_what_its_own_verdict_says() -> None:
    """Given a failing batch with a list of verdicts, then no text of the whole stands on a single record."""
    ids = [record.id for record in RECORDS]
    entries = [
        {"id": ids[0], "verdict": "retry", "reason": "stock is locked"},
        {"id": ids[1], "verdict": "commit"},
    ]
    judged = read(answer(500, JSON, json.dumps({"verdicts": entries}).encode()), "body", "batch")
    assert judged == Verdicts([Failed("retry-asked", "stock is locked", asked=True), COMMITTED])
