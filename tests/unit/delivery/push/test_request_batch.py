"""A batch as a service sees it: one request, each record faithfully in it."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.record import Record
from reconsume.sidecar.delivery.push.request import RenderBatch
from reconsume.sidecar.delivery.push.target import parse_target
from reconsume.topics.retry_headers import RECONSUMETIMES, RetryState
from tests.support.sidecar.push_requests import Read, a_record

TARGET = parse_target("http://127.0.0.1:8080/events?a=b", False)


def sent(*records: Record, group: str = "billing") -> Read:
    """The request as a strict parser reads it; what it holds is what `part` and `empty` foretell."""
    render = RenderBatch(TARGET, group, 30_000)
    parts = [render.part(record) for record in records]
    read = Read(render(parts))
    assert (read.begun, read.complete) == (1, 1)
    assert len(read.body) == render.empty + sum(len(part) + 1 for part in parts) - 1
    return read


def letters(*records: Record) -> list[dict[str, Any]]:
    found = json.loads(sent(*records).body)
    assert found["group"] == "billing"
    return list(found["records"])


def test_a_batch_has_its_group_and_its_type_outside_and_nothing_of_a_record() -> None:
    """Given two records with keys and headers, then no header of the request tells one of them."""
    read = sent(a_record(headers=[("traceparent", b"00-1")]), a_record(offset=1025))
    assert (read.method, read.url) == (b"POST", b"/events?a=b")
    assert read.names == ["Host", "Reconsume-Group", "Reconsume-Timeout", "Content-Type", "Content-Length"]
    assert read["Content-Type"] == "application/vnd.reconsume+json"
    assert read["Reconsume-Group"] == "billing"


def test_every_record_stands_in_it_as_in_an_envelope_in_order() -> None:
    """Given a record of a main topic and a retried one, then both say who they are and how often they came."""
    life = RetryState("orders:5:77", "orders", times=2, redrives=1, timestamp=1_700_000_000_000)
    first, again = letters(
        a_record(headers=[("é", None), ("a", b"1"), ("a", b"")]), a_record(offset=9, retry_state=life)
    )
    assert first == {
        "id": "orders:3:1024",
        "idempotency_key": "billing/orders:3:1024/0",
        "times": 0,
        "redrives": 0,
        "topic": "orders",
        "partition": 3,
        "offset": 1024,
        "timestamp": 1_763_690_000_000,
        "key_base64": base64.b64encode(b"customer-1").decode(),
        "value_base64": base64.b64encode(b"{}").decode(),
        "headers": [["é", None], ["a", "MQ=="], ["a", ""]],
    }
    assert (again["id"], again["times"], again["redrives"]) == ("orders:5:77", 2, 1)
    assert (again["idempotency_key"], "cycle" in again) == ("billing/orders:5:77/1", False)
    assert (again["partition"], again["offset"], again["timestamp"]) == (5, 77, 1_700_000_000_000)


def test_a_record_of_a_later_cycle_says_so() -> None:
    """Given a copy that was written after a reset, then its cycle is in the record, and in its key."""
    (found,) = letters(a_record(retry_state=RetryState("orders:5:77", "orders", redrives=1, cycle=2)))
    assert (found["cycle"], found["idempotency_key"]) == (2, "billing/orders:5:77/2.1")


def test_a_retry_in_memory_is_counted() -> None:
    """Given a record that is retried in place, then `times` says so."""
    assert letters(a_record(again=3))[0]["times"] == 3


def test_our_headers_do_not_travel_and_the_record_s_own_are_left_as_they_are() -> None:
    """Given a copy, then only the others go; and the record itself is not changed."""
    headers = [("a", b"1"), (RECONSUMETIMES, b"9"), ("b", None)]
    record = a_record(headers=headers, retry_state=RetryState("orders:5:77", "orders"))
    assert letters(record)[0]["headers"] == [["a", "MQ=="], ["b", None]]
    assert record.headers == [("a", b"1"), (RECONSUMETIMES, b"9"), ("b", None)]


def test_headers_of_another_group_on_a_main_topic_travel_like_any_other() -> None:
    """Given a record of a main topic, then what it has under our names means nothing here, and the service sees it."""
    record = a_record(headers=[("a", b"1"), (RECONSUMETIMES, b"9")])
    assert letters(record)[0]["headers"] == [["a", "MQ=="], [RECONSUMETIMES, "OQ=="]]
    assert letters(record)[0]["times"] == 0


@given(
    st.lists(
        st.builds(
            a_record,
            key=st.none() | st.binary(max_size=20),
            value=st.none() | st.binary(max_size=40),
            headers=st.none() | st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=4),
            offset=st.integers(0, 2**62),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_records_hold_comes_back(records: list[Record]) -> None:
    """Given any bytes and names, then the JSON gives them back, null apart from empty."""
    for record, found in zip(records, letters(*records), strict=True):
        for name, value in (("key_base64", record.key), ("value_base64", record.value)):
            assert found[name] == (None if value is None else base64.b64encode(value).decode())
        back = [(name, None if text is None else base64.b64decode(text)) for name, text in found["headers"]]
        assert [pair for pair in back if "?" not in pair[0]] == [p for p in record.headers or [] if "?" not in p[0]]


def test_a_name_with_a_lone_surrogate_does_not_break_the_batch() -> None:
    """Given a header that JSON cannot carry, then it is mended, in its own record alone."""
    first, second = letters(a_record(headers=[("a\ud800", b"1")]), a_record(headers=[("b", b"2")]))
    assert first["headers"] == [["a?", "MQ=="]]
    assert second["headers"] == [["b", "Mg=="]]
