"""The yardstick of an everyday load: a consumer that takes records with the client's defaults, and may post them.

Without a URL it only takes them, the least that any consumer does. With one it posts each and waits for the answer, one
after another: the least that a program in a sidecar's place does.
"""

from __future__ import annotations

import sys
from http.client import HTTPConnection
from urllib.parse import urlsplit

from confluent_kafka import Consumer


def consume(bootstrap: str, topic: str, url: str | None = None) -> None:
    """Take records until the process is ended."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"bare-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    service = None if url is None else HTTPConnection(urlsplit(url).netloc)
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            value = message.value()
            if service is not None:
                service.request("POST", "/", value)
                service.getresponse().read()


if __name__ == "__main__":
    consume(*sys.argv[1:])
