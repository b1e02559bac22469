"""What an operator holds waits uncounted in level topics, and what no tag asks for is done at once. Without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from reconsume.spark.consumer.configuration import build_rules
from reconsume.spark.consumer.handling import Failed, Result, after_handling, before_handling
from reconsume.spark.consumer.record import Read, for_handler, parse
from reconsume.spark.consumer.rules import Rules
from reconsume.topics.events import Event, decode_event
from reconsume.topics.hold_record import HoldRecord
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers, RetryState

NOW = 1_763_690_000_000
RULES = build_rules("billing", ["orders", "bills"], ladder=["10s", "1m", "10m"], name="ship")
MAIN = Read("orders", 3, 1024, NOW - 9_000, b"k", b"v", [("own", b"1")])


def holding(seconds: int, rules: Rules = RULES, **what: Any) -> Rules:
    return replace(rules, holds=(HoldRecord(NOW, NOW + seconds * 1000, "why", "ann", **(what or {"all": True})),))


def retried(topic: str = "billing-RETRY-1m", *, main: str = "orders", times: int = 2, due: int = NOW - 5) -> Read:
    state = RetryState(f"{main}:3:1024", main, times, 0, due, NOW - 9_000, NOW - 8_000, "http-500: no")
    return Read(topic, 1, 7, NOW - 3, b"k", None, render_retry_headers(state, "billing", topic))


def looked_at(row: Read, rules: Rules, now: int = NOW) -> Result | None:
    return before_handling(parse(row, rules, now), rules, now)


def only_copy(row: Read, rules: Rules, now: int = NOW) -> Read:
    """Return the copy that a held record becomes, as its reader gets it."""
    result = looked_at(row, rules, now)
    assert result is not None
    assert (result.outcome, result.failed) == ("hop", False)
    [(topic, key, value, headers)] = result.writes
    assert (key, value) == (row.key, row.value)
    return Read(topic, 0, 0, now, key, value, headers)


@pytest.mark.parametrize(
    ("seconds", "level"), [(86_400, "10m"), (600, "10m"), (599, "1m"), (60, "1m"), (15, "10s"), (3, "10s")]
)
@pytest.mark.parametrize("row", [MAIN, retried()], ids=["main", "retried"])
def test_a_held_record_waits_in_the_longest_level_that_ends_before_the_hold(
    row: Read, seconds: int, level: str
) -> None:
    assert only_copy(row, holding(seconds)).topic == f"billing-RETRY-{level}"


def test_a_held_record_is_handled_as_if_nothing_had_been_once_its_level_is_over() -> None:
    """Given a hold that goes on, then the copy is held again; released, it is a first delivery without any event."""
    copy = only_copy(MAIN, holding(86_400))
    later = NOW + 600_000
    again = only_copy(copy, holding(86_400), later)
    assert again.topic == copy.topic
    assert looked_at(again, RULES, later + 600_000) is None
    record = for_handler(parse(again, RULES, later + 600_000))
    assert (record.id, record.times, record.redrives, record.headers) == ("orders:3:1024", 0, 0, [("own", b"1")])
    assert record.timestamp == MAIN.timestamp
    assert after_handling(parse(again, RULES, later), None, RULES, later).writes == []
    retry = only_copy(retried(), holding(86_400))
    assert for_handler(parse(retry, RULES, later)).times == 2, "not counted"


def test_a_hold_of_a_level_keeps_its_records_until_its_own_end_though_they_are_in_another_level() -> None:
    copy = only_copy(retried("billing-RETRY-10s"), holding(3_600, level="10s"))
    assert copy.topic == "billing-RETRY-10m"
    later = looked_at(copy, RULES, NOW + 600_000)
    assert later is not None, "it is not due"
    assert later.outcome == "hop"
    assert looked_at(copy, RULES, NOW + 3_600_000) is None


@pytest.mark.parametrize(
    ("what", "row", "is_held"),
    [
        ({"topic": "orders"}, MAIN, True),
        ({"topic": "bills"}, MAIN, False),
        ({"topic": "bills"}, retried(main="bills"), True),
        ({"key": b"k"}, MAIN, True),
        ({"key": b"other"}, MAIN, False),
        ({"key": b"k"}, MAIN._replace(key=None), False),
        ({"level": "main"}, MAIN, True),
        ({"level": "main"}, retried(), False),
        ({"level": "1m"}, retried(), True),
        ({"level": "10s"}, retried(), False),
        ({"level": "ready"}, retried("billing-RETRY"), True),
        ({"level": "1m", "topic": "bills"}, retried(), False),
    ],
)
def test_a_hold_is_for_the_records_that_it_names(what: dict[str, Any], row: Read, is_held: bool) -> None:
    assert (looked_at(row, holding(3_600, **what)) is not None) is is_held


def test_of_several_holds_the_longest_decides_and_what_is_not_due_waits_for_that_first() -> None:
    rules = replace(holding(15), holds=holding(15).holds + holding(3_600, key=b"k").holds)
    assert only_copy(MAIN, rules).topic == "billing-RETRY-10m"
    early = looked_at(retried(due=NOW + 20_000), rules)
    assert early is not None
    assert [topic for topic, *_ in early.writes] == ["billing-RETRY-10s"]


def test_a_held_record_that_fails_later_is_retried_as_at_its_first_failure() -> None:
    record = parse(only_copy(MAIN, holding(60)), RULES, NOW + 60_000)
    writes = after_handling(record, Failed("ValueError"), RULES, NOW + 60_000).writes
    [event] = [decode_event(value) for topic, _, value, _ in writes if topic == RULES.names.events and value]
    assert isinstance(event, Event)
    assert (event.times, event.first_failed_at) == (1, NOW + 60_000)


# --- tags -------------------------------------------------------------------------------------------------------------


def tagged(value: bytes | None, topic: str = "orders") -> Read:
    headers: Headers = [("other", b"TagA"), ("TAGS", value)]
    return MAIN._replace(topic=topic, headers=headers)


def test_a_record_without_a_wanted_tag_is_done_at_once_and_nothing_is_written() -> None:
    rules = build_rules("billing", ["orders", "bills"], tags={"orders": "TagA || TagB", "bills": "*"}, name="ship")
    for row in (tagged(b"TagC"), tagged(None), MAIN):
        assert looked_at(row, rules) == Result("passed_over", ("orders", ""))
    assert looked_at(tagged(b"TagB"), rules) is None
    assert looked_at(tagged(b"TagC", "bills"), rules) is None
    assert looked_at(retried(), rules) is None, "a retry was wanted when it was first delivered"
    held = holding(3_600, rules)
    assert looked_at(tagged(b"TagC"), held) == Result("passed_over", ("orders", ""))


@pytest.mark.parametrize("tags", [{"other": "A"}, {"orders": "A|B"}, {"orders": ""}, {"orders": "A||A"}, ["A"]])
def test_tags_that_cannot_be_are_refused(tags: Any) -> None:
    with pytest.raises(ValueError, match="tags"):
        build_rules("billing", ["orders"], tags=tags, name="ship")


@pytest.mark.parametrize(("rate", "most"), [(None, 10_000), ("100/s", 1_000), ("5/h", 1), ("1000000/s", 10_000)])
def test_a_batch_has_no_more_records_than_the_rate_allows_in_ten_seconds(rate: str | None, most: int) -> None:
    assert build_rules("billing", ["orders"], rate=rate, name="ship").bound(10_000) == most
