"""`docs/migrate.md` as a reader would follow it: its configurations by name, and its commands in order."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.sidecar.process import REPOSITORY

TEXT = (REPOSITORY / "docs" / "migrate.md").read_text(encoding="utf-8")
SETTINGS = re.compile(
    r"<!-- settings: ([\w-]+)(?:; sum: (\w+); dead letters: ([\w-]+))? -->\n```yaml\n(.*?)```", re.DOTALL
)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Example(NamedTuple):
    """A configuration; where the page says so, `total` is the sum of its waits and `dlq` where they end."""

    name: str
    total: str
    dlq: str
    text: str


def examples() -> dict[str, Example]:
    """Every configuration by its name."""
    return {found[0]: Example(*found) for found in SETTINGS.findall(TEXT)}


def commands() -> list[str]:
    """Every command, in the page's order."""
    return [line for block in SHELL.findall(TEXT) for line in block.splitlines()]
