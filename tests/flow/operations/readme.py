"""The examples of README.md and docs/modes.md, as a reader would copy them: the blocks behind an
`<!-- example: NAME -->`, and the programs among them at work."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.support.kafka.group_topics import GroupTopics
from tests.support.sidecar.process import REPOSITORY

RUN = {"js": ["node"], "sh": ["bash"], "python": [sys.executable]}
PAGES = ("README.md", "docs/modes.md")
MARK = re.compile(r"<!-- example: (\w+) -->(.*?)(?=<!-- example: |\Z)", re.DOTALL)
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


class Example(NamedTuple):
    """One mode: its part of the configuration, and the service in some language."""

    config: dict[str, Any]
    language: str
    code: str


def examples() -> dict[str, Example]:
    """Every example by its name."""
    found = {}
    for page in PAGES:
        for name, part in MARK.findall((REPOSITORY / page).read_text(encoding="utf-8")):
            (_, config), (language, code) = BLOCK.findall(part)[:2]
            found[name] = Example(yaml.safe_load(config), language, code)
    return found


@contextmanager
def service(example: Example, group: GroupTopics, port: int, api: int, folder: Path) -> Iterator[None]:
    """The example's program at work, under this test's names; ended with all that it started."""
    code = example.code
    for there, here in {
        "8080": str(port),
        "8471": str(api),
        "localhost:9092": group.bootstrap,
        '"orders"': f'"{group.main}"',
        '"billing-RETRY"': f'"{group.names.ready}"',
        '"billing"': f'"{group.group}"',
    }.items():
        code = code.replace(there, here)
    file = folder / f"service.{'py' if example.language == 'python' else example.language}"
    file.write_text(code, encoding="utf-8")
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen([*RUN[example.language], str(file)], stdout=log, stderr=log, process_group=0)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
