"""Two scenarios beside each other, round by round: what one costs of the other, whatever the machine does meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """What a run of a scenario came to. `rate`: records a second. `peak`: bytes. `first_s`: until the first record."""

    rate: float
    cpu_us: float
    peak: int
    first_s: float


class Pair(NamedTuple):
    """A scenario, the one that it is compared with, both by their short names, and what is wanted."""

    one: str
    other: str
    wanted: str


PAIRS = (
    Pair("keyed", "push", "rate 0.90"),
    Pair("ladder", "push", "rate 0.90"),
    Pair("ladder-fail", "fail", "CPU 1.3"),
)


def compared(pair: Pair, one: Sequence[Run], other: Sequence[Run]) -> str:
    """Say what the one has of the other's rate and CPU: the median of the rounds."""
    rounds = list(zip(one, other, strict=True))
    rate = statistics.median(a.rate / b.rate for a, b in rounds)
    cpu = statistics.median(a.cpu_us / b.cpu_us for a, b in rounds)
    return f"rate {rate:.2f}, CPU {cpu:.2f} (wanted: {pair.wanted})"
