"""A reset of a million records: how long its plan takes, and how soon after it the first record is delivered again.

`python -m benchmarks.reset [--records N]`. The group has handled all of them, and its sidecar runs; the service takes
each record at once. Alone on the machine the plan should take 10 s at most, and the first delivery should follow within
10 s after the request is written.
"""

from __future__ import annotations

import argparse
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from urllib.error import URLError

from confluent_kafka import Consumer, TopicPartition

from benchmarks import cluster
from benchmarks.shares import Service
from benchmarks.sidecar import Sidecar
from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.sidecar.group_policy.position_reset import MovePosition, PositionStore, WantedReset, read_target
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.operation import no_report

GROUP, TOPIC, PORT = "reset-bench", "reset-bench-orders", 23_000
LONG_S = 120.0


def commit_all(bootstrap: str, records: int) -> None:
    """Commit that the group has handled all records, as a sidecar does."""
    each = records // cluster.PARTITIONS
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    done = [
        TopicPartition(TOPIC, number, each, encode(Partition(TOPIC, number), Progress(each, clean=True)))
        for number in range(cluster.PARTITIONS)
    ]
    consumer.commit(offsets=done, asynchronous=False)
    consumer.close()


def await_true(what: Callable[[], bool], named: str) -> None:
    """Wait until something holds."""
    end = time.monotonic() + LONG_S
    while not what():
        if time.monotonic() > end:
            raise SystemExit(f"not within {LONG_S:.0f} s: {named}")
        time.sleep(0.01)


def has_started() -> bool:
    """Whether the sidecar has joined its group."""
    with suppress(URLError, ConnectionError), urllib.request.urlopen(f"http://127.0.0.1:{PORT}/startupz", timeout=5):
        return True
    return False


def measure(bootstrap: str, records: int) -> None:
    """Print the seconds of the plan, and those until the first delivery."""
    service = Service(lambda _fields: (200, 0.0))
    sets = [
        f"group={GROUP}",
        f"topics=[{TOPIC}]",
        f"kafka={{bootstrap.servers: '{bootstrap}'}}",
        f"deliver.url=http://127.0.0.1:{service.port}/",
        f"api.listen=127.0.0.1:{PORT}",
        "api.probe_listen=null",
        "log.level=warning",
    ]
    settings = cluster.settings_of(sets)
    cluster.create(bootstrap, TOPIC, settings)
    cluster.fill(bootstrap, TOPIC, records)
    commit_all(bootstrap, records)
    sidecar = Sidecar(sets)
    try:
        await_true(has_started, "the sidecar has started")
        store = PositionStore(Cluster(settings.kafka), settings.names)
        wanted = WantedReset(TOPIC, None, read_target("earliest", wall()), "a benchmark", "benchmarks")
        operation, began = MovePosition(store, settings, wanted), time.monotonic()
        plan = operation.plan(no_report)
        planned = time.monotonic()
        print(f"plan of {records} records: {planned - began:.2f} s ({plan.question})")
        operation.write()
        await_true(lambda: bool(service.seen), "a record is delivered again")
        print(f"first delivery after the request: {service.seen[0].at - planned:.2f} s")
    finally:
        sidecar.close()


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    records = parser.parse_args().records
    with EmbeddedKafka.start() as kafka:
        measure(kafka.bootstrap, records)


if __name__ == "__main__":
    main()
