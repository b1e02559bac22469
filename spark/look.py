"""One look at the brokers before Spark begins: whether they answer, and which topics of a group this user can see.

Spark waits for minutes for brokers that do not answer, and takes a topic that is missing for an empty one. So each
function that makes a DataFrame of Kafka's topics looks first. The look is one connection of Kafka's Java client, which
comes with Spark's connector, on the driver and within SECONDS.

Where the driver has no such client (Spark Connect; platforms that rename its classes or forbid calls to Java) there is
no look: topics are chosen by patterns, a missing group is empty, and Spark waits for the brokers as long as it does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from reconsume.spark.errors import GroupNotFoundError, NoAnswerError
from reconsume.topics.names import Names, check_name
from reconsume.topics.owner_notes import PARTITION as OWNERS_PARTITION
from reconsume.topics.partition import Partition
from reconsume.topics.position_ranges import RESET, PartitionResets, ResetNote, Resets, read_resets, topic_digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from reconsume.spark.job.kafka import Brokers

SECONDS = 10.0
"""Seconds that the brokers may take for the whole look."""
RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""The columns of Spark's Kafka source, with `includeHeaders`."""
KAFKA = "kafka."
"""How the names of Spark's options for connecting to Kafka begin."""
OF_READERS = "kafka.isolation.level"
"""The option of `names.reading` that a client which reads no records does not have."""


class VisibleTopics(NamedTuple):
    """The topics that Kafka shows. `is_whole`: the group's events topic still has the first event of each partition.

    `resets`: what resets of positions have left, of the main topics as they are now; nothing where this user may not
    read the policy topic.
    """

    topics: frozenset[str]
    is_whole: bool
    resets: Resets


def look(spark: SparkSession, source: Mapping[str, str], group: str) -> VisibleTopics | None:
    """Return what Kafka shows of its topics; None where no look is possible.

    `source` holds the options of Spark's Kafka source. Raises ValueError if Kafka does not allow the name of the
    group's events topic, NoAnswerError if Kafka does not answer within SECONDS, and GroupNotFoundError if it shows no
    `<group>-RETRY-EVENTS`.
    """
    events = Names(group).events
    check_name(events)
    if getattr(spark, "_jsparkSession", None) is None:
        return None
    # Only here: a client of Spark Connect has no Py4J.
    from py4j.protocol import Py4JError

    from reconsume.spark.job.kafka import Brokers, RefusedError, UnansweredError

    # Kafka's client warns of a setting that it does not have.
    kafka = {name: text for name, text in source.items() if name.startswith(KAFKA) and name != OF_READERS}
    client = Brokers(spark, kafka)
    servers = source["kafka.bootstrap.servers"]
    try:
        with client.within(SECONDS):
            ids = client.topics()
            if events not in (topics := frozenset(ids)):
                raise GroupNotFoundError(
                    f"Kafka at {servers} shows no topic {events}: there is no group {group}, or this user has no right "
                    "to see it (DESCRIBE on the topic)"
                )
            is_whole = not any(client.first_offsets(client.partitions([events])).values())
            has_notes = has_owners_notes(client, Names(group).policy, topics)
        return VisibleTopics(topics, is_whole, present_resets(spark, source, group, ids) if has_notes else {})
    except (UnansweredError, RefusedError) as why:
        raise NoAnswerError(f"Kafka at {servers} does not answer: {why}") from why
    except (Py4JError, TypeError):  # this process may not call Java's classes, or they have other names
        return None
    finally:
        with suppress(Py4JError, TypeError):
            client.close()


def has_owners_notes(client: Brokers, policy: str, topics: Collection[str]) -> bool:
    """Return whether owners of partitions have written to their partition of the policy topic."""
    from reconsume.spark.job.kafka import RefusedError

    notes = policy, str(OWNERS_PARTITION)
    try:
        return policy in topics and notes in client.partitions([policy]) and client.end_offsets([notes])[notes] > 0
    except RefusedError:  # this user may not read it
        return False


def present_resets(spark: SparkSession, source: Mapping[str, str], group: str, ids: Mapping[str, str]) -> Resets:
    """Return the resets of the topics as they are now. `ids`: of all topics, by name."""
    policy = Names(group).policy
    raw = read_batch(spark, {**source, "assign": json.dumps({policy: [OWNERS_PARTITION]})})
    resets: dict[Partition, PartitionResets] = {}
    for row in raw.select("offset", "key", "value").orderBy("offset").toLocalIterator():
        key, value = bytes(row["key"] or b""), None if row["value"] is None else bytes(row["value"])
        note = read_resets(key, value) if key.startswith(RESET) else ""
        if isinstance(note, ResetNote):
            resets.pop(note.partition, None)
            if note.resets is not None:
                resets[note.partition] = note.resets
    return {
        partition: one for partition, one in resets.items() if topic_digest(ids.get(partition.topic, "")) == one.topic
    }


def state_topics(visible: VisibleTopics | None, group: str) -> dict[str, str]:
    """Return the option of Spark's Kafka source that selects the topics of the present state: events, and rows."""
    names = Names(group)
    return selected(visible, f"{re.escape(names.events)}|{re.escape(names.view)}")


def dead_letter_topics(visible: VisibleTopics | None, group: str) -> dict[str, str]:
    """Return the option of Spark's Kafka source that selects the group's dead letter topics.

    With the prefix `{topic}-{group}` each main topic has one. Topics of other groups may have such names too.
    """
    own = Names(group).dlq("")
    if visible is not None and own in visible.topics:
        return {"subscribe": own}
    return selected(visible, f"(?:.+-)?{re.escape(own)}")


def copy_topics(visible: VisibleTopics | None, group: str) -> dict[str, str]:
    """Return the option of Spark's Kafka source that selects the topics where records of the group wait.

    Topics of other groups may have such names too.
    """
    name = re.escape(group)
    queues = rf"{name}-ORDERED-.+|.+-{name}-ORDERED"
    return selected(visible, rf"(?:.+-)?{name}-RETRY-(?:[0-9]+(?:d|h|ms|m|s))+|{name}-RETRY|{queues}")


def selected(visible: VisibleTopics | None, pattern: str) -> dict[str, str]:
    """Return the option that selects the topics whose whole name matches, by their names if they are known."""
    if visible is None:
        return {"subscribePattern": pattern}
    return {"subscribe": ",".join(sorted(topic for topic in visible.topics if re.fullmatch(pattern, topic)))}


def read_batch(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    """Return the records of the topics that `source` selects; a DataFrame without rows if it selects none."""
    if source.get("subscribe") == "":
        return spark.createDataFrame([], RECORDS)
    return spark.read.format("kafka").options(**source).load()
