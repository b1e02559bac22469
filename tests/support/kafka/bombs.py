"""Records that take little in a topic, and much where they are read: each is one that Kafka takes with its defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from reconsume.topics.retry_headers import Headers

SECONDS = 60.0
LARGE = 900_000
OURS = 20
"""Headers that are left for those of Reconsume: the client reads 100 000."""


class Bomb(NamedTuple):
    """What a record holds, and whether its batch is packed by zstd. Headers are made when they are asked for."""

    key: bytes | None = None
    value: bytes | None = b""
    headers: Callable[[], Headers] = list
    packed: bool = False


BOMBS = {
    # 300 KB in the topic, 7 MB in the client, 8 MB in Python: "a" and b"" are each one object for all.
    "headers": Bomb(headers=lambda: [("a", b"")] * (100_000 - OURS)),
    "packed headers": Bomb(headers=lambda: [("a", b"")] * (100_000 - OURS), packed=True),
    # 900 KB in the topic, 20 MB in Python.
    "wide headers": Bomb(headers=lambda: [(f"h{number:05}", b"xy") for number in range(85_000)]),
    "keys": Bomb(key=b"k" * LARGE),
    "packed keys": Bomb(key=b"k" * LARGE, packed=True),
    "packed values": Bomb(value=bytes(LARGE), packed=True),
}
"""The kinds. A packed record of 900 KB has some 140 bytes in the topic."""


def fill(
    bootstrap: str,
    topic: str,
    kinds: Iterable[str],
    ours: Callable[[int], Headers] = lambda number: [],
    partition: int = 0,
) -> None:
    """Produce a record of each of these kinds, in their order as far as they are packed alike.

    `ours`: more headers of the record with that number.
    """
    faults: list[KafkaError] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        faults.extend(() if error is None else (error,))

    large = {"bootstrap.servers": bootstrap, "message.max.bytes": 1 << 27, "linger.ms": 5, "log_level": 0}
    producers = {packed: Producer({**large, "compression.type": "zstd" if packed else "none"}) for packed in (0, 1)}
    for number, kind in enumerate(kinds):
        bomb = BOMBS[kind]
        producer = producers[bomb.packed]
        headers = [*bomb.headers(), *ours(number)]
        key = b"%d" % number if bomb.key is None else bomb.key  # a compacted topic takes none without
        producer.produce(topic, bomb.value, key, partition, note, None, 0, headers)  # type: ignore[arg-type]
        producer.poll(0)
    for producer in producers.values():
        assert producer.flush(SECONDS) == 0
    assert not faults, faults
