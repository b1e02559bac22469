"""The page of limits has the numbers of the code, and the settings that it names exist."""

from __future__ import annotations

from pathlib import Path

from tests.docs.limits_page import page, sections

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_made_from_the_constants() -> None:
    """Renew it by `python -m tests.docs.limits_page > docs/limits.md`."""
    assert (DOCS / "limits.md").read_text(encoding="utf-8") == page()


def test_each_setting_that_is_named_is_one() -> None:
    reference = (DOCS / "configuration.md").read_text(encoding="utf-8")
    named = {row.setting.strip("`") for rows in sections().values() for row in rows if row.setting}
    assert {name for name in named if not name.startswith("kafka.") and f"`{name}`" not in reference} == set()
