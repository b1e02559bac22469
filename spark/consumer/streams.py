"""The streaming frames that `for_each_record` works on: main topics, and due retries by relay or gated source."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark.consumer.foreach import BATCH_TIME
from spark.consumer.rules import Rules

MOST = 10_000
"""Records a batch and source: without a bound the first batch after an outage is the whole backlog."""
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
GATED_NEEDS = ("confluent_kafka", "pandas", "pyarrow")


def with_batch_time(frame: DataFrame) -> DataFrame:
    """A streaming frame with the time that is written for its batches; it must be added before `writeStream`."""
    return frame.withColumn(BATCH_TIME, f.current_timestamp())


def read_relay(
    session: SparkSession,
    rules: Rules,
    kafka: Mapping[str, str],
    *,
    most: int = MOST,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The main topics and the ready topic, to which a sidecar in relay mode moves what is due.

    `kafka` holds the Java consumer's settings, `options` those of Spark's Kafka source, at most `most` records a batch.
    """
    return with_batch_time(_stock(session, rules, kafka, most, options or {}))


def read_gated(
    session: SparkSession,
    rules: Rules,
    kafka: Mapping[str, str],
    *,
    client: Mapping[str, str] | None = None,
    most: int = MOST,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The main topics, the ready topic, and the level topics as far as they are due: no sidecar is needed.

    `client` holds librdkafka's settings, which differ from the Java client's as soon as there is security; without it
    only the brokers are taken from `kafka`. `most` holds for either source. ImportError when a package is missing.
    """
    if missing := [name for name in GATED_NEEDS if importlib.util.find_spec(name) is None]:
        raise ImportError(f"the gated source needs {', '.join(missing)} on the driver and on every executor")
    from spark.consumer.source import CLIENT, NAME, LevelsSource  # only here: relay jobs need none of its packages

    session.dataSource.register(LevelsSource)
    settings = client if client is not None else {"bootstrap.servers": kafka["bootstrap.servers"]}
    reader = session.readStream.format(NAME).options(**{CLIENT + name: value for name, value in settings.items()})
    levels = reader.option("levels", json.dumps(rules.levels, sort_keys=True)).option("most", str(most)).load()
    stock = _stock(session, rules, kafka, most, options or {})
    return with_batch_time(stock.unionByName(levels.select(*COLUMNS)))


def _stock(
    session: SparkSession, rules: Rules, kafka: Mapping[str, str], most: int, options: Mapping[str, str]
) -> DataFrame:
    """Spark's own Kafka source over main topics and ready topic."""
    settings = {f"kafka.{name}": value for name, value in kafka.items()}
    source = {
        "startingOffsets": "earliest",
        # A lost offset is an error that somebody sees, never a silent jump.
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": str(most),
        **options,
        **settings,
        "subscribe": ",".join([*rules.topics, rules.names.ready]),
        "includeHeaders": "true",
        # What the sidecar has not committed must not be handled.
        "kafka.isolation.level": "read_committed",
    }
    frame = session.readStream.format("kafka").options(**source).load()
    return frame.withColumn("timestamp", f.unix_millis("timestamp")).select(*COLUMNS)
