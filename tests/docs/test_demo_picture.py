"""The picture of docs/demo.md is what the demo draws on a terminal; UPDATE_SCREENSHOTS=1 makes it anew."""

from __future__ import annotations

import html
import io
import os
import re
from pathlib import Path

from rich.console import Console

from reconsume.sidecar.dev.demo.screen import Scene, picture
from reconsume.sidecar.dev.demo.tracking import Counts, Step, Track

DOCS = Path(__file__).parents[2] / "docs"
FILE = DOCS / "demo.svg"
COLUMNS = 92
BEGAN = 0
"""Epoch ms at which the first order came; times in the picture count from it."""


def track(case: str, id_: str, *steps: tuple[int | None, int, str], dead: bool = False, done: bool = False) -> Track:
    """One order's way: when each attempt was due, when it came (ms), and the answer."""
    ways = {n: Step(due, came, answer, answer == "200") for n, (due, came, answer) in enumerate(steps)}
    return Track(id_, case, ways, dead=dead, committed=done)


SCENE = Scene(
    seconds=14.2,
    began=BEGAN,
    orders=400,
    counts=Counts(0, 3, {"1s": 2, "2s": 5, "5s": 14, "10s": 11}, 347, 18),
    levels=("1s", "2s", "5s", "10s"),
    journeys=(
        track("flaky", "orders:2:1", (None, 18, "500"), (1_024, 1_027, "200"), done=True),
        track("later", "orders:0:4", (None, 161, "later"), (2_166, 2_170, "200"), done=True),
        track("stuck", "orders:1:11", (None, 402, ""), (3_410, 8_013, "200"), done=True),
        track("refused", "orders:2:7", (None, 233, "422"), dead=True),
        track("poison", "orders:0:9", (None, 290, "500"), (1_296, 1_299, "500"), (3_303, 8_002, "500")),
    ),
    is_down=False,
)


def drawn() -> str:
    """The scene as an SVG that fetches no font."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(picture(SCENE))
    svg = console.export_svg(title="make demo", unique_id="demo")
    return re.sub(r"@font-face \{[^}]*\}\s*", "", svg).replace("Fira Code, monospace", "monospace")


def words(svg: str) -> list[str]:
    """What the picture says; the file may be of another version of the program that drew it."""
    return html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))).split()


def test_the_picture_is_what_the_demo_draws() -> None:
    if os.environ.get("UPDATE_SCREENSHOTS"):
        FILE.write_text(drawn(), "utf-8")
    assert words(FILE.read_text("utf-8")) == words(drawn())
    assert "](demo.svg)" in (DOCS / "demo.md").read_text("utf-8")


def test_the_picture_fetches_nothing() -> None:
    assert "url(http" not in FILE.read_text("utf-8")
