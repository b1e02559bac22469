"""The view of any history, in any order, split, repeated and interrupted anywhere, is what a plain fold says.

What differs only in its records shares one frame: Spark compiles a frame for seconds, and reads a record in µs.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from pyspark.sql import DataFrame, Row, SparkSession

from reconsume.sidecar.view.copy import Batch, RowRead, open_copy
from reconsume.sidecar.view.query import Filters, questions
from reconsume.sidecar.view.source import Source
from reconsume.spark import schema, view
from reconsume.spark.java import classes
from reconsume.topics.events import BadEvent, Event, State, decode_event, encode_event
from reconsume.topics.fold import read_event, row_of
from reconsume.topics.view_record import ViewRow, decode_view, view_order
from tests.spark.frames import batch
from tests.spark.histories import few, randoms
from tests.spark.streams import Played
from tests.support.event_histories import (
    BASE,
    EVENT,
    GROUPS,
    TOPIC,
    Record,
    as_told,
    changed,
    disturbed,
    histories,
    truth,
    written,
)
from tests.support.rings import inner

LATER = BASE + 2 * 3_600_000


def values(frame: DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows by group and id, each once."""
    rows = [as_told(row.asDict()) for row in frame.select(*view.VALUE).collect()]
    found = {(row["group"], row["id"]): row for row in rows}
    assert len(found) == len(rows)
    return found


class Reader:
    """What a reader of the view topics keeps: the greater order, of equals the later update, then the later record."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], ViewRow] = {}

    def take(self, rows: Iterable[Row]) -> None:
        """Records of the sink, in their order."""
        for row in rows:
            group = row.topic.removesuffix("-RETRY-VIEW")
            found = decode_view(group, row.key.encode(), row.value.encode())
            assert isinstance(found, ViewRow), found
            kept = self.kept.get((group, found.id))
            if kept is None or view_order(found) >= view_order(kept):
                self.kept[group, found.id] = found

    def values(self) -> dict[tuple[str, str], dict[str, Any]]:
        rows = {key: msgspec.to_builtins(row) for key, row in self.kept.items()}
        return {key: {name: row[name] for name in row if name != "v"} for key, row in rows.items()}


# --- the form that needs no Spark -------------------------------------------------------------------------------------


def embedded(raw: list[Record], folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of the local copies that fold the same records, a copy for each group."""
    found = {}
    for group in GROUPS:
        store = open_copy(folder, group, Source.EVENTS)
        try:
            read = [one for record in raw if (one := row_read(group, record)) is not None]
            store.store_batch(Batch([*read], [], {}, []))
            with questions(store.path) as ask:
                rows = [json.loads(value) for value in ask.every_message(Filters())]
        finally:
            store.close()
        found |= {(group, row["id"]): {name: row[name] for name in row if name != "v"} for row in rows}
    return found


def row_read(group: str, record: Record) -> RowRead | None:
    """The record as its reader takes it; None for what is no event of the group."""
    clock = record.timestamp if record.appended else time.time_ns() // 1_000_000
    event = read_event(group, record.value, record.timestamp, clock)
    if record.topic != f"{group}-RETRY-EVENTS" or isinstance(event, BadEvent):
        return None
    written = min(record.timestamp, clock)
    row = row_of(event, record.partition, record.offset, written).row
    return RowRead(row, record.partition, record.offset, written)


def hostile_records() -> list[Record]:
    ahead = time.time_ns() // 1_000_000 + 86_400_000
    good = encode_event(EVENT)
    values = [
        *(b"{", None, b"", b"\xff", b"[]", b"null", b"[" * 10_000),
        *(good.replace(b'"times":1', times) for times in (b'"times":"1"', b'"times":-1', b'"times":3000000000')),
        good.replace(b"WAITING_RETRY", b"ASLEEP"),
        good.replace(b'"v":1', b'"v":2'),
        encode_event(changed(at=ahead)),
        encode_event(changed(first_failed_at=ahead)),
        encode_event(changed(reason="x" * 70_000)),
        encode_event(changed(group=GROUPS[1])),
    ]
    return [Record(value, 1_000 + number) for number, value in enumerate(values)]


