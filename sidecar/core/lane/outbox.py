"""Settled records on their way into Kafka: those that wait for a batch, and those that Kafka refuses."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sidecar.core.commit_batch import CommitBatch, Refusal, SettledRecord
from sidecar.core.invariant import ensure
from sidecar.core.lane.refused_progress import RefusedProgress
from sidecar.core.record import NEVER, Now, Partition

GROUP_FOR_MS = 20
"""ms between the end of one transaction and the start of the next under load. Below ~100 records a transaction costs
8–12 ms whatever is in it (measured on Kafka 4.3). Small ones waste the time of the broker."""
GROUP_MAX = 2_000
"""Waiting records that start a transaction at once: 65 k records/s at 30 ms each."""
MOST_HELD = 64
"""Refused entries of one partition. With more of them nothing of the partition is delivered: each is tried again alone.
`memory.py` bounds their bytes."""
FIRST_RETRY_MS, LAST_RETRY_MS = 500, 5_000
"""ms between attempts to write a refused entry, at first and at most. It is short, so that the entry is written soon
after an operator has repaired the topic."""


@dataclass(slots=True)
class Held:
    """A refused entry.

    `at`: the steady time (ms) of its next attempt. `backoff`: ms of this wait; the next one is twice as long.
    """

    refusal: Refusal
    at: int
    backoff: int = FIRST_RETRY_MS


class Outbox:
    """The settled records of one lane. `commits.py` decides what a transaction takes of them, and when.

    Invariants: a refused entry stands under its own record; its wait is at most `LAST_RETRY_MS`.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[Partition, int], Held] = {}
        self.unwritable = RefusedProgress()
        self._pending: deque[SettledRecord] = deque()
        self._not_before: dict[str, int] = {}
        """The steady time (ms) of the next attempt, by the topic or partition that accepts nothing."""

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
        at = NEVER
        if self._pending:
            at = ended if len(self._pending) >= GROUP_MAX else ended + GROUP_FOR_MS
        if self.held:
            at = min(at, min(map(self._due, self.held.values())))
        return min(at, self.unwritable.next_at()) if self.unwritable else at

    def pop(self, most: int) -> tuple[SettledRecord, ...]:
        """Remove the first settled records, `most` of them at most, and return them."""
        return tuple(self._pending.popleft() for _ in range(min(len(self._pending), most)))

    def late(self, steady: int) -> SettledRecord | None:
        """Return the refused entry that has waited longest for its next attempt; None if none is due."""
        late = [held for held in self.held.values() if self._due(held) <= steady]
        return min(late, key=lambda held: held.at).refusal.entry if late else None

    def put_back(self, entries: Iterable[SettledRecord]) -> None:
        """Put the entries of a failed batch first into the next one, in their order.

        An entry that is held stays only held.
        """
        back = [entry for entry in entries if _key(entry) not in self.held]
        self._pending.extendleft(reversed(back))

    def refuse(self, refusal: Refusal, now: Now) -> None:
        """Hold a refused entry and retry it later, alone.

        If its topic refused everything before, and now only this record or one partition, all entries that were refused
        for that topic go with the next batch.
        """
        key = _key(refusal.entry)
        before = self.held.pop(key, None)
        if before is not None and before.refusal.about == "topic" != refusal.about:
            self._try_all(before.refusal.where)
        backoff = FIRST_RETRY_MS if before is None else min(before.backoff * 2, LAST_RETRY_MS)
        self.held[key] = Held(refusal, now.steady + backoff, backoff)
        if refusal.where:
            self._not_before[refusal.where] = now.steady + backoff

    def forget(self, entry: SettledRecord) -> None:
        """Drop a refused entry: its partition is being given up, and the next owner delivers the record again."""
        self.held.pop(_key(entry), None)

    def accepted(self, entry: SettledRecord) -> None:
        """Note that an entry is in Kafka. If it was held, its target seems to accept records again.

        All other entries that were refused for the same target then go with the next batch.
        """
        held = self.held.pop(_key(entry), None)
        if held is not None and held.refusal.about != "record":
            self._try_all(held.refusal.where)

    def _try_all(self, where: str) -> None:
        """Put all entries that were refused for one target into the next batch; one still refused is held again."""
        self._not_before.pop(where, None)
        retried = [
            key for key, held in self.held.items() if held.refusal.about != "record" and held.refusal.where == where
        ]
        self._pending.extend(self.held.pop(key).refusal.entry for key in retried)

    def entries(self, in_flight: CommitBatch | None) -> list[SettledRecord]:
        """Return all settled records but those of the batch in flight, in which a refused entry may be tried again."""
        tried = set() if in_flight is None else {_key(entry) for entry in in_flight.entries}
        held = (held.refusal.entry for key, held in self.held.items() if key not in tried)
        return [*self._pending, *held, *self.unwritable.entries()]

    def sort_out(self) -> None:
        """Keep the entries of partitions apart whose progress Kafka refuses."""
        self._pending = self.unwritable.sort_out(self._pending)

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop every entry of partitions that are gone; the next owner delivers the records again."""
        self.unwritable.drop(partitions)
        self._pending = deque(entry for entry in self._pending if entry.record.source not in partitions)
        self.held = {key: held for key, held in self.held.items() if key[0] not in partitions}

    def drop_held(self, partitions: Collection[Partition], in_flight: CommitBatch | None) -> list[Partition]:
        """Drop the refused entries of partitions that are being given up; return the partition of each.

        An entry that is being retried just now, in the batch in flight, stays: whether it is in Kafka is not known yet.
        """
        trying = () if in_flight is None else {_key(entry) for entry in in_flight.entries}
        gone = [key for key in self.held if key[0] in partitions and key not in trying]
        for key in gone:
            del self.held[key]
        return [key[0] for key in gone]

    def held_by_partition(self) -> Counter[Partition]:
        """Return how many entries Kafka refuses, by the partition of their record."""
        return Counter(source for source, _ in self.held)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for key, held in self.held.items():
            ensure(_key(held.refusal.entry) == key, f"the refused entry of {key} is of its record")
            ensure(FIRST_RETRY_MS <= held.backoff <= LAST_RETRY_MS, f"{key} waits {held.backoff} ms for its next try")
        self.unwritable.check()

    def _due(self, held: Held) -> int:
        return max(held.at, self._not_before.get(held.refusal.where, held.at))


def _key(entry: SettledRecord) -> tuple[Partition, int]:
    return entry.record.source, entry.record.offset
