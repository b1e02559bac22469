"""The colours, light and dark, can be read: the contrast that WCAG 2.2 asks of text (1.4.3), from the sheet itself."""

from __future__ import annotations

import re

import pytest

from reconsume.sidecar.ui.templating import FOLDER

LEAST = 4.5
PAIRS = (
    *((ink, ground) for ink in ("ink", "soft", "accent") for ground in ("card", "ground")),
    *((kind, f"{kind}-bg") for kind in ("wait", "good", "dead", "again")),
    ("soft", "plain-bg"),
    ("ink", "dead-bg"),
    ("card", "accent"),
    ("card", "dead"),
)


def palettes() -> dict[str, dict[str, str]]:
    sheet = (FOLDER / "static" / "style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)
    return {name: dict(re.findall(r"--([\w-]+): (#\w{6})", text)) for name, text in (("light", light), ("dark", dark))}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_stands_out(scheme: str, text: str, ground: str) -> None:
    palette = palettes()[scheme]
    darker, lighter = sorted((luminance(palette[text]), luminance(palette[ground])))
    assert (lighter + 0.05) / (darker + 0.05) >= LEAST
