"""Make a Kafka client at run time, and say so while the client library refuses the properties."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaException

from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.credentials.registry import ClientCredentials, RefusedClient
from reconsume.sidecar.kafka.errors import sentence_of

AGAIN = 1.0
"""Seconds before the next try. Credentials are mounted as several files: for a moment two of them may not match."""

_LOG = logging.getLogger("reconsume.kafka")
C = TypeVar("C")


class Stopping(Protocol):
    """A request to stop."""

    def wait(self, timeout: float) -> bool:
        """Wait; return whether the stop was requested."""


def new_client(
    make: Callable[[dict[str, Any]], C],
    config: Mapping[str, object],
    credentials: ClientCredentials,
    stopping: Stopping,
    each: Callable[[], None] = lambda: None,
) -> C | None:
    """Return a client that `make` makes with the newest credentials; None if a stop was requested first.

    Tries without end: `credentials.refused` tells the rest of the process. `each` is called at each try.
    """
    while True:
        each()
        try:
            client = make_client(make, credentials.adopt(config))
        except KafkaException as failure:
            refuse(credentials, failure)
            if stopping.wait(AGAIN):
                return None
        else:
            credentials.refused = None
            return client


def refuse(credentials: ClientCredentials, failure: KafkaException) -> None:
    """Note and log that no client could be made. The log sums it up once a minute."""
    why = sentence_of(failure)
    since = time.monotonic() if credentials.refused is None else credentials.refused.since
    credentials.refused = RefusedClient(since, f"{credentials.name}: no Kafka client can be made: {why}")
    text = "%s: no Kafka client can be made from the properties, trying again: %s"
    _LOG.error(text, credentials.name, why, extra={"event": "no-client", "about": [credentials.name]})
