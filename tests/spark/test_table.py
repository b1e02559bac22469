"""The present state as a table, read from a real Kafka."""

from __future__ import annotations

import socket
import time
from random import Random

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import TimestampType

from reconsume.spark import schema, view
from reconsume.spark.errors import GroupNotFoundError, NoAnswerError
from reconsume.topics.events import Event, encode_event
from tests.spark.frames import batch
from tests.support.event_histories import BASE, EVENT, as_told, changed, history, truth, written
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import Out, create_topic, produce

TIMEOUT = 30


def life(group: str, records: int) -> list[Event]:
    """Events of some records of the group."""
    return [event for number in range(records) for event in history(Random(number), group, number)]


def values(spark: SparkSession, kafka: Broker, group: str) -> dict[tuple[str, str], dict[str, object]]:
    """The table's rows, but for when Kafka was given them."""
    rows = [as_told(row.asDict()) for row in in_ms(view.table(spark, kafka.bootstrap, group)).collect()]
    return {(row["group"], row["id"]): {**row, "updated_at": 0} for row in rows}


def in_ms(table: DataFrame) -> DataFrame:
    """The table with its times as they are in the topics, where a time that is not there is a number."""
    none = {"due": 0, "timestamp": -1}
    assert all(isinstance(table.schema[name].dataType, TimestampType) for name in schema.TIMES)
    return table.withColumns({name: fn.coalesce(fn.unix_millis(name), fn.lit(none.get(name))) for name in schema.TIMES})


def expected(events: list[Event]) -> dict[tuple[str, str], dict[str, object]]:
    return {key: {**row, "updated_at": 0} for key, row in truth(events).items()}


def test_the_table_is_the_fold_of_what_was_committed(spark: SparkSession, kafka: Broker, group: str) -> None:
    create_topic(kafka.bootstrap, f"{group}-RETRY-EVENTS", 3)
    create_topic(kafka.bootstrap, f"{group}x-RETRY-EVENTS", 1)
    events = life(group, 20)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": group})
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    for event in events:
        producer.produce(f"{group}-RETRY-EVENTS", encode_event(event), event.id)
    producer.produce(f"{group}x-RETRY-EVENTS", encode_event(changed(group=f"{group}x")), "another")
    producer.commit_transaction(TIMEOUT)
    producer.begin_transaction()
    producer.produce(f"{group}-RETRY-EVENTS", encode_event(changed(group=group, redrives=9)), "never")
    producer.flush(TIMEOUT)
    producer.abort_transaction(TIMEOUT)
    assert values(spark, kafka, group) == expected(events)


def test_the_table_remembers_what_only_the_view_still_tells(spark: SparkSession, kafka: Broker, group: str) -> None:
    events = life(group, 20)
    gone = events[: len(events) // 2]
    for name in ("EVENTS", "VIEW"):
        create_topic(kafka.bootstrap, f"{group}-RETRY-{name}", 2)
    rows = view.outputs(batch(spark, written(gone)))
    options = {"kafka.bootstrap.servers": kafka.bootstrap}
    rows.write.format("kafka").options(**options).save()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for event in events[len(gone) :]:
        producer.produce(f"{group}-RETRY-EVENTS", encode_event(event), event.id)
    assert producer.flush(TIMEOUT) == 0
    assert values(spark, kafka, group) == expected(events)


def test_a_start_by_time_leaves_out_what_is_older_and_partitions_without_anything_newer(
    spark: SparkSession, kafka: Broker, group: str
) -> None:
    create_topic(kafka.bootstrap, f"{group}-RETRY-EVENTS", 3)
    new = changed(group=group, id="orders:3:1", offset=1)
    outs = [Out(encode_event(event), b"k", (), 0, at) for event, at in ((changed(group=group), BASE), (new, 0))]
    produce(kafka.bootstrap, f"{group}-RETRY-EVENTS", outs)
    table = view.table(spark, kafka.bootstrap, group, {"startingTimestamp": str(BASE + 1)})
    assert [row["id"] for row in table.collect()] == [new.id]


def test_a_group_that_does_not_exist_is_an_error_and_not_an_empty_table(
    spark: SparkSession, kafka: Broker, group: str
) -> None:
    with pytest.raises(GroupNotFoundError, match=f"shows no topic {group}-RETRY-EVENTS: there is no group {group}, or"):
        view.table(spark, kafka.bootstrap, group)


def test_a_broker_that_does_not_answer_is_named_within_seconds(spark: SparkSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes the connection, and says nothing
        nobody = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(NoAnswerError, match=f"Kafka at {nobody} does not answer: .* about its topics in 1[0-9] s"):
            view.table(spark, nobody, "billing")
        assert time.monotonic() - began < 15


def test_a_name_that_kafka_would_not_take_is_no_group(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="not a name for Kafka"):
        view.table(spark, "127.0.0.1:1", "a|b")


def test_a_record_of_a_documented_topic_can_be_read_by_its_schema(spark: SparkSession) -> None:
    row = (
        view.outputs(batch(spark, written([EVENT])))
        .select(fn.from_json("value", schema.VIEW_ROW).alias("row"))
        .select("row.*")
    )
    assert row.columns == schema.VIEW_ROW.names
    assert row.first().asDict() == {**truth([EVENT])[EVENT.group, EVENT.id], "v": 1, "cycle": None}
    told = spark.createDataFrame([(encode_event(EVENT).decode(),)], "value STRING")
    assert told.select(fn.from_json("value", schema.EVENT).alias("event")).first()["event"]["due"] == EVENT.due
