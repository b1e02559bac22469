"""The fold of events into rows and sums: whatever the order, repetition and split of events, the rows are the same.

The truth is that of the Spark job's view; `tests/spark/test_view.py` holds the two side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.events import AHEAD, FAILURES, BadEvent, Event, State, decode_event, encode_event, event_of
from reconsume.topics.fold import Folded, merged, read_event, row_of, sums_of
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RETRY_LAST_FAILED_AT, RetryState
from reconsume.topics.view_record import (
    COUNTED,
    MINUTE,
    ViewRow,
    decode_view,
    encode_row,
)
from tests.support.event_histories import BASE, EVENT, GROUP, GROUPS, Record, changed, disturbed, histories, truth
from tests.support.event_histories import written as records_of

randoms = st.randoms(use_true_random=True)


def folded(records: Iterable[Record]) -> dict[tuple[str, str], Folded]:
    found: dict[tuple[str, str], Folded] = {}
    for record in records:
        event = decode_event(record.value)
        assert isinstance(event, Event)
        one = row_of(event, record.partition, record.offset, record.timestamp)
        known = found.get((event.group, event.id))
        found[event.group, event.id] = one if known is None else merged(known, one)
    return found


def values(found: dict[tuple[str, str], Folded]) -> dict[tuple[str, str], dict[str, Any]]:
    rows = {key: msgspec.to_builtins(one.row) for key, one in found.items()}
    return {key: {name: row[name] for name in row if name != "v"} for key, row in rows.items()}


@given(randoms)
def test_the_rows_are_the_fold_by_maximum_in_any_order_with_any_repeats(random: Random) -> None:
    events = histories(random, 4)
    assert values(folded(records_of(disturbed(random, events)))) == truth(events)


@given(randoms)
def test_rows_of_any_parts_of_the_events_merge_to_the_same_rows(random: Random) -> None:
    events = histories(random, 2)
    records = records_of(disturbed(random, events))
    cuts = sorted(random.sample(range(len(records) + 1), min(4, len(records))))
    parts = [records[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(records)], strict=True)]
    parts.append(random.choice(parts))
    random.shuffle(parts)
    rows: dict[tuple[str, str], Folded] = {}
    for part in parts:
        for key, one in folded(part).items():
            rows[key] = merged(one, rows[key]) if key in rows else one
    assert values(rows) == truth(events)


def test_of_events_at_the_same_place_the_later_record_counts() -> None:
    one, other = changed(instance="a"), changed(instance="b")
    for events in (one, other), (other, one):
        assert values(folded(records_of(events)))[GROUP, EVENT.id]["instance"] == events[1].instance


COMMITTED = {"state": State.COMMIT, "times": 2, "level": None, "due": 0, "at": BASE + 9}
OLDER = [
    ("a failure's own time", {"times": 2, "at": BASE + 5}, BASE + 5, 2),
    ("a dead letter's", {"state": State.DLQ, "times": 3, "at": BASE + 7}, BASE + 7, 3),
    ("else the first failure's", COMMITTED, BASE, 2),
    ("null is as nothing", COMMITTED | {"retries": None, "last_failed_at": None}, BASE, 2),
    ("what the event says", COMMITTED | {"retries": 16, "last_failed_at": BASE + 5}, BASE + 5, 16),
    ("one of the two", COMMITTED | {"retries": 16}, BASE, 16),
]


@pytest.mark.parametrize(("fields", "failed", "retries"), [row[1:] for row in OLDER], ids=[row[0] for row in OLDER])
def test_a_row_has_the_times_and_retries_of_its_event_or_takes_them_from_what_the_event_has(
    fields: dict[str, Any], failed: int, retries: int
) -> None:
    row = row_of(changed(**fields), 0, 0, BASE).row
    assert (row.last_failed_at, row.retries) == (failed, retries)
    assert decode_view(GROUP, row.id.encode(), encode_row(row)) == row


def test_a_record_with_two_first_failures_is_one_row_with_that_of_the_latest_event() -> None:
    events = [EVENT, changed(times=2, at=BASE + 10, first_failed_at=BASE + 5)]
    assert values(folded(records_of(events))) == truth(events)


def test_a_row_is_one_that_readers_of_the_view_take() -> None:
    for (group, identity), one in folded(records_of(histories(Random(3), 20))).items():
        assert decode_view(group, identity.encode(), encode_row(one.row)) == one.row


def test_when_an_event_was_written_is_no_part_of_it() -> None:
    forged = msgspec.json.encode({**msgspec.to_builtins(EVENT), "updated_at": 2**60})
    event = read_event(GROUP, forged, BASE, BASE)
    assert isinstance(event, Event)
    assert row_of(event, 0, 0, BASE).row.updated_at == BASE


def test_a_dead_letter_that_is_dismissed_is_in_no_sum_and_its_row_is_the_last() -> None:
    dead = msgspec.structs.replace(EVENT, state=State.DLQ, level=None)
    dismissed = msgspec.structs.replace(dead, state=State.DISMISSED, at=dead.at + 1)
    assert sums_of([dead, dismissed]) == sums_of([dead])
    assert merged(row_of(dismissed, 0, 1, BASE), row_of(dead, 0, 0, BASE)).row.state is State.DISMISSED


def counts(events: Iterable[Event]) -> dict[tuple[object, ...], int]:
    return Counter(
        (event.at - event.at % MINUTE, event.topic, event.level, event.reason, event.state) for event in events
    )


@given(randoms)
def test_the_sums_count_each_event_once_whatever_the_batches(random: Random) -> None:
    events = [event for event in disturbed(random, histories(random, 5)) if event.group == GROUPS[0]]
    cut = random.randrange(len(events) + 1)
    told = Counter[tuple[object, ...]]()
    for part in (events[:cut], events[cut:]):
        for row in sums_of(part).values():
            for name, state in COUNTED.items():
                told[row.minute, row.topic, row.level, row.reason, state] += getattr(row, name)
    assert +told == counts(events)


NOW = BASE + 3_600_000
BAD: Sequence[tuple[str, bytes | None]] = [
    ("null", None),
    ("empty", b""),
    ("no JSON", b"{"),
    ("no UTF-8", b"\xff"),
    ("a list", b"[]"),
    ("a wrong type", encode_event(EVENT).replace(b'"times":1', b'"times":"1"')),
    ("below zero", encode_event(EVENT).replace(b'"times":1', b'"times":-1')),
    ("no such state", encode_event(EVENT).replace(b"WAITING_RETRY", b"ASLEEP")),
    ("huge", encode_event(changed(reason="x" * 70_000))),
    ("deep", b"[" * 100_000),
    ("a later version", encode_event(EVENT).replace(b'"v":1', b'"v":2')),
    ("another group", encode_event(changed(group="other"))),
    ("a clock ahead", encode_event(changed(at=NOW + AHEAD + 1))),
    ("a first failure ahead", encode_event(changed(first_failed_at=NOW + AHEAD + 1))),
]


@pytest.mark.parametrize("value", [value for _, value in BAD], ids=[name for name, _ in BAD])
def test_what_is_no_event_of_this_group_is_refused_with_a_sentence(value: bytes | None) -> None:
    refused = read_event(GROUP, value, NOW, NOW)
    assert isinstance(refused, BadEvent)
    assert refused.text


def test_a_clock_may_be_a_little_ahead_of_the_brokers_and_of_ours() -> None:
    edge = encode_event(changed(at=NOW + AHEAD))
    assert isinstance(read_event(GROUP, edge, NOW, NOW), Event)
    assert isinstance(read_event(GROUP, edge, NOW, NOW - 1), BadEvent)
    assert isinstance(read_event(GROUP, edge, -1, NOW), Event)


def test_a_field_of_a_later_version_stops_nothing() -> None:
    later = msgspec.json.encode({**msgspec.to_builtins(EVENT), "text": "card expired", "later": {"x": [1]}})
    assert isinstance(read_event(GROUP, later, NOW, NOW), Event)


def test_a_row_has_every_field_of_its_event() -> None:
    event = changed(retries=7, last_failed_at=BASE + 1, text="card expired")
    row = row_of(event, 0, 0, BASE).row
    assert isinstance(row, ViewRow)
    assert {name: getattr(row, name) for name in Event.__struct_fields__} == msgspec.structs.asdict(event)


@pytest.mark.parametrize("state", [state for state in State if state is not State.DISMISSED])
@pytest.mark.parametrize(("first", "last"), [(100, 100), (100, 250), (100, 0)])
@pytest.mark.parametrize(("times", "most"), [(1, 0), (3, 0), (0, 4), (2, 4)])
def test_a_row_says_the_same_whether_its_event_names_what_a_reader_would_take(
    state: State, first: int, last: int, times: int, most: int
) -> None:
    """Most records fail once: neither their copy nor their event then has a header or field more."""
    at = max(first, last) if state in FAILURES else 400
    known = RetryState("orders:0:1", "orders", times, 1, 0, 50, first, "http-500", 0, last, most)
    event = event_of(known, state, None, group="billing", instance="a", at=at)
    row = row_of(event, 0, 0, 0).row
    assert row.last_failed_at == (last or (at if state in FAILURES else first))
    assert row.retries == max(times, most)
    assert (event.retries is msgspec.UNSET) == (most <= times)
    names = [name for name, _ in render_retry_headers(known, "billing", "t")]
    assert (RETRY_LAST_FAILED_AT in names) == (last not in (0, first))
