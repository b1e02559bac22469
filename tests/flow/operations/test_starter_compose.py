"""The commands of the Compose file that `init` writes, run beside each other on a real broker, as Compose would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml
from confluent_kafka import KafkaException

from reconsume.sidecar.deploy.container import FILE, FOLDER
from tests.flow.conftest import FreshGroup
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import create_topic, dump, produce
from tests.support.service.service import free_port
from tests.support.sidecar.cli import reconsume

SECONDS = 60.0
PROGRAMS = {"python3": (sys.executable,)}
SERVERS = "RECONSUME_KAFKA__BOOTSTRAP_SERVERS"
LEVEL = "-RETRY-10s"


def services_of(group: GroupTopics, port: int, folder: Path) -> Mapping[str, Any]:
    """What `init` writes for a group, read as Compose reads it."""
    words = ("--group", group.group, "--topics", group.main, "--bootstrap-servers", "localhost:9092")
    url = f"http://127.0.0.1:{port}/events"
    shown = reconsume("init", *words, "--url", url, "--compose", "-c", folder / "reconsume.yaml")
    assert shown.exit_code == 0, shown.stderr
    text = (folder / "compose.yaml").read_text("utf-8").replace("$$", "$")
    services: Mapping[str, Any] = yaml.safe_load(text)["services"]
    return services


def command_of(service: Mapping[str, Any], folder: Path) -> list[str]:
    """The command, with this machine's programs and files in place of the image's."""
    first, *words = (word.replace(f"{FOLDER}/{FILE}", str(folder / "reconsume.yaml")) for word in service["command"])
    return [*PROGRAMS.get(first, (sys.executable, "-m", "reconsume.sidecar", first)), *words]


def environ_of(service: Mapping[str, Any], group: GroupTopics, ports: Sequence[int]) -> dict[str, str]:
    """The variables, with this test's broker, and ports that no other test has."""
    given = dict.fromkeys(service["environment"], group.bootstrap)
    assert set(given) == {SERVERS}
    listen, probes = (f"127.0.0.1:{port}" for port in ports)
    return os.environ | given | {"RECONSUME_API__LISTEN": listen, "RECONSUME_API__PROBE_LISTEN": probes}


@contextmanager
def at_work(command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> Iterator[None]:
    """A container's process, with its output in a file."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.kill()
        process.wait(SECONDS)


def is_readable(group: GroupTopics, topic: str) -> bool:
    """A broker may be named as a partition's leader a moment before it knows."""
    with suppress(KafkaException):
        dump(group.bootstrap, topic)
        return True
    return False


def test_the_commands_of_the_compose_file_run_as_they_stand(new_group: FreshGroup, tmp_path: Path) -> None:
    group, port, ports = new_group(), free_port(), (free_port(), free_port())
    services = services_of(group, port, tmp_path)
    create_topic(group.bootstrap, group.main, 3)  # what `main-topics` does by a script of the broker's image

    apply = services["group-topics"]
    environ = environ_of(apply, group, ports)
    subprocess.run(command_of(apply, tmp_path), env=environ, check=True, timeout=SECONDS, capture_output=True)

    sidecar = services["sidecar"]
    with ExitStack() as stack:
        stack.enter_context(at_work(command_of(services["service"], tmp_path), tmp_path / "service.log"))
        environ = environ_of(sidecar, group, ports)
        stack.enter_context(at_work(command_of(sidecar, tmp_path), tmp_path / "sidecar.log", environ))
        produce(group.bootstrap, group.main, [b"{}", b"no json"])
        level = f"{group.group}{LEVEL}"
        until(lambda: is_readable(group, level), SECONDS, "the level can be read")
        waiting = until(lambda: dump(group.bootstrap, level), SECONDS, "the bad record waits")
        assert [row.value for row in waiting] == [b"no json"]
        until(lambda: (tmp_path / "service.log").read_text().count(" 200 ") == 1, SECONDS, "the good record is taken")
        with urlopen(f"http://127.0.0.1:{ports[1]}/metrics") as metrics:
            assert b"reconsume_deliveries_total" in metrics.read(), "on the port that the Compose file publishes"
