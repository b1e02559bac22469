"""Make Kafka clients in the sidecar and in commands: checked, and with one kind of error for whatever is unusable.

The client library refuses properties and files by KafkaException. What it refuses before or below that (a file that is
replaced while it is read, a text that is no text) is a ValueError or an OSError of Python or of OpenSSL. Threads that
make clients again and again expect KafkaException alone: a renewed certificate that cannot be used must end none of
them (contract 14.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from reconsume.topics.client_rules import UnsafePropertyError, checked_client

C = TypeVar("C")


def make_client(client_class: Callable[[dict[str, Any]], C], config: Mapping[str, object]) -> C:
    """Return a consumer, producer or admin client with these properties of librdkafka.

    Raises KafkaException if it cannot be made, and UnsafePropertyError for a property that brings code along.
    """
    try:
        return checked_client(client_class, config)
    except UnsafePropertyError:
        raise
    except (ValueError, OSError) as fault:
        why = f"a file of its credentials cannot be used: {type(fault).__name__}"  # its text could quote the file
    raise KafkaException(KafkaError(KafkaError._SSL, why))
