"""Settled records on their way into Kafka: those that wait for a batch, and those that Kafka refuses."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from reconsume.sidecar.core.commit_batch import CommitBatch, Refusal, SettledRecord
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.refused_progress import RefusedProgress
from reconsume.sidecar.core.record import NEVER, Now, Partition

BATCH_FOR_MS = 20
"""ms between the end of one transaction and the start of the next under load. Below ~100 records a transaction costs
8–12 ms whatever is in it (measured on Kafka 4.3). Small ones waste the time of the broker."""
BATCH_MAX = 2_000
"""Waiting records that start a transaction at once: 65 k records/s at 30 ms each."""
MOST_REFUSED = 64
"""Refused entries of one partition. With more of them nothing of the partition is delivered: each is tried again alone.
`memory.py` bounds their bytes."""
FIRST_TRY_MS, LAST_TRY_MS = 500, 5_000
"""ms between two tries to write a refused entry, at first and at most. It is short, so that the entry is written soon
after an operator has repaired the topic."""


@dataclass(slots=True)
class RefusedEntry:
    """A refused entry.

    `at_ms`: the steady time (ms) of its next try. `backoff_ms`: ms of this wait; the next one is twice as long.
    """

    refusal: Refusal
    at_ms: int
    backoff_ms: int = FIRST_TRY_MS


class Outbox:
    """The settled records of one lane. `commits.py` decides what a transaction takes of them, and when.

    Invariants: a refused entry stands under its own record; its wait is at most `LAST_TRY_MS`.
    """

    def __init__(self) -> None:
        self.refused: dict[tuple[Partition, int], RefusedEntry] = {}
        self.unwritable = RefusedProgress()
        self._pending: deque[SettledRecord] = deque()
        self._not_before_ms: dict[str, int] = {}
        """The steady time (ms) of the next try, by the topic or partition that accepts nothing."""

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, entry: SettledRecord) -> None:
        """Add a settled record to the next batch."""
        self._pending.append(entry)

    def extend(self, entries: Iterable[SettledRecord]) -> None:
        """Add many settled records."""
        self._pending.extend(entries)

    def next_at(self, ended: int) -> int:
        """Return the steady time (ms) at which a batch with settled records may start; `NEVER` if there are none.

        `ended`: when the last batch ended.
        """
        at_ms = NEVER
        if self._pending:
            # A transaction costs the broker as much for one record as for many, so few records wait for more.
            at_ms = ended if len(self._pending) >= BATCH_MAX else ended + BATCH_FOR_MS
        if self.refused:
            at_ms = min(at_ms, min(map(self._due, self.refused.values())))
        return min(at_ms, self.unwritable.next_at()) if self.unwritable else at_ms

    def pop(self, most: int) -> tuple[SettledRecord, ...]:
        """Remove the first settled records, `most` of them at most, and return them."""
        return tuple(self._pending.popleft() for _ in range(min(len(self._pending), most)))

    def due(self, steady_ms: int) -> SettledRecord | None:
        """Return the refused entry that has waited longest for its next try; None if none is due."""
        late = [refused for refused in self.refused.values() if self._due(refused) <= steady_ms]
        return min(late, key=lambda refused: refused.at_ms).refusal.entry if late else None

    def put_back(self, entries: Iterable[SettledRecord]) -> None:
        """Put the entries of a failed batch first into the next one, in their order.

        A refused entry stays where it is.
        """
        back = [entry for entry in entries if _key(entry) not in self.refused]
        # First, because the partitions' progress waits for these.
        self._pending.extendleft(reversed(back))

    def put_off(self, entries: Iterable[SettledRecord], now: Now) -> None:
        """Try refused entries later: they were tried, and Kafka does not take the progress with them."""
        for entry in entries:
            if (refused := self.refused.get(_key(entry))) is not None:
                refused.backoff_ms = min(refused.backoff_ms * 2, LAST_TRY_MS)
                refused.at_ms = now.steady_ms + refused.backoff_ms

    def refuse(self, refusal: Refusal, now: Now) -> None:
        """Keep a refused entry, and try it again later, alone.

        If its topic refused everything before, and now only this record or one partition, all entries that were refused
        for that topic go with the next batch.
        """
        key = _key(refusal.entry)
        before = self.refused.pop(key, None)
        if before is not None and before.refusal.about == "topic" != refusal.about:
            self._try_all(before.refusal.where)
        backoff_ms = FIRST_TRY_MS if before is None else min(before.backoff_ms * 2, LAST_TRY_MS)
        # Contract 7.6: it is tried again every 0.5 to 5 s, until Kafka takes it.
        self.refused[key] = RefusedEntry(refusal, now.steady_ms + backoff_ms, backoff_ms)
        if refusal.where:
            self._not_before_ms[refusal.where] = now.steady_ms + backoff_ms

    def forget(self, entry: SettledRecord) -> None:
        """Drop a refused entry: its partition is being given up, and the next owner delivers the record again."""
        self.refused.pop(_key(entry), None)

    def accepted(self, entry: SettledRecord) -> None:
        """Note that an entry is in Kafka. If it was refused before, its target seems to accept records again.

        All other entries that were refused for the same target then go with the next batch.
        """
        refused = self.refused.pop(_key(entry), None)
        # A record that was too large says nothing about others: each of these keeps its own time.
        if refused is not None and refused.refusal.about != "record":
            self._try_all(refused.refusal.where)

    def _try_all(self, where: str) -> None:
        """Put all entries that were refused for one target into the next batch; Kafka may refuse one again."""
        self._not_before_ms.pop(where, None)
        retried = [
            key
            for key, refused in self.refused.items()
            if refused.refusal.about != "record" and refused.refusal.where == where
        ]
        self._pending.extend(self.refused.pop(key).refusal.entry for key in retried)

    def entries(self, in_flight: CommitBatch | None) -> list[SettledRecord]:
        """Return all settled records but those of the batch in flight, in which a refused entry may be tried again."""
        tried = set() if in_flight is None else {_key(entry) for entry in in_flight.entries}
        refused = (refused.refusal.entry for key, refused in self.refused.items() if key not in tried)
        return [*self._pending, *refused, *self.unwritable.entries()]

    def sort_out(self) -> None:
        """Keep the entries of partitions apart whose progress Kafka refuses."""
        self._pending = self.unwritable.sort_out(self._pending)

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop every entry of partitions that are gone; the next owner delivers the records again."""
        self.unwritable.drop(partitions)
        self._pending = deque(entry for entry in self._pending if entry.record.source not in partitions)
        self.refused = {key: refused for key, refused in self.refused.items() if key[0] not in partitions}

    def drop_refused(self, partitions: Collection[Partition], in_flight: CommitBatch | None) -> list[Partition]:
        """Drop the refused entries of partitions that are being given up; return the partition of each.

        An entry that is being retried just now, in the batch in flight, stays: whether it is in Kafka is not known yet.
        """
        trying = () if in_flight is None else {_key(entry) for entry in in_flight.entries}
        dropped = [key for key in self.refused if key[0] in partitions and key not in trying]
        for key in dropped:
            del self.refused[key]
        return [key[0] for key in dropped]

    def refused_by_partition(self) -> Counter[Partition]:
        """Return how many entries Kafka refuses, by the partition of their record."""
        return Counter(source for source, _ in self.refused)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for key, refused in self.refused.items():
            ensure(_key(refused.refusal.entry) == key, f"the refused entry of {key} is of its record")
            ensure(
                FIRST_TRY_MS <= refused.backoff_ms <= LAST_TRY_MS,
                f"{key} waits {refused.backoff_ms} ms for its next try",
            )
        self.unwritable.check()

    def _due(self, refused: RefusedEntry) -> int:
        # One try of a target at a time: a missing topic would cost the committer a second for each entry.
        return max(refused.at_ms, self._not_before_ms.get(refused.refusal.where, refused.at_ms))


def _key(entry: SettledRecord) -> tuple[Partition, int]:
    return entry.record.source, entry.record.offset
