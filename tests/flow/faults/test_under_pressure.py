"""A sidecar that everybody presses at once: it lives, answers its probes, loses nothing, and keeps to its memory."""

from __future__ import annotations

import http.client
import json
import logging
import re
import resource
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from reconsume.topics import retry_headers as wire
from tests.flow.conftest import FreshGroup
from tests.support.kafka.bombs import BOMBS
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group
from tests.support.kafka.topic_io import HEADERS
from tests.support.proof.frugal import Frugal
from tests.support.proof.ledger import FAILED
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import (
    CLOSE,
    CLOSE_MID,
    ENDLESS,
    FAIL,
    GARBAGE,
    HANG,
    OK,
    Answer,
    Behaviour,
    Request,
)
from tests.support.service.service import Service, free_port
from tests.support.sidecar.process import REPOSITORY, SidecarProcess

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_500)]

MEMORY = 256
"""MiB: the limit of the container by the formula of docs/kubernetes.md."""
SPARE = 4 << 30
THREADS = 256
"""More than the Kafka clients of all pages that are read at once need; pages that leave one behind pass it soon."""
LIVEZ_WITHIN = 1.0
LARGE, WIDE = 900_000, 8_192
"""Bytes of a large record's value, and of its key and of its headers each."""
LARGE_EVERY, SMALL_EACH, BOMB_EVERY = 0.4, 20, 10
"""Seconds between two large records, the small ones that come with each, and of how many large ones one is followed by
a bomb: 100 000 headers."""
BOMB: list[tuple[str, str | bytes | None]] = [*BOMBS["headers"].headers()]
QUIET_WITHIN = 120.0
# No 429: a service that asks for time is obeyed, and the load would pile up.
HOSTILE: tuple[Behaviour, ...] = (
    *(HANG, CLOSE, CLOSE_MID, GARBAGE, ENDLESS),
    Answer(200, body=b"x" * (1 << 20)),  # done: what is longer than a verdict is dropped
    Answer(200, (("x-large", "x" * (1 << 20)),), means=FAILED),
)


def hostile(request: Request) -> Behaviour:
    """A sixth of the attempts meets a hostile answer, another sixth a failure; the same one whoever delivers it."""
    luck = zlib.crc32(f"{request.id}/{request.times}/{request.seen}".encode()) % (6 * len(HOSTILE))
    if luck < len(HOSTILE):
        return HOSTILE[luck]
    return FAIL if luck < 2 * len(HOSTILE) else OK


