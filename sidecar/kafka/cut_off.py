"""Find out that a client has lost the cluster for good, while the cluster answers others (librdkafka 2.16).

A broker that stops or starts may answer a metadata request with topics and no brokers. The client then drops every
broker that it knows, and begins again at `bootstrap.servers`. But where its connection has ended just before it takes
in that answer, the answer cancels the new beginning: the client has no broker left to ask, and no call and no property
changes that (librdkafka#5301). Of the clients of a single node about one in fifty was lost at a clean stop (measured).

In an outage a client says the same. So another client with the same properties is asked: while that hears nothing
either, the cluster is away, and all clients come back with it. The threads that keep a consumer look; they replace a
client that is cut off within the process. Other clients need no look: a producer that fails is replaced by its owner
(`committer/replaceable_producer.py`, `group_policy/heartbeat.py`), and so is the client that asks for topic ids.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException

from reconsume.sidecar.kafka.clients import answers, make_client

CUT_OFF_AFTER = 2
"""Looks in a row, of ten seconds each. After an outage another client may be connected a second earlier."""


class CutOffWatch:
    """The watch over the consumers of one thread, on it."""

    def __init__(self) -> None:
        self._looks = 0
        """Looks in a row at which a client of the thread heard nothing, and another one did."""

    def heard(self) -> None:
        """Note that Kafka has answered: nothing is to be asked."""
        self._looks = 0

    def look(self, consumers: list[Consumer], config: Mapping[str, object]) -> bool:
        """Return whether one of the consumers is cut off. Call this every ten seconds, not in a client's callback.

        `config`: the properties of the consumers, for another one. Blocks for some seconds if Kafka does not answer.
        """
        is_silent = not all(answers(consumer) for consumer in consumers)
        self._looks = self._looks + 1 if is_silent and another_answers(config) else 0
        if self._looks < CUT_OFF_AFTER:
            return False
        self._looks = 0
        return True


def another_answers(config: Mapping[str, object]) -> bool:
    """Return whether the cluster answers a new client with these properties, which joins no group."""
    try:
        another = make_client(Consumer, {**config, "log_level": 0})
    except KafkaException:
        return False
    try:
        return answers(another)
    finally:
        another.close()
