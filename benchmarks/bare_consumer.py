"""The yardstick of an everyday load: a consumer that only takes records, with the client's defaults."""

from __future__ import annotations

import sys

from confluent_kafka import Consumer


def consume(bootstrap: str, topic: str) -> None:
    """Take records until the process is ended."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"bare-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            message.value()


if __name__ == "__main__":
    consume(sys.argv[1], sys.argv[2])
