"""Ask Kafka for the ids of the cluster and of topics: they say whether a log is still the one that was read.

Python's consumer does not give them, so a client of its own asks, on the consumer's thread. It may do so in a rebalance
callback. A broker that does not answer in time, or has no topic ids, says nothing about a log (contract 7.10).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from confluent_kafka import KafkaException, TopicCollection

from reconsume.sidecar.core.progress import LogId
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.kafka.admin.cluster import Connection

LogIds: TypeAlias = Callable[[Collection[str]], Mapping[str, LogId]]
"""Returns the logs of topics, by name, as far as they are known."""

ANSWER_WITHIN = 1.0
"""Seconds for one question. The answer takes milliseconds; the consumer's thread does not poll meanwhile."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What a broker without topic ids (before 2.8) gives as one."""


def no_log_ids(_topics: Collection[str]) -> Mapping[str, LogId]:
    """Return nothing: nobody is asked."""
    return {}


class KafkaLogIds:
    """The ids of one cluster, for one thread. `connect`: makes a client with the newest credentials."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._cluster = ""

    def __call__(self, topics: Collection[str]) -> dict[str, LogId]:
        """Return the logs of these topics; one of which Kafka says nothing is left out. Blocks for a second or two."""
        if not topics:
            return {}
        until = time.monotonic() + ANSWER_WITHIN
        try:
            connection = self._connected(until)
        except (ConfigError, KafkaException):  # the next question begins with another client
            self._connection = None
            return {}
        answers = connection.client.describe_topics(TopicCollection(sorted(topics)), request_timeout=ANSWER_WITHIN)
        ids = dict[str, LogId]()
        for topic, future in answers.items():
            try:
                ident = str(connection.answer(future, max(0.0, until - time.monotonic())).topic_id)
            except KafkaException:  # deleted, or not for this user to see
                continue
            if ident != NO_ID:
                ids[topic] = LogId.of(self._cluster, ident)
        if not ids:
            self._connection = None
        return ids

    def _connected(self, until: float) -> Connection:
        """Return the client, and learn the id of its cluster."""
        if (connection := self._connection) is None:
            self._connection = connection = self._connect()
            described = connection.client.describe_cluster(request_timeout=ANSWER_WITHIN)
            self._cluster = str(connection.answer(described, max(0.0, until - time.monotonic())).cluster_id)
        return connection
