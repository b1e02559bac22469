"""How late a due retry is delivered: the service's clock against RETRY_DUE_AT in the copy's headers."""

from __future__ import annotations

import asyncio
import operator
import statistics
import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import cluster
from benchmarks.sidecar import Sidecar

RECORDS = 2_000
AT_ONCE = 5
EVERY = 0.025
"""Seconds: 200 records a second, spread out, or the service's own queue would be measured."""
read_headers = operator.methodcaller("headers")


class Service(threading.Thread):
    """Fails each record once and notes when the retry came, in epoch ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.arrived: dict[str, float] = {}
        self.port = 0
        self._up = threading.Event()
        self.start()
        self._up.wait(10)

    def run(self) -> None:
        """Serve on an own loop."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._up.set()
        await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                at = time.time() * 1000
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                await reader.readexactly(int(fields["content-length"]))
                retry = fields["reconsume-times"] != "0"
                if retry:
                    self.arrived[fields["reconsume-id"]] = at
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % (b"200 OK" if retry else b"500 No"))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def lateness(bootstrap: str) -> str:
    """Run it; p50, p99 and the greatest in ms, as one sentence."""
    service = Service()
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
        while len(service.arrived) < RECORDS and time.monotonic() < deadline:
            sidecar.usage()
            time.sleep(0.1)
    finally:
        sidecar.close()
    due = _due_times(bootstrap, settings.names.level(5_000, "late"))
    late = sorted(service.arrived[id_] - at for id_, at in due.items())
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
