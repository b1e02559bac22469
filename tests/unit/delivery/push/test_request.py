"""A record as request bytes: read back by a strict parser, whatever the record holds."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.pace.refusals import Sent
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.delivery.push.request import Render
from reconsume.sidecar.delivery.push.settings import PushSettings
from reconsume.sidecar.delivery.push.target import parse_target
from reconsume.sidecar.delivery.push.topic_call import TopicCall
from reconsume.topics.retry_headers import Headers, RetryState
from tests.support.sidecar.push_requests import ALWAYS, a_record, read, rendered

OURS_WHEN_THERE = {"Reconsume-Key", "Reconsume-Key-Base64", "Reconsume-Key-Omitted", "Reconsume-Null"}
LIFE = RetryState(id="orders:3:1024", topic="orders", times=2, redrives=1, timestamp=1_700_000_000_000)


def test_a_first_delivery_says_where_the_record_is() -> None:
    """Given a record of a main topic, then these are all the bytes."""
    assert rendered(a_record()) == (
        b"POST /events?a=b HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nReconsume-Group: billing\r\n"
        b"Reconsume-Timeout: 1\r\n"
        b"Reconsume-Times: 0\r\nReconsume-Redrives: 0\r\nReconsume-Topic: orders\r\nReconsume-Partition: 3\r\n"
        b"Reconsume-Id: orders:3:1024\r\nIdempotency-Key: billing/orders:3:1024/0\r\nReconsume-Offset: 1024\r\n"
        b"Reconsume-Timestamp: 1763690000000\r\nReconsume-Key: customer-1\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )


JSON, BYTES = "application/json", "application/octet-stream"


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        *(
            (value, JSON)
            for value in (b"{}", b'{"a": 1}', b"[]", b"[1, 2]", b' \t\r\n{"a": 1}\r\n ', b"[x]", b"{}\n{}\n")
        ),
        *(
            (value, BYTES)
            for value in (b"", b" ", b"{", b"}", b"{]", b"[}", b'"text"', b"7", b"null", b"\0{}", b"{}\0")
        ),
        (b"\0\0\0\0\x07{}", BYTES),
    ],
)
def test_a_value_between_brackets_is_sent_as_json_and_any_other_as_bytes(value: bytes, sent: str) -> None:
    """Given a value without a content type, then its ends decide, but for white space; its middle is not read."""
    assert read(a_record(value=value))["Content-Type"] == sent
    assert read(a_record(value=value)).body == value


def test_a_fixed_content_type_is_that_of_every_value_without_one_and_a_topic_may_have_another() -> None:
    own: Headers = [("content-type", b"text/xml")]
    terms = {"content_type": "text/csv", "content_types": {"bills": "auto", "fees": "text/plain"}}
    for topic, value, sent in (("orders", b"{}", "text/csv"), ("bills", b"{}", JSON), ("fees", b"{}", "text/plain")):
        assert read(a_record(source=Partition(topic, 0), value=value), **terms)["Content-Type"] == sent
        assert (
            read(a_record(source=Partition(topic, 0), value=value, headers=own), **terms)["Content-Type"] == "text/xml"
        )
    retried = a_record(source=Partition("billing-RETRY-10s", 0), retry_state=LIFE)
    assert read(retried, content_types={"orders": "text/csv"})["Content-Type"] == "text/csv", "by its main topic"


@pytest.mark.parametrize("settings", [{}, {"content_type": "text/csv"}])
def test_a_null_value_has_no_content_type_whatever_its_header_says(settings: dict[str, str]) -> None:
    found = read(a_record(value=None, headers=[("content-type", b"text/xml")]), **settings)
    assert "Content-Type" not in found.names
    assert (found["Reconsume-Null"], found["Content-Length"]) == ("value", "0")


@pytest.mark.parametrize(
    ("changes", "settings", "sent"),
    [
        ({}, {}, Sent("POST", "/events?********", JSON)),
        ({"value": None}, {}, Sent("POST", "/events?********", "")),
        ({"headers": [("content-type", b"text/xml")]}, {}, Sent("POST", "/events?********", "text/xml")),
        ({}, {"calls": {"orders": TopicCall(path="/bills")}}, Sent("POST", "/bills", JSON)),
        ({}, {"envelope": True}, Sent("POST", "/events?********", "application/vnd.reconsume+json")),
        ({}, {"batch_size": 8}, Sent("POST", "/events?********", "application/vnd.reconsume+json")),
    ],
)
def test_what_is_told_of_a_request_is_what_was_sent_without_its_query(
    changes: dict[str, Any], settings: dict[str, Any], sent: Sent
) -> None:
    terms = PushSettings("billing", 1, **settings)
    assert Render(parse_target("http://127.0.0.1:8080/events?a=b", False), terms).sent(a_record(**changes)) == sent


@pytest.mark.parametrize(("life", "times"), [(None, 3), (LIFE, 5)])
def test_a_try_in_place_is_a_retry_of_its_own(life: RetryState | None, times: int) -> None:
    """Given three tries in place, then they count like retries, and all have the same Idempotency-Key."""
    redrives = 0 if life is None else life.redrives
    found = read(a_record(retry_state=life, again=3))
    assert found["Reconsume-Times"] == str(times)
    assert found["Idempotency-Key"] == f"billing/orders:3:1024/{redrives}"
    origin = (found["Reconsume-Topic"], found["Reconsume-Partition"], found["Reconsume-Offset"])
    assert origin == ("orders", "3", "1024")
    assert found["Reconsume-Timestamp"] == str(a_record().timestamp if life is None else life.timestamp)


def test_a_retry_says_where_its_first_copy_was() -> None:
    """Given a copy on a level topic, then topic, partition, offset and time are those of the origin."""
    found = read(a_record(source=Partition("billing-RETRY-10s", 7), offset=55, retry_state=LIFE))
    assert found["Reconsume-Id"] == "orders:3:1024"
    assert (found["Reconsume-Topic"], found["Reconsume-Partition"], found["Reconsume-Offset"]) == (
        "orders",
        "3",
        "1024",
    )
    assert found["Reconsume-Timestamp"] == "1700000000000"
    assert (found["Reconsume-Times"], found["Reconsume-Redrives"]) == ("2", "1")
    assert found["Idempotency-Key"] == "billing/orders:3:1024/1"
    assert "Reconsume-Cycle" not in found.names


def test_a_record_of_a_later_cycle_says_so_and_has_another_key() -> None:
    """Given copies before and after a reset, then their keys differ although their other counts are the same."""
    before, after = (read(a_record(retry_state=replace(LIFE, cycle=cycle))) for cycle in (0, 3))
    assert (after["Reconsume-Cycle"], after["Reconsume-Redrives"], after["Reconsume-Times"]) == ("3", "1", "2")
    assert after["Idempotency-Key"] == "billing/orders:3:1024/3.1" != before["Idempotency-Key"]


@pytest.mark.parametrize(
    ("key", "name", "value"),
    [
        (b"", "Reconsume-Key", ""),
        (b"a-1!~", "Reconsume-Key", "a-1!~"),
        (b"a b", "Reconsume-Key-Base64", base64.b64encode(b"a b").decode()),
        (b"a\r\nX: y", "Reconsume-Key-Base64", base64.b64encode(b"a\r\nX: y").decode()),
        ("schlüssel".encode(), "Reconsume-Key-Base64", base64.b64encode("schlüssel".encode()).decode()),
    ],
)
def test_a_key_that_is_not_visible_ascii_is_sent_as_base64(key: bytes, name: str, value: str) -> None:
    """Given a key, then exactly one of the two headers is there."""
    found = read(a_record(key=key))
    assert [pair for pair in found.headers if pair[0].startswith("Reconsume-Key")] == [(name, value)]


@pytest.mark.parametrize("key", [b"k" * 4_097, b"\xff" * 900_000])
def test_a_key_that_no_server_takes_in_a_header_says_its_length_and_is_in_the_envelope(key: bytes) -> None:
    """Given a key above 4 KiB, then it does not burn the record's attempts by a head that is refused."""
    found = read(a_record(key=key))
    assert [pair for pair in found.headers if "Key" in pair[0] and pair[0] != "Idempotency-Key"] == [
        ("Reconsume-Key-Omitted", str(len(key)))
    ]
    assert "Reconsume-Key-Omitted" not in read(a_record(key=key[:4_096])).names
    letter = msgspec.json.decode(read(a_record(key=key), envelope=True).body)
    assert base64.b64decode(letter["records"][0]["key_base64"]) == key


