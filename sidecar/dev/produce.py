"""Produce one record, for first steps: what a service's own producer would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.hints import suggestion
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.client_config import teller_config
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.printable import without_error_objects

WITHIN = 10.0
"""Seconds for the broker to take the record."""
CLIENT = "reconsume-dev-produce"


class Produced(NamedTuple):
    """The position at which a record was written."""

    topic: str
    partition: int
    offset: int

    @property
    def id(self) -> str:
        """The id of the record, if it fails later."""
        return f"{self.topic}:{self.partition}:{self.offset}"


def produce(
    kafka: Mapping[str, str],
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]],
) -> Produced:
    """Write one record, and return its position once the broker has it.

    The topic is never created. `kafka`: librdkafka's properties. Raises ContractError if there is no such topic,
    BrokerError if the broker does not take the record.
    """
    cluster = Cluster(kafka, CLIENT)
    if not cluster.find_topics([topic]):
        question = suggestion(topic, cluster.topic_names())
        raise ContractError(f"there is no topic {topic}" + (f"; {question}" if question else ""))
    faults: list[str] = []
    landed: list[Message] = []

    def done(error: KafkaError | None, message: Message) -> None:
        landed.append(message)
        if error is not None:
            faults.append(error.str())

    config = {**teller_config(kafka, CLIENT), "message.timeout.ms": int(WITHIN * 1000), "log_level": 0}
    try:
        producer = make_client(Producer, {**config, "allow.auto.create.topics": False})
        producer.produce(topic, value, key, headers=list(headers), on_delivery=done)
    except (KafkaException, BufferError) as error:
        raise BrokerError(f"the record cannot be produced: {without_error_objects(str(error))}") from error
    producer.flush(WITHIN + 1)
    if faults or not landed:
        raise BrokerError(f"the record is not in {topic}: {faults[0] if faults else 'the broker does not answer'}")
    message = landed[0]
    return Produced(topic, message.partition() or 0, message.offset() or 0)
