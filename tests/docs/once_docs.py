"""The examples of docs/once.md, by the heading that they stand under."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "once.md").read_text(encoding="utf-8")


def blocks(heading: str, language: str) -> list[str]:
    """The code blocks of a section; AssertionError when there is none."""
    section = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert section is not None, f"docs/once.md has no section {heading}"
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", section[1], re.DOTALL | re.MULTILINE)
    assert found, f"docs/once.md has no {language} under {heading}"
    return found


def statements(sql: str) -> list[str]:
    """The statements of a block, each without its end and the comment behind it."""
    return [part for part in re.split(r"; *(?:--.*)?\n", sql) if part.strip()]


def changed(text: str, old: str, new: str) -> str:
    """The text with `old`, which must be there, replaced."""
    assert old in text
    return text.replace(old, new)
