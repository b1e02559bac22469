"""The settings of every Kafka client that we make, each with the failure that it prevents.

The user's own properties go in first; what the promise rests on goes in last and is never overridden (the settings
refuse such keys with the reason).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Producer

from sidecar.kafka.errors import code_of, sentence_of
from sidecar.settings.masks import MASK, is_secret

Properties = Mapping[str, str | int | float | bool]
Config = dict[str, object]

_LOG = logging.getLogger("reconsume.kafka")


_CLASSIC: Config = {
    # Partitions move one by one, after their deliveries were answered; an eager rebalance takes all away at once.
    "partition.assignment.strategy": "cooperative-sticky",
    # Heartbeats of 3 s make a rebalance take 5 s; with 500 ms it is 1.3 s (measured).
    "heartbeat.interval.ms": 500,
    "session.timeout.ms": 8_000,
}
"""Of the classic group protocol; with KIP-848 (`group.protocol=consumer`) these are the broker's to set."""


def _client(user: Properties, client_id: str) -> Config:
    return {
        # A restarted broker is noticed after 1 s, not 10.
        "reconnect.backoff.max.ms": 1_000,
        "client.id": client_id,
        **user,
        # librdkafka writes its log to stderr itself: a full pipe there stops every thread of the client (measured).
        "logger": _LOG,
        "log.connection.close": False,
    }


def consumer_config(user: Properties, group: str, client_id: str, *, queue_kib: int) -> Config:
    """A lane's consumer. `queue_kib` bounds what librdkafka fetches ahead, and with it the memory at full speed."""
    return {
        **(_CLASSIC if user.get("group.protocol", "classic") == "classic" else {}),
        "max.poll.interval.ms": 300_000,
        # The default of 1 000 stalls the fetcher a second each time its queue is full: 4–6 times slower.
        "fetch.queue.backoff.ms": 5,
        "fetch.wait.max.ms": 500,
        "queued.min.messages": 1_000,
        "queued.max.messages.kbytes": queue_kib,
        "fetch.message.max.bytes": 256 * 1024,
        "fetch.max.bytes": 8 * 1024 * 1024,
        # A topic that is created later is seen within this time, without a restart.
        "topic.metadata.refresh.interval.ms": 5_000,
        **_client(user, client_id),
        "group.id": group,
        # Progress is committed by transactions alone: a plain commit could land late and undo a newer one.
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # A lost offset is counted and shown, never a silent jump to the newest record (librdkafka#521).
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        # The end of a level topic is a transaction marker: only its EOF offset makes an empty level show lag 0.
        "enable.partition.eof": True,
    }


FETCH = 1024 * 1024
"""Bytes of one partition that are fetched at a time; librdkafka's default."""
LITTLE = 16 * 1024
"""The same where memory is scarce: a fetch is unpacked whole, and records may have been compressed to a thousandth. At
least one batch comes in any case."""


def producer_config(user: Properties, transactional_id: str, client_id: str) -> Config:
    """A lane's transactional producer."""
    return {
        # An open transaction of a dead pod stops the next owner this long (and up to 10 s more).
        "transaction.timeout.ms": 10_000,
        # After a coordinator is lost, send_offsets can hang for ever: with these 0 of 11 times, by default 3 of 7
        # (librdkafka#5511, #5456).
        "metadata.max.age.ms": 3_000,
        "connections.max.idle.ms": 4_000,
        # The first request of a transaction meets the markers of the one before and waits for this: 100 ms by default.
        "retry.backoff.ms": 5,
        "retry.backoff.max.ms": 1_000,
        "linger.ms": 0,
        # Small batches: one that holds many records may pass the topic's limit although each record is below it.
        "batch.size": 128 * 1024,
        # The topic's own limit decides, not the client's, which counts before compression.
        "message.max.bytes": 100_000_000,
        # As the Java client does it, so that all producers of a key agree on its partition.
        "partitioner": "murmur2_random",
        **_client(user, client_id),
        "transactional.id": transactional_id,
        "enable.idempotence": True,
        "acks": "all",
        # A committed transaction says that all its records are there; only a refused one needs to be told apart.
        "delivery.report.only.error": True,
    }


def reader_config(user: Properties, group: str, client_id: str) -> Config:
    """A client that only asks for committed offsets; read_committed, so that it waits for what is still open."""
    return {
        **_client(user, client_id),
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }


def follower_config(user: Properties, group: str, client_id: str) -> Config:
    """A client that reads one small topic from its beginning, and asks for the committed offsets of `group`."""
    return {
        **reader_config(user, group, client_id),
        # A compacted topic has gaps, and one that was deleted and made anew begins at 0.
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "queued.max.messages.kbytes": 1_024,
    }


def scan_config(user: Properties, group: str, client_id: str, fetch: int = FETCH) -> Config:
    """A client that reads many records of whole topics once, and asks for the committed offsets of `group`."""
    return {
        **follower_config(user, group, client_id),
        "fetch.message.max.bytes": fetch,
        # Each is there three times over: as fetched, as the client's message, as Python's. By default it is 50 MB.
        "queued.max.messages.kbytes": 4 * 1024,
        "fetch.max.bytes": 4 * 1024 * 1024,
        # The default of 1 000 stalls the fetcher a second each time its queue is full.
        "fetch.queue.backoff.ms": 5,
    }


def view_config(user: Properties, group: str, client_id: str, fetch: int = 256 * 1024) -> Config:
    """A client that reads the view's topics; `group` is only a name that it has the right to, nothing is committed."""
    return {
        **follower_config(user, group, client_id),
        # An offset that is gone is looked at, and not passed over: the topic may be another one by now.
        "auto.offset.reset": "error",
        "queued.max.messages.kbytes": 2_048,
        "fetch.message.max.bytes": fetch,
        # The default of 1 000 would read two thousand rows a second from so short a queue.
        "fetch.queue.backoff.ms": 5,
    }


def teller_config(user: Properties, client_id: str) -> Config:
    """A producer of small records that nothing waits for; idempotent, so that an old one never lands last."""
    return {
        "linger.ms": 0,
        **_client(user, client_id),
        "enable.idempotence": True,
        "acks": "all",
        # What could not be written by then is out of date.
        "message.timeout.ms": 30_000,
        "queue.buffering.max.messages": 100,
    }


def property_faults(properties: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each property that librdkafka does not know, or whose value it refuses. Connects to nothing."""
    faults: list[str] = []
    for name, value in properties.items():
        try:
            Producer({name: value, "log_level": 0} if name != "bootstrap.servers" else {"log_level": 0})
        except KafkaException as error:
            # Alone, a property may lack its companions; only what is wrong by itself counts here.
            if code_of(error) == KafkaError._INVALID_ARG and "onfiguration property" in error.args[0].str():
                said = sentence_of(error)
                faults.append(f"kafka.{name}: {said.replace(value, MASK) if value and is_secret((name,)) else said}")
    return tuple(faults)
