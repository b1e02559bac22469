"""A consumer whose rules change between two starts on one checkpoint."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from reconsume.spark.consumer import build_rules, for_each_record, read_gated, read_relay
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import SECONDS, Out, create_topic, produce

BATCH_SECONDS = 120


class Consumer:
    """A job of one checkpoint; `seen` are the values that it handled."""

    def __init__(self, spark: SparkSession, bootstrap: str, place: Path) -> None:
        self.spark, self.place, self.group = spark, str(place), f"change-{uuid.uuid4().hex[:8]}"
        self.kafka = {"bootstrap.servers": bootstrap}
        self.seen: list[bytes] = []

    def topic(self, name: str) -> str:
        """A main topic of this test."""
        return f"{self.group}-{name}"

    def run(self, *mains: str) -> None:
        """Handle all there is, as a job with these main topics."""
        rules = build_rules(self.group, [self.topic(name) for name in mains], name="ship")
        handle = for_each_record(lambda _record: None, rules, self.kafka)

        def take(batch: DataFrame, number: int) -> None:
            self._take(batch, number)
            handle(batch, number)

        writer = read_relay(self.spark, rules, self.kafka).writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", self.place).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(BATCH_SECONDS), "the query did not end"
        finally:
            query.stop()

    def _take(self, batch: DataFrame, _: int) -> None:
        self.seen += [bytes(row["value"]) for row in batch.select("value").collect()]


def test_main_topics_and_partitions_are_added_on_one_checkpoint_and_taken_away_with_an_empty_one(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    job = Consumer(spark, kafka.bootstrap, tmp_path / "place")
    for name in ("orders", "bills", "returns", "RETRY", "RETRY-POLICY", "RETRY-EVENTS"):
        create_topic(kafka.bootstrap, job.topic(name))
    for name in ("orders", "bills"):
        produce(kafka.bootstrap, job.topic(name), [name.encode()])
    job.run("orders", "bills")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    orders = job.topic("orders")
    admin.create_partitions([NewPartitions(orders, 2)])[orders].result(SECONDS)
    until(lambda: len(admin.list_topics(orders, timeout=SECONDS).topics[orders].partitions) == 2, SECONDS, "it has two")
    produce(kafka.bootstrap, orders, [Out(b"more", partition=1)])
    produce(kafka.bootstrap, job.topic("returns"), [b"returns"])
    with pytest.raises(StreamingQueryException, match="may have been lost"):
        job.run("orders", "returns")
    job.place = str(tmp_path / "empty")
    job.run("orders", "returns")
    assert sorted(job.seen) == [b"bills", b"more", b"orders", b"returns"], "each once"


class Gated(Consumer):
    """As Consumer, with level topics of its own; it runs until everything was seen."""

    def level(self, delay: str) -> str:
        """Make the topic of a level."""
        name = f"{self.group}-RETRY-{delay}"
        create_topic(self.kafka["bootstrap.servers"], name, config={"message.timestamp.type": "LogAppendTime"})
        return name

    def see(self, *values: bytes, ladder: Sequence[str], levels: Sequence[str]) -> None:
        """Run with this ladder and table until these values, and no others, were handled since the last run."""
        rules = build_rules(self.group, [self.topic("orders")], ladder=ladder, levels=levels, name="ship")
        self.seen.clear()
        writer = read_gated(self.spark, rules, self.kafka, start="earliest").writeStream.foreachBatch(self._take)
        query = writer.option("checkpointLocation", self.place).trigger(processingTime="200 milliseconds").start()

        def all_seen() -> bool:
            assert query.exception() is None, str(query.exception())
            # A batch is told of when it is committed: one that is cut off before would be handled again.
            return sum(done.numInputRows for done in query.recentProgress) >= len(values)

        try:
            until(all_seen, BATCH_SECONDS, f"{len(values)} records are handled")
        finally:
            query.stop()
        assert sorted(self.seen) == sorted(values), "each once"


@pytest.mark.long
def test_levels_are_added_and_taken_away_on_one_checkpoint(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    """A level that leaves the ladder is read as long as its topic exists."""
    job = Gated(spark, kafka.bootstrap, tmp_path / "place")
    for name in ("orders", "RETRY", "RETRY-POLICY"):
        create_topic(kafka.bootstrap, job.topic(name))
    first = job.level("1s")
    produce(kafka.bootstrap, first, [b"a"])
    job.see(b"a", ladder=["1s"], levels=["1s"])
    second = job.level("2s")
    produce(kafka.bootstrap, first, [b"b"])
    produce(kafka.bootstrap, second, [b"c"])
    job.see(b"b", b"c", ladder=["2s"], levels=["1s", "2s"])
    produce(kafka.bootstrap, first, [b"d"])
    produce(kafka.bootstrap, second, [b"e"])
    job.see(b"d", b"e", ladder=["2s"], levels=["1s", "2s"])
    produce(kafka.bootstrap, first, [b"f"])
    produce(kafka.bootstrap, second, [b"g"])
    job.see(b"f", b"g", ladder=["2s"], levels=["2s"])
