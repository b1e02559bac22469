"""Delays: the table of levels, the ladders over it, and how any delay is made of levels (contract 2.2 to 2.6).

All delays are `int` milliseconds. Only this module turns delays into levels. `group_rules.py` chooses the wait of a
retry, and `names.py` has the names.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from itertools import pairwise
from typing import TypeAlias

import msgspec

from reconsume.topics.durations import parse_duration, render_duration

LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
TABLE: tuple[int, ...] = tuple(parse_duration(text) for text in LEVELS.split())
"""The delays of the 18 levels in ms: level 1 is 1 s, level 3 is 10 s, level 18 is 2 h."""

SHORTEST_ASKED = 1_000
"""ms. The shortest delay that a failure may ask for (contract 2.4)."""
LONGEST = 864_000_000
"""ms, 10 days. The longest delay (contract 2.4). The retention of the level topics is based on it."""
MOST_DELAYS = 64
"""Delays of a list of levels, or of a ladder. A level is a topic with its partitions and replicas."""
MOST_LEVELS = 128
"""Level topics of a group with `levels: ladder` or `table`. Any delay can be made of a few by hops."""
ROCKETMQ = TABLE[2:]
"""The ladder `rocketmq`: sixteen retries, 4 h 45 min 40 s in all."""
SIX: tuple[int, ...] = tuple(map(parse_duration, ("10s", "30s", "1m", "5m", "30m", "2h")))
"""The default levels of the ladder `rocketmq`: six topics instead of sixteen. Its retries cost 37 copies, not 16."""
MOST_DEFAULT_LEVELS = 8
"""The most level topics of any other ladder, unless the configuration chooses."""
LATEST = 1_000
"""ms. How much later than its due time a record may leave its last level (contract 2.4)."""


class Exponential(msgspec.Struct, frozen=True):
    """A ladder by formula: `initial`, then each delay is `multiplier` times the previous one, at most `max` (ms)."""

    initial: int = 5_000
    multiplier: float = 2.0
    max: int = 7_200_000


LadderSpec: TypeAlias = str | tuple[int, ...] | Exponential
"""`rocketmq`, `pulsar`, a list of delays in ms, or a formula."""


class Ladder(msgspec.Struct, frozen=True):
    """The wait before each retry: `delays[0]` ms before retry 1, and so on."""

    delays: tuple[int, ...]

    def delay(self, retry: int) -> int:
        """Return the wait in ms before retry `retry`, counted from 1. Past the end it is the last delay.

        Raises ValueError below 1.
        """
        if retry < 1:
            raise ValueError(f"retries are counted from 1, and this one is {retry}")
        return self.delays[min(retry, len(self.delays)) - 1]


LevelsSpec: TypeAlias = str | tuple[int, ...] | None
"""`ladder` (a level for each delay of the ladder), `table` (those of TABLE as well), or a list of delays in ms, from
which all others are made by hops. None: SIX for the ladder `rocketmq`, and at most eight delays of any other."""


def build_ladder(spec: LadderSpec) -> Ladder:
    """Return the ladder that `spec` describes. Raises ValueError in one sentence if it is invalid."""
    match spec:
        case "rocketmq":
            delays = ROCKETMQ
        case "pulsar":
            delays = TABLE
        case Exponential():
            delays = exponential(spec)
        case str():
            raise ValueError(f"{spec[:40]!r} is not a ladder: write rocketmq, pulsar, a list of delays or a formula")
        case _:
            delays = spec
    check_delays(delays, "the ladder")
    return Ladder(delays)


def check_table(table: tuple[int, ...]) -> None:
    """Raise ValueError unless a list of levels has 1 to 64 delays, each longer than the previous one."""
    check_delays(table, "the list of levels")
    for shorter, longer in pairwise(table):
        if shorter >= longer:
            raise ValueError(
                f"the list of levels must rise, and {render_duration(longer)} follows {render_duration(shorter)}"
            )


def check_delays(delays: tuple[int, ...], what: str) -> None:
    """Raise ValueError unless there are 1 to 64 delays of 1 ms to 10 days."""
    if not 1 <= len(delays) <= MOST_DELAYS:
        raise ValueError(f"{what} must have 1 to {MOST_DELAYS} delays, and it has {len(delays)}")
    for delay in delays:
        if not 1 <= delay <= LONGEST:
            raise ValueError(f"{what} holds a delay of {delay} ms, and a delay must be 1ms to 10d")


def exponential(spec: Exponential) -> tuple[int, ...]:
    """Return the delays of a formula up to and including `max`. Raises ValueError if the formula is invalid.

    With multiplier 1, `initial` is the only delay. A formula that needs more than 64 delays gives more than 64, which
    `build_ladder` refuses.
    """
    if not 1 <= spec.initial <= spec.max <= LONGEST:
        raise ValueError(f"an exponential ladder needs 1ms <= initial <= max <= 10d, and it has {spec}")
    if not (math.isfinite(spec.multiplier) and spec.multiplier >= 1):
        raise ValueError(f"an exponential ladder's multiplier must be 1 or more, and it is {spec.multiplier}")
    if spec.multiplier == 1:
        return (spec.initial,)
    delays: list[int] = []
    exact = float(spec.initial)
    while exact < spec.max and len(delays) <= MOST_DELAYS:
        delays.append(round(exact))
        exact *= spec.multiplier
    return (*delays, spec.max)


def level_delays(spec: LevelsSpec, *ladders: Ladder) -> tuple[int, ...]:
    """Return every delay that has a level topic, ascending, for a group of these ladders; the group's own is first.

    Raises ValueError in one sentence if `spec` is invalid, or the ladders have too many delays together.
    """
    match spec:
        case None:
            return SIX if ladders[0].delays == ROCKETMQ else few_levels(*(ladder.delays for ladder in ladders))
        case "ladder" | "table":
            delays = {delay for ladder in ladders for delay in ladder.delays}
            delays |= set(TABLE) if spec == "table" else set()
            check_count(len(delays))
            return tuple(sorted(delays))
        case str():
            raise ValueError(f"{spec[:40]!r} is no choice of levels: write ladder, table or a list of delays")
        case _:
            check_table(spec)
            return spec


@functools.lru_cache(maxsize=16)
def few_levels(*ladders: tuple[int, ...]) -> tuple[int, ...]:
    """Return at most eight of the ladders' delays, ascending: those with which all delays take the fewest hops.

    The shortest delay is always one, so that only what is left of a wait is spent in memory. The others are added one
    by one, each time the one that saves the most hops, and then exchanged while that saves any. Raises ValueError if
    the ladders have more than 128 delays.
    """
    delays = sorted({delay for ladder in ladders for delay in ladder})
    check_count(len(delays))
    if len(delays) <= MOST_DEFAULT_LEVELS:
        return tuple(delays)

    def cost(levels: tuple[int, ...]) -> int:
        return sum(hop_count(delay, levels) for delay in delays)

    levels: tuple[int, ...] = (delays[0],)
    while len(levels) < MOST_DEFAULT_LEVELS:
        levels = min((_with(levels, delay) for delay in delays if delay not in levels), key=cost)
    while True:
        others = [delay for delay in delays if delay not in levels]
        exchanged = (_with(levels, new, out) for out in levels[1:] for new in others)
        better = min(exchanged, key=cost)
        if cost(better) >= cost(levels):
            return levels
        levels = better


def _with(levels: tuple[int, ...], new: int, out: int = 0) -> tuple[int, ...]:
    return tuple(sorted({*levels, new} - {out}))


def check_count(delays: int) -> None:
    """Raise ValueError if ladders have more delays than a group may have topics for."""
    if delays > MOST_LEVELS:
        raise ValueError(f"the ladders have {delays} delays, each a topic, and {MOST_LEVELS} are the most")


def numbered(spec: LevelsSpec) -> tuple[int, ...]:
    """Return the delays that a numbered level counts in: the list that was given, otherwise TABLE."""
    return spec if isinstance(spec, tuple) else TABLE


def longest_below(bound: int, levels: tuple[int, ...]) -> int | None:
    """Return the longest of the ascending `levels` that is at most `bound` ms. None if all are longer."""
    index = bisect_right(levels, bound)
    return levels[index - 1] if index > 0 else None


@functools.lru_cache(maxsize=256)  # failures wait as long as the ladder says, so in few ways
def longest_fit(remaining: int, levels: tuple[int, ...]) -> int | None:
    """Return the longest of the ascending `levels` that a record may wait in which is due in `remaining` ms.

    It may be longer than the wait by one second, and at most by a ninth of the wait. A record leaves each level some
    milliseconds late; otherwise it would miss the next level by these, and hop through several shorter ones. None: the
    record is due, or the wait is shorter than every level.
    """
    return longest_below(remaining + min(LATEST, remaining // 9), levels) if remaining > 0 else None


def shortest_wait(level: int) -> int:
    """Return the shortest wait (ms) for which `longest_fit` chooses a level."""
    return level - min(LATEST, level // 10)


def hop_count(delay: int, levels: tuple[int, ...]) -> int:
    """Return how many copies a wait of `delay` ms costs: its hops, or one copy to the ready topic."""
    copies, remaining = 0, delay
    while (level := longest_fit(remaining, levels)) is not None:
        times = max(1, remaining // level)
        copies, remaining = copies + times, remaining - times * level
    return max(1, copies)
