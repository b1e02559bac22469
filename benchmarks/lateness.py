"""How late a due retry is delivered: the service's clock against RETRY_DUE_AT in the copy's headers."""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import cluster
from benchmarks.flaky import Flaky
from benchmarks.sidecar import Sidecar

RECORDS = 2_000
AT_ONCE = 5
EVERY = 0.025
"""Seconds: 200 records a second, spread out, or the service's own queue would be measured."""
read_headers = operator.methodcaller("headers")


class Arrivals:
    """Fails each record once and notes when the retry came, in epoch ms."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def takes(self, fields: Mapping[str, str], at: float) -> bool:
        """Whether it is a retry."""
        retry = fields["reconsume-times"] != "0"
        if retry:
            self.at[fields["reconsume-id"]] = at
        return retry


def lateness(bootstrap: str) -> str:
    """Run it; p50, p99 and the greatest in ms, as one sentence."""
    arrived = Arrivals()
    service = Flaky(arrived.takes)
    sets = [
        "group=late",
        "topics=[late]",
        f"kafka={{bootstrap.servers: '{bootstrap}'}}",
        f"deliver.url=http://127.0.0.1:{service.port}/",
        "retry.ladder=[5s]",
        "retry.levels=[5s]",
        "deliver.outage_failures=null",  # every first delivery fails: that is no outage here
        "api.listen=127.0.0.1:19999",
        "api.probe_listen=null",
        "log.level=warning",
    ]
    settings = cluster.settings_of(sets)
    cluster.create(bootstrap, "late", settings, partitions=2)
    sidecar = Sidecar(sets)
    try:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        for number in range(RECORDS):
            producer.produce("late", cluster.VALUE, b"key-%d" % number, headers=cluster.HEADERS)
            if number % AT_ONCE == 0:
                producer.flush(10)
                time.sleep(EVERY)
        deadline = time.monotonic() + 30
        while len(arrived.at) < RECORDS and time.monotonic() < deadline:
            sidecar.usage()
            time.sleep(0.1)
    finally:
        sidecar.close()
    due = _due_times(bootstrap, settings.names.level(5_000, "late"))
    late = sorted(arrived.at[id_] - at for id_, at in due.items())
    p99 = late[int(len(late) * 0.99)]
    return f"p50 {statistics.median(late):.1f}, p99 {p99:.1f}, max {late[-1]:.1f} ms of {len(late)} (must 20, aim 5)"


def _due_times(bootstrap: str, topic: str) -> dict[str, int]:
    """RETRY_DUE_AT, or append time + 5 s where that is later, by id."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "dump", "enable.auto.commit": False})
    partitions = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: dict[str, int] = {}
    deadline = time.monotonic() + 30
    while len(found) < RECORDS and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.2):
            headers = dict(read_headers(message))
            found[headers["ORIGIN_MESSAGE_ID"].decode()] = max(
                int(headers["RETRY_DUE_AT"]), message.timestamp()[1] + 5_000
            )
    consumer.close()
    return found