CASES = {
    "same place": [changed(instance="a"), changed(instance="b")],
    "later success": [
        EVENT,
        changed(times=2, at=BASE + 5),
        changed(state=State.COMMIT, times=2, level=None, due=0, at=BASE + 9),
    ],
    "two first failures": [EVENT, changed(times=2, at=BASE + 10, first_failed_at=BASE + 5)],
    "commit and death at once": [
        changed(state=State.COMMIT, level=None, due=0, reason='"|é'),
        changed(state=State.DLQ, level=None, due=0),
    ],
    "dismissed, until a redrive": [
        EVENT,
        changed(state=State.DLQ, times=2, level=None, due=0, at=BASE + 9),
        changed(state=State.DISMISSED, times=2, level=None, due=0, at=BASE + 1),
        changed(state=State.REDRIVEN, times=0, redrives=1, level=None, due=0, at=BASE + 2),
    ],
    "dismissed": [
        changed(state=State.DISMISSED, times=2, level=None, due=0, at=BASE + 1),
        changed(state=State.DLQ, times=2, level=None, due=0, at=BASE + 9),
    ],
    "a second life, of which each event says the most of both": [
        changed(state=State.DLQ, times=9, level=None, due=0, retries=9, last_failed_at=BASE),
        changed(state=State.REDRIVEN, redrives=1, times=0, at=BASE + 5, retries=9, last_failed_at=BASE),
        changed(state=State.COMMIT, redrives=1, times=0, at=BASE + 9, retries=9, last_failed_at=BASE),
    ],
    "null, as a later writer may leave out what it does not know": [
        changed(state=State.COMMIT, at=BASE + 9, retries=None, last_failed_at=None)
    ],
    "one of the two alone": [changed(retries=7), changed(state=State.COMMIT, last_failed_at=BASE + 1)],
    "a reset with an old clock": [
        changed(cycle=1, times=1, at=BASE - 5),
        changed(state=State.DLQ, redrives=2, times=9),
        changed(cycle=1, times=2, at=BASE - 9),
    ],
    "a redrive with an old clock": [
        changed(state=State.REDRIVEN, redrives=1, times=0, at=BASE - 5),
        changed(state=State.DLQ, times=9),
    ],
}


def lives(random: Random, records: int) -> list[Event]:
    """Random histories, and each of CASES in both orders."""
    orders = [order for events in CASES.values() for order in (events, events[::-1])]
    cases = [
        msgspec.structs.replace(event, id=f"orders:0:{1_000 + number}")
        for number, order in enumerate(orders)
        for event in order
    ]
    return [*disturbed(random, histories(random, records)), *cases]


def true_rows(events: list[Event]) -> dict[tuple[str, str], dict[str, Any]]:
    """The truth; of events with one order it knows not which record is the later one."""
    found = truth(events)
    for number, order in enumerate((CASES["same place"], CASES["same place"][::-1])):
        found[EVENT.group, f"orders:0:{1_000 + number}"]["instance"] = order[1].instance
    return found


@settings(few, max_examples=1)  # each example is compiled anew, and has many histories
@given(randoms)
def test_what_the_job_writes_is_the_fold_and_agrees_with_the_form_without_spark(
    spark: SparkSession, tmp_path: Path, random: Random
) -> None:
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    events, hostile = lives(random, 300), hostile_records()
    records = [*written(events), *hostile]
    reader = Reader()
    reader.take(view.outputs(batch(spark, records)).collect())
    assert reader.values() == true_rows(events) == embedded(records, tmp_path / "copy")
    bad = view.events(batch(spark, hostile)).bad.collect()
    assert sorted(row["offset"] for row in bad) == [record.offset for record in hostile]
    assert {row["topic"] for row in bad} == {TOPIC}
    assert all(row["fault"] for row in bad)


