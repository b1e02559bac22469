"""The view of any history, in any order, split, repeated and interrupted anywhere, is what a plain fold says."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from pyspark.sql import DataFrame, SparkSession

from sidecar.view.query import Filters, questions
from sidecar.view.source import Source
from sidecar.view.store_file import open_store
from sidecar.view.tables import Item
from spark import schema, session, view
from spark.java import classes
from tests.spark.frames import Reader, batch
from tests.spark.histories import few, randoms
from tests.spark.streams import Played
from tests.support.event_histories import (
    BASE,
    EVENT,
    GROUPS,
    TOPIC,
    Record,
    changed,
    disturbed,
    histories,
    truth,
    written,
)
from tests.support.rings import inner
from topics.events import BadEvent, Event, State, decode_event, encode_event
from topics.fold import read_event, row_of
from topics.names import Kind

HOUR = 3_600_000


def view_of(raw: DataFrame, keep: str | None = view.KEEP) -> DataFrame:
    return view.view(schema.events(raw).good, keep)


def values(frame: DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows by group and id, each once."""
    rows = [row.asDict() for row in frame.select(*view.VALUE).collect()]
    found = {(row["group"], row["id"]): row for row in rows}
    assert len(found) == len(rows)
    return found


@settings(few, max_examples=1)  # each example is compiled anew, and has many histories
@given(randoms)
def test_the_view_of_a_batch_is_the_fold_of_its_events(spark: SparkSession, random: Random) -> None:
    events = histories(random, 300)
    assert values(view_of(batch(spark, written(disturbed(random, events))))) == truth(events)


@pytest.mark.long
@settings(few, max_examples=2)
@given(randoms)
def test_a_view_that_is_split_restarted_and_torn_anywhere_is_the_fold(
    spark: SparkSession, tmp_path: Path, random: Random
) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    events = histories(random, 60)
    records = written(disturbed(random, events))
    cuts = sorted(random.sample(range(len(records)), 4))
    parts = [records[start:end] for start, end in zip([0, *cuts], [*cuts, len(records)], strict=True)]
    parts.append(random.choice(parts))  # replayed
    played = Played(spark, folder, view_of, "update")
    split = random.randint(1, len(parts) - 1)
    played.play(*parts[:split], torn=[random.randrange(4)])
    played.play(*parts[split:], torn=[random.randrange(4)])
    reader = Reader()
    reader.take(played.rows)
    assert reader.values() == truth(events)


@pytest.mark.long
def test_a_checkpoint_that_is_lost_is_rebuilt_to_the_same_view(spark: SparkSession, tmp_path: Path) -> None:
    events = histories(Random(5), 30)
    records = written(disturbed(Random(6), events))
    reader = Reader()
    for name, parts in ("first", [records]), ("rebuilt", [records[:50], records[50:]]):
        played = Played(spark, tmp_path / name, view_of, "update")
        played.play(*parts)
        reader.take(played.rows)
    assert reader.values() == truth(events)


@pytest.mark.long  # CASES has it in every run, and the three below
def test_of_events_at_the_same_place_the_later_record_counts(spark: SparkSession) -> None:
    pairs = [
        [changed(id=f"orders:0:{number}", instance=name) for name in names]
        for number, names in ((1_000, ("a", "b")), (1_001, ("b", "a")))
    ]
    rows = values(view_of(batch(spark, written([event for pair in pairs for event in pair]))))
    for pair in pairs:
        assert rows[EVENT.group, pair[1].id]["instance"] == pair[1].instance


@pytest.mark.long
def test_a_later_success_leaves_the_failures_times(spark: SparkSession) -> None:
    life = [EVENT, changed(times=2, at=BASE + 5), changed(state=State.COMMIT, times=2, level=None, due=0, at=BASE + 9)]
    row = values(view_of(batch(spark, written(life))))[EVENT.group, EVENT.id]
    assert (row["state"], row["first_failed_at"], row["last_failed_at"]) == ("COMMIT", BASE, BASE + 5)
    assert (row["retries"], row["updated_at"]) == (2, BASE + 9)


@pytest.mark.long
def test_a_dismissed_letter_is_dismissed_until_it_is_redriven(spark: SparkSession) -> None:
    """Given a dead letter that a person dismissed, in any order of its events, then only a redrive is later."""
    dead = changed(state=State.DLQ, times=2, level=None, due=0, at=BASE + 9)
    dismissed = changed(state=State.DISMISSED, times=2, level=None, due=0, at=BASE + 1)
    redriven = changed(state=State.REDRIVEN, times=0, redrives=1, level=None, due=0, at=BASE + 2)
    lives = {(dismissed, dead): "DISMISSED", (dead, dismissed): "DISMISSED", (redriven, dismissed): "REDRIVEN"}
    ids = [f"orders:0:{1_000 + number}" for number in range(len(lives))]
    events = [
        msgspec.structs.replace(event, id=ident)
        for ident, life in zip(ids, lives, strict=True)
        for event in (EVENT, *life)
    ]
    rows = values(view_of(batch(spark, written(events))))
    assert [rows[EVENT.group, ident]["state"] for ident in ids] == list(lives.values())


