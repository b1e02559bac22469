"""From bytes to facts: what is believed of a record on our topics, and what is not."""

from __future__ import annotations

import json

import pytest

from reconsume.sidecar.audit.facts import Fact, FactKind
from reconsume.sidecar.audit.parsing import TopicRecord, copy_fact, digest_of, event_fact, main_fact, only_postponed
from reconsume.topics.events import State
from reconsume.topics.retry_headers import RETRY_GROUP, RETRY_TOPIC, Headers
from tests.support.proof.history import copy_row, event_row, life

LIFE = life("orders:0:1", 2, 1_700_000_001_000, "http-500: no")
TOPIC = "billing-RETRY-1s"
SOURCES = frozenset({"orders", TOPIC})


def row(**changed: bytes | None) -> TopicRecord:
    found = copy_row(TOPIC, 5, 1_700_000_000_000, LIFE)
    headers: Headers = [(name, changed.get(name, value)) for name, value in found.headers]
    return TopicRecord(TOPIC, 0, 5, found.timestamp, found.key, found.value, headers)


def fact(given: TopicRecord) -> Fact:
    return copy_fact(given, FactKind.COPY, "billing", SOURCES, later=False)


def test_a_copy_as_agreed_is_read() -> None:
    found = fact(row())
    assert (found.what, found.id, found.times, found.due) == (FactKind.COPY, "orders:0:1", 2, LIFE.due_at)
    assert (found.reason, found.position) == ("http-500", f"{TOPIC}:0:5")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"RECONSUMETIMES": b"-1"}, "RECONSUMETIMES"),
        ({"REAL_TOPIC": b"secrets"}, "REAL_TOPIC"),
        ({RETRY_TOPIC: b"billing-RETRY-2s"}, "it lies in billing-RETRY-1s"),
        ({RETRY_GROUP: b"other"}, "the group is billing"),
        ({"RETRY_DUE_AT": b"4918953600000"}, "further off"),
    ],
)
def test_headers_that_are_not_as_agreed_are_named_under_the_records_own_place(
    changed: dict[str, bytes | None], said: str
) -> None:
    found = fact(row(**changed))
    assert (found.what, found.id) == (FactKind.BAD, f"{TOPIC}:0:5")
    assert said in found.reason


def test_headers_that_the_client_cannot_read_are_named() -> None:
    assert fact(row()._replace(headers=None)).reason == "headers-unreadable"


def test_the_digest_is_of_key_value_and_own_headers_and_of_nothing_of_ours() -> None:
    first = TopicRecord("orders", 0, 1, 1, row().key, row().value, (row().headers or [])[:3])
    assert digest_of(row()) == main_fact(first).digest
    for other in (
        first._replace(key=None),
        first._replace(value=b""),
        first._replace(headers=list(reversed(first.headers or []))[:2]),
    ):
        assert digest_of(other) != digest_of(row())


def event(key: bytes | None = b"orders:0:1", **changed: object) -> TopicRecord:
    found = json.loads(event_row(0, State.WAITING_RETRY, LIFE).value or b"") | {"offset": 1, **changed}
    return TopicRecord("billing-RETRY-EVENTS", 0, 0, 1_700_000_000_000, key, json.dumps(found).encode(), [])


def test_an_event_as_agreed_is_read() -> None:
    found = event_fact(event(), "billing", later=False)
    assert (found.what, found.id, found.times, found.state) == (FactKind.TOLD, "orders:0:1", 2, "WAITING_RETRY")


def test_an_event_of_another_record_than_its_key_says_is_no_event() -> None:
    assert "is not its id" in event_fact(event(key=b"orders:0:2"), "billing", later=False).reason


@pytest.mark.parametrize("value", [None, b"", b"{}", b"\xff", b"[" * 100_000])
def test_what_is_no_event_is_said_to_be_none(value: bytes | None) -> None:
    assert event_fact(event()._replace(value=value), "billing", later=False).what is FactKind.BAD


def test_an_event_of_another_group_or_with_another_id_is_no_event() -> None:
    assert event_fact(event(), "other", later=False).what is FactKind.BAD
    assert "its partition and offset" in event_fact(event(offset=2), "billing", later=False).reason
    odd = event(b"\x1b:0:1", id="\x1b:0:1", topic="\x1b")
    assert event_fact(odd, "billing", later=False).what is FactKind.BAD


def test_a_copy_of_a_record_that_was_only_postponed_counts_nothing() -> None:
    """Given a copy that says since when it is postponed, then it stands for no attempt unless it counts one."""
    for times, redrives, expected in ((0, 0, True), (1, 0, False), (0, 1, False)):
        changed = {"RECONSUMETIMES": b"%d" % times, "RETRY_REDRIVES": b"%d" % redrives}
        given = row(**changed)
        postponed = given._replace(headers=[("RETRY_POSTPONED_AT", b"1700000000000"), *(given.headers or [])])
        assert only_postponed(postponed, fact(postponed)) is expected
        assert not only_postponed(given, fact(given))