@pytest.mark.parametrize("key", [b"k" * 4_096, b"\xff" * 4_096, b"k" * 900_000, None])
@pytest.mark.parametrize("life", [None, RetryState(id="ä" * 500, topic="o" * 249)])
def test_no_head_is_larger_than_the_smallest_that_servers_take(key: bytes | None, life: RetryState | None) -> None:
    """Given a long key, a long id and headers of 8 KiB, all forwarded, then the whole head stays below 8 KiB."""
    headers: Headers = [*((f"h{number}", b"x" * 500) for number in range(100)), ("content-type", b"a/" + b"b" * 250)]
    data = rendered(a_record(key=key, headers=headers, retry_state=life, value=None), forward_headers=("?*",))
    head = data.partition(b"\r\n\r\n")[0]
    assert 3_000 < len(head) + 4 <= 8 * 1024


def test_null_is_not_empty() -> None:
    """Given a null key and a null value, then no key header, an empty body and the mark."""
    found = read(a_record(key=None, value=None))
    assert not any(name.startswith("Reconsume-Key") for name in found.names)
    assert (found["Reconsume-Null"], found["Content-Length"], found.body) == ("value", "0", b"")
    assert "Reconsume-Null" not in read(a_record(value=b"")).names


def test_the_envelope_carries_everything() -> None:
    """Given headers with order, duplicates, nulls and binary values, then the body has them all, without ours."""
    headers: Headers = [
        ("b", b"\xff"),
        ("a", None),
        ("b", b""),
        ("RECONSUMETIMES", b"2"),
        ("tracestate", b"00-1-2-01"),
    ]
    record = a_record(
        key=None, value=b"\0\1", headers=headers, retry_state=LIFE, source=Partition("billing-RETRY-10s", 7)
    )
    found = read(record, envelope=True, forward_headers=("?*",))
    assert msgspec.json.decode(found.body) == {
        "group": "billing",
        "records": [
            {
                "id": "orders:3:1024",
                "idempotency_key": "billing/orders:3:1024/1",
                "times": 2,
                "redrives": 1,
                "topic": "orders",
                "partition": 3,
                "offset": 1024,
                "timestamp": 1_700_000_000_000,
                "key_base64": None,
                "value_base64": "AAE=",
                "headers": [["b", "/w=="], ["a", None], ["b", ""], ["tracestate", "MDAtMS0yLTAx"]],
            }
        ],
    }
    assert found["Content-Type"] == "application/vnd.reconsume+json"
    assert found.names == [*ALWAYS, "tracestate", "Content-Type", "Content-Length"]


