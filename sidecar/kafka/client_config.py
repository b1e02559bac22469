"""The settings of every Kafka client that we make, each with the failure that it prevents.

The user's own properties come first. The properties on which the promise (contract 7.1) rests come last and are never
overridden: the settings refuse such keys with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

Properties = Mapping[str, str | int | float | bool]
Config = dict[str, object]

_LOG = logging.getLogger("reconsume.kafka")


_CLASSIC: Config = {
    # Partitions move one by one, after their deliveries are answered. An eager rebalance takes all away at once.
    "partition.assignment.strategy": "cooperative-sticky",
    # With a heartbeat every 3 s a rebalance takes 5 s; with one every 500 ms it takes 1.3 s (measured).
    "heartbeat.interval.ms": 500,
    "session.timeout.ms": 8_000,
}
"""Properties of the classic group protocol. With KIP-848 (`group.protocol=consumer`) the broker sets these."""


def _client(user: Properties, client_id: str) -> Config:
    return {
        # With this a restarted broker is noticed after 1 s, not 10 s.
        "reconnect.backoff.max.ms": 1_000,
        "client.id": client_id,
        **user,
        # By default librdkafka writes its log to stderr: a full pipe there stops every client thread (measured).
        "logger": _LOG,
        "log.connection.close": False,
    }


LITTLE = 4 * 1024
"""Bytes that are fetched at a time where any producer may write. A fetch is decompressed as a whole, and 1 MB of zeros
has 140 bytes in a topic: of these 4 KiB make 29 MB. At least one batch arrives in any case, however large it is."""
WHOLE, WHOLES = 1024 * 1024, 16 * 1024 * 1024
"""Bytes of a partition, and of all, that are fetched at a time where transactions write, at least.

With its records a broker names the aborted transactions among them. A broker that leads a partition after it had to
catch up leaves some out, if the fetch ends among records that it caught up with in one piece (Kafka 3.9 to 4.4: it
notes a last stable offset that is too high, and looks no further). A piece has 1 MiB at most
(`replica.fetch.max.bytes`). Of 464 aborted records a client read 464 as committed ones with 4 KiB, 416 with 64 KiB,
and none with this. What is left for the last partition of an answer would be a small fetch again: with 16 MiB that
takes sixteen full partitions of one broker. Our own topics hold copies as they were delivered, so that little is packed
there."""
QUEUED, QUEUED_LANE = 16, 32
"""Messages that are fetched ahead, in lanes a few more. librdkafka bounds what waits by the bytes of the values
alone. So of records that are all key or all headers only their number counts."""

_FETCHES: Config = {
    "fetch.message.max.bytes": LITTLE,
    "fetch.max.bytes": LITTLE,
    "queued.min.messages": QUEUED,
    "queued.max.messages.kbytes": 1024,
    # The fetcher waits so long each time its queue is full, which it is with QUEUED messages. The default is 1 000.
    # With 1 its looks, which go over all partitions, cost 2 us a record of a backlog.
    "fetch.queue.backoff.ms": 3,
}
"""The bounds of what any consumer fetches ahead, whatever the records are. A user's own values go before them."""


_LANE_FETCHES: Config = {**_FETCHES, "queued.min.messages": QUEUED_LANE}
"""The same for lanes."""
_SAME = {"max.partition.fetch.bytes": "fetch.message.max.bytes"}
"""Another name that librdkafka has for a property: of two values the one that is set last would hold."""
_SPARE = 512
"""Bytes that librdkafka wants of an answer beyond the records in it."""


def _consumer(user: Properties, client_id: str, fetches: Config = _FETCHES) -> Config:
    given = {_SAME.get(name, name): value for name, value in user.items()}
    config = {**fetches, **_client(given, client_id)}
    if "fetch.message.max.bytes" in given and "fetch.max.bytes" not in given:
        config["fetch.max.bytes"] = WHOLES // WHOLE * int(str(given["fetch.message.max.bytes"]))
    # A user's value is meant for producers, and librdkafka refuses a `fetch.max.bytes` that is below it.
    return {**config, "message.max.bytes": min(LITTLE, int(str(config["fetch.max.bytes"])))}


def whole_fetches(config: Mapping[str, object]) -> Config:
    """Return the configuration of a consumer with fetches that are large enough where transactions write (WHOLE)."""
    least = {"fetch.message.max.bytes": WHOLE, "fetch.max.bytes": WHOLES}
    if "receive.message.max.bytes" in config:
        least["receive.message.max.bytes"] = max(WHOLES, int(str(config["fetch.max.bytes"]))) + _SPARE
    return {**config, **{name: max(bytes_, int(str(config[name]))) for name, bytes_ in least.items()}}


def fetches_whole(config: Mapping[str, object]) -> bool:
    """Return whether a consumer's fetches are large enough where transactions write, as librdkafka's own ones are."""
    least = {"fetch.message.max.bytes": WHOLE, "fetch.max.bytes": WHOLES}
    return all(int(str(config.get(name, bytes_))) >= bytes_ for name, bytes_ in least.items())


