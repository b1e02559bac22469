"""An audit of a large group: topics filled as sidecars fill them, then `reconsume audit` as a process of its own.

`python -m benchmarks.audit [RECORDS [FAILS_PERCENT]]` prints records/s and the peak of its memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import psutil
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks import cluster
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.topics.events import Event, State, encode_event
from reconsume.topics.names import Names
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState

GROUP, MAIN = "audited", "audited-main"
DELAY = 10_000
PARTITIONS = cluster.PARTITIONS
NAMES = Names(GROUP)
LEVEL = NAMES.level(DELAY, MAIN)
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
TREE = {
    "group": GROUP,
    "topics": [MAIN],
    "deliver": {"url": "http://127.0.0.1:1/"},
}


class Filler:
    """Writes main records, copies and events, evenly over the partitions."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 20,
                "queue.buffering.max.messages": 500_000,
                "enable.idempotence": True,  # the copies name the offsets of their records: no batch may change places
            }
        )

    def put(self, topic: str, value: bytes, key: bytes, partition: int, headers: Headers, timestamp: int = 0) -> None:
        """One record."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=[*headers], timestamp=timestamp)
                return
            except BufferError:
                self._producer.poll(0.05)

    def close(self) -> None:
        """Wait until the broker has all."""
        if self._producer.flush(300):
            raise SystemExit("the broker did not take the records")


def fill(bootstrap: str, records: int, percent: int) -> int:
    """Every record on the main topic; of `percent` of them one retry that worked. How many were written."""
    filler, now, written = Filler(bootstrap), int(time.time() * 1_000), records
    for number in range(records):
        partition, offset = number % PARTITIONS, number // PARTITIONS
        key = b"key-%d" % number
        filler.put(MAIN, cluster.VALUE, key, partition, cluster.HEADERS, now)
        if number % 100 >= percent:
            continue
        life = RetryState(f"{MAIN}:{partition}:{offset}", MAIN, 1, 0, now + DELAY, now, now, "http-500")
        filler.put(LEVEL, cluster.VALUE, key, partition, [*cluster.HEADERS, *render_retry_headers(life, GROUP, LEVEL)])
        for state, level, at in ((State.WAITING_RETRY, "10s", now), (State.COMMIT, None, now + 3_600_000)):
            event = event_of(life, state, level, at, (MAIN, partition, offset))
            filler.put(NAMES.events, encode_event(event), life.id.encode(), partition % 6, [])
        written += 3
    filler.close()
    return written


def event_of(life: RetryState, state: State, level: str | None, at: int, place: tuple[str, int, int]) -> Event:
    """What a sidecar tells of a record."""
    return Event(
        group=GROUP,
        id=life.id,
        state=state,
        times=life.times,
        redrives=life.redrives,
        level=level,
        due=life.due_at,
        at=at,
        reason="http-500",
        topic=place[0],
        partition=place[1],
        offset=place[2],
        timestamp=life.timestamp,
        first_failed_at=life.first_failed_at,
        instance="bench",
    )


def commit(bootstrap: str) -> None:
    """Everything is done."""
    for group, topic in ((GROUP, MAIN), (NAMES.retry_group, LEVEL)):
        client = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
        done, sources = Progress(2**40, clean=True), [Partition(topic, number) for number in range(PARTITIONS)]
        places = [TopicPartition(*source, 2**40, encode(source, done)) for source in sources]
        deadline = time.monotonic() + 60
        while True:
            try:
                client.commit(offsets=places, asynchronous=False)
                break
            except KafkaException:  # a new cluster's coordinator is loading
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        client.close()


def audited(bootstrap: str) -> tuple[float, int, str]:
    """Run the command: seconds, the peak of its memory in bytes, what it said."""
    with tempfile.TemporaryDirectory(prefix="reconsume-bench-") as folder:
        file = Path(folder) / "reconsume.yaml"
        file.write_text(json.dumps(TREE | {"kafka": {"bootstrap.servers": bootstrap}}), encoding="utf-8")
        began, peak = time.perf_counter(), 0
        words = [sys.executable, "-m", "reconsume.sidecar", "audit", "-c", str(file), "-o", "jsonl", "--max", "5"]
        with (Path(folder) / "said").open("wb") as said:
            process = subprocess.Popen(words, stdout=said, stderr=said)
            usage = psutil.Process(process.pid)
            while process.poll() is None:
                try:
                    peak = max(peak, usage.memory_info().rss)
                except psutil.NoSuchProcess:
                    break
                time.sleep(0.05)
            process.wait()
        return time.perf_counter() - began, peak, (Path(folder) / "said").read_text(encoding="utf-8")


def main() -> None:
    """Fill, audit, print."""
    from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka

    records, percent = (int(text) for text in [*sys.argv[1:], "1000000", "30"][:2])
    with EmbeddedKafka.start() as kafka:
        servers = f"kafka={{bootstrap.servers: '{kafka.bootstrap}'}}"
        settings = cluster.settings_of(
            [f"group={GROUP}", f"topics=[{MAIN}]", "deliver.url=http://127.0.0.1:1/", servers]
        )
        cluster.create(kafka.bootstrap, MAIN, settings)
        written = fill(kafka.bootstrap, records, percent)
        commit(kafka.bootstrap)
        seconds, peak, said = audited(kafka.bootstrap)
        print(f"{written:,} records: {seconds:.1f} s, {written / seconds:,.0f} records/s, peak {peak / 1e6:.0f} MB")
        print(said)


if __name__ == "__main__":
    main()
