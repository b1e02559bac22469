"""The Java services of examples/services/java, run by `java X.java` against a real sidecar, as docs/modes.md says."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from reconsume.sidecar.dev.kafka.releases import USUAL, lock_of
from reconsume.sidecar.java.find_java import find_java
from reconsume.sidecar.java.jars import fetch
from tests.flow.conftest import FreshGroup, StartSidecar
from tests.flow.operations.readme import RUN, Example, examples, service
from tests.flow.operations.test_readme import BAD, is_done, overrides, produce
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import dump
from tests.support.service.service import free_port
from tests.support.sidecar.process import REPOSITORY

FOLDER = REPOSITORY / "examples" / "services" / "java"
SOON = 60.0
"""Seconds. Java compiles the file first."""
FILES = {"push": "Events", "ordered": "Events", "batch": "Batch", "pull": "Pull", "relay": "Relay"}


def test_every_java_service_is_run_and_named_on_the_page() -> None:
    page = (REPOSITORY / "docs" / "modes.md").read_text(encoding="utf-8")
    assert {file.stem for file in FOLDER.glob("*.java")} == set(FILES.values())
    assert [name for name in set(FILES.values()) if f"(../examples/services/java/{name}.java)" not in page] == []


@pytest.mark.parametrize("mode", FILES)
def test_the_java_service_of_a_mode_does_what_its_example_does(
    mode: str, new_group: FreshGroup, start_sidecar: StartSidecar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (FOLDER / f"{FILES[mode]}.java").read_text(encoding="utf-8")
    example, group, port = Example(examples()[mode].config, "java", code), create_group(new_group()), free_port()
    client = ["-cp", os.pathsep.join(map(str, fetch(lock_of(USUAL))))] if mode == "relay" else []
    monkeypatch.setitem(RUN, "java", [find_java(), *client, "--source", "17"])
    sidecar = start_sidecar(group, f"http://127.0.0.1:{port}/events", overrides=overrides(example, port))
    with ExitStack() as stack:
        stack.enter_context(service(example, group, port, sidecar.port, tmp_path))
        produce(group)
        dead = until(lambda: dump(group.bootstrap, group.dlq), SOON, "the bad record is in the DLQ")
        until(lambda: is_done(group), SOON, "both records are done")
    assert [row.value for row in dead] == [BAD]
