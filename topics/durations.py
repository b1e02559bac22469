"""Durations as text, such as `10s` or `1h30m`: in the configuration, in verdicts and in topic names.

They all have one spelling, because a level's delay is part of its topic's name. Everywhere else a duration is an `int`
in milliseconds: a float would not come back from a name unchanged. No clock here.
"""

from __future__ import annotations

import functools
import re

UNITS: tuple[tuple[str, int], ...] = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
"""Units with their milliseconds, from the largest to the smallest: the only order in which they may be written."""

# Ten digits: over 100 days even in milliseconds, and no text can cause a huge integer.
FORM = re.compile("".join(rf"(?:([0-9]{{1,10}}){unit})?" for unit, _ in UNITS))


def parse_duration(text: str) -> int:
    """Return the milliseconds of `500ms`, `10s`, `1h30m` or `1d`.

    Raises ValueError for anything else, also for a number without a unit.
    """
    match = FORM.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text[:40]!r} is not a duration: write it like 500ms, 10s, 2m, 1h30m or 1d")
    return sum(int(count) * size for count, (_, size) in zip(match.groups("0"), UNITS, strict=True))


@functools.lru_cache(maxsize=1024)  # each failed record needs a topic name, and there are few delays
def render_duration(ms: int) -> str:
    """Return the one canonical spelling of `ms` milliseconds: 90 000 is `1m30s`, 0 is `0s`.

    Raises ValueError below 0.
    """
    if ms < 0:
        raise ValueError(f"a duration cannot be negative, and this one is {ms} ms")
    units: list[str] = []
    rest = ms
    for unit, size in UNITS:
        count, rest = divmod(rest, size)
        if count > 0:
            units.append(f"{count}{unit}")
    return "".join(units) or "0s"
