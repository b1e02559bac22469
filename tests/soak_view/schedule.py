"""What a soak of the view does, round by round: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from tests.soak.schedule import chosen

KINDS: Mapping[str, int] = {
    "all-killed": 4,
    "driver-killed": 2,
    "java-killed": 2,
    "job-stopped": 2,
    "group-added": 2,
    "group-removed": 1,
    "group-made-anew": 2,
    "group-made-anew-while-stopped": 2,
    "partitions-added": 2,
    "events-overtaken": 3,
    "second-job": 1,
    "executor-killed": 2,
    "worker-killed": 2,
    "view-recreated": 2,
    "view-recreated-while-stopped": 2,
    "first-reading": 1,
    "broker-killed": 2,
    "broker-paused": 2,
}
"""Every fault, and how often it is in the deck."""
ENDING = frozenset(
    {
        "all-killed",
        "driver-killed",
        "java-killed",
        "job-stopped",
        "group-made-anew-while-stopped",
        "events-overtaken",
        "view-recreated-while-stopped",
    }
)
"""Faults that end a process of the job. What it has counted as lost is read then, so there is rest between two."""
ALONE = "first-reading"
"""A fault whose reading nothing else may disturb."""
MOST_PICK = 1 << 20


class Round(NamedTuple):
    """One fault under load, and then rest, unless it is followed at once by the next round (`rests` is false).

    `pick` chooses its group and its values; `records`: that begin to fail.
    """

    number: int
    kind: str
    pick: int
    records: int
    rests: bool = True

    def __str__(self) -> str:
        return f"{self.kind} (pick {self.pick}), {self.records} records"


def rounds(seed: int, only: Collection[str] = ()) -> Iterator[Round]:
    """Yield rounds without end; no kinds means all of them. Raises ValueError for a kind that is not known.

    The first rounds have each kind once, so that a short run has them all. Then chance decides.
    """
    kinds, drawn = chosen(KINDS, only), random.Random(seed)
    for number, (kind, rests) in enumerate(kinds_without_end(kinds, drawn)):
        yield Round(number, kind, drawn.randrange(MOST_PICK), drawn.randrange(20, 200), rests)


def kinds_without_end(kinds: Mapping[str, int], drawn: random.Random) -> Iterator[tuple[str, bool]]:
    """Yield faults, and whether there is rest after each."""
    yield from each_once(kinds, drawn)
    deck = [kind for kind, share in kinds.items() for _ in range(share)]
    while True:
        for kind in drawn.sample(deck, len(deck)):
            yield kind, True


def each_once(kinds: Collection[str], drawn: random.Random) -> Iterator[tuple[str, bool]]:
    """Yield each fault once: those that the job lives through are dealt out before those that end it, without rest."""
    ending = [kind for kind in kinds if kind in ENDING]
    others = [kind for kind in kinds if kind not in ENDING and kind != ALONE]
    drawn.shuffle(ending)
    drawn.shuffle(others)
    for number, kind in enumerate(ending):
        yield from ((other, False) for other in others[number :: len(ending)])
        yield kind, True
    if not ending:
        yield from ((other, True) for other in others)
    if ALONE in kinds:
        yield ALONE, True
