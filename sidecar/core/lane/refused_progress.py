"""Keep the partitions apart whose progress Kafka refuses, so that the progress of all others goes on.

A right that is missing, or metadata that a broker does not take, refuses the whole transaction for one partition. So
such a partition goes into no batch of others. It is tried alone, every 0.5 to 5 s, with the records of its own that are
settled meanwhile.

Progress that is too long for the brokers waits here too, and blocks no delivery: it becomes shorter when records end.
It is tried with all of its settled records, then with half of them each time, then with none, and again with all. The
lowest offsets go first: once the first open record is among them, the progress passes these, and names fewer.
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
CLOSING_TRY_MS = 100
"""The same where the progress is too long and the partition is being given up."""


@dataclass(slots=True)
class RefusedPartition:
    """A partition whose progress Kafka refuses.

    `reason`: a text for people. `at_ms`: the steady time of its next try, `backoff_ms` after the last one. `entries`
    go with that try; `fits`: so many of them at most, since the progress with more is too long (None: not for that).
    `hurried`: the partition is being given up.
    """

    reason: str = ""
    at_ms: int = 0
    backoff_ms: int = FIRST_TRY_MS // 2
    fits: int | None = None
    hurried: bool = False
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
        """Return why the progress of a partition is refused; empty if it is not, or if deliveries go on."""
        refused = self._refused.get(source)
        return f"its progress is refused: {refused.reason}" if refused is not None and refused.fits is None else ""

    def sizes(self) -> dict[Partition, int]:
        """Return the bytes of the settled records that wait with each partition."""
        return {source: sum(e.record.weight for e in refused.entries) for source, refused in self._refused.items()}

    def entries(self) -> Iterator[SettledRecord]:
        """Return the settled records of these partitions."""
        return (entry for refused in self._refused.values() for entry in refused.entries)

    def refuse(
        self, source: Partition, reason: str, steady_ms: int, tried: int | None = None, *, hurried: bool = False
    ) -> None:
        """Keep a partition apart, and try it later: after twice as long as the last time.

        `tried`: with so many settled records its progress was too long. Half as many go next, and after none of them
        all, as the first open record may be among these. None: the progress is refused. `hurried`: it is being given
        up.
        """
        refused = self._refused.setdefault(source, RefusedPartition())
        # Halves, since only Kafka knows what it takes: `offset.metadata.max.bytes` is a setting of each broker.
        refused.reason, refused.fits = reason, None if tried is None else tried // 2 if tried else NEVER
        refused.backoff_ms, refused.hurried = min(2 * refused.backoff_ms, LAST_TRY_MS), refused.hurried or hurried
        refused.at_ms = steady_ms + (CLOSING_TRY_MS if refused.hurried else refused.backoff_ms)

    def hurry(self, partitions: Iterable[Partition]) -> None:
        """Try partitions at once that are being given up, and soon again."""
        for source in partitions:
            if (refused := self._refused.get(source)) is not None:
                # Contract 9.1: a rebalance waits for it, for `lock_timeout` at most.
                refused.at_ms, refused.hurried = 0, True

    def sort_out(self, pending: Iterable[SettledRecord]) -> deque[SettledRecord]:
        """Take the settled records of these partitions. Return the others, in their order."""
        others = deque[SettledRecord]()
        for entry in pending:
            refused = self._refused.get(entry.record.source)
            (others if refused is None else refused.entries).append(entry)
        return others

    def take(self, source: Partition, most: int) -> tuple[SettledRecord, ...]:
        """Remove the lowest settled records of a partition, `most` at most, and return them for its next try."""
        refused = self._refused[source]
        if refused.fits is not None:
            # Contract 7.2: the lowest offsets first, since only what ends there makes the progress shorter.
            refused.entries = deque(sorted(refused.entries, key=_offset))
        fits = min(most, len(refused.entries), NEVER if refused.fits is None else refused.fits)
        return tuple(refused.entries.popleft() for _ in range(fits))

    def due(self, steady_ms: int) -> Partition | None:
        """Return the partition that has waited longest for its next try; None if none is due."""
        source = min(self._refused, key=lambda source: self._refused[source].at_ms, default=None)
        return source if source is not None and self._refused[source].at_ms <= steady_ms else None

    def next_at(self) -> int:
        """Return the steady time (ms) of the next try."""
        return min((refused.at_ms for refused in self._refused.values()), default=NEVER)

    def accepted(self, source: Partition, steady_ms: int) -> Iterable[SettledRecord]:
        """Note that Kafka has the progress of a partition. Return its settled records that wait, and may go.

        Where more of them made the progress too long, twice as many are tried next, and all after none.
        """
        refused = self._refused.get(source)
        if refused is None:
            return ()
        if refused.fits is None or not refused.entries:
            return self._refused.pop(source).entries
        if refused.fits:
            refused.backoff_ms = FIRST_TRY_MS
        refused.fits = min(2 * refused.fits, NEVER) or NEVER
        refused.at_ms = steady_ms + (CLOSING_TRY_MS if refused.hurried else refused.backoff_ms)
        return ()

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


def _offset(entry: SettledRecord) -> int:
    return entry.record.offset
