"""Dead letters, waiting records and events as DataFrames, read from a real Kafka, whatever lies in the topics."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec.structs import replace as replace_state
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from reconsume.sidecar.dlq.letters import MOST_REDRIVES, Eligibility
from reconsume.spark import tables, view
from reconsume.spark.errors import GroupNotFoundError
from reconsume.topics.dead_letter_headers import EDITED, dead_letter_headers
from reconsume.topics.events import State, encode_event, event_of
from reconsume.topics.names import Kind
from reconsume.topics.position_ranges import PartitionResets, ResetRange
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.raw_producer import produce_raw
from tests.support.kafka.reset_notes import note_resets, topic_id
from tests.support.kafka.topic_io import Out, create_topic, produce

HOUR = 3_600_000
LONG = 6 * HOUR
"""ms of the only level."""
OWN = (("tag", b"one"), ("tag", b"two"), ("none", None), ("none", b""), ("gone", b"x"), ("gone", None))
OWN_MAP = {"tag": b"two", "none": b"", "gone": None}
MIB = b"\0" * 1024 * 1024
COLUMNS = "id topic partition offset reason text state times redrives cycle first_failed_at"


def state_of(group: GroupTopics, number: int, **fields: Any) -> RetryState:
    """The retry state of the main topic's record `number`, which failed an hour ago."""
    now = int(time.time() * 1000)
    usual = {"times": 1, "due_at": now, "first_failed_at": now - HOUR, "reason": "http-500: no stock", "timestamp": now}
    return RetryState(f"{group.main}:0:{number}", group.main, **{**usual, **fields})


def tell(group: GroupTopics, state: State, *states: RetryState, level: int | None = None) -> None:
    """Write an event for each, as a sidecar does."""
    at = int(time.time() * 1000)
    events = [event_of(each, state, level, group=group.group, instance="test", at=at) for each in states]
    produce(group.bootstrap, group.names.events, [Out(encode_event(event), event.id.encode()) for event in events])


def letter(group: GroupTopics, state: RetryState, value: bytes | None, more: tuple[tuple[str, bytes], ...] = ()) -> Out:
    """A dead letter as a sidecar writes it."""
    ours = [*render_retry_headers(state, group.group, group.dlq), *dead_letter_headers(state, group.group, 2)]
    return Out(value, b"key", (*OWN, *ours, *more))


def copy(group: GroupTopics, topic: str, state: RetryState, value: bytes | None) -> Out:
    """A copy that waits in a topic."""
    return Out(value, b"key", (*OWN, *render_retry_headers(state, group.group, topic)))


def kill(group: GroupTopics, state: RetryState, value: bytes | None, more: tuple[tuple[str, bytes], ...] = ()) -> None:
    """Write a dead letter and its event."""
    produce(group.bootstrap, group.dlq, [letter(group, state, value, more)], {"message.max.bytes": 2 * len(MIB)})
    tell(group, State.DLQ, state)


