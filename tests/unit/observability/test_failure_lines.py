"""What the log says of failures: a line for each dead letter, and one a minute for all of them."""

from __future__ import annotations

import io
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from reconsume.sidecar.core.counters import MOST_REASONS, LaneCounters
from reconsume.sidecar.observability import failure_lines
from reconsume.sidecar.observability.failure_lines import EVERY, MOST_NAMED, FailureSums, log_dead_letter
from reconsume.sidecar.observability.logs import Format, configure
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.transitions import DeadLetter
from tests.support.sidecar.push_requests import a_record


def written(form: Format, *letters: DeadLetter) -> str:
    """What the log has of these letters. Threads of other tests may log meanwhile."""
    stream = io.StringIO()
    handler = configure("info", form, stream)
    handler.addFilter(logging.Filter("reconsume"))
    try:
        for letter in letters:
            log_dead_letter(letter)
    finally:
        handler.close()
        logging.getLogger().removeHandler(handler)
    return stream.getvalue()


def letter(reason: str, kind: str = "http-400") -> DeadLetter:
    return DeadLetter(RetryState("orders:3:1024", "orders", 16, 0, 0, 1, 1, reason), kind, 17)


def test_a_dead_letter_is_a_line_with_id_reason_and_text() -> None:
    line = json.loads(written("json", letter("http-400: Bad sku: no sku 7")))
    assert {name: line[name] for name in ("event", "level", "id", "reason", "text", "times")} == {
        "event": "dead-letter",
        "level": "warning",
        "id": "orders:3:1024",
        "reason": "http-400",
        "text": "Bad sku: no sku 7",
        "times": 16,
    }
    assert line["message"] == "orders:3:1024 is a dead letter after 16 retries: http-400: Bad sku: no sku 7"


HOSTILE = 'x\n2026-11-26 error forged\r\x1b[2J\u202e\x9b31m" level=error'


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_text_of_a_service_makes_a_second_line_or_moves_a_cursor(form: Format) -> None:
    told = written(form, letter(f"http-400: {HOSTILE}"))
    assert told.count("\n") == 1
    assert told[:-1].isprintable()


def sums(
    lane: LaneCounters, caplog: pytest.LogCaptureFixture, retries: LaneCounters | None = None
) -> tuple[FailureSums, Any]:
    caplog.set_level(logging.INFO, "reconsume.failures")
    return FailureSums([lane, retries or LaneCounters()]), lambda: [vars(record) for record in caplog.records]


def test_a_minute_is_one_line_with_the_failures_by_topic_and_class(caplog: pytest.LogCaptureFixture) -> None:
    """Given failures, then each minute tells of its own alone, the most frequent first, and a quiet one of nothing."""
    lane = LaneCounters()
    told, lines = sums(lane, caplog)
    for reason, count in {"http-500": 3, "timeout": 1}.items():
        for _ in range(count):
            lane.failures.add(a_record(), reason)
    told.log_sum()
    told.log_sum()
    lane.failures.add(a_record(), "timeout")
    told.log_sum()
    minutes = [line for line in lines() if line["event"] == "failures"]
    assert [(line["failed"], line["by"]) for line in minutes] == [
        (4, {"orders http-500": 3, "orders timeout": 1}),
        (1, {"orders timeout": 1}),
    ]
    assert minutes[0]["message"] == "4 attempts failed: 3 of orders http-500, 1 of orders timeout"


def test_many_classes_fill_neither_the_line_nor_the_memory(caplog: pytest.LogCaptureFixture) -> None:
    lane = LaneCounters()
    told, lines = sums(lane, caplog)
    for number in range(3 * MOST_REASONS):
        lane.failures.add(a_record(), f"class-{number}")
    told.log_sum()
    assert len(lane.failures.by_cause) == MOST_REASONS + 1
    (sum_of_all,) = [line for line in lines() if line["event"] == "failures"]
    assert (sum_of_all["failed"], len(sum_of_all["by"])) == (3 * MOST_REASONS, MOST_NAMED)
    assert len(lines()) == MOST_REASONS + 1, "one line for each class at most, which the log bounds"


def test_the_first_failure_of_each_class_and_topic_in_a_minute_has_a_line_with_its_id_and_text(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given failures of both lanes, then one line tells of a class and topic, and the next one is a minute later."""
    lane, retries, clock = LaneCounters(), LaneCounters(), [0.0]
    monkeypatch.setattr(failure_lines, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    told, lines = sums(lane, caplog, retries)
    failures = ((0, lane, "no sku 7"), (1, lane, "no sku 8"), (EVERY - 1, retries, "no sku 9"), (EVERY, lane, "no 10"))
    for clock[0], counters, text in failures:
        counters.failures.add(a_record(), "http-422", text)
        told.log_sum()
    lane.failures.add(a_record(), "timeout")
    told.log_first()
    firsts = [(line["reason"], line["text"], line["topic"]) for line in lines() if line["event"] == "failure"]
    assert firsts == [("http-422", "no sku 7", "orders"), ("http-422", "no 10", "orders"), ("timeout", "", "orders")]
    assert lines()[0]["id"] == a_record().id
