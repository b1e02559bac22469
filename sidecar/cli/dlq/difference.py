"""The difference between two values, for people: JSON by its members, other text by its lines, binary by its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

from reconsume.sidecar.dlq.preview import SHOWN, looked_at

AROUND = 2
"""Lines that are shown before and after a change."""
MOST_COMPARED = 400
"""Lines of a value that are compared. Where they repeat, that takes the cube of their number: a second for these."""
MOST_LINES = 200
"""Lines of a difference that are printed."""


def difference(old: bytes | None, new: bytes | None) -> list[str]:
    """Return lines that begin with `-` (only in `old`), `+` (only in `new`) or a space (in both).

    Lines may hold any character. What is cut is named in a last line.
    """
    kinds, lines = zip(*(shown(value) for value in (old, new)), strict=True)
    if kinds[0] != kinds[1] and "hex" in kinds:
        return [f"- {len(old or b'')} bytes, {kinds[0]}", f"+ {len(new or b'')} bytes, {kinds[1]}"]
    lines_changed = list(changes(lines[0][:MOST_COMPARED], lines[1][:MOST_COMPARED]))
    if not lines_changed:
        lines_changed = ["  (the same as far as it is compared, or but for blanks)"]
    remaining = len(lines_changed) - MOST_LINES
    cut = any(len(each) > MOST_COMPARED for each in lines)
    if remaining > 0 or cut:
        lines_changed = [
            *lines_changed[:MOST_LINES],
            f"… {max(0, remaining)} more lines{', and what lies beyond' if cut else ''}",
        ]
    return lines_changed


def shown(value: bytes | None) -> tuple[str, list[str]]:
    """Return the kind of a value, and the lines in which it is compared."""
    kind, text = looked_at(value)
    if kind in ("null", "empty"):
        return kind, [f"({kind})"]
    return kind, [line[:SHOWN] for line in text.split("\n")]


def changes(old: list[str], new: list[str]) -> Iterator[str]:
    """Yield the changed lines with those around them, and `…` for each gap."""
    groups = SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(AROUND)
    for number, group in enumerate(groups):
        if number:
            yield "  …"
        for tag, start, end, begin, stop in group:
            if tag == "equal":
                yield from (f"  {line}" for line in old[start:end])
            else:
                yield from (f"- {line}" for line in old[start:end])
                yield from (f"+ {line}" for line in new[begin:stop])
