"""What a flow waits for the others: a slow topic, a record or a topic that hangs, a redrive beside due retries, 429.

`python -m benchmarks.shares` runs it alone. Eight places, so that one is an eighth; the service runs in this process.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from confluent_kafka import Producer

from benchmarks import cluster
from benchmarks.relay import fill
from benchmarks.sidecar import Sidecar
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka

PLACES = 8
SLOW = 0.5
"""Seconds that a record of the slow topic takes."""
FEW = 10
REDRIVEN = 2_000
BEHIND = 20_000
"""Records of both partitions beside one that hangs."""
ANSWER = 0.05
"""Seconds of each answer where rates are compared: the places in flight are the limit then, not this service."""
PORTS = itertools.count(21_000)
LONG = 60.0
"""Seconds after which a scenario is given up."""
Does = Callable[[Mapping[str, str]], tuple[int, float]]
"""The status of an answer by the headers of a request, and after how many seconds it comes."""


class Seen(NamedTuple):
    """A request: when it came (monotonic seconds), its topic, how often it was retried, and the answer's status."""

    at: float
    topic: str
    times: int
    status: int


class Service(threading.Thread):
    """Serves on a free port of loopback, on an own loop; it ends with the program."""

    def __init__(self, does: Does) -> None:
        super().__init__(daemon=True)
        self.port, self.seen, self._does, self._up = 0, list[Seen](), does, threading.Event()
        self.start()
        if not self._up.wait(10):
            raise SystemExit("the service did not start")

    def of(self, topic: str, times: int = 0) -> list[float]:
        """When the requests of a topic came."""
        return [one.at for one in list(self.seen) if (one.topic, one.times) == (topic, times)]

    def run(self) -> None:
        """Serve."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._up.set()
        await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[1:]
                fields = {name.lower(): value for name, sign, value in (line.partition(": ") for line in lines) if sign}
                await reader.readexactly(int(fields["content-length"]))
                came = time.monotonic()
                status, seconds = self._does(fields)
                self.seen.append(Seen(came, fields["reconsume-topic"], int(fields["reconsume-times"]), status))
                await asyncio.sleep(seconds)
                writer.write(b"HTTP/1.1 %d X\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n" % status)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class Stage:
    """A group with two main topics, its service and its sidecar, until `close`."""

    def __init__(self, bootstrap: str, does: Does, *more: str) -> None:
        number = next(PORTS)
        self.bootstrap, self.slow, self.fast = bootstrap, f"slow-{number}", f"fast-{number}"
        self.service = Service(does)
        self._sets = [
            f"group=shares-{number}",
            f"topics=[{self.slow}, {self.fast}]",
            f"kafka={{bootstrap.servers: '{bootstrap}'}}",
            f"deliver.url=http://127.0.0.1:{self.service.port}/",
            f"deliver.concurrency={PLACES}",
            "deliver.outage_failures=null",
            "retry.ladder=[2s]",
            "retry.levels=[2s]",
            f"api.listen=127.0.0.1:{number}",
            "api.probe_listen=null",
            "log.level=warning",
            *more,
        ]
        settings = cluster.settings_of(self._sets)
        self.group, self.ready = settings.group, settings.names.ready
        cluster.create(bootstrap, self.slow, settings, partitions=2)
        cluster.create(bootstrap, self.fast, partitions=2)
        self._sidecar = Sidecar(self._sets)
        self.put(self.fast, 1)
        self.wait(lambda: bool(self.service.seen))
        time.sleep(1)  # the pace has grown, and the retry lane has its partitions
        self.service.seen.clear()

    def put(self, topic: str, count: int) -> None:
        """Produce so many records."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        for number in range(count):
            producer.produce(topic, b"value", b"key-%d" % number, number % 2)
        producer.flush(30)

    def wait(self, until: Callable[[], bool], seconds: float = LONG) -> float:
        """Wait until something is so, `seconds` at most; return the seconds that it took."""
        begun = time.monotonic()
        while not until() and time.monotonic() - begun < seconds:
            time.sleep(0.01)
        return time.monotonic() - begun

    def close(self) -> None:
        """End the sidecar."""
        self._sidecar.close()


def slow_and_fast(bootstrap: str) -> str:
    """A thousand slow records wait, then ten others come: the time until those are delivered, in rounds of the slow."""
    stage = Stage(bootstrap, lambda fields: (200, SLOW if _is_slow(fields) else 0))
    try:
        stage.put(stage.slow, 1_000)
        stage.wait(lambda: len(stage.service.of(stage.slow)) > 2 * PLACES)
        stage.put(stage.fast, FEW)
        took = stage.wait(lambda: len(stage.service.of(stage.fast)) == FEW)
        return f"{took:.1f} s, {took / SLOW:.1f} rounds of the slow topic; {_done(stage, FEW)}"
    finally:
        stage.close()


