"""`python -m benchmarks.everyday`: what a sidecar costs at the loads that most services have.

A bare consumer of the same topic runs beside it, so that both have the same records, broker and machine at the same
time; with `--posting` it posts each record too. CPU is that of all threads in percent of a core. The latency is from
the record's timestamp to the request.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks import cluster
from benchmarks.flaky import Flaky
from benchmarks.sidecar import Sidecar
from benchmarks.thread_usage import GROUPS, usage_of
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka

RATES = (0, 20, 100, 500, 2_000, 5_000)
FAILING = (0, 10)
"""Percent of the records whose first delivery fails."""
WARM_UP = 5.0
"""Seconds in which nothing is measured: partitions are assigned, the first transactions are made."""
STARTED_WITHIN = 60.0
TICK = 0.01
PORT = 19_996
API = f"http://127.0.0.1:{PORT}"
COMMITTED = re.compile(r'reconsume_transactions_total\{[^}]*result="committed"')


class Load(NamedTuple):
    """What one run has found; CPU in percent of a core, latency in ms (None without records)."""

    rate: int
    failing: int
    threads: Mapping[str, float]
    """CPU of the sidecar by group of threads."""
    bare: float
    p50: float | None
    p99: float | None
    transactions: float
    """Committed in a second."""

    @property
    def sidecar(self) -> float:
        """CPU of all threads."""
        return sum(self.threads.values())


class Arrivals:
    """The service: fails some records once, and notes how old each record is at its first delivery."""

    def __init__(self, failing: int) -> None:
        self.ages: list[float] = []
        self._failing, self._number = failing, 0

    def takes(self, fields: Mapping[str, str], at: float) -> bool:
        """Whether the delivery succeeds."""
        if fields["reconsume-times"] != "0":
            return True
        self.ages.append(at - int(fields["reconsume-timestamp"]))
        self._number += 1
        return self._number % 100 >= self._failing


class Pacer(threading.Thread):
    """Produces so many records a second, evenly, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic, self._rate, self._ended = topic, rate, threading.Event()

    def run(self) -> None:
        """Produce what is due at each tick."""
        began, sent = time.monotonic(), 0
        while not self._ended.wait(TICK):
            due = int((time.monotonic() - began) * self._rate)
            for number in range(sent, due):
                self._producer.produce(self._topic, cluster.VALUE, b"key-%d" % number, headers=cluster.HEADERS)
            sent = due
            self._producer.poll(0)
        self._producer.flush(10)

    def end(self) -> None:
        """Produce no more."""
        self._ended.set()
        self.join()


def measure(bootstrap: str, number: int, rate: int, failing: int, seconds: float, *, posting: bool) -> Load:
    """Run a sidecar and a bare consumer side by side for so many seconds."""
    arrived, topic = Arrivals(failing), f"e{number}"
    service, other = Flaky(arrived.takes), Flaky(lambda fields, at: True)
    sets = [
        f"group={topic}",
        f"topics=[{topic}]",
        f"kafka={{bootstrap.servers: '{bootstrap}'}}",
        f"deliver.url=http://127.0.0.1:{service.port}/",
        f"api.listen=127.0.0.1:{PORT}",
        "api.probe_listen=null",
        "log.level=warning",
    ]
    cluster.create(bootstrap, topic, cluster.settings_of(sets))
    words = [bootstrap, topic, *([f"http://127.0.0.1:{other.port}/"] if posting else [])]
    sidecar, pacer = Sidecar(sets), Pacer(bootstrap, topic, rate)
    bare = subprocess.Popen([sys.executable, "-m", "benchmarks.bare_consumer", *words])
    try:
        await_start(sidecar)
        pacer.start()
        time.sleep(WARM_UP)
        made = transactions()
        before, bare_before = usage_of(sidecar.pid), usage_of(bare.pid)
        arrived.ages.clear()
        time.sleep(seconds)
        ages = sorted(arrived.ages)
        threads, bare_threads = usage_of(sidecar.pid).since(before), usage_of(bare.pid).since(bare_before)
        made = transactions() - made
    finally:
        pacer.end()
        bare.kill()
        bare.wait()
        sidecar.close()
    return Load(
        rate,
        failing,
        threads,
        sum(bare_threads.values()),
        statistics.median(ages) if ages else None,
        ages[int(len(ages) * 0.99)] if ages else None,
        made / seconds,
    )


def await_start(sidecar: Sidecar) -> None:
    """Return once the sidecar consumes."""
    deadline = time.monotonic() + STARTED_WITHIN
    while time.monotonic() < deadline:
        sidecar.usage()  # ends the benchmark if the sidecar has ended
        try:
            urllib.request.urlopen(f"{API}/startupz", timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("the sidecar did not start")


def transactions() -> float:
    """Return how many transactions the sidecar has committed."""
    with urllib.request.urlopen(f"{API}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if COMMITTED.match(line))


def show(loads: Sequence[Load]) -> None:
    """Print the table."""
    groups = [*dict.fromkeys(GROUPS.values()), "other"]
    table = Table(title="A sidecar beside a bare consumer, CPU in percent of a core")
    titles = ("records/s", "failing", "sidecar", "bare", "ratio", "µs/record", "p50 ms", "p99 ms", "transactions/s")
    for column in (*titles, *groups):
        table.add_column(column, justify="right")
    for load in loads:
        table.add_row(
            str(load.rate),
            f"{load.failing} %",
            f"{load.sidecar:.2f}",
            f"{load.bare:.2f}",
            f"{load.sidecar / load.bare:.1f}",
            f"{load.sidecar / load.rate * 10_000:.0f}" if load.rate else "",
            "" if load.p50 is None else f"{load.p50:.1f}",
            "" if load.p99 is None else f"{load.p99:.1f}",
            f"{load.transactions:.2f}",
            *(f"{load.threads.get(group, 0):.2f}" for group in groups),
        )
    Console(width=180).print(table)


def main(words: Sequence[str] | None = None) -> None:
    """Measure each load, one after another."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.everyday", description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=list(RATES), help="records a second")
    parser.add_argument("--failing", type=int, nargs="+", default=list(FAILING), help="percent that fail once")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--posting", action="store_true", help="the bare consumer posts each record")
    asked = parser.parse_args(words)
    pairs = [(rate, failing) for failing in asked.failing for rate in asked.rates if rate or not failing]
    with EmbeddedKafka.start() as kafka:
        show(
            [
                measure(kafka.bootstrap, number, *pair, asked.seconds, posting=asked.posting)
                for number, pair in enumerate(pairs)
            ]
        )


if __name__ == "__main__":
    main()
