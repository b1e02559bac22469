"""docs/adopt.md, followed to the letter: its commands, and its service through all steps and back."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

from tests.flow.conftest import FreshGroup, StartSidecar
from tests.flow.operations.adopt_docs import commands, configurations, service
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import create_topic, dump, produce
from tests.support.kubernetes.kubectl import APPLY, DEPLOYMENT, check, documents, run
from tests.support.proof.evidence import read_committed_progress
from tests.support.service.service import free_port
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of
from tests.support.sidecar.process import SidecarProcess

SOON = 60.0
TAKEN = re.compile(r'\{"order": (\d+), ')
"""Two threads may write into one line."""
LATER = """TRIED = set()


def later(value):
    if b'"later": true' not in value or value in TRIED:
        return False
    TRIED.add(value)
    return True


def handle("""
"""Before the page's own `handle`: orders that are refused at the first time."""


def test_every_command_does_what_the_page_says(
    new_group: FreshGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, each with the configuration of its step; what kubectl would apply is valid."""
    group = new_group()
    create_topic(group.bootstrap, group.main, 1)
    monkeypatch.chdir(tmp_path)
    Path("deploy.yaml").write_text(DEPLOYMENT)
    given = commands()
    assert len(given) > 12
    for step, line in given:
        Path("reconsume.yaml").write_text(yaml.safe_dump(configuration(step, group)))
        follow(line)
    (deployment,) = documents(Path("deploy.yaml").read_text())
    assert [one["name"] for one in deployment["spec"]["template"]["spec"]["initContainers"]] == ["reconsume"]


def configuration(step: int, group: GroupTopics) -> dict[str, object]:
    """The step's reconsume.yaml, under this test's names."""
    kafka = {"bootstrap.servers": group.bootstrap}
    return {**configurations()[step], "group": group.group, "topics": list(group.mains), "kafka": kafka}


def follow(line: str) -> None:
    """Do what a line says; where it talks to a cluster, what would be sent there is checked."""
    program, *words = shlex.split(line.removesuffix(APPLY))
    if line.startswith("kubectl apply"):
        for document in documents(Path(words[-1]).read_text()):
            check(document, "1.29")
    elif program == "kubectl":
        done = run(program, *words)
        assert done.returncode == 0, done.stderr
        assert documents(done.stdout)[0]["data"].keys() == {"reconsume.yaml"}
    else:
        shown = reconsume(*words)
        assert (program, shown.exit_code) == ("reconsume", 0), f"{line}: {shown.stderr}"


# --- the service, step by step ---------------------------------------------------------------------------------------


class Way:
    """One group on its way: the sample service and the sidecar of each step, and what was handled."""

    def __init__(self, group: GroupTopics, folder: Path, start_sidecar: StartSidecar) -> None:
        self.group, self._folder, self._start = group, folder, start_sidecar
        self._log = folder / "handled.log"
        self._numbers = 0

    def handled(self) -> list[int]:
        """The orders that were taken, in the order in which they were."""
        text = self._log.read_text() if self._log.exists() else ""
        return [int(number) for number in TAKEN.findall(text)]

    def dead(self) -> Counter[bytes | None]:
        """The dead letters, and how many there are of each record."""
        return Counter(row.value for row in dump(self.group.bootstrap, self.group.dlq))

    def send(self, *bad: bytes) -> None:
        """Bad orders, and then ten good ones; wait until these were taken, and so the bad ones were tried.

        Where something retries, half of the good ones are taken at their first retry.
        """
        numbers = range(self._numbers, self._numbers + 10)
        good = [json.dumps({"order": order, "later": bool(bad) and order % 2 == 1}).encode() for order in numbers]
        produce(self.group.bootstrap, self.group.main, [*bad, *good])
        self._numbers += 10
        until(lambda: {*self.handled()} >= {*range(self._numbers)}, SOON, "all good orders were taken")

    def sidecar(self, step: int, port: int) -> SidecarProcess:
        """The sidecar of a step."""
        deliver = configurations()[step]["deliver"]
        url = f"http://127.0.0.1:{port}/events" if "url" in deliver else None
        changes = {"deliver": {**deliver, "url": url}, "retry": {"max_reconsume_times": 1}}
        return self._start(self.group, str(url), f"pod-{step}-{port}", changes)

    @contextmanager
    def service(self, events: str, port: int = 0, api: int = 0) -> Iterator[None]:
        """The page's service, ended by SIGTERM as Kubernetes does it."""
        code = service()
        for there, here in {
            "8080": str(port),
            "8471": str(api),
            "localhost:9092": self.group.bootstrap,
            '"orders"': f'"{self.group.main}"',
            '"billing-RETRY"': f'"{self.group.names.ready}"',
            '"billing"': f'"{self.group.group}"',
            'if not value.startswith(b"{"):': 'if not value.startswith(b"{") or later(value):',
            "def handle(": LATER,
        }.items():
            code = code.replace(there, here)
        file = self._folder / "service.py"
        file.write_text(code)
        with self._log.open("ab") as log, (self._folder / "errors.log").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, str(file)], stdout=log, stderr=errors, env={**os.environ, "EVENTS": events}
            )
        try:
            yield
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(60)


@pytest.mark.long
def test_a_service_goes_all_the_way_and_back_and_no_order_is_lost_or_taken_twice(
    new_group: FreshGroup, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    way = Way(create_group(new_group(), partitions=1), tmp_path, start_sidecar)
    with way.service("kafka"):  # 0: what it cannot take is lost
        way.send()
    relay(way, b"bad-1")
    port = free_port()
    with way.service("http", port):
        sidecar = way.sidecar(2, port)
        way.send(b"bad-2")
        until(lambda: b"bad-2" in way.dead(), SOON, "what could not be taken has used up its retries")
        assert sidecar.stop().code == 0
        assert audited(way.group, tmp_path) == [], "what the service took in step 1 is not lost"
    move_progress(way.group)
    sidecar = relay(way, b"bad-3", ends=False)
    with way.service("drain"):  # posts nothing any more, and takes what still comes
        way.send()
    assert sidecar.stop().code == 0
    with way.service("kafka"):
        way.send()
    assert sorted(way.handled()) == [*range(60)]
    assert way.dead() == {b"bad-1": 1, b"bad-2": 1, b"bad-3": 1}


def audited(group: GroupTopics, folder: Path) -> list[dict[str, object]]:
    """What `reconsume audit` finds with the configuration of step 2."""
    file = folder / "reconsume.json"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 8471)), encoding="utf-8")
    shown = reconsume("-c", file, "audit", "-o", "jsonl")
    assert shown.exit_code in (0, 1), shown.stderr
    return [row for row in map(json.loads, shown.stdout.splitlines()) if row["found"] == "violation"]


def move_progress(group: GroupTopics) -> None:
    """As the page says for the way back: the service goes on in the ready topic where the sidecar stood."""
    found = read_committed_progress(group, group.names.retry_group, (group.names.ready,))
    mine = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group, "enable.auto.commit": False})
    places = [TopicPartition(*place, progress.next) for place, progress in found.items()]
    mine.commit(offsets=places, asynchronous=False)
    mine.close()


def relay(way: Way, bad: bytes, *, ends: bool = True) -> SidecarProcess:
    """Step 1: the service reads, and posts what it cannot take. Return the sidecar, which has ended if it `ends`."""
    sidecar = way.sidecar(1, 0)
    with way.service("relay", api=sidecar.port):
        way.send(bad)
        until(lambda: bad in way.dead(), SOON, "what could not be taken has used up its retries")
    assert not ends or sidecar.stop().code == 0
    return sidecar