texts = st.text(max_size=40) | st.text(st.characters(codec=None), max_size=20) | st.sampled_from(["X", "Host", "ce_a"])
values = st.none() | st.binary(max_size=200) | st.sampled_from([b"a\r\nX-Evil: 1", b"v", b"chunked", b"0"])
lives = st.none() | st.builds(
    RetryState,
    id=texts | st.just("orders:3:1"),
    topic=texts,
    times=st.integers(),
    redrives=st.integers(),
    timestamp=st.integers(),
)
records = st.builds(
    a_record,
    source=st.builds(Partition, texts, st.integers(0, 2**31)),
    offset=st.integers(0, 2**63),
    key=values,
    value=values,
    headers=st.none() | st.lists(st.tuples(texts, values), max_size=12),
    retry_state=lives,
)


@given(record=records)
@example(record=a_record(headers=[("X\r\nX-Evil", b"1"), ("X", b"a\r\n\r\nPOST / HTTP/1.1\r\n\r\n")]))
@example(record=a_record(headers=[("a\ud800", b"1")], retry_state=RetryState(id="a\ud800", topic="a\ud800")))
@example(record=a_record(source=Partition("a\r\nX-Evil: 1", 1)))
@example(record=a_record(retry_state=RetryState(id="a:b\r\nX-Evil: 1", topic="\r\n")))
def test_whatever_a_record_holds_it_is_one_request_with_no_header_more(record: Record) -> None:
    """Given hostile names, keys, values and headers, all forwarded, then one request, its body, known headers."""
    found = read(record, forward_headers=("?*",))
    assert (found.begun, found.complete, found.method, found.url) == (1, 1, b"POST", b"/events?a=b")
    assert found.body == (record.value or b"")
    assert found.names[: len(ALWAYS)] == ALWAYS
    end = ["Content-Length"] if record.value is None else ["Content-Type", "Content-Length"]
    assert found.names[-len(end) :] == end
    assert len(found.names) == len(set(found.names[: len(ALWAYS)])) + len(found.names[len(ALWAYS) :])
    between = found.names[len(ALWAYS) : -len(end)]
    names = {name.lower() for name, _ in record.headers or []}
    carried = names | {name.replace("ce_", "ce-", 1) for name in names}
    for name in between:
        assert name in OURS_WHEN_THERE or name.lower().removesuffix("-base64") in carried
    assert [name.lower() for name in found.names].count("host") == 1


@given(record=records)
@example(record=a_record(headers=[("a\ud800", b"1")], retry_state=RetryState(id="a\ud800", topic="a\ud800")))
def test_whatever_a_record_holds_it_fits_the_envelope(record: Record) -> None:
    """Given the same, then the envelope is JSON and has the value."""
    found = read(record, envelope=True)
    (inside,) = msgspec.json.decode(found.body)["records"]
    expected = None if record.value is None else base64.b64encode(record.value).decode()
    assert inside["value_base64"] == expected
