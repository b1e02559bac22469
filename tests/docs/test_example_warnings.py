"""No configuration that the documentation shows triggers a warning, unless it says so and the page explains it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconsume.sidecar.settings.load import STAND_INS
from reconsume.sidecar.settings.model import Settings
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.process import REPOSITORY

MARK = "# warns: see below"
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
FOLDERS = ("docs", "examples", "deploy")


def texts() -> dict[str, str]:
    """Every YAML block of the pages, and every file of a configuration, by where it is."""
    pages = [REPOSITORY / "README.md", *(page for folder in FOLDERS for page in (REPOSITORY / folder).rglob("*.md"))]
    found = {
        f"{page.relative_to(REPOSITORY)} #{number}": text
        for page in pages
        for number, text in enumerate(BLOCK.findall(page.read_text("utf-8")), start=1)
    }
    files = (file for folder in FOLDERS for file in (REPOSITORY / folder).rglob("reconsume*.yaml"))
    return found | {str(file.relative_to(REPOSITORY)): file.read_text("utf-8") for file in files}


def configuration_in(text: str) -> dict[str, Any] | None:
    """Return the settings of a text, completed where it shows a part; None if it is something else."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    if isinstance(tree, dict):
        tree.pop("base", None)
    if not isinstance(tree, dict) or not tree.keys() <= Settings.rows().keys():
        return None
    deliver = tree.get("deliver") or {}
    if deliver.get("mode", "push") == "push":
        deliver = {"url": "http://127.0.0.1:8080/events", **deliver}
    return {**STAND_INS, **tree, "deliver": deliver}


CONFIGURATIONS = {name: text for name, text in texts().items() if configuration_in(text) is not None}


def test_the_pages_show_configurations_and_one_of_them_warns() -> None:
    assert len(CONFIGURATIONS) > 20
    warn = [name.split()[0] for name, text in CONFIGURATIONS.items() if text.startswith(MARK)]
    assert warn == ["docs/migrate.md"]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_an_example_warns_only_where_its_first_line_says_so(name: str, tmp_path: Path) -> None:
    text = CONFIGURATIONS[name]
    file = tmp_path / "reconsume.yaml"
    file.write_text(yaml.safe_dump(configuration_in(text)), "utf-8")
    checked = reconsume("config", "check", "-c", str(file))
    # What a machine of a reader lacks is no fault of the example.
    warnings = [line for line in checked.stderr.splitlines() if "warning:" in line and "is not there" not in line]
    assert checked.exit_code == 0, checked.stderr
    assert bool(warnings) is text.startswith(MARK), warnings


def test_the_files_of_many_groups_are_good_as_they_are(tmp_path: Path) -> None:
    blocks = BLOCK.findall((REPOSITORY / "docs" / "many-groups.md").read_text("utf-8"))
    files = {text.split()[1].rstrip(","): text for text in blocks if text.startswith("# ")}
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    checked = reconsume("config", "check", "-c", tmp_path / "billing.yaml")
    assert (checked.exit_code, checked.stderr) == (0, "")
