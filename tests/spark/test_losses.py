"""Events that are lost are counted to the offset, and a topic that was made anew is found out: pure, without Spark."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from reconsume.spark.job.lost_events import lost
from reconsume.spark.job.positions import PartitionName
from reconsume.spark.renewal import Kept, forgotten, is_stale, kept_in, kept_text, renewed, topics_in

E, F = "a-RETRY-EVENTS", "b-RETRY-EVENTS"


def progress(rows: int, start: dict[str, Any] | None, end: dict[str, Any]) -> dict[str, Any]:
    return {"name": "view", "numInputRows": rows, "sources": [{"startOffset": start, "endOffset": end}]}


class Kafka:
    """What is asked for, and the first offsets."""

    def __init__(self, firsts: dict[PartitionName, int]) -> None:
        self.firsts, self.asked = firsts, list[PartitionName]()

    def earliest(self, places: Collection[PartitionName]) -> dict[PartitionName, int]:
        self.asked = sorted(places)
        return {place: self.firsts[place] for place in places}


def test_what_lay_below_the_first_offset_is_lost_by_topic_and_no_more_than_was_not_read() -> None:
    kafka = Kafka({(E, "0"): 7, (E, "1"): 0, (F, "0"): 50})
    told = progress(5, {E: {"0": 2, "1": 0}, F: {"0": 10}}, {E: {"0": 10, "1": 2}, F: {"0": 30}})
    assert lost(told, {}, kafka.earliest) == {E: 5, F: 20}
    cut_after_it_was_read = progress(18, {F: {"0": 10}}, {F: {"0": 30}})
    assert lost(cut_after_it_was_read, {}, kafka.earliest) == {F: 2}


def test_a_batch_that_read_every_offset_of_its_range_has_lost_none_and_kafka_is_not_asked() -> None:
    kafka = Kafka({})
    assert not lost(progress(8, {E: {"0": 2}}, {E: {"0": 10}}), {}, kafka.earliest)
    assert not lost(progress(0, None, {E: {"0": 10}}), {(E, "0"): 10}, kafka.earliest), "a first batch of nothing"
    assert not lost(progress(0, {E: {"0": 10}}, {E: {"0": 4}}), {}, kafka.earliest), "a topic that became shorter"
    assert kafka.asked == []


def test_gaps_that_are_markers_of_transactions_are_no_loss() -> None:
    kafka = Kafka({(E, "0"): 2})
    assert not lost(progress(4, {E: {"0": 2}}, {E: {"0": 10}}), {}, kafka.earliest)
    assert kafka.asked == [(E, "0")]


def test_a_first_batch_begins_where_the_query_was_begun() -> None:
    kafka = Kafka({(E, "0"): 7})
    assert lost(progress(3, None, {E: {"0": 10}}), {(E, "0"): 2}, kafka.earliest) == {E: 5}


S = "a-RETRY-STATS"
IDS = {E: "1", S: "1"}


@pytest.mark.parametrize(
    ("now", "placed", "left", "stale"),
    [
        (IDS, [E], [], ""),
        (IDS, [], [], ""),  # nothing was read yet
        ({E: "1", S: "2"}, [E], [], E),  # its counts must be written again
        ({E: "1", S: "2"}, [], [], ""),
        ({E: "2", S: "2"}, [E], [], ""),  # all of it is another one: it counts as new
        (IDS, [], [E], E),  # its events would be counted twice
        (IDS, [E], [E], ""),  # it has not forgotten its place
        ({E: "2", S: "1"}, [], [E], ""),
    ],
)
def test_the_sums_are_counted_again_when_a_groups_counts_are_lost_or_would_be_read_twice(
    now: dict[str, str], placed: list[str], left: list[str], stale: str
) -> None:
    assert is_stale(now, Kept(IDS, frozenset(left)), placed) == stale


def test_what_is_kept_beside_the_checkpoint_stays_while_the_groups_events_are_there() -> None:
    kept = kept_in(kept_text(IDS, Kept({F: "1", "gone-RETRY-EVENTS": "1"}, frozenset()), placed=[F], there=[E, S, F]))
    assert kept == Kept({**IDS, F: "1"}, frozenset({F})), "F is left, with its counts"
    without_sums = kept_in(kept_text({}, kept, placed=[E], there=[E]))
    assert without_sums == Kept({**IDS, F: "1"}, frozenset({E, F})), "its STATS topic may come back as another one"
    assert kept_in(kept_text(IDS, without_sums, placed=[], there=[E, S])) == Kept({**IDS, F: "1"}, frozenset({F}))
    assert kept_in("") == Kept({}, frozenset())


def test_events_that_are_not_there_for_a_moment_are_not_counted_twice() -> None:
    """Given two starts that do not see the topic: its place is forgotten then, and what was counted is not."""
    kept = Kept(IDS, frozenset())
    for placed in ([E], []):
        kept = kept_in(kept_text({}, kept, placed=placed, there=[]))
    assert is_stale(IDS, kept, placed=[]) == E
    assert is_stale({E: "2", S: "2"}, kept, placed=[]) == "", "it was deleted, and is another one"


def test_a_topic_is_renewed_when_the_checkpoint_has_a_place_in_one_of_another_id() -> None:
    kept = {E: "1", F: "1"}
    assert renewed({E: "2", F: "1"}, kept, placed=[E, F]) == [E]
    assert renewed({E: "2"}, kept, placed=[F]) == [], "it has no place in it, and reads it from the start"
    assert renewed({"new": "1"}, kept, placed=["new"]) == [], "a checkpoint that is older than the ids is believed"


@pytest.mark.parametrize("text", ["{", "[]", '{"v": 2, "ids": {}}', '{"v": 1}'])
def test_ids_that_are_not_in_their_form_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not in its form|Expecting"):
        kept_in(text)


def test_topics_are_read_from_sparks_offset_log() -> None:
    log = f'v1\n{{"batchWatermarkMs":0,"conf":{{"a":"b"}}}}\n{{"{E}":{{"0":5}},"{F}":{{"0":1}}}}'
    assert topics_in(log) == {E, F}
    assert topics_in("v1\n{}\n-") == frozenset()


def test_an_entry_of_the_log_forgets_topics_and_nothing_else() -> None:
    log = f'v1\n{{"conf":{{"{E}":"b"}}}}\n{{"{E}":{{"0":5}},"{F}":{{"0":1}}}}\n-'
    assert forgotten(log, [E]) == f'v1\n{{"conf":{{"{E}":"b"}}}}\n{{"{F}":{{"0":1}}}}\n-'
    assert forgotten(log, [E, F]).splitlines()[2] == "{}"
    assert forgotten(log, ["other"]) == log
    gated = 'v1\n{}\n{"next":{"l-1s":{"0":5}},"dropped":0,"ids":{}}'
    assert (topics_in(gated), forgotten(gated, ["next", "l-1s"])) == (frozenset(), gated)
