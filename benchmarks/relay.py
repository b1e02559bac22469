"""Relay of due records: a level topic full of them, and the time until all are committed to the ready topic."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks import cluster
from benchmarks.sidecar import Sidecar, Usage
from reconsume.topics.specs import MOST_PARTITIONS

DELAY = 1_000
"""ms of the level: all are due before the relay starts."""
LEVEL_PARTITIONS = min(cluster.PARTITIONS, MOST_PARTITIONS)
WITHIN = 300


class Found(NamedTuple):
    """Records a second, CPU µs a record, peak memory in bytes, seconds to the first record."""

    rate: float
    cpu_us: float
    peak: int
    first: float


def relay(bootstrap: str, number: int, records: int) -> Found:
    """Fill, start a relay, measure from its first transaction to its last."""
    main, group = f"relay-{number}", f"relay-group-{number}"
    sets = [
        f"group={group}",
        f"topics=[{main}]",
        f"kafka={{bootstrap.servers: '{bootstrap}'}}",
        "deliver.mode=relay",
        "retry.ladder=[1s]",
        "retry.levels=[1s]",
        f"api.listen=127.0.0.1:{26_000 + number}",
        "api.probe_listen=null",
        "log.level=warning",
    ]
    settings = cluster.settings_of(sets)
    cluster.create(bootstrap, main, settings)
    level = settings.names.level(DELAY, main)
    fill(bootstrap, main, level, group, records)
    time.sleep(DELAY / 1000)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": settings.names.retry_group})
    sidecar = Sidecar(sets)
    try:
        first, before = _until(sidecar, reader, level, 1)
        last, after = _until(sidecar, reader, level, records)
        moved = after - before
        return Found(
            moved / (last.at - first.at),
            (last.cpu - first.cpu) / moved * 1e6,
            sidecar.peak,
            first.at - sidecar.started_at,
        )
    finally:
        sidecar.close()
        reader.close()


def fill(bootstrap: str, main: str, level: str, group: str, records: int, partitions: int = LEVEL_PARTITIONS) -> None:
    """Due records as a sidecar writes them: 200 B, a key, three headers of their own and all ten of ours."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    failed = int(time.time() * 1000)
    for number in range(records):
        partition = number % partitions
        headers = [
            *cluster.HEADERS,
            ("REAL_TOPIC", main.encode()),
            ("ORIGIN_MESSAGE_ID", b"%s:%d:%d" % (main.encode(), partition, number)),
            ("RETRY_TOPIC", level.encode()),
            ("RECONSUMETIMES", b"1"),
            ("RETRY_REDRIVES", b"0"),
            ("RETRY_DUE_AT", b"%d" % (failed + DELAY)),
            ("RETRY_REAL_TIMESTAMP", b"%d" % failed),
            ("RETRY_FIRST_FAILED_AT", b"%d" % failed),
            ("RETRY_REASON", b"http-500"),
            ("RETRY_GROUP", group.encode()),
        ]
        while True:
            try:
                producer.produce(level, cluster.VALUE, b"key-%d" % number, partition, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise SystemExit("the broker did not take the records")


def _until(sidecar: Sidecar, reader: Consumer, level: str, records: int) -> tuple[Usage, int]:
    places = [TopicPartition(level, number) for number in range(LEVEL_PARTITIONS)]
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        done = _done(reader, places)
        if done >= records:
            return sidecar.usage(), done
        sidecar.usage()
        time.sleep(0.01)
    raise SystemExit(f"the records were not moved in {WITHIN} s")


def _done(reader: Consumer, places: list[TopicPartition]) -> int:
    try:
        return sum(max(0, place.offset) for place in reader.committed(places, timeout=10))
    except KafkaException:  # the coordinator of a new group has to be found first; asked again until the deadline
        return 0


def bare_copy(bootstrap: str, number: int, records: int) -> tuple[float, float]:
    """The yardstick on records of the usual kind: records a second, CPU µs a record."""
    source, target = f"bare-{number}", f"bare-target-{number}"
    for topic in (source, target):
        cluster.create(bootstrap, topic)
    cluster.fill(bootstrap, source, records)
    command = [sys.executable, "-m", "benchmarks.bare_copy", bootstrap, source, target, str(cluster.PARTITIONS)]
    found = json.loads(subprocess.run([*command, str(records)], check=True, capture_output=True, text=True).stdout)
    return found["records"] / found["seconds"], found["cpu"] / found["records"] * 1e6


def main() -> None:
    """`python -m benchmarks.relay [RECORDS [ROUNDS]]`: this scenario alone, against the yardstick."""
    from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka

    records, rounds = (int(text) for text in [*sys.argv[1:], "200000", "3"][:2])
    with EmbeddedKafka.start() as kafka:
        for number in range(rounds):
            rate, cpu = bare_copy(kafka.bootstrap, number, records)
            found = relay(kafka.bootstrap, number, records)
            print(
                f"bare {rate:,.0f}/s {cpu:.1f} µs; relay {found.rate:,.0f}/s {found.cpu_us:.1f} µs, "
                f"ratio {found.rate / rate:.2f}, peak {found.peak / 1e6:.0f} MB, first after {found.first:.1f} s"
            )


if __name__ == "__main__":
    main()
