"""Run `reconsume audit` on a group whose sidecars have ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import Result

from tests.support.kafka.group_topics import GroupTopics
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import Config, config_of


def audit(group: GroupTopics, folder: Path, overrides: Config, *words: str) -> Result:
    """Run it with the configuration that the group's sidecars had, and further words."""
    file = folder / f"{group.group}-audit.json"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1/", 8471, overrides)), encoding="utf-8")
    shown = reconsume("-c", file, "audit", "-o", "jsonl", *words)
    assert shown.exit_code in (0, 1), shown.stderr
    return shown


def violations(group: GroupTopics, folder: Path, overrides: Config) -> list[dict[str, Any]]:
    """Return what the audit finds against the rules, with the configuration that the group's sidecars had."""
    shown = audit(group, folder, overrides)
    return [row for line in shown.stdout.splitlines() if (row := json.loads(line))["found"] == "violation"]
