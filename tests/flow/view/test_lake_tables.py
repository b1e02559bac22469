"""The view as a table of a lakehouse, written by a job that is killed in the middle: a fold of all events."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer

from reconsume.sidecar.java.jars import fetch
from reconsume.sidecar.java.spark_job import lock_for
from reconsume.spark.view import VALUE
from reconsume.topics.events import encode_event
from tests.flow.view.lake_job import LakeJob
from tests.support.deadline import until
from tests.support.event_histories import as_told, disturbed, history, truth
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import create_topic

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
RECORDS, KILLS, BATCH = 40, 2, 60
"""Records, kills, and events in a batch: some four batches in all."""
SECONDS = 180.0
SPARK = version("pyspark")


def jars(using: str) -> list[Path]:
    """The jars of the table's format, and of Spark's connector; skips where the format has none for this Spark."""
    lock = Path(__file__).with_name(f"{using}-{'.'.join(SPARK.split('.')[:2])}.lock")
    if not lock.exists():
        pytest.skip(f"no release of {using} for Spark {SPARK}")
    return [*fetch(lock_for(SPARK)), *fetch(lock)]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row but for its place, and for when Kafka was given its event; times that are not there as in the topics."""
    none = {"due": row["due"] or 0, "timestamp": -1 if row["timestamp"] is None else row["timestamp"]}
    return as_told({name: row[name] for name in VALUE} | none | {"updated_at": 0})


@pytest.mark.parametrize(("using", "own"), [("delta", False), ("delta", True), ("iceberg", False)])
def test_the_table_is_the_fold_of_all_events_whenever_the_job_is_killed(
    kafka: Broker, group: str, tmp_path: Path, using: str, own: bool
) -> None:
    needed, topic, random = jars(using), f"{group}-RETRY-EVENTS", Random(7)
    events = [event for number in range(RECORDS) for event in history(Random(number), group, number)]
    create_topic(kafka.bootstrap, topic, 3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for event in disturbed(random, events):  # without a key: also in the wrong order
        producer.produce(topic, encode_event(event))
    assert producer.flush(30) == 0
    with LakeJob(kafka.bootstrap, topic, using, tmp_path, needed, own) as job:
        for number in range(1, KILLS + 1):
            job.start(BATCH)
            until(lambda least=number: job.batches() > least, SECONDS, f"batch {number} begins")
            time.sleep(random.random())  # anywhere in the batch
            job.kill()
        job.start(BATCH)
        until(job.has_ended, SECONDS, "all events are read")
        rows = job.rows()
        assert {(row["group"], row["id"]): plain(row) for row in rows} == {
            key: {**row, "updated_at": 0} for key, row in truth(events).items()
        }
        job.start(10_000, "another-checkpoint")
        until(job.has_ended, SECONDS, "all events are read again")
        assert sorted(job.rows(), key=str) == sorted(rows, key=str), "what is read again changes nothing"