def by_value(frame: DataFrame) -> dict[bytes | None, dict[str, Any]]:
    """The rows by value, each once; bytes as bytes."""
    rows = [row.asDict() for row in frame.collect()]
    found = {row["value"] and bytes(row["value"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def by_id(frame: DataFrame) -> dict[str, dict[str, Any]]:
    """The rows by id, each once."""
    rows = [row.asDict() for row in frame.collect()]
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture(scope="module")
def group(kafka: Broker) -> GroupTopics:
    """A group with dead letters and waiting records of every kind."""
    made = create_group(fresh_group(kafka.bootstrap, delays=(LONG,)), 1)
    plant_dead_letters(made)
    plant_waiting(made)
    return made


def plant_dead_letters(group: GroupTopics) -> None:
    """Each dead letter's value is what the test calls it."""
    plain, redriven, dismissed, huge, null, twice, reset = (state_of(group, number) for number in range(7))
    often = state_of(group, 7, redrives=3)
    level = group.names.level(LONG, group.main)
    broken = RetryState(f"{level}:0:5", level, first_failed_at=plain.first_failed_at, reason="bad-header: x")
    kill(group, plain, b"plain")
    kill(group, redriven, b"redriven")
    tell(group, State.REDRIVEN, state_of(group, 1, times=0, redrives=1))
    tell(group, State.COMMIT, state_of(group, 1, times=0, redrives=1))
    kill(group, dismissed, b"dismissed")
    tell(group, State.DISMISSED, dismissed)
    kill(group, huge, MIB)
    kill(group, null, None)
    # Of one failure twice: the edited one counts, though the other is newer.
    kill(group, twice, b"edited", ((EDITED, b"{}"),))
    produce(group.bootstrap, group.dlq, [letter(group, twice, b"copied")])
    # A reset lets the record fail again: that says nothing about the dead letter of the cycle before.
    kill(group, reset, b"before a reset")
    tell(group, State.REDRIVEN, state_of(group, 6, times=0, redrives=1, cycle=1))
    kill(group, often, b"often")
    kill(group, broken, b"broken")
    twofold = letter(group, state_of(group, 8), b"twofold", (("RETRY_REDRIVES", b"1"),))
    produce(group.bootstrap, group.dlq, [Out(b"not ours", b"k", (("a", b"b"),)), twofold])
    produce_raw(group.bootstrap, group.dlq, 0, b"raw", b"k", [(b"\xff", b"1"), (b"a", b"\xfe")])


STATES = {
    b"plain": "ready",
    b"redriven": "redriven",
    b"dismissed": "dismissed",
    MIB: "ready",
    None: "ready",
    b"edited": "ready",
    b"copied": "copy",
    b"before a reset": "ready",
    b"often": "quarantined",
    b"broken": "unfit",
    b"twofold": "unfit",
    b"not ours": "unfit",
    b"raw": "unfit",
}
FAULTS = {
    b"twofold": "RETRY_REDRIVES is there twice",
    b"not ours": "REAL_TOPIC is missing",
    b"raw": "the name of a header is not UTF-8",
}
"""What is said of records whose headers cannot be read."""


def plant_waiting(group: GroupTopics) -> None:
    """What waits is called by its number; the value of the copy that counts is `now`."""
    level, due = group.names.level(LONG, group.main), int(time.time() * 1000) + LONG
    first, second = (state_of(group, 20, times=times, due_at=due) for times in (1, 2))
    done, lost = state_of(group, 21, due_at=due), state_of(group, 22, due_at=due)
    parked = state_of(group, 23, due_at=0, parked=True, reason="bad-sku")
    back = state_of(group, 24, times=0, redrives=1)
    copies = [
        copy(group, level, first, b"old"),
        copy(group, level, second, b"moved"),
        copy(group, level, second, b"now"),
    ]
    copies += [copy(group, level, done, b"done"), Out(b"not ours"), copy(group, level, parked, b"now")]
    produce(group.bootstrap, level, copies)
    produce(group.bootstrap, group.names.ready, [copy(group, group.names.ready, back, None), Out(None)])
    tell(group, State.WAITING_RETRY, first, second, done, lost, level=LONG)
    tell(group, State.WAITING_RETRY, parked)
    tell(group, State.REDRIVEN, back)
    tell(group, State.COMMIT, done)
    produce(group.bootstrap, group.names.events, [Out(None), Out(b"no event"), Out(b"{}", b"\xff")])


def test_each_dead_letter_has_the_state_by_which_the_command_line_lists_it(
    spark: SparkSession, group: GroupTopics
) -> None:
    table = tables.dead_letters(spark, group.bootstrap, group.group)
    assert table.columns == f"{COLUMNS} died_at key value headers".split()
    rows = by_value(table)
    assert {value: row["state"] for value, row in rows.items()} == STATES
    for value, fault in FAULTS.items():
        row = rows[value]
        assert (row["text"], row["reason"], row["topic"]) == (fault, None, None)
        assert row["id"].startswith(f"{group.dlq}:0:")
    assert (rows[b"broken"]["reason"], rows[b"broken"]["text"]) == ("bad-header", "x")


def test_the_states_are_those_of_the_command_line() -> None:
    assert {*STATES.values(), "forgotten", "superseded"} == set(Eligibility)
    assert tables.MOST_REDRIVES == MOST_REDRIVES


def test_a_dead_letter_has_all_that_its_record_had(spark: SparkSession, group: GroupTopics) -> None:
    row = by_value(tables.dead_letters(spark, group.bootstrap, group.group))[MIB]
    assert (row["id"], row["topic"], row["partition"], row["offset"]) == (f"{group.main}:0:3", group.main, 0, 3)
    assert (row["reason"], row["text"], row["times"], row["redrives"]) == ("http-500", "no stock", 1, 0)
    assert {name: row["headers"][name] and bytes(row["headers"][name]) for name in OWN_MAP} == OWN_MAP
    waited = (row["died_at"] - row["first_failed_at"]).total_seconds()
    assert 0 <= waited - HOUR / 1000 < 300


def test_what_waits_is_there_once_with_the_copy_that_is_its_present_attempt(
    spark: SparkSession, group: GroupTopics
) -> None:
    table = tables.waiting(spark, group.bootstrap, group.group)
    assert table.columns == f"{COLUMNS} due key value headers".split()
    rows = {row["offset"]: row for row in table.collect()}
    assert {
        number: (row["state"], row["times"], row["value"] and bytes(row["value"])) for number, row in rows.items()
    } == {
        20: ("waiting", 2, b"now"),
        22: ("waiting", 1, None),  # no topic has its copy
        23: ("parked", 1, b"now"),
        24: ("redriven", 0, None),
        6: ("redriven", 0, None),
    }
    assert (bytes(rows[24]["key"]), rows[22]["key"]) == (b"key", None)
    assert (rows[23]["due"], rows[23]["reason"], rows[23]["text"]) == (None, "bad-sku", None)
    assert rows[20]["text"] == "no stock"
    assert {name: bytes(rows[20]["headers"][name] or b"") for name in ("tag", "gone")} == {"tag": b"two", "gone": b""}


def test_each_event_is_a_row_and_what_is_none_is_left_out(spark: SparkSession, group: GroupTopics) -> None:
    table = tables.events(spark, group.bootstrap, group.group)
    assert table.columns == f"{COLUMNS} at".split()
    told = [(row["offset"], row["state"]) for row in table.orderBy("at").collect()]
    assert len(told) == 20
    assert sorted(state for number, state in told if number == 1) == ["COMMIT", "DLQ", "REDRIVEN"]


def test_tables_are_bounded_by_time_also_where_no_record_is_as_new(spark: SparkSession, group: GroupTopics) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    many = tables.dead_letters(spark, group.bootstrap, group.group, since="1h")
    assert many.count() == len(STATES)
    assert {row["state"] for row in many.select("state").distinct().collect()} == set(STATES.values())
    for none in ({"since": soon}, {"until": "1h"}, {"until": timedelta(hours=1)}, {"since": soon.isoformat()}):
        assert tables.dead_letters(spark, group.bootstrap, group.group, **none).count() == 0
        assert tables.events(spark, group.bootstrap, group.group, **none).count() == 0
    later = tables.waiting(spark, group.bootstrap, group.group, since=soon)
    assert {row["offset"] for row in later.select("offset").collect()} == {20, 22}


@pytest.mark.parametrize("wrong", ["5x", "9999999999d", "2026-11-29", "2026-11-29T10:00:00", datetime(2026, 1, 1), 5])
def test_what_is_no_time_with_a_zone_is_refused_by_name(spark: SparkSession, wrong: Any) -> None:
    for table in (tables.dead_letters, tables.waiting, tables.events):
        with pytest.raises(ValueError, match=r"^until: .* is not a time.*: write a duration such as 2h, or a time"):
            table(spark, "127.0.0.1:1", "billing", until=wrong)


def test_dead_letters_and_events_are_streams_and_what_waits_is_not(
    spark: SparkSession, group: GroupTopics, tmp_path: Path
) -> None:
    for table, rows in ((tables.dead_letters, len(STATES)), (tables.events, 20)):
        stream = table(spark, group.bootstrap, group.group, stream=True, since="1h")
        assert stream.isStreaming
        assert ("state" in stream.columns) == (table is tables.events)
        out, name = tmp_path / table.__name__, str(tmp_path / f"{table.__name__}-checkpoint")
        query = stream.writeStream.format("parquet").option("checkpointLocation", name).trigger(availableNow=True)
        query.start(str(out)).awaitTermination(120)
        assert spark.read.parquet(str(out)).count() == rows


def test_a_group_with_nothing_yet_has_empty_tables_and_a_group_that_is_none_is_an_error(
    spark: SparkSession, kafka: Broker
) -> None:
    empty, none = create_group(fresh_group(kafka.bootstrap, delays=(LONG,)), 1), fresh_group(kafka.bootstrap)
    for table in (tables.dead_letters, tables.waiting, tables.events):
        assert table(spark, kafka.bootstrap, empty.group).count() == 0
        with pytest.raises(GroupNotFoundError, match=f"there is no group {none.group}, or this user has no right"):
            table(spark, kafka.bootstrap, none.group)


def test_tables_of_one_group_can_be_joined(spark: SparkSession, group: GroupTopics) -> None:
    letters = tables.dead_letters(spark, group.bootstrap, group.group)
    present = view.table(spark, group.bootstrap, group.group).select("id", fn.col("state").alias("present"))
    told = tables.events(spark, group.bootstrap, group.group).where("state = 'DISMISSED'").select("id", "at")
    joined = letters.join(present, "id").join(told, "id")
    assert [(row["state"], row["present"]) for row in joined.collect()] == [("dismissed", "DISMISSED")]


def test_a_dead_letter_whose_events_have_left_kafka_is_forgotten(spark: SparkSession, kafka: Broker) -> None:
    group = create_group(fresh_group(kafka.bootstrap, delays=(LONG,)), 1)
    kill(group, state_of(group, 0), b"old")
    delete_records(group.bootstrap, group.names.events)
    kill(group, state_of(group, 1), b"new")
    rows = by_value(tables.dead_letters(spark, group.bootstrap, group.group))
    assert {value: row["state"] for value, row in rows.items()} == {b"old": "forgotten", b"new": "ready"}


def test_with_a_prefix_by_topic_only_the_groups_own_records_are_its_dead_letters(
    spark: SparkSession, kafka: Broker
) -> None:
    group = replace(fresh_group(kafka.bootstrap, 2, (LONG,)), template="{topic}-{group}")
    create_group(group, 1)
    other = replace(group, group=f"x-{group.group}", template="{group}")
    create_topic(kafka.bootstrap, other.dlq)
    for number, main in enumerate(group.mains):
        state = replace_state(state_of(group, number), id=f"{main}:0:{number}", topic=main)
        produce(kafka.bootstrap, group.names.dlq(main), [letter(group, state, main.encode())])
        tell(group, State.DLQ, state)
    produce(kafka.bootstrap, other.dlq, [letter(other, state_of(other, 9), b"another's")])
    rows = by_value(tables.dead_letters(spark, kafka.bootstrap, group.group))
    assert {value: row["state"] for value, row in rows.items()} == {main.encode(): "ready" for main in group.mains}


def delete_records(bootstrap: str, topic: str) -> None:
    """Delete all records of a topic, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = [
        TopicPartition(topic, number, OFFSET_END) for number in admin.list_topics(topic).topics[topic].partitions
    ]
    for future in admin.delete_records(partitions).values():
        future.result(30)


def test_what_a_reset_has_superseded_is_named_and_does_not_wait(spark: SparkSession, kafka: Broker) -> None:
    """Given a dead letter and a retry of the cycle before, and one dead letter outside the range of the reset."""
    group = create_group(fresh_group(kafka.bootstrap, delays=(LONG,)), also=[Kind.POLICY])
    died, waits, beside = (state_of(group, number, due_at=int(time.time() * 1000) + LONG) for number in range(3))
    kill(group, died, b"died")
    kill(group, beside, b"beside")
    tell(group, State.WAITING_RETRY, waits, level=LONG)
    moved = ResetRange(0, 2, 1, 1)
    note_resets(group, 0, PartitionResets(topic_id(group), 1, (moved,), ("r1",)))
    letters = by_value(tables.dead_letters(spark, group.bootstrap, group.group))
    assert {value: row["state"] for value, row in letters.items()} == {b"died": "superseded", b"beside": "ready"}
    assert tables.waiting(spark, group.bootstrap, group.group).count() == 0
    rows = by_id(view.table(spark, group.bootstrap, group.group))
    assert {ident: row["state"] for ident, row in rows.items()} == {
        died.id: "SUPERSEDED",
        waits.id: "SUPERSEDED",
        beside.id: "DLQ",
    }
