"""Records of resets: what was asked for comes back as it was written, and all else is a sentence."""

from __future__ import annotations

import json

import pytest

from reconsume.topics.policy_record import LARGEST, BadRecord, parse_record
from reconsume.topics.reset_record import (
    CARRIED_OUT_WITHIN_MS,
    MOST_TARGETS,
    ResetHeard,
    ResetRequest,
    ResetTarget,
    render_reset,
    reset_key,
)

TOPIC_ID = "5e6f7a8b"
GOOD = ResetRequest("orders", TOPIC_ID, (ResetTarget(0, 1_000), ResetTarget(3, 0, "f00d")), "ann", "a bug", 5, "2h")


@pytest.mark.parametrize("record", [GOOD, ResetRequest("o", TOPIC_ID, (ResetTarget(0, 0),), "", "", 0, skips=True)])
def test_a_request_comes_back_as_it_was_written(record: ResetRequest) -> None:
    assert parse_record(reset_key("a-1"), render_reset(record)) == ResetHeard("a-1", record)


def test_a_deleted_request_asks_for_nothing() -> None:
    assert parse_record(reset_key("a"), None) == ResetHeard("a", None)


def test_the_largest_request_fits_into_a_record() -> None:
    targets = tuple(ResetTarget(9_000 + number, 10**13, "0" * 8) for number in range(MOST_TARGETS))
    largest = ResetRequest("o" * 249, TOPIC_ID, targets, "w" * 256, "y" * 1_000, 2**62, "t" * 64)
    assert len(render_reset(largest)) <= LARGEST
    assert parse_record(reset_key("a"), render_reset(largest)) == ResetHeard("a", largest)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"v": 2}, "a newer version of Reconsume wrote it"),
        ({"id": ""}, "not as agreed"),
        ({"targets": []}, "not as agreed"),
        ({"targets": [[0, -1]]}, "not as agreed"),
        ({"targets": [[0, 5], [0, 6]]}, "names a partition twice"),
        ({"topic": "a\x1b[0m"}, "cannot be printed"),
        ({"why": "y" * 1_001}, "not as agreed"),
    ],
)
def test_what_is_no_request_says_why(change: dict[str, object], why: str) -> None:
    value = json.loads(render_reset(GOOD)) | change
    heard = parse_record(reset_key("a"), json.dumps(value).encode())
    assert isinstance(heard, BadRecord)
    assert why in heard.text


def test_a_key_that_names_no_reset_says_so() -> None:
    heard = parse_record(b"reset/a b", render_reset(GOOD))
    assert isinstance(heard, BadRecord)
    assert "names no reset" in heard.text


def test_a_request_has_no_effect_an_hour_after_it_was_written() -> None:
    assert not GOOD.is_over(GOOD.at + CARRIED_OUT_WITHIN_MS)
    assert GOOD.is_over(GOOD.at + CARRIED_OUT_WITHIN_MS + 1)


def test_a_request_says_what_it_wants_of_each_partition() -> None:
    assert GOOD.target_of("orders", 3) == ResetTarget(3, 0, "f00d")
    assert GOOD.target_of("orders", 1) is None
    assert GOOD.target_of("payments", 3) is None
