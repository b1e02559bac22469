"""Which of a record's own headers travel, and in which form."""

from __future__ import annotations

import base64
import tracemalloc
from urllib.parse import unquote_to_bytes

import pytest

from reconsume.sidecar.delivery.push.forwarded_headers import Forward
from reconsume.topics.retry_headers import Headers
from tests.support.sidecar.push_requests import ALWAYS, a_record, read

PARENT = b"00-" + b"a1" * 16 + b"-" + b"b1" * 8 + b"-01"


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
        *((value, "text/csv") for value in (b"text/plain\r\nX: y", b"", "text/pl\u00e4n".encode(), b"x" * 300, None)),
        *((value, "text/csv") for value in (b"application/vnd.reconsume+json", b"Application/VND.Reconsume+JSON; a")),
    ],
)
def test_the_record_s_own_content_type_is_sent_where_http_can_carry_it(value: bytes | None, sent: str) -> None:
    """Given a content-type header of any case, then it is sent; one that cannot be, or is ours, counts as none."""
    record = a_record(headers=[("Content-Type", value)])
    assert read(record, content_type="text/csv")["Content-Type"] == sent


def test_of_two_content_types_the_last_one_counts() -> None:
    """Given one header twice, then an unusable last one counts as none, as Kafka's clients read the last."""
    twice: Headers = [("content-type", b"text/plain"), ("Content-Type", b"text/xml")]
    assert read(a_record(headers=twice))["Content-Type"] == "text/xml"
    assert read(a_record(headers=[*twice, ("content-type", b"\n")]))["Content-Type"] == "application/json"


def test_tracing_and_cloud_events_travel_without_being_asked_for() -> None:
    """Given no forward list, then these and nothing else of the record's own headers travel."""
    headers: Headers = [
        ("traceparent", PARENT),
        ("TraceState", b"a=b"),
        ("baggage", b"c=d"),
        ("ce_type", b"order.created"),
        ("ce_", b"no name"),
        ("tenant", b"7"),
    ]
    expected = [
        ("traceparent", PARENT.decode()),
        ("tracestate", "a=b"),
        ("baggage", "c=d"),
        ("ce-type", "order.created"),
    ]
    assert own_headers(headers) == expected


def test_headers_travel_by_name_and_glob_in_their_order_with_duplicates() -> None:
    """Given a forward list, then its globs match without regard to case; nulls are left out."""
    headers: Headers = [("X-A", b"1"), ("tenant", b"7"), ("x-b", b"2"), ("X-A", b"3"), ("x-null", None), ("other", b"")]
    assert own_headers(headers, "x-*", "Tenant") == [("X-A", "1"), ("tenant", "7"), ("x-b", "2"), ("X-A", "3")]


@pytest.mark.parametrize(
    "name",
    [
        *("Connection", "keep-alive", "TE", "Trailer", "Upgrade", "Proxy-Authorization", "Transfer-Encoding", "Expect"),
        *("Host", "Content-Length", "X-HTTP-Method-Override"),
        *("Reconsume-Id", "reconsume-verdict", "Idempotency-Key", "idempotency_key", "Reconsume_Id", "reconsume.id"),
        *("content_length", "Content_Length", "TRANSFER_ENCODING"),
        *("", "a b", "a:b", "a\r\nb", "ä", "a\udc80", "x" * 129),
        *("Content-Encoding", "Content-Range", "Content-Disposition", "Accept", "Accept-Encoding", "Range", "If-Match"),
        *(
            "If-None-Match",
            "If-Modified-Since",
            "Via",
            "Max-Forwards",
            "Early-Data",
            "HTTP2-Settings",
            "Proxy-Connection",
        ),
        *("Upgrade-Insecure-Requests", "X-Method-Override", "Prefer", "Alt-Used"),
    ],
)
def test_names_that_would_change_the_request_never_travel(name: str) -> None:
    """Given lists that forward everything, or just this name, then it is left out all the same."""
    assert own_headers([(name, b"v")], "?*") == []
    if name.isascii() and name.isprintable() and name and " " not in name and len(name) < 129:
        assert own_headers([(name, b"v")], name.replace("*", "?")) == []


