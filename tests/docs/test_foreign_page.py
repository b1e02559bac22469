"""The page about moving a group here: its table is the one that the code reads by."""

from __future__ import annotations

from pathlib import Path

from reconsume.topics.foreign_headers import SYSTEMS

PAGE = Path(__file__).parents[2] / "docs" / "migrate-headers.md"


def rows() -> list[str]:
    """The rows of the page's table, as they follow from the code's."""
    return [
        f"| {name} | `{rule.header}` | {rule.form.text}{', the first' if rule.first else ''} | {rule.meaning} |"
        for name, system in SYSTEMS.items()
        for rule in system.rules
    ]


def test_the_page_shows_the_table_that_the_code_reads_by() -> None:
    named = tuple(f"| {name} |" for name in SYSTEMS)
    written = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(named)]
    assert written == rows(), "the table must be:\n" + "\n".join(rows())
