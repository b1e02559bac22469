"""Keep the partitions apart whose progress Kafka refuses, so that the progress of all others goes on.

A right that is missing, or metadata that a broker does not take, refuses the whole transaction for one partition. So
such a partition goes into no batch of others. It is tried alone, every 0.5 to 5 s, with the records of its own that are
settled meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.record import NEVER, Partition

FIRST_TRY_MS, LAST_TRY_MS = 500, 5_000
"""ms between two tries of a partition, at first and at most: it goes on soon after an operator has repaired the
cause."""


@dataclass(slots=True)
class RefusedPartition:
    """A partition whose progress Kafka refuses.

    `reason`: a text for people. `at_ms`: the steady time of its next try, `backoff_ms` after the last one. `entries`
    go with that try.
    """

    reason: str = ""
    at_ms: int = 0
    backoff_ms: int = FIRST_TRY_MS // 2
    entries: deque[SettledRecord] = field(default_factory=deque)


class RefusedProgress:
    """The partitions of one lane whose progress Kafka refuses, with their settled records.

    Invariants: the entries of a partition are of its own records; its wait is at most `LAST_TRY_MS`.
    """

    def __init__(self) -> None:
        self._refused: dict[Partition, RefusedPartition] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def __contains__(self, source: Partition) -> bool:
        return source in self._refused

    def reason(self, source: Partition) -> str:
        """Return why the progress of a partition is refused; empty if it is not."""
        refused = self._refused.get(source)
        return "" if refused is None else f"its progress is refused: {refused.reason}"

    def sizes(self) -> dict[Partition, int]:
        """Return the bytes of the settled records that wait with each partition."""
        return {source: sum(e.record.weight for e in refused.entries) for source, refused in self._refused.items()}

    def entries(self) -> Iterator[SettledRecord]:
        """Return the settled records of these partitions."""
        return (entry for refused in self._refused.values() for entry in refused.entries)

    def refuse(self, source: Partition, reason: str, steady_ms: int) -> None:
        """Keep a partition apart, and try it later: after twice as long as the last time."""
        refused = self._refused.setdefault(source, RefusedPartition())
        refused.reason, refused.backoff_ms = reason, min(2 * refused.backoff_ms, LAST_TRY_MS)
        refused.at_ms = steady_ms + refused.backoff_ms

    def hurry(self, partitions: Iterable[Partition]) -> None:
        """Try partitions at once that are being given up."""
        for source in partitions:
            if (refused := self._refused.get(source)) is not None:
                refused.at_ms = 0  # contract 9.1: a rebalance waits for it

    def sort_out(self, pending: Iterable[SettledRecord]) -> deque[SettledRecord]:
        """Take the settled records of these partitions. Return the others, in their order."""
        others = deque[SettledRecord]()
        for entry in pending:
            refused = self._refused.get(entry.record.source)
            (others if refused is None else refused.entries).append(entry)
        return others

    def take(self, source: Partition, most: int) -> tuple[SettledRecord, ...]:
        """Remove the first settled records of a partition, `most` at most, and return them for its next try."""
        entries = self._refused[source].entries
        return tuple(entries.popleft() for _ in range(min(most, len(entries))))

    def due(self, steady_ms: int) -> Partition | None:
        """Return the partition that has waited longest for its next try; None if none is due."""
        source = min(self._refused, key=lambda source: self._refused[source].at_ms, default=None)
        return source if source is not None and self._refused[source].at_ms <= steady_ms else None

    def next_at(self) -> int:
        """Return the steady time (ms) of the next try."""
        return min((refused.at_ms for refused in self._refused.values()), default=NEVER)

    def accepted(self, source: Partition) -> Iterable[SettledRecord]:
        """Note that Kafka has the progress of a partition. Return its settled records that wait, and may go."""
        refused = self._refused.pop(source, None)
        return () if refused is None else refused.entries

    def drop(self, partitions: Collection[Partition]) -> None:
        """Forget partitions that are gone."""
        for source in partitions:
            self._refused.pop(source, None)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for source, refused in self._refused.items():
            ensure(
                FIRST_TRY_MS <= refused.backoff_ms <= LAST_TRY_MS,
                f"{source} waits {refused.backoff_ms} ms for its next try",
            )
            ensure({entry.record.source for entry in refused.entries} <= {source}, f"{source} has no other's entries")