class Load(threading.Thread):
    """Produces large and small records until ended; `landed`: their ids."""

    def __init__(self, group: GroupTopics) -> None:
        super().__init__(name="load", daemon=True)
        self.landed: set[str] = set()
        self._topic, self._ended = group.main, threading.Event()
        packed = {"compression.type": "zstd", "message.max.bytes": 1 << 21, "log_level": 2}
        self._producer = Producer({"bootstrap.servers": group.bootstrap, "enable.idempotence": True, **packed})

    def run(self) -> None:
        number = 0
        while not self._ended.wait(LARGE_EVERY):
            key, headers = b"%0*d" % (WIDE, number), [(f"x-big-{n}", b"x" * (WIDE // 8)) for n in range(8)]
            self._producer.produce(self._topic, b"v" * LARGE, key, headers=headers, on_delivery=self._note)
            for small in range(SMALL_EACH):
                self._producer.produce(self._topic, b"%d/%d" % (number, small), on_delivery=self._note)
            if number % BOMB_EVERY == 0:
                self._producer.produce(self._topic, b"bomb", headers=BOMB, on_delivery=self._note)
            number += 1
            self._producer.poll(0)

    def end(self) -> None:
        """Produce nothing more, and wait until the broker has it all."""
        self._ended.set()
        self.join()
        assert self._producer.flush(60) == 0

    def _note(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.landed.add(f"{message.topic()}:{message.partition()}:{message.offset()}")


class Watch(threading.Thread):
    """What the kubelet sees: how long `/livez` takes and what it answers; and how many threads there are at most."""

    def __init__(self, port: int, pid: int) -> None:
        super().__init__(name="kubelet", daemon=True)
        self.slowest, self.answers, self.threads = 0.0, Counter[str](), 0
        self._port, self._tasks, self._ended = port, Path(f"/proc/{pid}/task"), threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.25):
            begin = time.monotonic()
            self.answers[self._ask()] += 1
            self.slowest = max(self.slowest, time.monotonic() - begin)
            with suppress(OSError):  # that it has ended is told by the test
                self.threads = max(self.threads, len(list(self._tasks.iterdir())))

    def end(self) -> None:
        self._ended.set()
        self.join()

    def _ask(self) -> str:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            try:
                connection.request("GET", "/livez")
                return str(connection.getresponse().status)
            except (OSError, http.client.HTTPException) as failure:
                return type(failure).__name__


def kib(pid: int, name: str) -> int:
    """A number of /proc/PID/status, such as VmHWM: the most memory that a process has had."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1])


def confine(pid: int) -> None:
    """Bound the address space: what runs away dies, and not the machine.

    By much more than the memory that it may use: each thread of the Kafka client reserves 8 MiB for its stack.
    """
    limit = (kib(pid, "VmSize") << 10) + SPARE
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


def dead(group: GroupTopics) -> set[str]:
    """The ids in the DLQ, read one by one: their values together would be gigabytes."""
    reader = {"group.id": f"dead-{group.group}", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer, found = Consumer({"bootstrap.servers": group.bootstrap, **reader}), set()
    consumer.subscribe([group.dlq])
    silent = time.monotonic()
    while time.monotonic() - silent < 10:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.add(dict(HEADERS(message))[wire.ORIGIN_MESSAGE_ID].decode())
            silent = time.monotonic()
    consumer.close()
    return found


@pytest.mark.parametrize("seconds", [pytest.param(20, id="20s"), pytest.param(300, id="5m")])
def test_under_pressure_it_lives_answers_probes_loses_nothing_and_keeps_its_memory(
    new_group: FreshGroup, tmp_path: Path, seconds: int
) -> None:
    """Given large records, bombs, a hostile service, readers of the dashboard and floods, all at once in 256 MiB."""
    group = create_group(new_group(), partitions=4, also=UNUSED)
    probes, ui = free_port(), free_port()
    overrides = {
        "deliver": {"concurrency": 256, "forward_headers": ["x-big-*"]},
        "api": {"probe_listen": f"127.0.0.1:{probes}"},
        "ui": {"enabled": True, "listen": f"127.0.0.1:{ui}"},
    }
    with (
        Service(Frugal(tmp_path / "ledger"), hostile) as service,
        SidecarProcess(group, service.url, tmp_path, overrides=overrides, fresh=True) as sidecar,
    ):
        sidecar.wait_ready()
        sidecar.wait_log("the dashboard listens")
        confine(sidecar.pid)
        load, watch = Load(group), Watch(probes, sidecar.pid)
        load.start()
        watch.start()
        words = [sys.executable, "-m", "tests.flow.faults.pressure", *map(str, (sidecar.port, probes, ui, seconds))]
        pressed = subprocess.run(
            words, cwd=REPOSITORY, capture_output=True, text=True, timeout=4 * seconds, check=False
        )
        load.end()
        await_quiet(group, QUIET_WITHIN, lambda: sidecar.running or pytest.fail("it has ended"))
        watch.end()
        answers, peak = json.loads(pressed.stdout), kib(sidecar.pid, "VmHWM") / 1024
        livez = f"livez {watch.slowest:.2f} s {dict(watch.answers)}"
        seen = f"{len(load.landed)} records, pages {answers}, {livez}, {peak:.0f} MiB, {watch.threads} threads"
        logging.getLogger(__name__).info(seen)
        assert sidecar.running
        assert watch.answers.keys() == {"200"}, seen
        assert watch.slowest < LIVEZ_WITHIN, seen
        assert peak < MEMORY, seen
        assert watch.threads < THREADS, seen
        assert answers.get("200", 0) > seconds, seen
        assert load.landed == service.ledger.taken() | dead(group)
        assert sidecar.stop(60).code == 0, seen
