"""`docs/adopt.md` as a reader would follow it: its configurations, its commands in order, and its sample service."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.support.sidecar.process import REPOSITORY

TEXT = (REPOSITORY / "docs" / "adopt.md").read_text(encoding="utf-8")
STEP = re.compile(r"<!-- step: (\d) -->\s+```yaml\n(.*?)```", re.DOTALL)
SERVICE = re.compile(r"<!-- service -->\s+```python\n(.*?)```", re.DOTALL)
SHELL = re.compile(r"```sh\n(.*?)```|<!-- step: (\d) -->", re.DOTALL)


def configurations() -> dict[int, dict[str, Any]]:
    """reconsume.yaml of each step."""
    return {int(number): yaml.safe_load(text) for number, text in STEP.findall(TEXT)}


def service() -> str:
    """The sample service."""
    (code,) = SERVICE.findall(TEXT)
    return str(code)


def commands() -> list[tuple[int, str]]:
    """Every command, with the step whose reconsume.yaml is there when it is given; 1 before the first is shown."""
    found, step = [], 1
    for block, number in SHELL.findall(TEXT):
        step = int(number) if number else step
        found += [(step, line) for line in block.splitlines()]
    return found
