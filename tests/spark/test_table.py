"""The present state as a table, read from a real Kafka."""

from __future__ import annotations

from random import Random

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from reconsume.spark import names, schema, view
from reconsume.topics.events import Event, encode_event
from tests.spark.frames import batch
from tests.support.event_histories import as_told, changed, history, truth, written
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import create_topic

TIMEOUT = 30


def life(group: str, records: int) -> list[Event]:
    """Events of some records of the group."""
    return [event for number in range(records) for event in history(Random(number), group, number)]


def values(spark: SparkSession, kafka: Broker, group: str) -> dict[tuple[str, str], dict[str, object]]:
    """The table's rows, but for when Kafka was given them."""
    rows = [as_told(row.asDict()) for row in view.table(spark, kafka.bootstrap, group).collect()]
    return {(row["group"], row["id"]): {**row, "updated_at": 0} for row in rows}


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
    rows = view.records(view.view(schema.events(batch(spark, written(gone))).good))
    options = {"kafka.bootstrap.servers": kafka.bootstrap}
    rows.write.format("kafka").options(**options).save()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for event in events[len(gone) :]:
        producer.produce(f"{group}-RETRY-EVENTS", encode_event(event), event.id)
    assert producer.flush(TIMEOUT) == 0
    assert values(spark, kafka, group) == expected(events)


@pytest.mark.long
def test_a_group_without_topics_has_an_empty_table(spark: SparkSession, kafka: Broker, group: str) -> None:
    assert view.table(spark, kafka.bootstrap, group).count() == 0


def test_a_name_that_kafka_would_not_take_is_no_group() -> None:
    with pytest.raises(ValueError, match="not a name for Kafka"):
        names.present("a|b")
