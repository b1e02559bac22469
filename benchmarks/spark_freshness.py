"""`python -m benchmarks.spark_freshness`: how old an event is when its row is in the view, and when it is served.

Events are written as a sidecar writes them, in small transactions; a reader of the view notes when the row came, and
somebody asks a sidecar that follows the view for the newest event until it has it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import cluster, served
from benchmarks.sidecar import Sidecar
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.topics.events import Event, State, encode_event
from reconsume.topics.names import Names

GROUP = "fresh"
NAMES = Names(GROUP)
EVERY = 0.05
"""Seconds between two transactions."""
MUST_P50_MS, MUST_P99_MS = 1_200, 3_000
RECORDS = 500_000
"""So many records are told of in turn: most events are of a record's first failure, as it should be."""


class Writer(threading.Thread):
    """Writes `rate` events a second: two of three begin to wait, the third commits one that waited."""

    def __init__(self, bootstrap: str, rate: int) -> None:
        super().__init__(daemon=True)
        self.written = 0
        self.newest: Event | None = None
        """Of those that are committed."""
        self._each = round(rate * EVERY)
        self._ended = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "transactional.id": "writer", "linger.ms": 0}
        self._producer = Producer({**settings, "retry.backoff.ms": 5})

    def run(self) -> None:
        """Write until ended, one transaction each EVERY seconds."""
        self._producer.init_transactions(30)
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            due += EVERY
            self._producer.begin_transaction()
            for _ in range(self._each):
                event = make_event(self.written)
                self._producer.produce(NAMES.events, encode_event(event), event.id)
                self.written += 1
            self._producer.commit_transaction(30)
            self.newest = event

    def end(self) -> None:
        """Write no more."""
        self._ended.set()
        self.join()


def make_event(number: int) -> Event:
    """The next event; each third is the end of the record before it."""
    commits = number % 3 == 2
    record = (number - 1 if commits else number) % RECORDS
    return event_of(GROUP, record, State.COMMIT if commits else State.WAITING_RETRY)


def event_of(group: str, record: int, state: State) -> Event:
    """An event of a group, of now, about a record that failed once."""
    at = now()
    return Event(
        group=group,
        id=f"orders:{record % 12}:{record}",
        state=state,
        times=1,
        redrives=0,
        level="10s",
        due=at + 10_000,
        at=at,
        reason="http-500",
        topic="orders",
        partition=record % 12,
        offset=record,
        timestamp=at,
        first_failed_at=at,
        instance="pod-0",
    )


def now() -> int:
    """Epoch ms."""
    return time.time_ns() // 1_000_000


class Reader:
    """Reads the view from its beginning; a context manager."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "fetch.wait.max.ms": 10})
        partitions = list(self._consumer.list_topics(NAMES.view, timeout=10).topics[NAMES.view].partitions)
        self._consumer.assign([TopicPartition(NAMES.view, number, 0) for number in partitions])

    def read(self, seconds: float) -> list[int]:
        """Read for so long; the age in ms of the event of each row that came."""
        end = time.monotonic() + seconds
        ages: list[int] = []
        while time.monotonic() < end:
            for message in self._consumer.consume(1, 0.1) + self._consumer.consume(5_000, 0):
                ages.append(now() - json.loads(message.value() or b"")["at"])
        return ages

    def close(self) -> None:
        """Read no more."""
        self._consumer.close()


def start_job(
    bootstrap: str, folder: Path, words: list[str], groups: tuple[str, ...] = ("--groups", GROUP)
) -> subprocess.Popen[bytes]:
    """The job, as users start it."""
    sets = [f"--set=kafka={{bootstrap.servers: '{bootstrap}'}}"]
    command = [sys.executable, "-m", "reconsume.sidecar", "view", "run", *groups, *sets, *words]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(folder)}
    return subprocess.Popen(command, cwd=folder, env=environ)


def cpu_of(job: subprocess.Popen[bytes]) -> float:
    """CPU seconds that the job and all below it have used; those that have ended count with who waited for them."""
    found = psutil.Process(job.pid)
    used = 0.0
    for process in (found, *found.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # Spark starts a chmod for each file of a checkpoint
            used += sum(process.cpu_times()[:4])
    return used


def batches_of(folder: Path) -> int:
    """How many batches of the view are done."""
    commits = folder.glob("reconsume-view-*/reconsume-view-query-*/commits/[0-9]*")
    return max((int(file.name) + 1 for file in commits), default=0)


def freshness(bootstrap: str, rate: int, seconds: float, warm: float, words: list[str]) -> str:
    """Run it; the ages in ms, and what it cost, as one line each."""
    sets = [f"group={GROUP}", "topics=[orders]", f"kafka={{bootstrap.servers: '{bootstrap}'}}", "deliver.mode=pull"]
    cluster.create(bootstrap, "orders", cluster.settings_of(sets), partitions=12)
    folder = Path(tempfile.mkdtemp(prefix="reconsume-bench-"))
    job, sidecar = start_job(bootstrap, folder, words), Sidecar([*sets, *served.SETTINGS])
    writer, reader = Writer(bootstrap, rate), Reader(bootstrap)
    asker = served.Asker(lambda: writer.newest, now)
    try:
        writer.start()
        asker.start()
        reader.read(warm)
        asker.take()
        begun, before, first = cpu_of(job), writer.written, batches_of(folder)
        ages = sorted(reader.read(seconds))
        asked = asker.take()
        used, written, batches = cpu_of(job) - begun, writer.written - before, batches_of(folder) - first
    finally:
        asker.end()
        writer.end()
        reader.close()
        sidecar.close()
        job.send_signal(signal.SIGTERM)
        job.wait(60)
        shutil.rmtree(folder)
    cost = f"{used / seconds * 100:.0f} % of a core, {used / written * 1e6:.0f} µs an event"
    batch = f"{rate} events/s, {len(ages)} rows in {batches} batches; {cost}"
    return "\n".join((batch, told("in the view topic", ages), told("served by a sidecar", asked)))


def told(what: str, ages: list[int]) -> str:
    """Some of the sorted ages, as a line."""
    p50, p99 = statistics.median(ages), ages[int(len(ages) * 0.99)]
    shares = f"p50 {p50:.0f} (must {MUST_P50_MS}), p99 {p99} (must {MUST_P99_MS})"
    return f"  {what:20} {shares}, max {ages[-1]} ms, of {len(ages)}"


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_freshness", description=__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="events a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it is measured")
    parser.add_argument("--warm", type=float, default=40.0, help="how long before that nothing is")
    options, words = parser.parse_known_args()
    with EmbeddedKafka.start() as kafka:
        print(freshness(kafka.bootstrap, options.rate, options.seconds, options.warm, words))


if __name__ == "__main__":
    main()
