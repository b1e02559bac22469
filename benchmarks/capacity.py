"""The capacity model against one real run: `python -m benchmarks.capacity [RATE [SECONDS [FAILS]]]`.

A sidecar on an embedded Kafka, a service that fails a known share, and at the end what the topics and the process say,
beside what `reconsume simulate` says.
"""

from __future__ import annotations

import http.client
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import Producer
from msgspec.structs import replace

from benchmarks import cluster
from benchmarks.flaky import Flaky
from benchmarks.sidecar import Sidecar
from reconsume.sidecar.capacity.model import Load, events, instance, transactions, waiting
from reconsume.sidecar.dev.demo.record_histories import Row
from reconsume.sidecar.dev.demo.topic_dump import dump_topics
from reconsume.topics.durations import render_duration
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.levels import Ladder
from reconsume.topics.retry_headers import ORIGIN_MESSAGE_ID

AGAIN, ATTEMPT = 0.5, 0.05
DELAYS = (1_000, 5_000, 10_000)
WARM = 20.0
"""Seconds: longer than the sum of the delays."""
PORT = 19_998


def failing(share: float) -> Callable[[Mapping[str, str], float], bool]:
    """Fails a share of first deliveries and another of retries."""
    dice = random.Random(1)
    return lambda fields, _at: dice.random() >= (share if fields["reconsume-times"] == "0" else AGAIN)


class Seen(NamedTuple):
    """What a run came to, in the middle of it."""

    waiting: dict[int, float]
    transactions: float
    events: float
    cores: float
    memory: float


def run(bootstrap: str, rate: int, seconds: int, fails: float) -> Seen:
    """Produce for so long, and read what was left behind."""
    service = Flaky(failing(fails), ATTEMPT)
    sets = [
        "group=model",
        "topics=[model-main]",
        f"kafka={{bootstrap.servers: '{bootstrap}'}}",
        f"deliver.url=http://127.0.0.1:{service.port}/",
        "deliver.outage_failures=null",
        "retry.ladder=[1s, 5s, 10s]",
        "retry.levels=[1s, 5s, 10s]",
        "retry.max_reconsume_times=3",
        f"api.listen=127.0.0.1:{PORT}",
        "api.probe_listen=null",
        "log.level=warning",
    ]
    settings = cluster.settings_of(sets)
    cluster.create(bootstrap, "model-main", settings)
    sidecar = Sidecar(sets)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    try:
        begin = time.time()
        produce(producer, rate, begin, begin + WARM)
        before, first = committed(), sidecar.usage()
        produce(producer, rate, begin + WARM, begin + seconds)
        after, last = committed(), sidecar.usage()
    finally:
        sidecar.close()
    levels = {delay: settings.names.level(delay, "model-main") for delay in DELAYS}
    rows = dump_topics(bootstrap, [*levels.values(), settings.names.events])
    window = (int((begin + WARM) * 1_000), int((begin + seconds) * 1_000))
    span = last.at - first.at
    found = (decode_event(row.value) for row in rows)
    told = [event for event in found if isinstance(event, Event) and window[0] <= event.at < window[1]]
    waits = {delay: waited(rows, level, window) for delay, level in levels.items()}
    return Seen(waits, (after - before) / span, len(told) / span, (last.cpu - first.cpu) / span, last.rss)


def produce(producer: Producer, rate: int, begin: float, end: float) -> None:
    """So many records a second, evenly."""
    sent = 0
    while (now := time.time()) < end:
        while sent < (now - begin) * rate:
            producer.produce("model-main", cluster.VALUE, b"key-%d" % sent, headers=[*cluster.HEADERS])
            sent += 1
        producer.poll(0.005)
    producer.flush(10)


def waited(rows: list[Row], level: str, window: tuple[int, int]) -> float:
    """How many records waited in a level on average: from their append to the next event of their id."""
    nexts: dict[str, list[int]] = {}
    for row in rows:
        event = decode_event(row.value)
        if isinstance(event, Event) and (event.state is not State.WAITING_RETRY or event.times > 1):
            nexts.setdefault(event.id, []).append(event.at)
    total = 0
    for row in (row for row in rows if row.topic == level):
        identity = (dict(row.headers)[ORIGIN_MESSAGE_ID] or b"").decode()
        end = min((at for at in nexts.get(identity, ()) if at > row.timestamp), default=window[1])
        total += max(0, min(end, window[1]) - max(row.timestamp, window[0]))
    return total / (window[1] - window[0])


def committed() -> int:
    """Transactions that the sidecar has committed."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    counted = (line for line in lines if line.startswith('reconsume_transactions_total{result="committed"'))
    return sum(int(float(line.split()[-1])) for line in counted)


def main() -> None:
    """Run it once and print both sides."""
    from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka

    given = [*sys.argv[1:], *("200", "80", "0.1")[len(sys.argv) - 1 :]]
    rate, seconds, fails = int(given[0]), int(given[1]), float(given[2])
    small = Load(rate, fails, AGAIN, ATTEMPT, record_bytes=300, replication=1, brokers=1, retries=3, partitions=8)
    load = replace(small, ladder=Ladder(DELAYS), delays=DELAYS)
    with EmbeddedKafka.start() as kafka:
        seen = run(kafka.bootstrap, rate, seconds, fails)
    one = instance(load)
    rows = [(f"waiting {render_duration(delay)}", count, seen.waiting[delay]) for delay, count in waiting(load).items()]
    rows += [("transactions/s", transactions(load), seen.transactions), ("events/s", events(load), seen.events)]
    rows += [("cores", one.cores, seen.cores), ("MB", one.memory / 1e6, seen.memory / 1e6)]
    print(f"{'':16}{'model':>10}{'run':>10}{'run/model':>11}")
    for name, model, real in rows:
        print(f"{name:16}{model:10.3g}{real:10.3g}{real / model if model else 0:11.2f}")


if __name__ == "__main__":
    main()
