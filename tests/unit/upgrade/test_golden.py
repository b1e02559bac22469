"""The golden set: today's writers write exactly this, and today's readers read it.

Does a change of format break the first test? Decide by docs/upgrade.md whether the version before can bear it, then
`python -m tests.golden`. A file of the set is never edited by hand.
"""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.progress_codec import decode, unread
from reconsume.sidecar.delivery.pull.handles import ReceiptHandles
from reconsume.sidecar.dlq.archive import import_line
from reconsume.sidecar.dlq.redrive_history import NewerPast, decode_past
from reconsume.topics.action_record import ActionHeard, ActionRecord, render_action
from reconsume.topics.events import decode_event
from reconsume.topics.headers_fast import parse_rendered
from reconsume.topics.policy_record import InstanceHeard, PolicyHeard, SettlementHeard, parse_record, render_record
from reconsume.topics.retry_headers import parse_retry_headers
from reconsume.topics.view_record import decode_view
from tests.golden.files import golden, unpacked
from tests.golden.written import (
    DRAINED,
    EVENTS,
    FORMATS,
    HERE,
    INCARNATION,
    LATER_CYCLE,
    LIFE,
    PARKED,
    POLICY,
    ROW,
    SECRET,
    TOPICS,
    meaning,
    past_meaning,
)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_today_is_the_golden_set(name: str) -> None:
    assert unpacked(json.loads(json.dumps(FORMATS[name]()))) == unpacked(golden(name))


def test_its_progress_is_read_as_it_was_meant() -> None:
    for one in golden("progress"):
        assert meaning(decode(HERE, one["offset"], one["metadata"])) == one["means"], one["what"]
        assert unread(one["metadata"]) == ""


def test_its_headers_are_read_by_both_ways() -> None:
    lives = {}
    for one in golden("headers"):
        headers = [(name, None if value is None else value.encode("latin-1")) for name, value in one["headers"]]
        life = lives[one["what"]] = parse_retry_headers(headers, TOPICS, 2**60)
        assert parse_rendered(headers, TOPICS, 2**60) in (life, None)
    redriven = lives.pop("redrive")
    assert lives.pop("parked") == PARKED
    assert lives.pop("retry in a later cycle") == LATER_CYCLE
    assert lives.pop("retry of a drained topic") == DRAINED
    assert set(lives.values()) == {LIFE}
    assert (redriven.id, redriven.topic, redriven.redrives) == (LIFE.id, LIFE.topic, LIFE.redrives)  # type: ignore[union-attr]


def test_its_events_are_read() -> None:
    assert [decode_event(value.encode()) for value in golden("events")] == list(EVENTS)


def test_its_policies_and_heartbeats_are_read() -> None:
    for one in golden("policies"):
        heard = parse_record(one["key"].encode(), one["value"].encode())
        assert isinstance(heard, PolicyHeard | InstanceHeard | SettlementHeard | ActionHeard)
        assert heard.record is not None
        read = render_action(heard.record) if isinstance(heard.record, ActionRecord) else render_record(heard.record)
        assert read.decode() == one["value"], "and nothing of it is lost"


def test_its_rows_are_read() -> None:
    rows = golden("view")
    view, later = rows["view"]
    assert decode_view("billing", view["key"].encode(), view["value"].encode()) == ROW
    assert decode_view("billing", later["key"].encode(), later["value"].encode()) == replace(ROW, cycle=3)
    as_spark = json.dumps({"v": 1} | json.loads(view["value"]), separators=(",", ":"))
    assert decode_view("billing", view["key"].encode(), as_spark.encode()) == ROW, "in the order of Spark's fields"


def test_its_redrives_are_read_as_they_were_meant() -> None:
    for one in golden("redrives"):
        past = decode_past(one["metadata"])
        assert past is not None
        assert not isinstance(past, NewerPast)
        assert past_meaning(past) == one["means"], one["what"]


def test_its_handles_lead_back_to_their_leases() -> None:
    ours = ReceiptHandles(INCARNATION, SECRET)
    assert [ours.decode(one["handle"]) for one in golden("handles")] == [one["number"] for one in golden("handles")]


def test_its_exported_letters_can_be_imported() -> None:
    for line in golden("letters"):
        letter = import_line(json.dumps(line).encode(), POLICY)
        assert letter.retry_state == LIFE
