"""What a dashboard costs that is asked about topics made to fill its memory: as little as about others."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from confluent_kafka import Producer
from msgspec.structs import replace

from reconsume.topics.events import encode_event
from tests.cli.terminal.test_process import environ
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out
from tests.support.kafka.view_topics import event
from tests.support.sidecar.config import config_of
from tests.support.sidecar.redrive import dead_letter
from tests.support.sidecar.running_api import Client

SECONDS = 60.0
LARGE = 900_000
LIMIT = 200
"""MiB that the whole process may have at most: a container's limit is 256."""
STORY = "orders:0:1"


def filled(group: GroupTopics, topic: str, outs: Iterator[Out]) -> None:
    """Produce what takes little room on the broker, and much where it is read."""
    producer = Producer(
        {"bootstrap.servers": group.bootstrap, "compression.type": "zstd", "message.max.bytes": 1 << 27}
    )
    for out in outs:
        producer.produce(topic, out.value, out.key, headers=list(out.headers))
    assert producer.flush(SECONDS) == 0


def events(group: GroupTopics) -> Iterator[Out]:
    """Many large events of one record, and more than a thousand small ones."""
    told = event(group.group, 1, id=STORY, topic=group.main)
    for number in range(200):
        yield Out(
            encode_event(replace(told, times=number, reason="x" * (LARGE if number % 2 else 60_000))), STORY.encode()
        )
    small = [encode_event(replace(told, times=number)) for number in range(3_000)]
    yield from (Out(value, STORY.encode()) for value in small)


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    """A group whose dead letters and events are as large as Kafka takes them."""
    group = create_group(fresh_group(kafka.bootstrap), partitions=1, also=UNUSED)
    headers = tuple((f"h{number}", b"x" * 8_000) for number in range(20))
    large = [
        dead_letter(group, number, b"x" * (LARGE - 200_000), own=headers, reason="bad-sku") for number in range(150)
    ]
    deep = dead_letter(group, 900, b"[" * 32_000 + b"]" * 32_000, reason="deep")
    # What stands in a header costs little on the wire, and much as a row of a page.
    names = dead_letter(group, 901, b"", own=tuple((f"{number}", b"") for number in range(90_000)), reason="names")
    long = dead_letter(group, 902, b"", own=(("n" * 700_000, b"x"),), reason="long-name")
    filled(group, group.dlq, iter([*large, deep, names, long]))
    filled(group, group.names.events, events(group))
    return group


@contextmanager
def dashboard(group: GroupTopics, folder: Path) -> Iterator[tuple[int, int]]:
    """A dashboard of its own, as a process; its port and its id."""
    file = folder / "reconsume.yaml"
    file.write_text(yaml.safe_dump(config_of(group, "http://127.0.0.1:1/", 8471)), encoding="utf-8")
    words = ["-m", "reconsume.sidecar", "ui", "-c", str(file), "--listen", "127.0.0.1:0"]
    with subprocess.Popen([sys.executable, *words], env=environ(), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)/, read-only", told)
            assert found is not None, told
            yield int(found[1]), process.pid
        finally:
            process.kill()


def peak(pid: int) -> float:
    """The most memory that a process has had, in MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


def test_no_page_costs_more_than_it_shows(group: GroupTopics, tmp_path: Path) -> None:
    """Given letters and events of 900 KB, when several ask for all pages at once, then memory stays bounded."""
    story = f"/record/journey?id={quote(STORY)}&since=1"
    letters = [f"/dlq/letter?place={quote(f'{group.dlq}:0:{offset}')}" for offset in (150, 151, 152)]
    asked = ["/dlq", story, *letters, "/dlq?reason=bad-sku"]

    with dashboard(group, tmp_path) as (port, pid):

        def get(target: str) -> bytes:
            with Client(port) as client:
                answer = client.call("GET", target)
            assert answer.status == 200, (target, answer)
            return answer.body

        with ThreadPoolExecutor(len(asked)) as pool:
            bodies = list(pool.map(get, asked))
        assert peak(pid) < LIMIT
        limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
        assert re.search(r"Max core file size +0 +0 ", limits), "it would leave a core dump"
    assert b"153" in bodies[0]
    assert re.search(rb"only its first \d+ events were read", bodies[1])
    assert b"deep" in bodies[2]
    assert re.search(rb"8\d\d\d\d more; ", bodies[3])
    assert max(map(len, bodies[2:5])) < 500_000
