"""Where the view's query begins, what it commits, and which events it has lost: pure, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reconsume.spark.job.groups import Plan
from reconsume.spark.job.kafka import Position
from reconsume.spark.job.progress import (
    AGAIN_SECONDS,
    Batch,
    Begin,
    RunProgress,
    batch_of,
    begin,
    metadata,
    offsets_json,
)
from reconsume.topics.view_position import PositionTopics, as_java_prints, parse_position

E, F = "a-RETRY-EVENTS", "b-RETRY-EVENTS"
PLAN = Plan(("a", "b"), {}, {E: "Ae", "a-RETRY-VIEW": "Av", F: "Be", "b-RETRY-VIEW": "Bv"})
OF_A, OF_B = "1 Ae Av", "1 Be Bv"


@pytest.mark.parametrize(
    ("position", "begins", "is_reread"),
    [
        (None, 3, False),  # never read, or its position has expired
        (Position(7, OF_A), 7, False),
        (Position(10, OF_A), 10, False),
        (Position(1, OF_A), 1, False),  # what retention has taken since is lost, and counted
        (Position(11, OF_A), 3, True),  # the log was cut
        (Position(7, "1 Ae Old"), 3, True),  # another VIEW topic: its rows must come again
        (Position(7, "1 Old Av"), 3, True),  # another events topic
    ],
)
def test_a_query_begins_at_a_position_that_is_true_of_the_topics_and_otherwise_at_the_first_event(
    position: Position | None, begins: int, is_reread: bool
) -> None:
    committed = {} if position is None else {(E, "0"): position}
    firsts, ends = {(E, "0"): 3, (F, "1"): 0}, {(E, "0"): 10, (F, "1"): 5}
    found = begin(PLAN, firsts, ends, committed | {(F, "1"): Position(4, OF_B)})
    assert found == Begin({(E, "0"): begins, (F, "1"): 4}, ("a",) if is_reread else ())


def test_a_partition_that_is_new_begins_at_its_first_event_and_the_others_go_on() -> None:
    firsts, ends = {(E, "0"): 0, (E, "1"): 2}, {(E, "0"): 10, (E, "1"): 5}
    assert begin(PLAN, firsts, ends, {(E, "0"): Position(7, OF_A)}) == Begin({(E, "0"): 7, (E, "1"): 2}, ())


def test_a_position_names_the_topics_that_it_is_true_of() -> None:
    assert parse_position(metadata(PLAN, "a")) == PositionTopics("Ae", "Av")
    assert as_java_prints("FDcaZ+X+TB2Opg/7rjRbzg") == "FDcaZ-X-TB2Opg_7rjRbzg"


def batch(rows: int, start: dict[str, Any] | None, end: dict[str, Any]) -> Batch:
    return batch_of({"batchId": 3, "numInputRows": rows, "sources": [{"startOffset": start, "endOffset": end}]})


def test_positions_are_committed_when_they_have_changed_and_all_of_them_once_an_hour() -> None:
    progress = RunProgress(PLAN, {(E, "0"): 5, (E, "1"): 0, (F, "0"): 1}, now=0.0)
    assert progress.news(now=0.5) == {}
    progress.take(batch(3, None, {E: {"0": 7, "1": 0}, F: {"0": 2}}))
    first = progress.news(now=1.0)
    assert first == {"a-RETRY-VIEW": {(E, "0"): Position(7, OF_A)}, "b-RETRY-VIEW": {(F, "0"): Position(2, OF_B)}}
    progress.committed(first["a-RETRY-VIEW"])
    assert progress.news(now=2.0) == {"b-RETRY-VIEW": first["b-RETRY-VIEW"]}, "what was refused is tried again"
    progress.committed(first["b-RETRY-VIEW"])
    assert progress.news(now=3.0) == {}
    again = progress.news(now=AGAIN_SECONDS + 1)
    assert again["a-RETRY-VIEW"] == {(E, "0"): Position(7, OF_A), (E, "1"): Position(0, OF_A)}, "a quiet one too"


def test_of_a_query_that_has_ended_only_topics_that_are_still_the_same_are_committed() -> None:
    progress = RunProgress(PLAN, {(E, "0"): 0, (F, "0"): 0}, now=0.0)
    progress.take(batch(2, None, {E: {"0": 1}, F: {"0": 9}}))
    progress.keep(Plan(("a", "b"), {}, {**PLAN.ids, "b-RETRY-VIEW": "another"}))
    assert progress.news(now=1.0) == {"a-RETRY-VIEW": {(E, "0"): Position(1, OF_A)}}
    assert progress.suspicious() == ()


def lost(progress: RunProgress, firsts: dict[tuple[str, str], int]) -> dict[str, int]:
    asked = progress.suspicious()
    return progress.lost({partition: firsts[partition] for partition in asked}) if asked else {}


def test_what_was_below_the_first_offset_is_lost_by_topic_and_no_more_than_was_not_read() -> None:
    progress = RunProgress(PLAN, {}, now=0.0)
    progress.take(batch(5, {E: {"0": 2, "1": 0}, F: {"0": 10}}, {E: {"0": 10, "1": 2}, F: {"0": 30}}))
    firsts = {(E, "0"): 7, (E, "1"): 0, (F, "0"): 50}
    assert lost(progress, firsts) == {E: 5, F: 20}
    assert lost(progress, firsts) == {}, "once"
    progress.take(batch(18, {F: {"0": 10}}, {F: {"0": 30}}))
    assert lost(progress, firsts) == {F: 2}, "the others were deleted after they were read"


def test_batches_that_read_every_offset_of_their_ranges_have_lost_none_and_kafka_is_not_asked() -> None:
    progress = RunProgress(PLAN, {(E, "0"): 10}, now=0.0)
    for one in (
        batch(8, {E: {"0": 2}}, {E: {"0": 10}}),
        batch(0, None, {E: {"0": 10}}),  # a first batch of nothing
        batch(0, {E: {"0": 10}}, {E: {"0": 4}}),  # a topic that became shorter
    ):
        progress.take(one)
        assert progress.suspicious() == ()


def test_gaps_that_are_markers_of_transactions_are_no_loss() -> None:
    progress = RunProgress(PLAN, {}, now=0.0)
    progress.take(batch(4, {E: {"0": 2}}, {E: {"0": 10}}))
    progress.take(batch(4, {E: {"0": 10}}, {E: {"0": 18}}))
    assert lost(progress, {(E, "0"): 2}) == {}


def test_a_first_batch_begins_where_the_query_was_begun() -> None:
    progress = RunProgress(PLAN, {(E, "0"): 2}, now=0.0)
    progress.take(batch(3, None, {E: {"0": 10}}))
    assert lost(progress, {(E, "0"): 7}) == {E: 5}


REPORT: dict[str, Any] = {
    "batchId": 7,
    "numInputRows": 120,
    "durationMs": {"triggerExecution": 420},
    "sources": [{"endOffset": {"t": {"0": 10, "1": 5}}, "latestOffset": {"t": {"0": 17, "1": 5}, "u": {"0": 3}}}],
    "observedMetrics": {"events": {"read": 120, "bad": 4, "first": "{}"}},
}


def test_a_batch_is_read_from_sparks_report() -> None:
    found = batch_of(REPORT)
    assert (found.number, found.rows, found.seconds, found.behind) == (7, 120, 0.42, 10)
    assert (found.bad, found.first_bad) == (4, "{}")
    source = {"endOffset": json.dumps({"t": {"0": 1}}), "latestOffset": json.dumps({"t": {"0": 3}})}
    assert batch_of({"sources": [source]}).behind == 2, "offsets may come as text"
    assert batch_of({}) == Batch(0, 0, 0.0, 0, 0, "", {}, {})


def test_starting_offsets_are_written_as_spark_takes_them() -> None:
    assert json.loads(offsets_json({(E, "0"): 1, (E, "1"): 2})) == {E: {"0": 1, "1": 2}}
