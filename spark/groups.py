"""Which groups of a pattern cannot be written, because a topic of theirs is missing: they must not stop the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark.java import classes
from spark.names import EVENTS_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KAFKA = "kafka."


def incomplete(spark: SparkSession, kafka: Mapping[str, str], pattern: str, suffix: str) -> frozenset[str]:
    """The groups that match and have events, but no topic that ends in `suffix`; what Java raises is raised.

    `pattern` is Java's, for a whole group's name; `kafka` holds Spark's options for reaching Kafka.
    """
    matches = classes(spark).java.util.regex.Pattern.matches
    topics = topic_names(spark, kafka)
    told = {topic.removesuffix(EVENTS_SUFFIX) for topic in topics if topic.endswith(EVENTS_SUFFIX)}
    return frozenset(group for group in told if group + suffix not in topics and matches(pattern, group))


def topic_names(spark: SparkSession, kafka: Mapping[str, str]) -> frozenset[str]:
    """All topics that Kafka shows us, asked by the connector's own client: no other may be there on a cluster."""
    properties = classes(spark).java.util.Properties()
    for name, value in kafka.items():
        properties.setProperty(name.removeprefix(KAFKA), value)
    admin = classes(spark).org.apache.kafka.clients.admin.Admin.create(properties)
    try:
        return frozenset(admin.listTopics().names().get())
    finally:
        admin.close()
