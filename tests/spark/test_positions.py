"""Where the view's query begins, and what it tells of how far it has read: pure, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from reconsume.spark.job.groups import Plan
from reconsume.spark.job.positions import AGAIN_SECONDS, Begin, Position, ReadPositions, begin, metadata
from reconsume.topics.view_position import PositionTopics, as_java_prints, parse_position

E, F = "a-RETRY-EVENTS", "b-RETRY-EVENTS"
PLAN = Plan(("a", "b"), {}, {E: "Ae", "a-RETRY-VIEW": "Av", F: "Be", "b-RETRY-VIEW": "Bv"})
OF_A, OF_B = "1 Ae Av", "1 Be Bv"


@pytest.mark.parametrize(
    ("position", "begins", "anew"),
    [
        (None, 3, False),  # never read, or its position has expired
        (Position(7, OF_A), 7, False),
        (Position(10, OF_A), 10, False),
        (Position(1, OF_A), 1, False),  # what retention has taken since is lost, and counted
        (Position(11, OF_A), 3, True),  # the log was cut
        (Position(7, "1 Ae Old"), 3, True),  # another VIEW topic: its rows must come again
        (Position(7, "1 Old Av"), 3, True),  # another events topic
        (Position(7, ""), 3, True),  # of an older job, which does not say what it is true of
        (Position(7, "2 Ae Av x"), 3, True),  # of a newer one
    ],
)
def test_a_query_begins_at_a_position_that_is_true_of_the_topics_and_else_at_the_first_event(
    position: Position | None, begins: int, anew: bool
) -> None:
    committed = {} if position is None else {(E, "0"): position}
    found = begin(PLAN, {(E, "0"): (3, 10), (F, "1"): (0, 5)}, committed | {(F, "1"): Position(4, OF_B)})
    assert found == Begin({(E, "0"): begins, (F, "1"): 4}, ("a",) if anew else ())


def test_a_partition_that_is_new_begins_at_its_first_event_and_the_others_go_on() -> None:
    found = begin(PLAN, {(E, "0"): (0, 10), (E, "1"): (2, 5)}, {(E, "0"): Position(7, OF_A)})
    assert found == Begin({(E, "0"): 7, (E, "1"): 2}, ())


def test_a_position_names_the_topics_that_it_is_true_of_and_an_older_one_does_not() -> None:
    assert parse_position(metadata(PLAN, "a")) == PositionTopics("Ae", "Av")
    for other in (None, "", "x", "1 a", "1 a b c", "2 a b"):
        assert parse_position(other) is None


def test_an_id_is_the_same_whichever_client_prints_it() -> None:
    assert as_java_prints("FDcaZ+X+TB2Opg/7rjRbzg") == "FDcaZ-X-TB2Opg_7rjRbzg"


def progress(run: str, end: dict[str, Any] | None) -> dict[str, Any]:
    return {"name": "view", "runId": run, "sources": [{"endOffset": end}]}


def test_positions_are_told_when_they_have_changed_and_all_of_them_once_an_hour() -> None:
    places = ReadPositions(now=0.0)
    places.starting(PLAN, {(E, "0"): 5, (E, "1"): 0, (F, "0"): 1})
    places.named("run")
    assert places.take(progress("run", {E: {"0": 7, "1": 0}, F: {"0": 2}}))
    first = places.news(now=1.0)
    assert first == {"a-RETRY-VIEW": {(E, "0"): Position(7, OF_A)}, "b-RETRY-VIEW": {(F, "0"): Position(2, OF_B)}}
    places.committed(first["a-RETRY-VIEW"])
    assert places.news(now=2.0) == {"b-RETRY-VIEW": first["b-RETRY-VIEW"]}, "what was refused is told again"
    places.committed(first["b-RETRY-VIEW"])
    assert places.news(now=3.0) == {}
    again = places.news(now=AGAIN_SECONDS + 1)
    assert again["a-RETRY-VIEW"] == {(E, "0"): Position(7, OF_A), (E, "1"): Position(0, OF_A)}, "a quiet one too"


def test_what_a_former_run_reports_late_is_not_true_of_the_topics_of_this_one() -> None:
    places = ReadPositions(now=0.0)
    for run in ("first", "second"):
        places.starting(PLAN, {(E, "0"): 0})
        assert not places.take(progress("first", {E: {"0": 9}})), "not before it is named"
        places.named(run)
    assert not places.take(progress("first", {E: {"0": 9}}))
    assert places.news(now=1.0) == {}


def test_a_run_is_settled_when_it_has_done_a_batch_or_had_nothing_to_do_and_no_former_one_counts() -> None:
    places = ReadPositions(now=0.0)
    assert places.settled, "no run is waited for where none was begun"
    for run in ("first", "second", "third"):
        places.starting(PLAN, {(E, "0"): 0})
        places.named(run)
        places.idle("former")
        places.take(progress("former", {}))
        assert not places.settled
        places.idle(run) if run == "second" else places.take(progress(run, {}))
        assert places.settled
