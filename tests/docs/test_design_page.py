"""DESIGN.md against the code: its figure of layers is the contract's, and each place that it names is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
LAYERS = re.findall(r'l\d+\["(.+?)"\]', PAGE)
PLACES = sorted(set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|md)|(?:[a-z_0-9]+/)+)`", PAGE)))
"""Files and folders in backticks."""


def test_the_figure_of_layers_is_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = (contract["layers"] for contract in contracts if "reconsume.sidecar.cli" in contract.get("layers", ()))
    assert [layer.replace("reconsume.", "").replace("sidecar.", "") for layer in layers] == LAYERS


def test_the_figure_names_every_folder() -> None:
    shown = set(re.findall(r"\w+", " ".join(LAYERS)))
    assert {file.parent.name for file in (ROOT / "sidecar").glob("*/__init__.py")} <= shown


def test_each_file_and_folder_that_it_names_is_there() -> None:
    """It may be named by the end of its path."""
    found = [f"/{path.relative_to(ROOT)}" for path in ROOT.glob("[a-z]*/**/*") if "__pycache__" not in path.parts]
    ends = {end for path in found for end in ends_of(path)}
    assert [place for place in PLACES if not (ROOT / place).exists() and place.strip("/") not in ends] == []


def ends_of(path: str) -> list[str]:
    """A path without its first folders, each time one more."""
    names = path.strip("/").split("/")
    return ["/".join(names[number:]) for number in range(len(names))]
