"""What a soak does and when: a pure function of the seed, the length and the kinds of faults that are switched on.

Tracks run beside each other (`GAPS`); within a track one fault follows another. A fault carries `pick`, a number from
which whoever carries it out chooses its node, pod, topic or values. Each track has a chance of its own, so one more
changes nothing of the others.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, TypeVar

T = TypeVar("T")

WARM_UP = 15.0
"""Seconds without a fault at the start: every pod has its partitions, and retries wait in the levels."""
CALM = 10.0
"""Seconds at the end in which no fault begins any more; what is in force then is healed."""
LOWEST = 50
"""Records a second."""
MOST_PICK = 1 << 20


SPARED = 2 / 3
"""From this share of the time on no fault ends a pod any more: what grows in one needs minutes to show."""


class Kind(NamedTuple):
    """One kind of fault: its track, how often it is in the track's deck, and how long it lasts in seconds.

    `ends`: whether pods end by it.
    """

    track: str
    share: int
    shortest: float
    longest: float
    ends: bool = False


KINDS: Mapping[str, Kind] = {
    "node-kill": Kind("nodes", 2, 4, 12),
    "node-stop": Kind("nodes", 1, 4, 12),
    "node-pause-short": Kind("nodes", 1, 0.5, 2),
    "node-pause-long": Kind("nodes", 1, 6, 15),
    "two-nodes-killed": Kind("nodes", 1, 4, 10),
    "two-nodes-paused": Kind("nodes", 1, 4, 10),
    "min-isr": Kind("nodes", 1, 5, 12),
    "pod-kill": Kind("pods", 3, 0.1, 6, ends=True),
    "two-pods-killed": Kind("pods", 1, 0.1, 12, ends=True),
    "pod-term": Kind("pods", 1, 0.1, 6, ends=True),
    "pod-pause-short": Kind("pods", 1, 1, 6),
    "pod-pause-long": Kind("pods", 2, 12, 22),
    "pod-joins": Kind("pods", 2, 8, 25),
    "rollout-topics": Kind("pods", 1, 5, 20, ends=True),
    "rollout-ladder": Kind("pods", 1, 5, 20, ends=True),
    "packets-lost": Kind("network", 2, 2.5, 8),
    "late-ends": Kind("network", 2, 1, 12),
    "late-offsets": Kind("network", 1, 1, 12),
    "service-away": Kind("service", 1, 2, 15),
    "service-hangs": Kind("service", 1, 3, 12),
    "service-refuses": Kind("service", 1, 2, 10),
    "service-throttles": Kind("service", 1, 2, 10),
    "service-slow": Kind("service", 1, 5, 15),
    "partition-add": Kind("operator", 1, 0, 0),
    "level-partition-add": Kind("operator", 1, 0, 0),
    "records-done-deleted": Kind("operator", 1, 0, 0),
    "records-unread-deleted": Kind("operator", 1, 0, 0),
    "level-recreated": Kind("operator", 1, 0, 8),
    "dlq-recreated": Kind("operator", 1, 0, 8),
    "policy-set": Kind("operator", 2, 5, 25),
    "ordered-kill": Kind("ordered", 2, 0.1, 6, ends=True),
    "ordered-all-killed": Kind("ordered", 1, 0.1, 12, ends=True),
    "ordered-pause": Kind("ordered", 1, 12, 22),
    "ordered-rollout": Kind("ordered", 1, 5, 20, ends=True),
    "parked-settled": Kind("settling", 1, 0, 1),
}
"""Every fault. Shorter and longer than 8 s, the session timeout, is the difference between the two pauses of a pod;
that of a node is 3 s."""

GAPS: Mapping[str, tuple[float, float]] = {
    "nodes": (8, 30),
    "pods": (3, 15),
    "network": (5, 20),
    "service": (8, 30),
    "operator": (5, 20),
    "ordered": (5, 20),
    "settling": (10, 30),
}
"""Seconds between the end of a fault and the next of its track."""


class Step(NamedTuple):
    """One fault of the schedule; `at` and `lasts` in seconds."""

    number: int
    at: float
    track: str
    kind: str
    lasts: float
    pick: int

    def __str__(self) -> str:
        return f"{self.at:7.1f} s  {self.kind} for {self.lasts:.1f} s (pick {self.pick})"


class Wave(NamedTuple):
    """From `at` on so many records a second."""

    at: float
    rate: int


class Schedule(NamedTuple):
    """All that a soak does."""

    seed: int
    seconds: float
    steps: tuple[Step, ...]
    waves: tuple[Wave, ...]

    def of(self, track: str) -> tuple[Step, ...]:
        """The steps of one track, in order."""
        return tuple(step for step in self.steps if step.track == track)

    def rate(self, at: float) -> int:
        """How many records a second are due at this moment; few while the last faults are healed."""
        if at > self.seconds:
            return LOWEST
        return next((wave.rate for wave in reversed(self.waves) if wave.at <= at), 0)


def chosen(kinds: Mapping[str, T], only: Collection[str]) -> dict[str, T]:
    """The kinds that are asked for, all of them for none; ValueError names one that is not known."""
    if unknown := sorted(set(only) - kinds.keys()):
        raise ValueError(f"no such fault: {', '.join(unknown)}; there are {', '.join(kinds)}")
    return {name: kind for name, kind in kinds.items() if not only or name in only}


def plan(seed: int, seconds: float, only: Collection[str] = (), highest: int = 500, apart: float = 1.0) -> Schedule:
    """The schedule of a run; ValueError names a kind that is not known. No kinds means all of them. `apart`: how many
    times as long the gaps are, for a machine that others use too."""
    kinds = chosen(KINDS, only)
    steps = sorted(
        (step for track in GAPS for step in _track(random.Random(f"{seed}/{track}"), track, kinds, seconds, apart)),
        key=lambda step: step[0],
    )
    numbered = tuple(Step(number, *step) for number, step in enumerate(steps))
    return Schedule(seed, seconds, numbered, tuple(_waves(random.Random(f"{seed}/load"), seconds, highest)))


def _track(
    chance: random.Random, track: str, kinds: Mapping[str, Kind], seconds: float, apart: float
) -> Iterator[tuple[float, str, str, float, int]]:
    """The faults of one track: dealt from a shuffled deck, so that each kind comes before any comes again."""
    names = [name for name, kind in kinds.items() if kind.track == track for _ in range(kind.share)]
    deck: list[str] = []
    at = WARM_UP + chance.uniform(0, GAPS[track][0])
    while names and at < seconds - CALM:
        if at >= SPARED * seconds:
            names, deck = ([name for name in cards if not kinds[name].ends] for cards in (names, deck))
            if not names:
                return
        deck = deck or _dealt(chance, names)
        name = deck.pop()
        lasts = round(min(chance.uniform(kinds[name].shortest, kinds[name].longest), seconds - at), 1)
        yield round(at, 1), track, name, lasts, chance.randrange(MOST_PICK)
        at += lasts + apart * chance.uniform(*GAPS[track])


def _dealt(chance: random.Random, names: list[str]) -> list[str]:
    """All cards, each kind once before the second ones of any: a short run sees as many kinds as it can."""
    first = list(dict.fromkeys(names))
    rest = list(names)
    for name in first:
        rest.remove(name)
    chance.shuffle(first)
    chance.shuffle(rest)
    return rest + first  # taken from the end


def _waves(chance: random.Random, seconds: float, highest: int) -> Iterator[Wave]:
    """Mostly 50 to 150 records a second, and for a few seconds each minute up to `highest`."""
    at = 0.0
    while at < seconds:
        yield Wave(round(at, 1), min(highest, chance.randrange(LOWEST, 2 * LOWEST)))
        at += chance.uniform(25, 50)
        yield Wave(round(at, 1), chance.randrange(highest // 2, highest + 1))
        at += chance.uniform(2, 4)
