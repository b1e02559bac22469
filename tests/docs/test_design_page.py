"""DESIGN.md against the code: its figure of layers is the contract's, and each place that it names is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
LAYERS = re.findall(r'l\d+\["(.+?)"\]', PAGE)
PLACES = sorted(set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|md)|(?:[a-z_0-9]+/)+)`", PAGE)))
"""Files and folders in backticks."""
FILES = [f"/{path.relative_to(ROOT)}" for path in ROOT.glob("[a-z]*/**/*") if "__pycache__" not in path.parts]


def test_the_figure_of_layers_is_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = (contract["layers"] for contract in contracts if "reconsume.sidecar.cli" in contract.get("layers", ()))
    assert [layer.replace("reconsume.", "").replace("sidecar.", "") for layer in layers] == LAYERS


def test_the_figure_names_every_folder() -> None:
    shown = set(re.findall(r"\w+", " ".join(LAYERS)))
    assert {file.parent.name for file in (ROOT / "sidecar").glob("*/__init__.py")} <= shown


@pytest.mark.parametrize("place", PLACES)
def test_a_file_or_folder_that_it_names_is_there(place: str) -> None:
    """It may be named by the end of its path."""
    assert (ROOT / place).exists() or any(file.endswith(f"/{place.strip('/')}") for file in FILES)