@pytest.mark.parametrize("name", ["X-User-Id", "Authorization", "Cookie", "X-SPIFFE-ID", "REAL_TOPIC", "RETRY_GROUP"])
def test_what_the_operator_names_travels_whatever_it_may_mean(name: str) -> None:
    """Given a name in any case, and with `_` for `-`, then it is the same name."""
    for spelled in (name, name.lower(), name.replace("-", "_")):
        assert own_headers([(spelled, b"v")], name) == [(spelled, "v")]


@pytest.mark.parametrize(
    ("values", "sent"),
    [
        ([b"TagA"], ("Reconsume-Tags", "TagA")),
        ([b"TagA", b"TagB"], ("Reconsume-Tags", "TagB")),
        ([b"TagA", None], None),
        (["Größe".encode()], ("Reconsume-Tags-Base64", base64.b64encode("Größe".encode()).decode())),
        ([b"a\r\nX: y"], ("Reconsume-Tags-Base64", base64.b64encode(b"a\r\nX: y").decode())),
    ],
)
def test_the_last_tags_of_a_record_are_sent_as_reconsume_tags(
    values: list[bytes | None], sent: tuple[str, str] | None
) -> None:
    headers: Headers = [("TAGS", value) for value in values]
    assert own_headers(headers) == ([] if sent is None else [sent])
    assert own_headers([("tags", b"TagA"), ("Reconsume-Tags", b"forged")], "x-acme-*") == []


def test_tags_that_the_operator_forwards_are_sent_under_both_names() -> None:
    headers: Headers = [("TAGS", b"TagA"), ("TAGS", b"TagB")]
    assert own_headers(headers, "tags") == [("Reconsume-Tags", "TagB"), ("TAGS", "TagA"), ("TAGS", "TagB")]


def test_a_request_with_an_envelope_has_the_tags_too() -> None:
    assert read(a_record(headers=[("TAGS", b"TagA")]), envelope=True)["Reconsume-Tags"] == "TagA"


def test_everything_alone_means_cloud_events_and_the_trace() -> None:
    headers: Headers = [(name, b"v") for name in ("X-Tenant", "X-SPIFFE-ID", "iv-creds", "REAL_TOPIC", "ce_id", "ce-x")]
    assert own_headers([*headers, ("traceparent", PARENT)], "*") == [
        ("ce-id", "v"),
        ("ce-x", "v"),
        ("traceparent", PARENT.decode()),
    ]


def test_what_the_sidecar_adds_itself_no_record_brings() -> None:
    """Given a token for the service, then not even a glob lets a record say who calls."""
    record = a_record(headers=[("Authorization", b"forged"), ("AUTHORIZATION", b"forged"), ("x-auth", b"1")])
    names = read(record, forward_headers=("auth*", "x-auth"), written=frozenset({"authorization"})).names
    assert "x-auth" in names
    assert "authorization" not in {name.lower() for name in names}


@pytest.mark.parametrize("value", [b"a\r\nX: y", b"a\nb", b"a\0b", b"\x7f", b"tab\there", b"\x1b[31m"])
def test_values_with_control_characters_travel_as_base64_and_in_events_percent_encoded(value: bytes) -> None:
    """Given such a value, then it is whole on the other side, and ends no line."""
    (event, plain) = own_headers([("tenant", value), ("ce_id", value)], "?*")
    assert plain == ("tenant-Base64", base64.b64encode(value).decode())
    assert (event[0], unquote_to_bytes(event[1])) == ("ce-id", value)


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (b"order.created", "order.created"),
        ("Euro € \U0001f600".encode(), "Euro%20%E2%82%AC%20%F0%9F%98%80"),
        (b'say "100%"', "say%20%22100%25%22"),
        (b"\xff", "%FF"),
        (b"!#$&'()*+,-./:;<=>?@[]^_`{|}~\\", "!#$&'()*+,-./:;<=>?@[]^_`{|}~\\"),
    ],
)
def test_attributes_of_events_travel_by_the_http_binding(value: bytes, sent: str) -> None:
    """Given an attribute, then what is no printable ASCII, space, quote and percent are encoded."""
    assert own_headers([("ce_subject", value)]) == [("ce-subject", sent)]


