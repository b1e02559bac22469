"""The sums count each event, whatever is interrupted, and are told while their minute runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from reconsume.spark import schema, stats
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.fold import sums_of as sums_of_events
from reconsume.topics.view_record import COUNTED
from tests.spark.frames import batch
from tests.spark.streams import Played
from tests.support.event_histories import BASE, GROUPS, Record, changed, disturbed, histories, written

MINUTE = 60_000
DAY = 86_400_000
Key = tuple[str, int, str, str | None, str]


def sums_of(raw: DataFrame) -> DataFrame:
    return stats.sums(schema.events(raw).good, "2 hours")


def truth(records: Iterable[Record]) -> dict[tuple[Key, State], int]:
    """How many events of each state."""
    events = [event for record in records if isinstance(event := decode_event(record.value or b""), Event)]
    return Counter(
        ((event.group, event.at - event.at % MINUTE, event.topic, event.level, event.reason), event.state)
        for event in events
    )


def told(rows: Iterable[Row]) -> dict[tuple[Key, State], int]:
    """What the last row of each key says."""
    found: dict[tuple[Key, State], int] = {}
    for row in rows:
        for name, state in COUNTED.items():
            minute = round(row.minute.timestamp() * 1000)
            found[(row.group, minute, row.topic, row.level, row.reason), state] = row[name]
    return {place: count for place, count in found.items() if count > 0}


def test_the_sums_of_a_batch_count_each_event_as_those_of_the_form_without_spark(spark: SparkSession) -> None:
    records = written(disturbed(Random(2), histories(Random(1), 100)))
    assert told(sums_of(batch(spark, records)).collect()) == truth(records) == folded(records)


def folded(records: Iterable[Record]) -> dict[tuple[Key, State], int]:
    """What the sidecars' own copy of the view counts."""
    found: dict[tuple[Key, State], int] = {}
    events = [event for record in records if isinstance(event := decode_event(record.value or b""), Event)]
    for group in GROUPS:
        for row in sums_of_events(event for event in events if event.group == group).values():
            place = (row.group, row.minute, row.topic, row.level, row.reason)
            found |= {(place, state): count for name, state in COUNTED.items() if (count := getattr(row, name))}
    return found


@pytest.mark.long
def test_sums_are_exact_under_restarts_and_deaths(spark: SparkSession, tmp_path: Path) -> None:
    records = written(disturbed(Random(4), histories(Random(3), 100)))
    half = len(records) // 2
    later = written([changed(at=BASE + DAY)])
    played = Played(spark, tmp_path / "run", sums_of, "update")
    played.play(records[:half], torn=[0])
    played.play(records[half:], later, torn=[1])
    played.play(records[:half], written([changed(at=BASE + 2 * DAY)]))  # too late for their minutes, which are final
    assert told(played.rows) == truth([*records, *later, *written([changed(at=BASE + 2 * DAY)])])


def test_the_running_minute_is_told_at_once_and_again_when_it_changes(spark: SparkSession, tmp_path: Path) -> None:
    first, second = written([changed(at=BASE), changed(id="orders:3:1025", offset=1025, at=BASE + 1)])
    played = Played(spark, tmp_path / "run", sums_of, "update")
    played.play([first], [second])
    assert [row.waiting for row in played.rows] == [1, 2]


@pytest.mark.long
def test_a_query_without_its_checkpoint_tells_the_same_sums(spark: SparkSession, tmp_path: Path) -> None:
    records = written(disturbed(Random(6), histories(Random(5), 30)))
    rows: list[Row] = []
    for start in ("first", "anew"):
        played = Played(spark, tmp_path / start, sums_of, "update")
        played.play(records)
        rows += played.rows
    assert told(rows) == truth(records)


def test_dismissals_and_bad_events_are_in_no_sum(spark: SparkSession) -> None:
    good = written([changed()])
    dismissed = written([changed(state=State.DISMISSED, level=None, due=0)])
    assert told(sums_of(batch(spark, [*good, *dismissed, Record(b"{}", 8)])).collect()) == truth(good)
