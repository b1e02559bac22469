"""What a soak of the view does, round by round: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from tests.soak.schedule import chosen

KINDS: Mapping[str, int] = {
    "all-killed": 3,
    "driver-killed": 2,
    "java-killed": 2,
    "job-stopped": 2,
    "checkpoint-lost": 2,
    "group-added": 2,
    "group-removed": 1,
    "group-made-anew": 2,
    "group-made-anew-while-stopped": 2,
    "partitions-added": 2,
    "events-overtaken": 3,
    "second-job": 1,
    "second-job-on-the-checkpoint": 1,
    "executor-killed": 2,
    "worker-killed": 2,
    "outputs-made-anew": 2,
    "outputs-made-anew-while-stopped": 2,
    "first-reading": 1,
    "broker-killed": 2,
    "broker-paused": 2,
}
"""Every fault, and how often it is in the deck."""
MOST_PICK = 1 << 20


class Round(NamedTuple):
    """One fault under load, and then rest. `pick` chooses its group and its values; `records`: that begin to fail."""

    number: int
    kind: str
    pick: int
    records: int

    def __str__(self) -> str:
        return f"{self.kind} (pick {self.pick}), {self.records} records"


def rounds(seed: int, only: Collection[str] = ()) -> Iterator[Round]:
    """Yield rounds without end; no kinds means all of them. Raises ValueError for a kind that is not known."""
    deck = [kind for kind, share in chosen(KINDS, only).items() for _ in range(share)]
    drawn, number = random.Random(seed), 0
    while True:
        for kind in drawn.sample(deck, len(deck)):
            yield Round(number, kind, drawn.randrange(MOST_PICK), drawn.randrange(20, 200))
            number += 1
