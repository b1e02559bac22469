"""The classes of Java that questions to the brokers are made of. Each is looked up once.

For a dotted name Py4J asks Java about each part, and Java searches all jars for some ten classes of the name of each
package: 1.5 ms of CPU for a class of Kafka's client. Looked up anew for each group, they were most of a commit's CPU.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any


class KafkaClasses:
    """The classes, from the root of Java's packages. They are looked up at first use: the connector may be missing."""

    def __init__(self, java: Any) -> None:
        self._java = java

    @cached_property
    def array_list(self) -> Any:
        return self._java.java.util.ArrayList

    @cached_property
    def hash_map(self) -> Any:
        return self._java.java.util.HashMap

    @cached_property
    def properties(self) -> Any:
        return self._java.java.util.Properties

    @cached_property
    def duration(self) -> Any:
        return self._java.java.time.Duration

    @cached_property
    def milliseconds(self) -> Any:
        return self._java.java.util.concurrent.TimeUnit.MILLISECONDS

    @cached_property
    def topic_partition(self) -> Any:
        return self._java.org.apache.kafka.common.TopicPartition

    @cached_property
    def offset_and_metadata(self) -> Any:
        return self._java.org.apache.kafka.clients.consumer.OffsetAndMetadata

    @cached_property
    def admin(self) -> Any:
        return self._java.org.apache.kafka.clients.admin.Admin

    @cached_property
    def offset_spec(self) -> Any:
        return self._java.org.apache.kafka.clients.admin.OffsetSpec

    @cached_property
    def group_offsets_spec(self) -> Any:
        return self._java.org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec
