"""The image itself: what it says of itself, and the main job with it, locked down as in Kubernetes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.topic_io import produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK
from tests.support.service.service import Service, free_port
from tests.support.sidecar.config import config_of

IMAGE = os.environ.get("RECONSUME_IMAGE", "")
VERSION = version("reconsume")
pytestmark = pytest.mark.skipif(not IMAGE, reason="RECONSUME_IMAGE names no image: make image-test")
RECORDS = 200
CONFIG = "/etc/reconsume/reconsume.yaml"
LOCKED_DOWN: dict[str, Any] = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "network_mode": "host",
    "mem_limit": "192m",
}
"""What the restricted profile of Kubernetes asks for, and a read-only root beside it."""


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """What the image says of itself."""
    import docker  # only here: a test run needs no container engine

    client = docker.from_env()
    try:
        found: dict[str, Any] = client.images.get(f"{IMAGE}:{VERSION}").attrs["Config"]
        return found
    finally:
        client.close()


@contextmanager
def container(folder: Path, config: dict[str, Any], command: str | None = None) -> Iterator[Any]:
    """The image at work with this configuration; ended at the latest at the end."""
    from testcontainers.core.container import DockerContainer

    folder.chmod(0o755)
    file = folder / "reconsume.yaml"
    file.write_text(yaml.safe_dump(config))
    file.chmod(0o644)
    made = DockerContainer(f"{IMAGE}:{VERSION}").with_volume_mapping(str(folder), "/etc/reconsume", "ro")
    made = made.with_kwargs(**LOCKED_DOWN).with_env("POD_NAME", "pod-0")
    with made if command is None else made.with_command(command) as running:
        wrapped = running.get_wrapped_container()
        try:
            yield wrapped
        except BaseException as failure:
            failure.add_note(wrapped.logs(tail=40).decode(errors="replace"))
            raise


def test_it_is_nobody_s_has_no_health_check_and_names_its_origin(facts: dict[str, Any]) -> None:
    assert facts["User"] == "65532:65532"
    assert facts.get("Healthcheck") is None
    assert facts["Entrypoint"] == ["/usr/bin/tini", "-s", "--", "/opt/reconsume/bin/reconsume"]
    assert facts["Cmd"] == ["run", "-c", CONFIG]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in facts["Labels"].items()}
    assert (labels["version"], labels["licenses"]) == (VERSION, "Apache-2.0")
    assert labels["base.name"]


@pytest.mark.parametrize("words", ["config check", "explain", "view sql --help"])
def test_commands_answer_in_a_container_that_can_write_nothing(tmp_path: Path, words: str) -> None:
    config = config_of(fresh_group("127.0.0.1:1"), "http://127.0.0.1:1/events", free_port())
    command = words if words.endswith("--help") else f"{words} -c {CONFIG}"
    with container(tmp_path, config, command) as ended:
        assert ended.wait(timeout=60)["StatusCode"] == 0, ended.logs()


@pytest.mark.parametrize("words", ["demo", "dev up", "view run"])
def test_a_command_that_is_left_out_says_so(tmp_path: Path, words: str) -> None:
    config = config_of(fresh_group("127.0.0.1:1"), "http://127.0.0.1:1/events", free_port())
    with container(tmp_path, config, f"{words} -c {CONFIG}") as ended:
        assert ended.wait(timeout=60)["StatusCode"] != 0
        assert "image" in ended.logs().decode()


def test_the_main_job_a_drain_without_a_shell_and_a_clean_end(kafka: Broker, tmp_path: Path) -> None:
    group = create_group(fresh_group(kafka.bootstrap))
    port = free_port()
    tenth_fails_once = lambda request: FAIL if (request.value or b"")[-1:] == b"0" and request.times == 0 else OK  # noqa: E731
    with Service(tmp_path / "ledger.jsonl", tenth_fails_once) as service:
        folder = tmp_path / "config"
        folder.mkdir()
        with container(folder, config_of(group, service.url, port)) as sidecar:
            produce(group.bootstrap, group.main, [b"order %d" % number for number in range(RECORDS)])
            await_quiet(group, 60)
            code, output = sidecar.exec_run(["reconsume", "drain"])
            assert code == 0, output
            sidecar.stop(timeout=20)
            assert sidecar.wait(timeout=20)["StatusCode"] == 0, sidecar.logs()
        report = check(collect(group, service.ledger))
    assert (report.committed, report.retries, report.waiting, report.duplicates) == (RECORDS, RECORDS // 10, 0, 0)
