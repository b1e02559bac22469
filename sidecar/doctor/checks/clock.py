"""Measure how far this machine's clock is from the brokers', with records in a transaction that is aborted.

The ready topic stores the broker's time of each append. The broker returns that time when it acknowledges a record. No
reader of committed records ever sees these records. There is no other way: Kafka has no request for its time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from reconsume.sidecar.doctor.findings import RIGHTS, Finding, fail, not_checked, ok, warn
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.client_config import producer_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import FIRST_ANSWER_SECONDS, sentence_of
from reconsume.topics.names import Names

WARN_MS = 1_000
"""ms. The shortest level: from this difference on retries come noticeably early or late."""
FAIL_MS = 10_000
"""ms. The first delay of the default ladder."""
ROUNDS = 2
"""Measurements per broker. The first one includes the time to connect, so the last one counts."""
SYNC = "synchronise the clocks of this machine and of the brokers (NTP)"


def clock(cluster: Cluster, names: Names) -> list[Finding]:
    """Report how far the clocks are apart, for each broker that leads a partition of the ready topic."""
    topics, denied = cluster.topics([names.ready])
    if names.ready not in topics:
        why = "this user may not see it" if denied else "it does not exist"
        mend = RIGHTS if denied else hint("topics apply")
        return [not_checked(f"it takes {names.ready}, and {why}", mend)]
    leaders = topics[names.ready].leaders
    partitions = {leader: number for number, leader in enumerate(leaders) if leader >= 0}
    try:
        differences = measured(cluster.kafka, names, partitions)
    except KafkaException as error:
        return [not_checked(sentence_of(error), RIGHTS)]
    if not differences:
        return [not_checked(f"{names.ready} does not carry the broker's time", "see the check of topics")]
    return [judged(broker, *topics) for broker, topics in sorted(differences.items())]


def judged(broker: int, offset: float, accuracy: float) -> Finding:
    """Return the finding for one broker. `offset`: ms that it is ahead of this machine, true within `accuracy`."""
    where = "ahead of" if offset >= 0 else "behind"
    certain = max(0.0, abs(offset) - accuracy)
    if certain < WARN_MS:
        return ok(f"broker {broker} is within {abs(offset) + accuracy:.0f} ms")
    text = f"broker {broker} is {certain / 1000:.1f} s {where} this machine: retries come early or late by as much"
    return fail(text, SYNC) if certain >= FAIL_MS else warn(text, SYNC)


def measured(kafka: Mapping[str, str], names: Names, partitions: Mapping[int, int]) -> dict[int, tuple[float, float]]:
    """Return by broker how many ms it is ahead of this machine, and how wrong that may be. Raises KafkaException."""
    config = {
        **producer_config(kafka, f"{names.group}-retry-~clock", "reconsume-doctor"),
        "transaction.timeout.ms": 5_000,
        "delivery.report.only.error": False,
        "log_level": 0,
    }
    producer = make_client(Producer, config)
    producer.init_transactions(FIRST_ANSWER_SECONDS)
    producer.begin_transaction()
    try:
        rounds = [one_round(producer, names.ready, partitions) for _ in range(ROUNDS)]
    finally:
        with suppress(KafkaException):  # an earlier error says more; the broker ends it after 5 s by itself
            producer.abort_transaction(FIRST_ANSWER_SECONDS)
    return rounds[-1]


def one_round(producer: Producer, topic: str, partitions: Mapping[int, int]) -> dict[int, tuple[float, float]]:
    """Send one record to each broker, and return what its append time says. Raises KafkaException."""
    by_partition: dict[int, tuple[float, float]] = {}
    faults: list[KafkaError] = []
    sent = time.time() * 1_000

    def landed(error: KafkaError | None, message: Message) -> None:
        kind, stamp = message.timestamp()
        back = time.time() * 1_000
        if error is not None:
            faults.append(error)
        elif kind == TIMESTAMP_LOG_APPEND_TIME:
            by_partition[message.partition() or 0] = (stamp - (sent + back) / 2, (back - sent) / 2 + 1)

    for number in partitions.values():
        producer.produce(topic, b"", partition=number, on_delivery=landed)
    producer.flush(FIRST_ANSWER_SECONDS)
    if faults:
        raise KafkaException(faults[0])
    return {broker: by_partition[number] for broker, number in partitions.items() if number in by_partition}
