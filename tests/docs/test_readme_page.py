"""README.md is what a visitor reads in two minutes: short, with one picture, and the two commands."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
MOST_WORDS = 1_100
"""At some 500 words a minute; code counts."""


def test_it_is_short() -> None:
    assert len(README.split()) < MOST_WORDS


def test_it_has_one_picture_which_a_test_makes() -> None:
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert Path(picture).parent == Path("docs/dashboard"), "tests/ui/test_docs.py makes those"
    assert (ROOT / picture).is_file()


def test_its_two_commands_are_targets_of_make() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    section = README.partition("## Two commands")[2].partition("\n## ")[0]
    told = set(re.findall(r"make ([\w-]+)", section))
    assert {"demo", "test"} <= told <= set(targets)
    for need in ("Python", "Java"):
        assert need in section