def test_a_record_of_the_view_is_the_documented_json(spark: SparkSession) -> None:
    ended = changed(state=State.COMMIT, level=None, due=0, reason='"|é')
    row = view.records(view_of(batch(spark, written([ended])))).collect()[0]
    assert (row.key, row.topic) == (EVENT.id, "billing-RETRY-VIEW")
    assert decode_event(row.value.encode()) == ended
    found = json.loads(row.value)
    assert list(found) == ["v", *schema.FIELDS, *schema.SUMMED]
    assert found["level"] is None


def test_state_is_kept_in_two_partitions_of_rocksdb(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert "RocksDB" in str(spark.conf.get("spark.sql.streaming.stateStore.providerClass"))


@pytest.mark.long
def test_a_batch_like_the_one_before_it_has_java_compile_nothing(spark: SparkSession, tmp_path: Path) -> None:
    compiled = classes(spark).org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    played = Played(spark, tmp_path / "run", lambda raw: view.records(view_of(raw, None)), "update")
    counts = []
    for number in range(3):
        played.play(written([failing(number, BASE + number)]))
        counts.append(compiled.getCount())
    assert counts[1] == counts[2]
    assert len(played.rows) == 3


@pytest.mark.long
def test_a_batch_reads_what_the_last_one_kept_and_no_changes_of_earlier_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = [failing(number, BASE + number) for number in range(3)]
    played = Played(spark, tmp_path / "run", lambda raw: view_of(raw, None), "update")
    played.play(*(written([msgspec.structs.replace(event, times=2)]) for event in first))
    kept = (tmp_path / "run").glob("checkpoint/state/0/*/*")
    earlier = [path for path in kept if path.name in ("1.zip", "2.zip", "1.changelog", "2.changelog")]
    assert len(earlier) == 4, "two batches before the last, in two partitions"
    for path in earlier:
        path.unlink()
    played.play(written(first))
    assert {row.id: row.times for row in played.rows[-3:]} == {event.id: 2 for event in first}


def ages(played: Played) -> tuple[str, int, int]:
    """The last watermark, the rows in the state, and how many events were dropped by age so far."""
    progress = played.progress
    states = [each["stateOperators"][0] for each in progress if each["stateOperators"]]
    dropped = sum(state["numRowsDroppedByWatermark"] for state in states)
    return progress[-1]["eventTime"]["watermark"], states[-1]["numRowsTotal"], dropped


def failing(number: int, at: int) -> Event:
    """A first failure."""
    return changed(id=f"orders:3:{number}", at=at, first_failed_at=at)


@pytest.mark.long
def test_rows_leave_by_age_and_what_comes_too_late_is_dropped_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    played = Played(spark, tmp_path / "run", lambda raw: view_of(raw, "1 hour"), "update")
    played.play(written([failing(number, BASE + number) for number in range(3)]))
    assert ages(played)[1:] == (3, 0)
    played.play(written([failing(9, BASE + HOUR + 1)]))
    assert ages(played)[1:] == (2, 0), "first_failed_at ≤ W leaves: 0 and 1 do, 2 stays"
    played.play(written([changed(id="orders:3:0", times=2, at=BASE + HOUR), failing(2, BASE + 2)]))
    assert ages(played)[1:] == (2, 1)


@pytest.mark.long
def test_a_stream_takes_turns_with_and_without_age_and_goes_on_from_its_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    keep: list[str | None] = [None]
    played = Played(spark, tmp_path / "run", lambda raw: view_of(raw, keep[0]), "update")
    started = changed(id="orders:3:9", times=5, at=BASE + HOUR + 1, first_failed_at=BASE + HOUR + 1)
    with session.counting(spark, rows=False):
        played.play(written([failing(number, BASE + number) for number in range(3)]), written([started]))
    assert played.progress[-1]["stateOperators"][0]["numRowsTotal"] == 0, "nor counted"
    assert "eventTime" not in played.progress[-1], "without a watermark no row is looked at"
    keep[0] = "1 hour"
    played.play(written([failing(10, BASE + HOUR + 2)]))
    assert ages(played)[1:] == (2, 0), "all three whose time has come leave in one sweep"
    keep[0] = None
    with session.counting(spark, rows=False):
        played.play(written([msgspec.structs.replace(started, times=4), changed(id="orders:3:0", times=2)]))
    assert {row.id: row.times for row in played.rows[-2:]} == {"orders:3:9": 5, "orders:3:0": 2}
    keep[0] = "1 hour"
    played.play(written([failing(11, BASE + HOUR + 3)]))
    assert ages(played) == (ages(played)[0], 3, 0), "and the one that came back leaves again"


def test_a_bad_event_neither_stops_the_view_nor_moves_its_watermark(spark: SparkSession, tmp_path: Path) -> None:
    ahead = time.time_ns() // 1_000_000 + 24 * HOUR
    values = [b"{", None, b"\xff", encode_event(failing(1, 2**63 - 1)), encode_event(failing(2, ahead))]
    bad = [Record(value, number, timestamp=BASE) for number, value in enumerate(values)]
    played = Played(spark, tmp_path / "run", lambda raw: view_of(raw, "1 hour"), "update")
    played.play([*written([failing(3, BASE)]), *bad], bad)
    assert ages(played) == ("2025-11-21T00:53:20.000Z", 1, 0)
    assert [row.id for row in played.rows] == ["orders:3:3"]
    counted = [each["observedMetrics"]["events"] for each in played.progress if each["numInputRows"]]
    assert [(each["read"], each["bad"]) for each in counted] == [(6, 5), (5, 5)]


@pytest.mark.long
def test_a_record_with_two_first_failures_is_one_row_of_the_present(spark: SparkSession) -> None:
    events = [EVENT, changed(times=2, at=BASE + 10, first_failed_at=BASE + 5)]
    raw = batch(spark, written(events))
    assert view_of(raw).count() == 2
    assert values(view.present(raw)) == truth(events)


@pytest.mark.parametrize("split", inner(150, [0, 150, 10_000]))
def test_the_present_is_the_same_from_events_and_from_the_view_of_those_that_are_gone(
    spark: SparkSession, split: int
) -> None:
    events = histories(Random(7), 40)
    Random(8).shuffle(events)
    rows = view.records(view_of(batch(spark, written(events[:split])))).collect() if split else []
    later = BASE + 2 * HOUR
    remembered = [Record(row.value.encode(), n, timestamp=later, topic=row.topic) for n, row in enumerate(rows)]
    raw = batch(spark, [*written(events[split:]), *remembered, Record(b"{}", topic="billing-RETRY-VIEW")])
    assert values(view.present(raw)) == truth(events)


# --- side by side with the form that needs no Spark -------------------------------------------------------------------


def embedded(raw: list[Record], folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of the local copies that fold the same records, a copy for each group."""
    found = {}
    for group in GROUPS:
        store = open_store(folder, group, Source.EVENTS)
        try:
            items = [item for record in raw if (item := item_of(group, record)) is not None]
            store.take_events(items, {}, 0)
            with questions(store.path) as ask:
                rows = [json.loads(value) for value in ask.every_message(Filters())]
        finally:
            store.close()
        found |= {(group, row["id"]): {name: row[name] for name in row if name != "v"} for row in rows}
    return found


def item_of(group: str, record: Record) -> Item | None:
    """The record as its reader takes it; None for what is no event of the group."""
    clock = record.timestamp if record.appended else time.time_ns() // 1_000_000
    event = read_event(group, record.value, record.timestamp, clock)
    if record.topic != f"{group}-RETRY-EVENTS" or isinstance(event, BadEvent):
        return None
    written = min(record.timestamp, clock)
    row = row_of(event, record.partition, record.offset, written).row
    return Item(Kind.EVENTS, event.id, row, record.offset, written, record.partition, event)


def hostile_records() -> list[Record]:
    ahead = time.time_ns() // 1_000_000 + 24 * HOUR
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


@pytest.mark.long  # in every run each form is compared with the fold, and both with each other in CASES
@settings(few, max_examples=1)
@given(randoms)
def test_both_forms_of_the_view_have_the_same_rows(spark: SparkSession, tmp_path: Path, random: Random) -> None:
    events = histories(random, 100)
    records = [*written(disturbed(random, events)), *hostile_records()]
    random.shuffle(records)
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    both = values(view.present(batch(spark, records))), embedded(records, tmp_path / "copy")
    assert both[0] == both[1]
    assert both[1] == truth(events)


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
    "a redrive with an old clock": [
        changed(state=State.REDRIVEN, redrives=1, times=0, at=BASE - 5),
        changed(state=State.DLQ, times=9),
    ],
}


def test_both_forms_agree_in_each_case_and_order(spark: SparkSession, tmp_path: Path) -> None:
    """Each case and each order of its events is a record of its own, so that Spark runs once; sums of a view row in an
    event are no part of it."""
    orders = [order for events in CASES.values() for order in (events, events[::-1])]
    events = [
        msgspec.structs.replace(event, id=f"orders:0:{1_000 + number}")
        for number, order in enumerate(orders)
        for event in order
    ]
    forged = json.dumps({**json.loads(encode_event(EVENT)), "retries": 99, "updated_at": 2**60}).encode()
    records = [*written(events), Record(forged, topic=TOPIC)]
    found = values(view.present(batch(spark, records)))
    assert found == embedded(records, tmp_path)
    assert len(found) == 2 * len(CASES) + 1
    wanted = truth([*events, EVENT])  # which knows no order of records: the later one counts
    for number, order in enumerate(orders[:2]):
        wanted[EVENT.group, f"orders:0:{1_000 + number}"]["instance"] = order[1].instance
    assert found == wanted
