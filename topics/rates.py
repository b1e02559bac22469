"""Rates as text, such as `100/s`: how many records may go in a time. No clock here."""

from __future__ import annotations

import re

import msgspec

UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
"""Units with their milliseconds."""
MOST = 1_000_000
"""Records of a rate at most. No sidecar delivers as many in a second."""

FORM = re.compile(r"([1-9][0-9]{0,6})/([smh])")
PATTERN = r"^[1-9][0-9]{0,6}/[smh]$"
"""The same for an editor, which knows no bound of a number."""


class Rate(msgspec.Struct, frozen=True):
    """So many records in so many milliseconds; the milliseconds are those of one unit."""

    count: int
    per_ms: int

    @property
    def per_second(self) -> float:
        """Records a second."""
        return self.count * 1_000 / self.per_ms


def parse_rate(text: str) -> Rate:
    """Return the rate of `100/s`, `600/m` or `5/h`.

    Raises ValueError for anything else, also for a number without a unit, and for 0.
    """
    match = FORM.fullmatch(text)
    if match is None or int(match[1]) > MOST:
        raise ValueError(f"{text[:40]!r} is not a rate: write it like 100/s, 600/m or 5/h, up to {MOST}")
    return Rate(int(match[1]), UNITS[match[2]])


def render_rate(rate: Rate) -> str:
    """Return a rate as it is written. Raises ValueError if its time is not one unit."""
    unit = next((name for name, size in UNITS.items() if size == rate.per_ms), None)
    if unit is None:
        raise ValueError(f"a rate is by the second, minute or hour, and not by {rate.per_ms} ms")
    return f"{rate.count}/{unit}"
