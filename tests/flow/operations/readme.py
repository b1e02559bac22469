"""The README's examples, as a reader would copy them: the blocks behind an `<!-- example: NAME -->`."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml

from tests.support.sidecar.process import REPOSITORY

MARK = re.compile(r"<!-- example: (\w+) -->(.*?)(?=<!-- example: |\Z)", re.DOTALL)
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


class Example(NamedTuple):
    """One mode: its part of the configuration, and the service in some language."""

    config: dict[str, Any]
    language: str
    code: str


def examples() -> dict[str, Example]:
    """Every example by its name."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    found = {}
    for name, part in MARK.findall(text):
        (_, config), (language, code) = BLOCK.findall(part)[:2]
        found[name] = Example(yaml.safe_load(config), language, code)
    return found
