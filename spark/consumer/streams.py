"""The streaming DataFrames for `for_each_record`: main topics, and due retries by relay or by the gated source."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.workers import BATCH_TIME

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

MOST = 10_000
"""Records in a batch of one source. Without this bound the first batch after an outage is the whole backlog."""
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
GATED_NEEDS = ("confluent_kafka", "pandas", "pyarrow")


def with_batch_time(frame: DataFrame) -> DataFrame:
    """Return a streaming DataFrame with the column `batch_time` (TIMESTAMP), which holds the time of each batch.

    `frame` has the columns of Spark's Kafka source, with headers. The column must be added before `writeStream`: only
    then a repeated batch has the same time.
    """
    return frame.withColumn(BATCH_TIME, f.current_timestamp())


def read_relay(
    session: SparkSession,
    rules: Rules,
    kafka: Mapping[str, str],
    *,
    most: int = MOST,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a streaming DataFrame of the main topics and the ready topic, for a group with a sidecar in relay mode.

    The sidecar moves due records to the ready topic. `kafka` holds settings of Kafka's Java consumer, as text by name.
    `most` is the most records in a batch. `options` are options of Spark's Kafka source, by which a default such as
    `startingOffsets` is replaced.

    The columns are `topic` STRING, `partition` INT, `offset` BIGINT, `timestamp` BIGINT (epoch ms), `key` BINARY,
    `value` BINARY, `headers` ARRAY<STRUCT<key: STRING, value: BINARY>>, and `batch_time` TIMESTAMP.

    Raises pyspark.errors.PySparkException if Spark refuses an option or has no Kafka connector.
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
    """Return a streaming DataFrame of the main topics, the ready topic, and the level topics as far as they are due.

    It needs no sidecar. The columns, `kafka` and `options` are those of `read_relay`. `client` holds settings of
    librdkafka, as text by name, for the level topics. They differ from the Java client's as soon as security is
    configured. Without `client` only `bootstrap.servers` is taken from `kafka`. `most` is the most records in a batch
    of each of the two sources. Other level topics of the group are read as soon as they exist.

    Raises ImportError if confluent-kafka, pandas or pyarrow is missing. Raises KeyError if `client` is None and `kafka`
    has no `bootstrap.servers`. Raises pyspark.errors.PySparkException as `read_relay` does. A level topic that is
    missing or not ordered by append time ends the query.
    """
    if missing := [name for name in GATED_NEEDS if importlib.util.find_spec(name) is None]:
        raise ImportError(f"the gated source needs {', '.join(missing)} on the driver and on every executor")
    from reconsume.spark.consumer.source import (  # here only: relay jobs need none of its packages
        CLIENT,
        NAME,
        LevelsSource,
    )

    make_known(session, LevelsSource)
    settings = client if client is not None else {"bootstrap.servers": kafka["bootstrap.servers"]}
    reader = session.readStream.format(NAME).options(**{CLIENT + name: value for name, value in settings.items()})
    reader = reader.option("levels", json.dumps(rules.levels, sort_keys=True))
    levels = reader.option("prefixes", json.dumps(rules.level_prefixes)).option("most", str(rules.bound(most))).load()
    stock = _stock(session, rules, kafka, most, options or {})
    return with_batch_time(stock.unionByName(levels.select(*COLUMNS)))


def make_known(session: SparkSession, source: type[DataSource]) -> None:
    """Register a data source, unless Spark has found it by itself (see `pyspark_reconsume`).

    Where both are there, Spark warns of it for each batch. A client of Spark Connect cannot ask. Raises
    pyspark.errors.PySparkException if Spark refuses it for another reason.
    """
    java = getattr(session, "_jsparkSession", None)
    if java is not None and java.sessionState().dataSourceManager().dataSourceExists(source.name()):
        return
    try:
        session.dataSource.register(source)
    except PySparkException as refused:
        if refused.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _stock(
    session: SparkSession, rules: Rules, kafka: Mapping[str, str], most: int, options: Mapping[str, str]
) -> DataFrame:
    """Return the main topics and the ready topic from Spark's own Kafka source."""
    settings = {f"kafka.{name}": value for name, value in kafka.items()}
    source = {
        "startingOffsets": "earliest",
        # A lost offset is an error that an operator sees, never a silent jump.
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": str(rules.bound(most)),
        **options,
        **settings,
        "subscribe": ",".join([*rules.topics, rules.names.ready]),
        "includeHeaders": "true",
        # A record that the sidecar has not committed must not be handled.
        "kafka.isolation.level": "read_committed",
    }
    frame = session.readStream.format("kafka").options(**source).load()
    return frame.withColumn("timestamp", f.unix_millis("timestamp")).select(*COLUMNS)
