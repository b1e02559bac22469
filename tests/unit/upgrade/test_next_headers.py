"""Headers and events that the next version may write: carried along, ignored, or told as what they are."""

from __future__ import annotations

import json

import pytest

from reconsume.sidecar.audit.parsing import TopicRecord, digest_of
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dlq.letters import read_letter
from reconsume.topics.events import BadEvent, Event, decode_event, encode_event
from reconsume.topics.headers_fast import parse_rendered
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers, parse_retry_headers
from reconsume.topics.transition_records import redriven_writes, writes_of
from reconsume.topics.transitions import Commit, DeadLetter, Forward, Hop, Retry, Written
from reconsume.topics.view_record import BadRow, ViewRow, decode_view, encode_row
from tests.golden.written import EVENT, LIFE, NOW, POLICY, ROW, TOPICS

LATER: Headers = [("RETRY_LANE", b"\xff"), ("RETRY_HOPS", None), ("RETRY_HOPS", b"2")]
"""What a later version may add: any bytes, null, doubled."""
OWN: Headers = [("content-type", b"text/plain"), ("n", None)]
HERE = "billing-RETRY-10s"
OURS = render_retry_headers(LIFE, "billing", HERE)
PLACES = {"before": OWN + LATER + OURS, "behind": OWN + OURS + LATER, "among": OWN + OURS[:4] + LATER + OURS[4:]}


@pytest.mark.parametrize("headers", PLACES.values(), ids=PLACES)
def test_a_header_of_a_later_version_is_no_bad_header(headers: Headers) -> None:
    assert parse_retry_headers(headers, TOPICS, 2**60) == LIFE
    assert parse_rendered(headers, TOPICS, 2**60) in (LIFE, None)


DECISIONS: dict[str, Commit | Written] = {
    "retry": Retry(LIFE, 10_000),
    "hop": Hop(LIFE, 10_000),
    "forward": Forward(LIFE),
    "dead letter": DeadLetter(LIFE, "http-500", 3),
}


@pytest.mark.parametrize("decision", DECISIONS.values(), ids=DECISIONS)
@pytest.mark.parametrize("headers", PLACES.values(), ids=PLACES)
def test_every_copy_carries_it_along_in_its_order(decision: Written, headers: Headers) -> None:
    copy = writes_of(taken(headers), decision, POLICY, NOW)[0]
    assert [header for header in copy.headers if header in LATER] == LATER
    assert [header for header in copy.headers if header in OWN] == OWN


@pytest.mark.parametrize("headers", PLACES.values(), ids=PLACES)
def test_a_redrive_carries_it_along(headers: Headers) -> None:
    letter = read_letter(taken(headers), POLICY)
    assert letter.retry_state is not None
    copy, _ = redriven_writes(letter.record, letter.retry_state, POLICY, NOW)
    assert [header for header in copy.headers if header in LATER] == LATER


def test_an_audit_takes_no_header_of_a_later_version_for_a_changed_record() -> None:
    main = TopicRecord("orders", 3, 1024, 1, b"k", b"v", OWN)
    assert digest_of(main._replace(headers=PLACES["among"])) == digest_of(main)
    assert digest_of(main._replace(headers=[*OWN, ("more", b"")])) != digest_of(main)


def taken(headers: Headers) -> Record:
    return Record(Partition(HERE, 0), 5, 1, NOW, b"k", b"v", headers, LIFE)


def more(value: bytes, **fields: object) -> bytes:
    return json.dumps(json.loads(value) | fields).encode()


def test_unknown_fields_are_ignored_by_every_reader() -> None:
    event = decode_event(more(encode_event(EVENT), zone="a", nested={"a": [1]}))
    row = decode_view("billing", ROW.id.encode(), more(encode_row(ROW), zone="a"))
    assert (event, row) == (EVENT, ROW)
    assert isinstance(event, Event)
    assert isinstance(row, ViewRow)


def test_a_higher_version_is_passed_over_and_told_as_what_it_is() -> None:
    event = decode_event(more(encode_event(EVENT), v=2, state="PARKED"))
    row = decode_view("billing", ROW.id.encode(), more(encode_row(ROW), v=2))
    later = decode_view("billing", ROW.id.encode(), b'{"v": 7}')
    assert isinstance(event, BadEvent)
    assert isinstance(row, BadRow)
    assert isinstance(later, BadRow)
    assert [heard.text.partition(",")[0] for heard in (event, row, later)] == [
        f"a newer version of Reconsume wrote it (v {v})" for v in (2, 2, 7)
    ]


def test_a_value_that_only_says_so_is_rubbish_as_before() -> None:
    found = decode_event(b'{"v": 2, ' + b"[" * 100_000)
    assert isinstance(found, BadEvent)
    assert found.text.startswith("the value has 100009 bytes")