def hung(bootstrap: str) -> str:
    """Every request of a topic hangs: the time until two hundred records of another topic are delivered."""
    stage = Stage(bootstrap, lambda fields: (200, 2 * LONG if _is_slow(fields) else 0))
    try:
        stage.put(stage.slow, 100)
        stage.wait(lambda: len(stage.service.of(stage.slow)) >= PLACES, 3)
        stage.put(stage.fast, 200)
        took = stage.wait(lambda: len(stage.service.of(stage.fast)) == 200, 20)
        return f"{took:.1f} s; {_done(stage, 200)}"
    finally:
        stage.close()


def hung_record(bootstrap: str) -> str:
    """One record is never answered: the time until all others, of its partition and the other one, are delivered."""
    stage = Stage(bootstrap, lambda fields: (200, 2 * LONG if fields["reconsume-id"].endswith(":0:1") else 0))
    try:
        stage.put(stage.fast, BEHIND)
        took = stage.wait(lambda: len(stage.service.of(stage.fast)) == BEHIND)
        return f"{took:.1f} s; {_done(stage, BEHIND)}"
    finally:
        stage.close()


def redrive(bootstrap: str) -> str:
    """Two thousand redriven records of 20 ms wait: how late the retries of a hundred others are that fall due then."""

    def does(fields: Mapping[str, str]) -> tuple[int, float]:
        if _is_slow(fields):
            return 200, 0.02
        first = fields["reconsume-id"].endswith(":0:0")  # with it the stage begins
        return (200 if first or fields["reconsume-times"] != "0" else 500), 0

    stage = Stage(bootstrap, does)
    try:
        fill(bootstrap, stage.slow, stage.ready, stage.group, REDRIVEN, 2)
        stage.wait(lambda: len(stage.service.of(stage.slow, 1)) + len(stage.service.of(stage.slow)) > PLACES)
        stage.put(stage.fast, 100)
        stage.wait(lambda: len(stage.service.of(stage.fast, 1)) == 100)
        came, failed = stage.service.of(stage.fast, 1), stage.service.of(stage.fast)
        late = (max(came) - max(failed) - 2.0) if came else LONG
        return f"the last one {late:.1f} s after its time; {len(came)} of 100"
    finally:
        stage.close()


def throttled(bootstrap: str) -> str:
    """A tenth of the answers is 429 with Retry-After: 5, or none is: the successes a second of each."""
    rates = []
    for every in (0, 10):
        stage = Stage(bootstrap, partial(_every_other, itertools.count(1), every), "deliver.concurrency=32")
        try:
            stage.put(stage.fast, 20_000)
            time.sleep(3)
            before, begun = _successes(stage), time.monotonic()
            time.sleep(10)
            rates.append((_successes(stage) - before) / (time.monotonic() - begun))
        finally:
            stage.close()
    return f"{rates[0]:,.0f} successes a second without, {rates[1]:,.0f} with: {100 * rates[1] / rates[0]:.0f} %"


def _is_slow(fields: Mapping[str, str]) -> bool:
    return fields["reconsume-topic"].startswith("slow-")


def _successes(stage: Stage) -> int:
    return sum(one.status == 200 for one in list(stage.service.seen))


def _every_other(numbers: Iterator[int], every: int, _fields: Mapping[str, str]) -> tuple[int, float]:
    return (429 if every and next(numbers) % every == 0 else 200), ANSWER


def _done(stage: Stage, count: int) -> str:
    return f"{len(stage.service.of(stage.fast))} of {count}"


SCENARIOS = {
    "ten fast records behind 1 000 slow ones": slow_and_fast,
    "200 records beside a topic that hangs": hung,
    f"{BEHIND:,} records beside one that is never answered": hung_record,
    "due retries beside a redrive of 2 000": redrive,
    "a tenth of the answers is 429": throttled,
}


def shares(bootstrap: str) -> Iterator[tuple[str, str]]:
    """Run all; yield the name of each, and what it came to, as a sentence."""
    for name, run in SCENARIOS.items():
        yield name, run(bootstrap)


if __name__ == "__main__":
    with EmbeddedKafka.start() as kafka:
        for name, result in shares(kafka.bootstrap):
            print(f"{name}: {result}", flush=True)
