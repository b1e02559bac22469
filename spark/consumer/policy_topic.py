"""Read the group's policy topic, and ask for topics, with Spark's own Kafka source: a job needs no other client.

Only the driver reads, and nothing is kept between two reads but an offset. The records of a topic may be anything, so
only the last record of each known key comes back, of MOST_KEYS keys at most, whatever was written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from reconsume.topics import versions
from reconsume.topics.agreement import SETTINGS, SettingsHeard
from reconsume.topics.policy_record import (
    INSTANCE,
    KEY,
    LARGEST,
    PARTITION,
    BadRecord,
    InstanceHeard,
    NewerRecord,
    PolicyHeard,
    parse_record,
)

EARLIEST = -2
"""Kafka's word for the first offset of a partition."""
MOST_KEYS = 5_000
"""Policy, settings and instances that come back: more than a group has."""
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


class Said(NamedTuple):
    """What an instance has said of its configuration, and when the log has it (epoch ms)."""

    content: InstanceHeard | SettingsHeard
    at: int


class PolicyNews(NamedTuple):
    """What is new in the policy topic from an offset on.

    `policy` is the newest policy that can be read; None if there is none. `fault` says why a newer one cannot be read;
    empty if there is none. `next_offset` is where the next read begins. `said`: the last record of each instance and of
    each settings, in the order of the log.
    """

    policy: PolicyHeard | None
    next_offset: int
    fault: str = ""
    said: tuple[Said, ...] = ()


def read_policy(session: SparkSession, kafka: Mapping[str, str], topic: str, begin: int = EARLIEST) -> PolicyNews:
    """Return the news of a policy topic from the offset `begin` on.

    Raises the errors of Spark and Kafka as they are, also if the topic does not exist.
    """
    rows = _rows(session, kafka, topic, begin)
    short = f.when(f.length("value") <= LARGEST, f.col("value")).otherwise(f.substring("value", 1, LARGEST + 1))
    written_at = (f.col("timestamp").cast("double") * 1000).cast("long")
    newest = f.max_by(f.struct(short.alias("value"), written_at.alias("at")), f.col("offset"))
    # In one partition, as the log has one: grouped without a shuffle.
    keyed = rows.coalesce(1).groupBy(f.when(_is_known(), f.col("key")).alias("key"))
    last = keyed.agg(f.max("offset").alias("last"), newest.alias("newest"))
    order = (f.desc(f.coalesce(f.col("key") == f.lit(KEY), f.lit(False))), f.desc("last"))
    newest_rows = {_bytes(row["key"]): row for row in last.orderBy(*order).limit(MOST_KEYS).collect()}
    next_offset = max((row["last"] + 1 for row in newest_rows.values()), default=begin)
    policy_row = newest_rows.pop(KEY, None)
    newest_rows.pop(None, None)
    said = tuple(
        Said(content, row["newest"]["at"])
        for key, row in sorted(newest_rows.items(), key=lambda item: item[1]["last"])
        if (content := _heard(key or b"", _bytes(row["newest"]["value"]))) is not None
    )
    if policy_row is None:
        return PolicyNews(None, next_offset, said=said)
    match parse_record(KEY, _bytes(policy_row["newest"]["value"])):
        case PolicyHeard() as policy:
            return PolicyNews(policy, next_offset, said=said)
        case NewerRecord(v=v):
            return PolicyNews(_readable(rows), next_offset, versions.sentence(v), said)
        case BadRecord(text=text):
            return PolicyNews(_readable(rows), next_offset, text, said)
    raise AssertionError("the key is that of a policy")


def _heard(key: bytes, value: bytes | None) -> InstanceHeard | SettingsHeard | None:
    """Return what an instance has said; None for what cannot be read, which of settings takes them away."""
    match parse_record(key, value):
        case (InstanceHeard() | SettingsHeard()) as content:
            return content
        case _ if key.startswith(SETTINGS):
            return SettingsHeard(key[len(SETTINGS) :].decode("ascii", errors="replace"), None)
    return None


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


def _is_known() -> Column:
    return _is_policy() | f.col("key").startswith(f.lit(INSTANCE)) | f.col("key").startswith(f.lit(SETTINGS))


def _readable(rows: DataFrame) -> PolicyHeard | None:
    """Return the newest policy that can be read, of the last LOOK_BACK ones; None if there is none."""
    short = rows.where(_is_policy() & (f.col("value").isNull() | (f.length("value") <= LARGEST)))
    kept = short.select("offset", "value").orderBy(f.desc("offset")).limit(LOOK_BACK).collect()
    policies = (parse_record(KEY, _bytes(row["value"])) for row in kept)
    return next((policy for policy in policies if isinstance(policy, PolicyHeard)), None)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