OTHER = PARENT.replace(b"1", b"2")


def test_of_a_trace_or_an_event_that_a_record_has_twice_the_last_one_is_sent() -> None:
    """Given each of them twice, then servers get one value; others are sent as often as they are there."""
    names = ("traceparent", "tracestate", "baggage", "ce_type")
    headers: Headers = [*((name, PARENT) for name in names), *((name.title(), OTHER) for name in names)]
    sent = [(name.replace("_", "-"), OTHER.decode()) for name in names]
    assert own_headers([*headers, ("a", b"1"), ("a", b"2")], "?*") == [*sent, ("a", "1"), ("a", "2")]
    assert own_headers([("ce_type", b"x"), ("ce-type", b"y")], "?*") == [("ce-type", "y")]
    assert own_headers([("baggage", b"x"), ("baggage", None)]) == [], "the last one is null"


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"00-1-2-01", PARENT.upper(), PARENT + b"-x", PARENT[:-1], b"ff" + PARENT[2:], b" " + PARENT),
        *(PARENT.replace(b"a1" * 16, b"00" * 16), PARENT.replace(b"b1" * 8, b"00" * 8), b"01" + PARENT[2:] + b"x"),
    ],
)
def test_a_malformed_traceparent_is_not_sent(value: bytes) -> None:
    """Given it behind a good one, then neither is: a server would read the last."""
    assert own_headers([("traceparent", PARENT), ("traceparent", value)]) == []


def test_a_traceparent_of_a_later_version_is_sent_with_what_it_adds() -> None:
    later = b"01" + PARENT[2:] + b"-more"
    assert own_headers([("traceparent", later)]) == [("traceparent", later.decode())]


def test_where_not_all_fits_the_trace_and_the_event_go_first() -> None:
    """Given more headers than may be sent, then none of these is among those that are left out."""
    many: Headers = [(f"n{number}", b"") for number in range(100)]
    found = [name for name, _ in own_headers([*many, ("traceparent", PARENT), ("ce_type", b"x")], "?*")]
    assert found[:2] == ["traceparent", "ce-type"]
    assert len(found) == 64


def test_headers_of_another_group_travel_from_a_main_topic_and_mean_nothing() -> None:
    """Given a dead letter of another group on a main topic, then its headers are like any other ones."""
    headers: Headers = [("RECONSUMETIMES", b"16"), ("__dlq.errors.topic", b"orders"), ("RETRY_REASON", b"http-500")]
    assert own_headers(headers, "?*") == [(name, (value or b"").decode()) for name, value in headers]
    assert own_headers(headers) == []


@pytest.mark.parametrize("value", [b"\xff\xfe", "zürich".encode(), b" spaces "])
def test_values_that_a_header_cannot_carry_travel_as_base64(value: bytes) -> None:
    """Given such a value, then its name says so."""
    assert own_headers([("city", value)], "city") == [("city-Base64", base64.b64encode(value).decode())]


def test_forwarded_headers_keep_a_budget() -> None:
    """Given more headers than services take, then so many travel that the head has 8 KiB at most, and 64 of them."""
    large: Headers = [("a", b"x" * 5_000), ("b", b"x" * 5_000), ("c", b"small")]
    assert [name for name, _ in own_headers(large, "?*")] == ["a", "c"]
    many: Headers = [(f"n{number}", b"") for number in range(200)]
    assert len(own_headers(many, "?*")) == 64


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
