"""Records of decisions: what can be carried out comes back as it was written, and all else is a sentence."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from reconsume.sidecar.group_policy.state import OF_INSTANCE, ControlState
from reconsume.topics.decision_record import (
    LASTS_MS,
    MOST_DECISIONS,
    MOST_RANGES,
    DecidedRange,
    DecisionHeard,
    DecisionRecord,
    decision_key,
    level_of_wait,
    render_decision,
)
from reconsume.topics.group_rules import GroupRules
from reconsume.topics.levels import Ladder
from reconsume.topics.names import Kind, Names
from reconsume.topics.policy_record import BadRecord, parse_record
from reconsume.topics.retry_headers import RetryState
from tests.support.control_log import said

WHERE = DecidedRange("billing-RETRY-10m", 3, "00c0ffee", 120, 4_000)
MANY = DecisionRecord("retry-now", "ann", "fixed", 1_000, (WHERE,), rate="50/s", topic="orders", reason="http-503")
ONE = DecisionRecord("commit", "ann", "paid", 1_000, (WHERE,), id="orders:3:1024", cycle=1, redrives=2, times=3)
RULES = GroupRules(Names("billing"), ("orders",), Ladder((10_000,)), (), (10_000, 60_000, 600_000))


@pytest.mark.parametrize(
    "record",
    [
        MANY,
        ONE,
        DecisionRecord("dead-letter", "", "x", 0, (), key=b"\xff\x00"),
        DecisionRecord("commit", "a", "x", 0, ()),
    ],
)
def test_a_decision_comes_back_as_it_was_written(record: DecisionRecord) -> None:
    assert parse_record(decision_key("a-1"), render_decision(record)) == DecisionHeard("a-1", record)


def test_a_decision_that_was_deleted_has_ended() -> None:
    assert parse_record(decision_key("a"), None) == DecisionHeard("a", None)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"v": 2}, "a newer version of Reconsume wrote it"),
        ({"how": "explode"}, "which is none of commit, dead-letter, retry-now"),
        ({"id": "orders"}, "names no record"),
        ({"rate": "50"}, "not like 50/s"),
        ({"why": ""}, "not as agreed"),
        ({"why": "a\nb"}, "cannot be printed"),
        ({"level": "\x1b"}, "cannot be printed"),
        ({"key": "?"}, "not as agreed"),
        ({"key": "A" * 8_000}, "more than 4096 bytes"),
        ({"ranges": None}, "not as agreed"),
        ({"ranges": [["t", 0, "", 5, 4]]}, "that no log has"),
        ({"ranges": [["t", 0, "abc", 5, 6]]}, "that no log has"),
        ({"ranges": [["t", 0, "", 5, 6], ["t", 0, "", 7, 8]]}, "a partition twice"),
        ({"ranges": [["t", -1, "", 5, 6]]}, "not as agreed"),
    ],
)
def test_what_nobody_can_carry_out_says_why(change: dict[str, object], why: str) -> None:
    value = json.loads(render_decision(MANY)) | change
    heard = parse_record(decision_key("a"), json.dumps(value).encode())
    assert isinstance(heard, BadRecord)
    assert why in heard.text
    assert heard.text.isprintable()


def test_a_key_that_names_no_decision_says_so() -> None:
    assert isinstance(parse_record(b"decision/a b", None), BadRecord)


# --- what it is about ------------------------------------------------------------------------------------------------

WAITS = RetryState("orders:3:1024", "orders", 3, 2, cycle=1, reason="http-503: busy", last_failed_at=1_000)


@pytest.mark.parametrize(
    ("filter_", "fits"),
    [
        ({}, True),
        ({"topic": "orders"}, True),
        ({"topic": "other"}, False),
        ({"reason": "http-503"}, True),
        ({"reason": "http-500"}, False),
        ({"level": "10m"}, True),
        ({"level": "1m"}, False),
        ({"key": b"ada"}, True),
        ({"key": b""}, False),
        ({"topic": "orders", "reason": "http-503", "level": "10m", "key": b"bob"}, False),
    ],
)
def test_each_condition_that_is_given_must_fit(filter_: dict[str, object], fits: bool) -> None:
    decision = DecisionRecord("commit", "ann", "x", 0, (), **filter_)  # type: ignore[arg-type]
    assert decision.fits(WAITS, b"ada", "10m") is fits


def test_a_decision_about_one_record_is_for_one_attempt() -> None:
    assert ONE.fits(WAITS, None, "10m")
    for change in ({"times": 4}, {"redrives": 1}, {"cycle": 0}, {"id": "orders:3:1025"}):
        other = json.loads(render_decision(ONE)) | change
        heard = parse_record(decision_key("a"), json.dumps(other).encode())
        assert isinstance(heard, DecisionHeard)
        assert heard.record is not None
        assert not heard.record.fits(WAITS, None, "10m")


@pytest.mark.parametrize(
    ("kind", "wait", "level"),
    [
        (Kind.LEVEL, 600_000, "10m"),
        (Kind.LEVEL, 720_000, "10m"),
        (Kind.LEVEL, 120_000, "1m"),
        (Kind.READY, 5_000, "ready"),
        (Kind.READY, 0, "ready"),
        (Kind.ORDERED, 600_000, "ordered"),
    ],
)
def test_the_level_of_a_wait_is_the_one_in_which_it_began(kind: Kind, wait: int, level: str) -> None:
    """A wait of 12 min is in 10m, and then in 1m: it counts as a wait in 10m throughout."""
    state = RetryState("orders:3:1024", "orders", 3, due_at=1_000 + wait, last_failed_at=1_000)
    assert level_of_wait(state, kind, RULES) == level


def test_the_level_of_a_record_that_waits_for_an_operator_is_parked() -> None:
    assert level_of_wait(RetryState("orders:3:1024", "orders", 3, parked=True), Kind.ORDERED, RULES) == "parked"


# --- in the control log ----------------------------------------------------------------------------------------------


def test_open_decisions_are_in_the_order_in_which_they_were_written_and_bounded() -> None:
    state = ControlState(OF_INSTANCE)
    made = [DecisionHeard(f"d{number}", MANY) for number in range(MOST_DECISIONS)]
    for one in said(*made):
        assert state.apply(one, 0) == ""
    assert list(state.decisions)[:3] == ["d0", "d1", "d2"]
    (beyond,) = said(DecisionHeard("more", MANY), begin=state.next_offset)
    assert f"{MOST_DECISIONS} decisions, or" in state.apply(beyond, 0)
    assert "more" not in state.decisions
    for one in said(DecisionHeard("d0", None), DecisionHeard("more", ONE), begin=state.next_offset):
        assert state.apply(one, 0) == ""
    assert ("d0" in state.decisions, list(state.decisions)[-1]) == (False, "more")


def test_the_ranges_of_all_decisions_are_bounded() -> None:
    state = ControlState(OF_INSTANCE)
    wide = replace(MANY, ranges=tuple(DecidedRange("billing-RETRY-10m", number, "", 0, 1) for number in range(500)))
    faults = [state.apply(one, 0) for one in said(*(DecisionHeard(f"d{number}", wide) for number in range(41)))]
    assert (faults[:40], "of their ranges" in faults[40]) == ([""] * 40, True)
    assert sum(len(one.ranges) for one in state.decisions.values()) == MOST_RANGES


def test_a_record_that_cannot_be_read_ends_the_decision_before_it() -> None:
    """As compaction would: the last record of a key counts."""
    state = ControlState()
    for one in said(DecisionHeard("a", MANY)):
        state.apply(one, 0)
    (broken,) = said(BadRecord("broken"), begin=1)
    state.apply(broken._replace(key=decision_key("a")), 0)
    assert state.decisions == {}


def test_a_decision_that_is_over_makes_room() -> None:
    state = ControlState()
    for one in said(*(DecisionHeard(f"d{number}", MANY) for number in range(MOST_DECISIONS))):
        state.apply(one, 0)
    (later,) = said(DecisionHeard("later", MANY), begin=state.next_offset)
    assert state.apply(later, LASTS_MS) == ""
    assert list(state.decisions) == ["later"]
