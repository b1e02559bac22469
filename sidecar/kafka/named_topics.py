"""Ask for topics by name, one by one: a list of all topics has megabytes in a large cluster, and takes seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable
from math import inf
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import TopicMetadata  # type: ignore[attr-defined]  # exported without saying so

ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_AUTHORIZATION_FAILED})
"""Answers by which a topic is not there for this user."""


class Lists(Protocol):
    """A client that tells about topics."""

    def list_topics(self, topic: str, timeout: float) -> Any:
        """Return the metadata of one topic. Raises KafkaException."""


class NamedTopics(NamedTuple):
    """The topics that exist, and the names of those that certainly do not. Of all others nothing is known.

    `denied`: those of the absent ones that this user may not see, so that they may exist for others.
    """

    described: dict[str, TopicMetadata]
    absent: frozenset[str]
    denied: frozenset[str] = frozenset()


def named_topics(client: Lists, names: Iterable[str], within: float, whole: float = inf) -> NamedTopics:
    """Return what Kafka says of these topics. A client with `allow.auto.create.topics: false` creates none by that.

    They are asked for in their order. `within`: seconds for one answer. Where none comes the rest is not asked, and
    after `whole` seconds neither: the caller asks again, first for what is not known yet. Raises nothing.
    """
    described, refused, until = dict[str, TopicMetadata](), dict[str, int](), time.monotonic() + whole
    for name in dict.fromkeys(names):
        if time.monotonic() >= until:
            break
        try:
            topic = client.list_topics(name, timeout=within).topics[name]
        except KafkaException:
            break
        if topic.error is None:
            described[name] = topic
        elif topic.error.code() in ABSENT:
            refused[name] = topic.error.code()
    denied = frozenset(name for name, code in refused.items() if code == KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return NamedTopics(described, frozenset(refused), denied)
