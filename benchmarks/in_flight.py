"""The number in flight that follows the service, with the best fixed number and a large one beside it.

`python -m benchmarks.in_flight` delivers 603 records to a service of 16 threads that takes a second for each, with
`timeout: 5s`, and prints how long it took and how many records were executed twice. `--picture FILE` draws limit and
response time of the one that follows the service: docs/img/concurrency.svg.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from benchmarks import cluster
from benchmarks.shares import Service
from benchmarks.sidecar import Sidecar
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka

THREADS, TAKES, TIMEOUT = 16, 1.0, "5s"
RECORDS = 603
PORTS = itertools.count(22_000)
WIDTH, HEIGHT, LEFT, TOP, BETWEEN = 720, 130, 60, 30, 50
"""Of a chart of the picture, in pixels."""
LONG = 600.0
"""Seconds after which a run is given up."""


class Sample(NamedTuple):
    """What the sidecar says at a time (seconds since the first record came): its limit, and the response time in s."""

    at: float
    limit: int
    response: float


class Threads:
    """A service with so many threads. Whoever gave a request up does not free its thread."""

    def __init__(self) -> None:
        self.executions: Counter[str] = Counter()
        self.begun = self.last = 0.0
        """When the first record came, and when the last one is done."""
        self._free_at = [0.0] * THREADS

    def __call__(self, fields: Mapping[str, str]) -> tuple[int, float]:
        now = time.monotonic()
        self.begun = self.begun or now
        done = max(now, heapq.heappop(self._free_at)) + TAKES
        heapq.heappush(self._free_at, done)
        self.executions[fields["reconsume-id"]] += 1
        self.last = max(self.last, done)
        return 200, done - now


def deliver(bootstrap: str, concurrency: str) -> tuple[Threads, list[Sample]]:
    """Deliver the records; return what the service did, and samples of the sidecar."""
    number, threads = next(PORTS), Threads()
    topic, service = f"in-flight-{number}", Service(threads)
    sets = [
        f"group=g-{number}",
        f"topics=[{topic}]",
        f"kafka={{bootstrap.servers: '{bootstrap}'}}",
        f"deliver.url=http://127.0.0.1:{service.port}/",
        f"deliver.concurrency={concurrency}",
        f"deliver.timeout={TIMEOUT}",
        "retry.ladder=[2s]",
        "retry.levels=[2s]",
        "retry.max_reconsume_times=100",
        f"api.listen=127.0.0.1:{number}",
        "api.probe_listen=null",
        "log.level=warning",
    ]
    cluster.create(bootstrap, topic, cluster.settings_of(sets), partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap})
    for record in range(RECORDS):
        producer.produce(topic, b"value", b"key-%d" % record, record % 2)
    producer.flush(30)
    sidecar, samples, end = Sidecar(sets), list[Sample](), time.monotonic() + LONG
    try:
        while len(threads.executions) < RECORDS or time.monotonic() < threads.last + 3:
            if time.monotonic() > end:
                raise SystemExit(f"only {len(threads.executions)} of {RECORDS} records in {LONG:.0f} s")
            time.sleep(0.25)
            if threads.begun:
                samples.append(_sample(number, threads.begun))
    finally:
        sidecar.close()
    return threads, samples


def _sample(port: int, begun: float) -> Sample:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10) as response:
        shown = json.load(response)["concurrency"]
    return Sample(time.monotonic() - begun, shown["limit"], (shown["response_time"] or 0) / 1000)


def told(concurrency: str, threads: Threads) -> str:
    """Return what became of a run, as one line."""
    twice = sum(times > 1 for times in threads.executions.values())
    seconds = threads.last - threads.begun
    return f"{concurrency:>5}: {seconds:6.1f} s, {threads.executions.total()} executions, {twice} records twice or more"


def picture(samples: list[Sample]) -> str:
    """Return an SVG with the limit and the response time."""
    limits = [(sample.at, float(sample.limit)) for sample in samples]
    responses = [(sample.at, sample.response) for sample in samples]
    height = 2 * (HEIGHT + BETWEEN) + TOP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + LEFT + 20} {height}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="100%" height="{height}" fill="#ffffff"/>',
            *chart(0, "requests in flight at most", limits, THREADS, f"{THREADS} threads"),
            *chart(1, "response time in s", responses, 5, "timeout"),
            "</svg>\n",
        ]
    )


def chart(number: int, title: str, points: list[tuple[float, float]], mark: float, name: str) -> Iterable[str]:
    """Yield a line with its axes, and a mark."""
    top, end = TOP + number * (HEIGHT + BETWEEN), points[-1][0]
    most = 1.1 * max(mark, *(value for _, value in points))

    def place(at: float, value: float) -> str:
        return f"{LEFT + at / end * WIDTH:.1f},{top + HEIGHT - value / most * HEIGHT:.1f}"

    steps = [(points[0][0], 0.0)]
    for at, value in points:
        steps += [(at, steps[-1][1]), (at, value)]
    yield f'<text x="{LEFT}" y="{top - 8}">{title}</text>'
    yield f'<path d="M {place(0, most)} L {place(0, 0)} L {place(end, 0)}" fill="none" stroke="#999999"/>'
    yield f'<path d="M {place(0, mark)} L {place(end, mark)}" stroke="#cc6633" stroke-dasharray="4 4"/>'
    x, y = place(end, mark).split(",")
    yield f'<text x="{x}" y="{float(y) - 4:.1f}" text-anchor="end" fill="#cc6633">{name}</text>'
    yield f'<text x="{LEFT - 8}" y="{top + HEIGHT}" text-anchor="end">0</text>'
    yield f'<text x="{LEFT - 8}" y="{place(0, mark).split(",")[1]}" text-anchor="end">{mark:g}</text>'
    yield f'<text x="{LEFT + WIDTH}" y="{top + HEIGHT + 16}" text-anchor="end">{end:.0f} s</text>'
    yield f'<path d="M {" L ".join(place(*step) for step in steps)}" fill="none" stroke="#225588" stroke-width="2"/>'


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.in_flight", description=__doc__)
    parser.add_argument("--picture", type=Path, help="where to write the picture")
    parser.add_argument("--concurrency", nargs="+", default=["16", "auto", "256"], help="what to compare")
    chosen = parser.parse_args()
    with EmbeddedKafka.start() as kafka:
        for concurrency in chosen.concurrency:
            threads, samples = deliver(kafka.bootstrap, concurrency)
            print(told(concurrency, threads), flush=True)
            if concurrency == "auto" and chosen.picture is not None:
                chosen.picture.parent.mkdir(exist_ok=True)
                chosen.picture.write_text(picture(samples), encoding="utf-8")


if __name__ == "__main__":
    main()
