"""Whether nothing was lost and each attempt was counted once, from full dumps and the service's own ledger.

`check` returns what it counted, or raises with every record that breaks an invariant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.support.proof.evidence import Evidence
from tests.support.proof.invariants import RULES, Rule, chain_of, due_of, only_postponed
from tests.support.proof.ledger import duplicates


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What a run came to. `lateness`: ms after the due time, of each retry's first delivery, rising."""

    deliveries: int
    duplicates: int
    committed: int
    dead_lettered: int
    waiting: int
    retries: int
    lateness: tuple[int, ...]

    def late(self, share: float) -> int:
        """The lateness (ms) that `share` of the retries do not exceed; 0 without retries."""
        return self.lateness[min(len(self.lateness) - 1, int(share * len(self.lateness)))] if self.lateness else 0

    def __str__(self) -> str:
        return (
            f"{self.deliveries} deliveries ({self.duplicates} duplicates), {self.committed} committed, "
            f"{self.dead_lettered} dead-lettered, {self.waiting} waiting, {self.retries} retries, "
            f"late p50 {self.late(0.5)} ms, p99 {self.late(0.99)} ms"
        )

    __repr__ = __str__


class ViolationError(AssertionError):
    """An invariant does not hold; `found` lists what breaks it."""

    def __init__(self, found: list[str]) -> None:
        shown = "\n  ".join(found[:40])
        super().__init__(f"{len(found)} violations:\n  {shown}")
        self.found = found


def check(evidence: Evidence, rules: Iterable[Rule] = RULES) -> Report:
    """Check every invariant. Raises ViolationError with all that break one."""
    found = [violation for rule in rules for violation in rule(evidence)]
    if found:
        raise ViolationError(found)
    return report_of(evidence)


def report_of(evidence: Evidence) -> Report:
    """The counts, whatever they are worth."""
    states = Counter(state_of(evidence, place) for place in evidence.sources)
    return Report(
        deliveries=len(evidence.deliveries),
        duplicates=duplicates(evidence.deliveries),
        committed=states["committed"],
        dead_lettered=len(evidence.dlq),
        waiting=states["waiting"],
        retries=sum(
            bool(times) or not only_postponed(c) for life in evidence.lives.values() for times, c in life.items()
        ),
        lateness=tuple(sorted(_lateness(evidence))),
    )


def state_of(evidence: Evidence, ident: str) -> str:
    """Where a main record is now: `waiting`, `dead` or `committed`."""
    topic, row = evidence.sources[ident]
    redrives = evidence.redrives.get(ident, 0)
    life = evidence.lives.get((ident, redrives), {})
    if life:
        last = life[max(life)][-1]
        topic, row = last.topic, last.row
    if not evidence.covers(topic, row):
        return "waiting"
    return "dead" if (ident, redrives) in evidence.died else "committed"


def _lateness(evidence: Evidence) -> Iterator[int]:
    seen: set[tuple[str, int, int]] = set()
    for delivery in evidence.deliveries:
        attempt = (delivery.id, delivery.redrives, delivery.times)
        chain = chain_of(evidence, delivery)
        if chain is not None and attempt not in seen:
            seen.add(attempt)
            yield delivery.received - due_of(evidence, chain)
