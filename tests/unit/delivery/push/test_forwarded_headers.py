"""Which of a record's own headers travel, and in which form."""

from __future__ import annotations

import base64
import tracemalloc

import pytest

from sidecar.delivery.push.forwarded_headers import Forward
from tests.support.sidecar.push_requests import ALWAYS, a_record, read
from topics.headers import Headers


def own_headers(headers: Headers, *forward: str) -> list[tuple[str, str]]:
    """The headers that a record's own ones became."""
    expected = [*ALWAYS, "Reconsume-Key", "Content-Type", "Content-Length"]
    found = read(a_record(headers=headers), forward_headers=forward).headers
    return [(name, value) for name, value in found if name not in expected]


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (b"application/json", "application/json"),
        (b"application/cloudevents+json; charset=utf-8", "application/cloudevents+json; charset=utf-8"),
        (b"text/plain\r\nX: y", "application/octet-stream"),
        (b"", "application/octet-stream"),
        ("text/plän".encode(), "application/octet-stream"),
        (b"x" * 300, "application/octet-stream"),
        (None, "application/octet-stream"),
    ],
)
def test_the_content_type_is_the_record_s_where_it_is_a_header_value(value: bytes | None, sent: str) -> None:
    """Given a content-type header of any case, then it is sent as it is, or octet-stream is."""
    assert read(a_record(headers=[("Content-Type", value)]))["Content-Type"] == sent


def test_tracing_and_cloud_events_travel_without_being_asked_for() -> None:
    """Given no forward list, then these and nothing else of the record's own headers travel."""
    headers: Headers = [
        ("traceparent", b"00-1-2-01"),
        ("TraceState", b"a=b"),
        ("baggage", b"c=d"),
        ("ce_type", b"order.created"),
        ("ce_", b"no name"),
        ("tenant", b"7"),
    ]
    expected = [("traceparent", "00-1-2-01"), ("tracestate", "a=b"), ("baggage", "c=d"), ("ce-type", "order.created")]
    assert own_headers(headers) == expected


def test_headers_travel_by_name_and_glob_in_their_order_with_duplicates() -> None:
    """Given a forward list, then its globs match without regard to case; nulls are left out."""
    headers: Headers = [("X-A", b"1"), ("tenant", b"7"), ("x-b", b"2"), ("X-A", b"3"), ("x-null", None), ("other", b"")]
    assert own_headers(headers, "x-*", "Tenant") == [("X-A", "1"), ("tenant", "7"), ("x-b", "2"), ("X-A", "3")]


@pytest.mark.parametrize(
    "name",
    [
        *("Connection", "keep-alive", "TE", "Trailer", "Upgrade", "Proxy-Authorization", "Transfer-Encoding", "Expect"),
        *("Host", "Authorization", "Content-Length", "X-Forwarded-For", "Forwarded", "X-HTTP-Method-Override"),
        *("Reconsume-Id", "reconsume-verdict", "Idempotency-Key", "idempotency_key", "Reconsume_Id", "reconsume.id"),
        *("X_Forwarded_For", "content_length", "RECONSUMETIMES", "__dlq.errors.topic"),
        *("", "a b", "a:b", "a\r\nb", "ä", "a\udc80", "x" * 129),
    ],
)
def test_names_that_would_change_the_request_never_travel(name: str) -> None:
    """Given a list that forwards everything, then these are left out all the same."""
    assert own_headers([(name, b"v")], "*") == []


@pytest.mark.parametrize("value", [b"a\r\nX: y", b"a\nb", b"a\0b", b"\x7f", b"tab\there", b"\x1b[31m"])
def test_values_with_control_characters_are_left_out(value: bytes) -> None:
    """Given such a value, then it is not mended into another one."""
    assert own_headers([("tenant", value), ("ce_id", value)], "*") == []


@pytest.mark.parametrize("value", [b"\xff\xfe", "zürich".encode(), b" spaces "])
def test_values_that_a_header_cannot_carry_travel_as_base64(value: bytes) -> None:
    """Given such a value, then its name says so."""
    assert own_headers([("city", value)], "city") == [("city-Base64", base64.b64encode(value).decode())]


def test_forwarded_headers_keep_a_budget() -> None:
    """Given more headers than services take, then so many travel that the head has 8 KiB at most, and 64 of them."""
    large: Headers = [("a", b"x" * 5_000), ("b", b"x" * 5_000), ("c", b"small")]
    assert [name for name, _ in own_headers(large, "*")] == ["a", "c"]
    many: Headers = [(f"n{number}", b"") for number in range(200)]
    assert len(own_headers(many, "*")) == 64


def test_names_as_long_as_records_fill_no_memory() -> None:
    """Given a producer that invents a long name of a header for each record, then none of them is kept."""
    forward = Forward(("x-*",))
    tracemalloc.start()
    try:
        for number in range(50):
            assert forward([(f"x-{number}-" + "a" * 100_000, b"1")]).lines == ""
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000
