"""A model of the service: random verdicts by weight, windows in which it is away, and a ledger of all it was sent."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent, Outcome, Rejected, Throttled
from reconsume.sidecar.core.record import Partition, Record

TIMEOUT = 5_000


class Delivery(NamedTuple):
    """One request that reached the service. `at`: true time, epoch ms; `wall`: what the sidecar took it for."""

    at: int
    wall: int
    record: Record
    tenure: tuple[str, str, Partition, int]
    """Process, group, partition and epoch under which it was sent."""
    outcome: Outcome
    until: int = 0
    """When the service had its answer, true time."""


class Weights(NamedTuple):
    """How likely each verdict is, against each other."""

    ok: int = 6
    fail: int = 3
    timeout: int = 0
    throttle: int = 0
    ask: int = 0
    reject: int = 0


class ServiceModel:
    """`away` is true while nothing can reach it, `failing` while it fails whatever reaches it."""

    def __init__(self, random: Random, weights: Weights) -> None:
        self.ledger: list[Delivery] = []
        self.away = False
        self.failing = False
        self._random = random
        self._weights = weights

    def verdict(self, record: Record) -> tuple[Outcome, int]:
        """What it will say to the next request, which is about `record`, and after how many ms."""
        if self.away:
            return NotSent("refused"), 1
        what = "fail" if self.failing else self._random.choices(Weights._fields, self._weights)[0]
        if what == "timeout":
            return Failed("timeout", label="timeout"), TIMEOUT
        return self._answer(what), self._random.choice((0, 1, 3, 20, 300, 2_000))

    def _answer(self, what: str) -> Outcome:
        match what:
            case "ok":
                return COMMITTED
            case "throttle":
                return Throttled(self._random.choice((50, 1_000, 3_000)))
            case "reject":
                return Rejected("refused")
            case "ask":
                delay = self._random.choice((None, 999, 1_000, 7_300, 61_234))
                return Failed("retry-asked", asked=True, delay=delay, level=self._random.choice((None, 0, 1, 2, -1, 9)))
            case _:
                return Failed("http-500", "no")