def test_a_record_of_the_view_is_the_documented_json(spark: SparkSession) -> None:
    ended = changed(state=State.COMMIT, level=None, due=0, reason='"|é', retries=3, last_failed_at=BASE - 1)
    (row,) = view.outputs(batch(spark, written([ended]))).collect()
    assert (row.key, row.topic) == (EVENT.id, "billing-RETRY-VIEW")
    assert decode_event(row.value.encode()) == ended
    found = json.loads(row.value)
    assert list(found) == ["v", *schema.FIELDS, "last_failed_at", "retries", "updated_at"]
    assert found["level"] is None


@pytest.mark.parametrize("split", inner(150, [0, 150, 10_000]))
def test_the_present_is_the_same_from_events_and_from_the_view_of_those_that_are_gone(
    spark: SparkSession, split: int
) -> None:
    events = lives(Random(7), 40)
    Random(8).shuffle(events)
    rows = view.outputs(batch(spark, written(events[:split]))).collect() if split else []
    remembered = [Record(row.value.encode(), n, timestamp=LATER, topic=row.topic) for n, row in enumerate(rows)]
    raw = batch(spark, [*written(events[split:]), *remembered, Record(b"{}", topic="billing-RETRY-VIEW")])
    assert unmarked(values(view.present(raw))) == unmarked(truth(events))


def unmarked(rows: dict[tuple[str, str], dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Without the records whose two events have one order: which comes later is not told by them."""
    return {key: row for key, row in rows.items() if key[1] not in ("orders:0:1000", "orders:0:1001")}


def test_bad_events_are_counted_and_one_of_a_batch_is_named_and_neither_stops_the_view(
    spark: SparkSession, tmp_path: Path
) -> None:
    values = [b"{", None, b"\xff"]
    bad = [Record(value, number + 1, timestamp=BASE) for number, value in enumerate(values)]
    played = Played(spark, tmp_path / "run", view.outputs, "append")
    played.play([*written([EVENT]), *bad], bad)
    assert [row.key for row in played.rows] == [EVENT.id]
    counted = [each["observedMetrics"]["events"] for each in played.progress if each["numInputRows"]]
    assert [(each["read"], each["bad"]) for each in counted] == [(4, 3), (3, 3)]
    assert json.loads(counted[0]["first"])["offset"] == 1
    assert not any(each["stateOperators"] for each in played.progress)


@pytest.mark.long
@settings(few, max_examples=2)
@given(randoms)
def test_a_view_that_is_split_restarted_and_torn_anywhere_is_the_fold(
    spark: SparkSession, tmp_path: Path, random: Random
) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    events = lives(random, 60)
    records = written(events)
    cuts = sorted(random.sample(range(len(records)), 4))
    parts = [records[start:end] for start, end in zip([0, *cuts], [*cuts, len(records)], strict=True)]
    parts.append(random.choice(parts))  # replayed
    played = Played(spark, folder, view.outputs, "append")
    split = random.randint(1, len(parts) - 1)
    played.play(*parts[:split], torn=[random.randrange(4)])
    played.play(*parts[split:], torn=[random.randrange(4)])
    reader = Reader()
    reader.take(played.rows)
    assert unmarked(reader.values()) == unmarked(truth(events))


@pytest.mark.long
def test_a_batch_like_the_one_before_it_has_java_compile_nothing(spark: SparkSession, tmp_path: Path) -> None:
    compiled = classes(spark).org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    played = Played(spark, tmp_path / "run", view.outputs, "append")
    counts = []
    for number in range(3):
        played.play(written([changed(id=f"orders:3:{number}", at=BASE + number)]))
        counts.append(compiled.getCount())
    assert counts[1] == counts[2]
    assert len(played.rows) == 3
