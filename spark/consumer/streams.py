"""The streaming DataFrames for `for_each_record`: main topics from Spark's Kafka source, and retries from our own.

Both forms have the two sources. With `read_gated` ours reads the level topics and the ready topic, with `read_relay`
the ready topic alone. It claims the group's retries, and refuses a start that nobody has decided, see `source.py`.
Where the main topics begin without a checkpoint is asked here, as Spark's source must know it now.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from reconsume.spark.consumer.client import native_client
from reconsume.spark.consumer.offsets import by_topic
from reconsume.spark.consumer.rules import Rules
from reconsume.spark.consumer.workers import BATCH_TIME

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

    from reconsume.spark.consumer.start import When

MOST = 10_000
"""Records in a batch of one source. Without this bound the first batch after an outage is the whole backlog."""
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
NEEDS = ("confluent_kafka", "pandas", "pyarrow")
"""The packages that the source of retries needs."""


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
    start: When = None,
    client: Mapping[str, str] | None = None,
    most: int = MOST,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a streaming DataFrame of the main topics and the ready topic, for a group with a sidecar in relay mode.

    The sidecar moves due records to the ready topic. Arguments, columns and errors are those of `read_gated`. Sidecars
    in relay mode may run at the same time; other sidecars, and other queries of the group, may not.
    """
    return _streams(session, rules, kafka, start, client, most, options, gated=False)


def read_gated(
    session: SparkSession,
    rules: Rules,
    kafka: Mapping[str, str],
    *,
    start: When = None,
    client: Mapping[str, str] | None = None,
    most: int = MOST,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a streaming DataFrame of the main topics, the ready topic, and the level topics as far as they are due.

    It needs no sidecar, and none may run at the same time.

    - `kafka` holds settings of Kafka's Java consumer, as text by name, for the main topics.
    - `start` says where a query begins in the main topics if it has no progress: neither a checkpoint nor offsets in
      the consumer group `rules.private_group`. It is `"earliest"`, `"now"`, a time (an aware datetime, or ISO text with
      a zone), which is compared with the records' timestamps, or `"after:NAME"`, which goes on from the progress of
      the query NAME. A group that has never worked needs none. Waiting records are taken in any case.
    - `client` holds settings of librdkafka, as text by name, for the retries. Without it they follow from `kafka`.
    - `most` is the most records in a batch of each of the two sources.
    - `options` are options of Spark's Kafka source, by which a default is replaced.

    The columns are `topic` STRING, `partition` INT, `offset` BIGINT, `timestamp` BIGINT (epoch ms), `key` BINARY,
    `value` BINARY, `headers` ARRAY<STRUCT<key: STRING, value: BINARY>>, and `batch_time` TIMESTAMP. Other level topics
    of the group are read as soon as they exist.

    Raises RetriesOwnedError if a sidecar or another query reads the group's retries; a query of the same name ends
    instead. Raises NoPolicyTopicError if the group has no policy topic, NoAnswerError if Kafka does not answer within
    10 s, StartError if a main topic is missing, PermissionError if this user may not see the private group, ValueError
    if `start` is not valid, or if librdkafka's settings do not follow from `kafka` and `client` is None, ImportError if
    confluent-kafka, pandas or pyarrow is missing, and pyspark.errors.PySparkException if Spark refuses an option or has
    no Kafka connector. A start without progress that nobody has decided ends the query before its first batch, as does
    a level topic that is missing or not ordered by append time.
    """
    return _streams(session, rules, kafka, start, client, most, options, gated=True)


def _streams(
    session: SparkSession,
    rules: Rules,
    kafka: Mapping[str, str],
    start: When,
    client: Mapping[str, str] | None,
    most: int,
    options: Mapping[str, str] | None,
    *,
    gated: bool,
) -> DataFrame:
    if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
        raise ImportError(f"the source of retries needs {', '.join(missing)} on the driver and on every executor")
    from reconsume.spark.consumer import claim, source  # here only: they need these packages
    from reconsume.spark.consumer import start as starts
    from reconsume.spark.consumer.brokers import Lookup

    query = starts.Query(rules.names, rules.name, rules.topics, starts.start_text(start), gated=gated)
    settings = native_client(kafka, client)
    lookup, application = Lookup(settings, {}), session.conf.get("spark.app.id", "") or ""
    lookup.all_topics()  # so that brokers that do not answer are found at once
    of_query = settings, rules.names, rules.name, rules.topics
    claim.Claim(*of_query, gated=gated, application=application).claim_once()
    begins = starts.main_offsets(lookup, query)
    handled, main = starts.handled_records(lookup, settings, query, begins), by_topic(begins)
    make_known(session, source.LevelsSource)
    of_source = {
        **{source.CLIENT + name: value for name, value in settings.items()},
        "group": rules.names.group,
        "prefix": rules.names.template,
        "name": rules.name,
        "topics": json.dumps(rules.topics),
        "levels": json.dumps({**(rules.levels if gated else {}), rules.names.ready: 0}, sort_keys=True),
        "prefixes": json.dumps(rules.level_prefixes if gated else []),
        "gated": "true" if gated else "false",
        "start": query.start,
        "main": json.dumps(main),
        "most": str(rules.bound(most)),
        "application": application,
    }
    retries = session.readStream.format(source.NAME).options(**of_source).load()
    stock = _stock(session, rules, kafka, most, {"startingOffsets": json.dumps(main), **(options or {})})
    if handled:
        rows = [(topic, number, offset) for (topic, number), offsets in handled.items() for offset in offsets]
        known = session.createDataFrame(rows, "topic STRING, partition INT, offset BIGINT")
        stock = stock.join(f.broadcast(known), ["topic", "partition", "offset"], "left_anti")
    # Ours first: if it refuses the start, Spark's own must not have written yet where it begins.
    return with_batch_time(retries.select(*COLUMNS).unionByName(stock.select(*COLUMNS)))


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
    """Return the main topics from Spark's own Kafka source."""
    settings = {f"kafka.{name}": value for name, value in kafka.items()}
    source = {
        # A lost offset is an error that an operator sees, never a silent jump.
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": str(rules.bound(most)),
        **options,
        **settings,
        "subscribe": ",".join(rules.topics),
        "includeHeaders": "true",
        # A record that the sidecar has not committed must not be handled.
        "kafka.isolation.level": "read_committed",
    }
    frame = session.readStream.format("kafka").options(**source).load()
    return frame.withColumn("timestamp", f.unix_millis("timestamp")).select(*COLUMNS)