def client_id_of(group: str, instance: str) -> str:
    """Return the client id by which the consumer of an instance is a member of a consumer group."""
    return f"reconsume-{group}-{instance}"


def consumer_config(user: Properties, group: str, client_id: str, *, own: bool = False) -> Config:
    """Return the configuration of a lane's consumer.

    `own`: whether it reads the group's own topics, where sidecars write in transactions.
    """
    config = {
        **(_CLASSIC if user.get("group.protocol", "classic") == "classic" else {}),
        "max.poll.interval.ms": 300_000,
        "fetch.wait.max.ms": 500,
        # A topic that is created later is noticed within this time, without a restart.
        "topic.metadata.refresh.interval.ms": 5_000,
        **_consumer(user, client_id, _LANE_FETCHES),
        "group.id": group,
        # Only transactions commit progress: a plain commit could arrive late and undo a newer one.
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # A lost offset is counted and shown; the consumer never jumps silently to the newest record (librdkafka#521).
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        # A level topic ends with a transaction marker: only the offset of the EOF event lets an empty level show lag 0.
        "enable.partition.eof": True,
    }
    return whole_fetches(config) if own else config


LARGEST = 100_000_000
"""Bytes of a record that the client passes on, so that the topic's own limit decides."""
QUEUE_KBYTES = 2 * LARGEST // 1024
"""What a producer's queue holds at least, in KiB. A record that is larger than the whole queue is never taken: the
client says each time that the queue is full for now."""


def _producer(user: Properties, client_id: str) -> Config:
    config = _client(user, client_id)
    if "queue.buffering.max.kbytes" in config:
        config["queue.buffering.max.kbytes"] = max(int(str(config["queue.buffering.max.kbytes"])), QUEUE_KBYTES)
    return config


BATCH_BYTES = 128 * 1024
"""Bytes of a batch of records. It is small because a batch of many records may exceed the topic's limit although each
record is below it."""


def producer_config(user: Properties, transactional_id: str, client_id: str, *, locates: bool = False) -> Config:
    """Return the configuration of a lane's transactional producer. `locates`: it tells where its records lie."""
    return {
        # An open transaction of a crashed pod stops the next owner this long (and up to 10 s more).
        "transaction.timeout.ms": 10_000,
        # After a coordinator is lost, send_offsets can hang for ever: 0 of 11 times with these two, 3 of 7 times by
        # default (librdkafka#5511, #5456).
        "metadata.max.age.ms": 3_000,
        # From 4 000 on the client takes up to 2 s off at random. What is unanswered for so long is sent twice.
        "connections.max.idle.ms": 3_999,
        # The first request of a transaction arrives while the markers of the one before are still written. It is sent
        # again after this time: 100 ms by default.
        "retry.backoff.ms": 5,
        "retry.backoff.max.ms": 1_000,
        "linger.ms": 0,
        "batch.size": BATCH_BYTES,
        # The Java client's partitioner, so that all producers of a key agree on its partition.
        "partitioner": "murmur2_random",
        **_producer(user, client_id),
        # The topic's own limit decides. The client's limit counts bytes before compression, so that a user's own value
        # would hold copies for ever that the topic takes.
        "message.max.bytes": LARGEST,
        "transactional.id": transactional_id,
        "enable.idempotence": True,
        "acks": "all",
        # A producer that asks for a topic would create it, with defaults of the broker that may delete waiting retries.
        "allow.auto.create.topics": False,
        # A committed transaction proves that all its records were written. Only a refused record needs a report, and
        # one that is read back: its offset spares the reader 12 us, and the reports of a failure's two records cost 5.
        "delivery.report.only.error": not locates,
    }


def reader_config(user: Properties, group: str, client_id: str) -> Config:
    """Return the configuration of a consumer that joins no group and commits nothing.

    It may request the committed offsets of `group`. With read_committed a request waits for transactions that are still
    open.
    """
    return {
        **_consumer(user, client_id),
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }


def follower_config(user: Properties, group: str, client_id: str) -> Config:
    """Return the configuration of a client that reads topics from their beginning.

    It also requests the committed offsets of `group`.
    """
    return {
        **reader_config(user, group, client_id),
        # A compacted topic has gaps, and a topic that was deleted and created again begins at 0.
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }


def view_config(user: Properties, group: str, client_id: str) -> Config:
    """Return the configuration of a client that reads topics and must know of each offset that is lost.

    `group` is only a name that the client has the right to use; nothing is committed.
    """
    return {
        **follower_config(user, group, client_id),
        # A lost offset is an error to examine, not to skip: the topic may be another one by now.
        "auto.offset.reset": "error",
    }


def teller_config(user: Properties, client_id: str) -> Config:
    """Return the configuration of a producer of small records that no caller waits for.

    It is idempotent, so that an old record is never written last.
    """
    return {
        "linger.ms": 0,
        **_producer(user, client_id),
        "enable.idempotence": True,
        "acks": "all",
        # That of all that write events, so that those of a record are in one partition, in their order.
        "partitioner": "murmur2_random",
        # A record that could not be written by then is out of date.
        "message.timeout.ms": 30_000,
        "queue.buffering.max.messages": 100,
    }
