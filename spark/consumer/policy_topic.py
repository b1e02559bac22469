"""Read the group's policy topic, and ask for topics, with Spark's own Kafka source: a job needs no other client.

Only the driver reads, and nothing is kept between two reads but an offset. The records of a topic may be anything, so
one row comes back, whatever was written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from reconsume.topics import versions
from reconsume.topics.policy_record import KEY, LARGEST, PARTITION, BadRecord, NewerRecord, PolicyHeard, parse_record

EARLIEST = -2
"""Kafka's word for the first offset of a partition."""
LOOK_BACK = 100
"""The most policies that are read to find one that can be read."""
ANSWER_MS = "5000"
"""ms that the brokers may take: a batch waits meanwhile."""
OPTIONS: Mapping[str, str] = {
    "kafka.isolation.level": "read_committed",
    "kafka.request.timeout.ms": ANSWER_MS,
    "kafka.default.api.timeout.ms": ANSWER_MS,
    "kafkaConsumer.pollTimeoutMs": ANSWER_MS,
    "fetchOffset.numRetries": "1",
    # The topic is compacted: offsets that are gone are no loss.
    "failOnDataLoss": "false",
}
NEVER = str(2**53)
"""Epoch ms. No record has a timestamp that late."""
OF_PRODUCERS = ("interceptor.classes",)
"""Settings of the copies' producer that a consumer would refuse."""


class PolicyNews(NamedTuple):
    """What stands in the policy topic from an offset on.

    `policy` is the newest policy that can be read; None if there is none. `fault` says why a newer one cannot be read;
    empty if there is none. `next_offset` is where the next read begins.
    """

    policy: PolicyHeard | None
    next_offset: int
    fault: str = ""


def read_policy(session: SparkSession, kafka: Mapping[str, str], topic: str, begin: int = EARLIEST) -> PolicyNews:
    """Return the news of a policy topic from the offset `begin` on.

    Raises the errors of Spark and Kafka as they are, also if the topic does not exist.
    """
    rows = _rows(session, kafka, topic, begin)
    position = f.when(_is_policy(), f.col("offset"))
    short = f.when(f.length("value") <= LARGEST, f.col("value")).otherwise(f.substring("value", 1, LARGEST + 1))
    newest = f.max_by(f.struct(short.alias("value")), position)
    row = rows.agg(f.max("offset").alias("last"), newest.alias("newest")).collect()[0]
    next_offset = begin if row["last"] is None else row["last"] + 1
    if row["newest"] is None:
        return PolicyNews(None, next_offset)
    match parse_record(KEY, _bytes(row["newest"]["value"])):
        case PolicyHeard() as policy:
            return PolicyNews(policy, next_offset)
        case NewerRecord(v=v):
            return PolicyNews(_readable(rows), next_offset, versions.sentence(v))
        case BadRecord(text=text):
            return PolicyNews(_readable(rows), next_offset, text)
    raise AssertionError("the key is that of a policy")


def missing(session: SparkSession, kafka: Mapping[str, str], topics: Collection[str]) -> bool:
    """Whether one of the topics does not exist. Raises the other errors of Spark and Kafka as they are.

    Spark plans a read of all of them, from the end on: a job may write to the topics, and has no right to read them.
    """
    from_end = {"startingTimestamp": NEVER, "startingOffsetsByTimestampStrategy": "latest"}
    reader = session.read.format("kafka").options(**_options(kafka), **from_end, subscribe=",".join(sorted(topics)))
    try:
        reader.load().select("offset").collect()
    except Exception as error:
        if is_absent(error):
            return True
        raise
    return False


def is_absent(error: BaseException) -> bool:
    """Whether an error of Spark's Kafka source says that a topic does not exist."""
    return "UnknownTopicOrPartition" in str(error)


def _rows(session: SparkSession, kafka: Mapping[str, str], topic: str, begin: int) -> DataFrame:
    options = {
        **_options(kafka),
        "assign": json.dumps({topic: [PARTITION]}),
        "startingOffsets": json.dumps({topic: {str(PARTITION): begin}}),
    }
    return session.read.format("kafka").options(**options).load()


def _options(kafka: Mapping[str, str]) -> dict[str, str]:
    settings = {f"kafka.{name}": value for name, value in kafka.items() if name not in OF_PRODUCERS}
    return {**settings, **OPTIONS}


def _is_policy() -> Column:
    return f.col("key") == f.lit(KEY)


def _readable(rows: DataFrame) -> PolicyHeard | None:
    """Return the newest policy that can be read, of the last LOOK_BACK ones; None if there is none."""
    short = rows.where(_is_policy() & (f.col("value").isNull() | (f.length("value") <= LARGEST)))
    kept = short.select("offset", "value").orderBy(f.desc("offset")).limit(LOOK_BACK).collect()
    policies = (parse_record(KEY, _bytes(row["value"])) for row in kept)
    return next((policy for policy in policies if isinstance(policy, PolicyHeard)), None)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
