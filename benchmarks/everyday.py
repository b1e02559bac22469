"""`python -m benchmarks.everyday`: what a sidecar costs at the loads that most services have.

A bare consumer of the same topic runs beside it, so that both have the same records, broker and machine at the same
time. CPU is that of the whole process in percent of a core. The latency is from the record's timestamp to the request.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks import cluster
from benchmarks.flaky import Flaky
from benchmarks.sidecar import Sidecar
from sidecar.dev.kafka.embedded import EmbeddedKafka

RATES = (0, 20, 100, 500, 2_000)
FAILING = (0, 10)
"""Percent of the records whose first delivery fails."""
WARM_UP = 5.0
"""Seconds in which nothing is measured: partitions are assigned, the first transactions are made."""
TICK = 0.01
PORT = 19_996


class Load(NamedTuple):
    """What one run has found; CPU in percent of a core, latency in ms (None without records)."""

    rate: int
    failing: int
    sidecar: float
    bare: float
    p50: float | None
    p99: float | None
    threads: Mapping[str, float]
    """CPU by the name of the thread that the kernel knows, in percent of a core."""


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


def measure(bootstrap: str, number: int, rate: int, failing: int, seconds: float) -> Load:
    """Run a sidecar and a bare consumer side by side for so many seconds."""
    arrived, topic = Arrivals(failing), f"everyday-{number}"
    service = Flaky(arrived.takes)
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
    sidecar, pacer = Sidecar(sets), Pacer(bootstrap, topic, rate)
    bare = subprocess.Popen([sys.executable, "-m", "benchmarks.bare_consumer", bootstrap, topic])
    try:
        pacer.start()
        time.sleep(WARM_UP)
        arrived.ages.clear()
        before, bare_before, threads = sidecar.usage(), cpu_of(bare.pid), threads_of(sidecar.pid)
        time.sleep(seconds)
        after, bare_after, later = sidecar.usage(), cpu_of(bare.pid), threads_of(sidecar.pid)
        ages = sorted(arrived.ages)
    finally:
        pacer.end()
        bare.kill()
        bare.wait()
        sidecar.close()
    share = 100 / (after.at - before.at)
    return Load(
        rate,
        failing,
        (after.cpu - before.cpu) * share,
        (bare_after - bare_before) * share,
        statistics.median(ages) if ages else None,
        ages[int(len(ages) * 0.99)] if ages else None,
        {name: (used - threads[name]) * share for name, used in later.items()},
    )


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def threads_of(pid: int) -> Counter[str]:
    """Return the CPU seconds of a process by the names of its threads."""
    found = Counter[str]()
    for thread in psutil.Process(pid).threads():
        name = Path(f"/proc/{pid}/task/{thread.id}/comm").read_text().strip()
        found[name] += thread.user_time + thread.system_time
    return found


def show(loads: Sequence[Load]) -> None:
    """Print the table."""
    table = Table(title="A sidecar beside a bare consumer, CPU in percent of a core")
    for column in ("records/s", "failing", "sidecar", "bare", "ratio", "µs/record", "p50 ms", "p99 ms", "threads"):
        table.add_column(column, justify="left" if column == "threads" else "right")
    for load in loads:
        busiest = sorted(load.threads.items(), key=lambda one: -one[1])[:4]
        table.add_row(
            str(load.rate),
            f"{load.failing} %",
            f"{load.sidecar:.2f}",
            f"{load.bare:.2f}",
            f"{load.sidecar / load.bare:.1f}" if load.bare else "",
            f"{load.sidecar / load.rate * 10_000:.0f}" if load.rate else "",
            "" if load.p50 is None else f"{load.p50:.1f}",
            "" if load.p99 is None else f"{load.p99:.1f}",
            ", ".join(f"{name} {used:.2f}" for name, used in busiest),
        )
    Console(width=160).print(table)


def main(words: Sequence[str] | None = None) -> None:
    """Measure each load, one after another."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.everyday", description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=list(RATES), help="records a second")
    parser.add_argument("--failing", type=int, nargs="+", default=list(FAILING), help="percent that fail once")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    asked = parser.parse_args(words)
    pairs = [(rate, failing) for failing in asked.failing for rate in asked.rates if rate or not failing]
    with EmbeddedKafka.start() as kafka:
        show([measure(kafka.bootstrap, number, *pair, asked.seconds) for number, pair in enumerate(pairs)])


if __name__ == "__main__":
    main()
