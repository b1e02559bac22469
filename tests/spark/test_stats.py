"""The sums count each event once, whatever is repeated, replayed or interrupted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from spark import schema, stats
from tests.spark.frames import BASE, Record, batch, changed, written
from tests.spark.histories import disturbed, histories
from tests.spark.streams import Played
from topics.events import Event, State

MINUTE = 60_000
DAY = 86_400_000
Key = tuple[str, int, str, str | None, str]


def sums_of(raw: DataFrame) -> DataFrame:
    return stats.sums(schema.events(raw).good, "2 hours")


def truth(events: Iterable[Event]) -> dict[tuple[Key, State], int]:
    """How many events of each state, each event once."""
    once = {(event.group, event.id, event.redrives, event.times, event.state): event for event in events}
    return Counter(
        ((event.group, event.at - event.at % MINUTE, event.topic, event.level, event.reason), event.state)
        for event in once.values()
    )


def told(rows: Iterable[Row]) -> dict[tuple[Key, State], int]:
    """What the rows say; a key that is told again must say the same."""
    found: dict[tuple[Key, State], int] = {}
    for row in rows:
        for name, state in stats.COUNTED.items():
            place = (row.group, row.minute, row.topic, row.level, row.reason), state
            assert found.setdefault(place, row[name]) == row[name], "a minute was told twice, with other sums"
    return {place: count for place, count in found.items() if count > 0}


def test_the_sums_of_a_batch_count_each_event_once(spark: SparkSession) -> None:
    events = histories(Random(1), 100)
    assert told(sums_of(batch(spark, written(disturbed(Random(2), events)))).collect()) == truth(events)


@pytest.mark.long
def test_sums_are_exact_under_duplicates_replays_restarts_and_deaths(spark: SparkSession, tmp_path: Path) -> None:
    events = histories(Random(3), 100)
    records = written(disturbed(Random(4), events))
    half = len(records) // 2
    later = written([changed(at=BASE + DAY)])
    played = Played(spark, tmp_path / "run", sums_of, "append")
    played.play(records[:half], records[: half // 2], torn=[0])
    played.play(records[half:], later, torn=[1])
    played.play(records[:half], written([changed(at=BASE + 2 * DAY)]))  # replayed after its minutes were told
    assert told(played.rows) == truth([*events, changed(at=BASE + DAY)])


def test_bad_events_are_in_no_sum(spark: SparkSession) -> None:
    good = written([changed()])
    assert told(sums_of(batch(spark, [*good, Record(b"{}", 8)])).collect()) == truth([changed()])


def test_a_record_of_the_sums_is_the_documented_json(spark: SparkSession) -> None:
    dead = changed(state=State.DLQ, level=None, due=0)
    rows = stats.records(sums_of(batch(spark, written([changed(), dead])))).collect()
    minute = BASE - BASE % MINUTE
    found = {row.key: json.loads(row.value) for row in rows}
    same = {"v": 1, "group": "billing", "minute": minute, "topic": "orders", "reason": "http-500"}
    none = {"waiting": 0, "committed": 0, "dead": 0, "redriven": 0}
    assert found == {
        f"{minute}|orders|10s|http-500": same | none | {"level": "10s", "waiting": 1},
        f"{minute}|orders||http-500": same | none | {"level": None, "dead": 1},
    }
    assert list(found[f"{minute}|orders||http-500"]) == ["v", *stats.KEYS, *stats.COUNTED]
    assert {row.topic for row in rows} == {"billing-RETRY-STATS"}
