"""Settled records on their way into Kafka: grouped into batches, one batch out at a time, the refused ones kept."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from sidecar.core.commit_batch import CommitBatch, PartitionCommit, Refusal, SettledRecord
from sidecar.core.lane.partition import PartitionState
from sidecar.core.record import NEVER, Now, Partition

GROUP_FOR = 20
"""ms between the end of one transaction and the start of the next under load: below ~100 records a transaction costs
8–12 ms whatever is in it (measured on Kafka 4.3), so small ones waste the broker's time."""
GROUP_MAX = 2_000
"""So many waiting records start a transaction at once: 65 k records/s at 30 ms each."""
GROUP_MOST = 4_000
"""Records a transaction at most. What came in the meantime goes along: its fixed cost is then spread over more."""
PROGRESS_EVERY = 1_000
"""ms between commits of mere progress: after a crash at most this much is delivered a second time."""
MOST_HELD = 64
"""Refused entries of one partition. They stay in memory; with more of them nothing of the partition is delivered, or
its failures would take the room of all others."""
FIRST_RETRY, LAST_RETRY = 500, 5_000
"""ms between tries of a refused entry: soon after an operator has mended the topic it goes through."""


@dataclass(slots=True)
class Held:
    """A refused entry: when it is tried again (steady ms), and after how long the time after that."""

    refusal: Refusal
    at: int
    backoff: int = FIRST_RETRY


class Outbox:
    """Decides what the next transaction holds and when it starts."""

    def __init__(self) -> None:
        self.out: CommitBatch | None = None
        self.held: dict[tuple[Partition, int], Held] = {}
        self._pending: deque[SettledRecord] = deque()
        self._ended = -GROUP_FOR
        self._progress_at = -PROGRESS_EVERY
        self._was_alone = False
        self._most = GROUP_MOST
        self._not_before: dict[str, int] = {}
        """By topic or partition that takes nothing: when an entry is tried there again (steady ms)."""

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, entry: SettledRecord) -> None:
        """A record is settled; its entry goes with the next batch."""
        self._pending.append(entry)

    def extend(self, entries: Iterable[SettledRecord]) -> None:
        """Many records are settled."""
        self._pending.extend(entries)

    def next_at(self, moved: bool) -> int:
        """The steady time at which the next batch may start; `NEVER` while one is out or nothing is to be done.

        `moved`: some progress is not committed yet.
        """
        if self.out is not None:
            return NEVER
        at = self._progress_at + PROGRESS_EVERY if moved else NEVER
        if self._pending:
            at = min(at, self._ended if len(self._pending) >= GROUP_MAX else self._ended + GROUP_FOR)
        if self.held:
            at = min(at, min(map(self._due, self.held.values())))
        return at

    def take(self, parts: Mapping[Partition, PartitionState], now: Now) -> CommitBatch | None:
        """The next batch, now out; None when there is nothing to commit."""
        entries, alone = self._entries(parts, now)
        offsets: dict[Partition, set[int]] = {}
        source, extra = None, set[int]()
        for entry in entries:
            record = entry.record
            if record.source is not source:  # records of one partition come in rows, and share its name
                source, extra = record.source, offsets.setdefault(record.source, set())
            extra.add(record.offset)
        shares = {source: _share(parts[source], extra) for source, extra in offsets.items()}
        if not alone:  # a lone entry is likely to be refused, and all that goes with it
            shares |= self._progress(parts, shares, now)
        if shares:
            self.out = CommitBatch(entries, shares, alone)
        return self.out

    def ended(self, now: Now, *, committed: bool = False) -> None:
        """The batch that was out has its result."""
        self.out = None
        self._ended = now.steady
        if committed:
            self._most = min(self._most * 2, GROUP_MOST)

    def again(self, entries: Iterable[SettledRecord]) -> None:
        """Entries of a failed batch go first into the next one, in their order; one that is held stays held only."""
        back = [entry for entry in entries if _key(entry) not in self.held]
        self._pending.extendleft(reversed(back))

    def refuse(self, refusal: Refusal, now: Now) -> bool:
        """Keep a refused entry and try it again later, alone. True when its topic works again nevertheless."""
        key = _key(refusal.entry)
        before = self.held.get(key)
        backoff = FIRST_RETRY if before is None else min(before.backoff * 2, LAST_RETRY)
        self.held[key] = Held(refusal, now.steady + backoff, backoff)
        if refusal.where:
            self._not_before[refusal.where] = now.steady + backoff
        return before is not None and before.refusal.about == "topic" and refusal.about == "record"

    def crowded(self) -> list[Partition]:
        """Partitions of which so many entries are refused that no more of their records should be delivered."""
        return [source for source, count in self.held_by_partition().items() if count > MOST_HELD]

    def forget(self, entry: SettledRecord) -> None:
        """Keep a refused entry no longer: its partition is being given up, and its next owner delivers it again."""
        self.held.pop(_key(entry), None)

    def accepted(self, entry: SettledRecord) -> bool:
        """An entry is in Kafka. True when it had been refused because of where it goes, which seems to work again.

        All others that were refused for the same place go with the next batch; one that still cannot is refused anew.
        """
        held = self.held.pop(_key(entry), None)
        if held is None:
            return False
        if held.refusal.about == "record":
            return not any(key[0] == entry.record.source for key in self.held)
        where = held.refusal.where
        self._not_before.pop(where, None)
        again = [
            key for key, held in self.held.items() if held.refusal.about != "record" and held.refusal.where == where
        ]
        self._pending.extend(self.held.pop(key).refusal.entry for key in again)
        return True

    def apart(self, batch: CommitBatch) -> None:
        """Kafka refuses a batch and names no entry: the next ones hold half as many, until one of them is in Kafka."""
        self._most = max(1, len(batch.entries) // 2)

    def drop(self, partitions: Collection[Partition]) -> None:
        """Forget every entry of partitions that are gone; their next owner delivers it again."""
        self._pending = deque(entry for entry in self._pending if entry.record.source not in partitions)
        self.held = {key: held for key, held in self.held.items() if key[0] not in partitions}

    def drop_held(self, partitions: Collection[Partition]) -> list[Partition]:
        """Forget the refused entries of partitions that are being given up; the partition of each.

        Not one that is being tried just now: whether it is in Kafka is not known yet.
        """
        trying = () if self.out is None else {_key(entry) for entry in self.out.entries}
        gone = [key for key in self.held if key[0] in partitions and key not in trying]
        for key in gone:
            del self.held[key]
        return [key[0] for key in gone]

    def held_by_partition(self) -> Counter[Partition]:
        """How many entries Kafka refuses, by the partition of their record."""
        return Counter(source for source, _ in self.held)

    def _entries(self, parts: Mapping[Partition, PartitionState], now: Now) -> tuple[tuple[SettledRecord, ...], bool]:
        late = [held for held in self.held.values() if self._due(held) <= now.steady]
        rest = self._pending or self._progress_wanted(parts, now)
        self._was_alone = bool(late) and not (rest and self._was_alone)
        if self._was_alone:  # by turns with the rest, so that neither waits for the other for ever
            return (min(late, key=lambda held: held.at).refusal.entry,), True
        size = min(len(self._pending), self._most)
        return tuple(self._pending.popleft() for _ in range(size)), False

    def _due(self, held: Held) -> int:
        return max(held.at, self._not_before.get(held.refusal.where, held.at))

    def _progress_wanted(self, parts: Mapping[Partition, PartitionState], now: Now) -> bool:
        everything = now.steady - self._progress_at >= PROGRESS_EVERY
        return any(part.dirty and (everything or _hurries(part)) for part in parts.values())

    def _progress(
        self, parts: Mapping[Partition, PartitionState], taken: Collection[Partition], now: Now
    ) -> dict[Partition, PartitionCommit]:
        """Shares of partitions that only have progress to commit: all once a second, a closing one once it is idle."""
        everything = now.steady - self._progress_at >= PROGRESS_EVERY
        if everything:
            self._progress_at = now.steady
        return {
            source: _share(part, ())
            for source, part in parts.items()
            if part.dirty and source not in taken and (everything or _hurries(part))
        }


def _key(entry: SettledRecord) -> tuple[Partition, int]:
    return entry.record.source, entry.record.offset


def _hurries(part: PartitionState) -> bool:
    return part.urgent or (part.closing and part.idle)


def _share(part: PartitionState, extra: Collection[int]) -> PartitionCommit:
    part.dirty = part.urgent = False
    # Clean from the beginning of the end: at the lock's time out deliveries are still out, and yet nobody has died.
    progress = part.tracker.snapshot(extra, clean=part.closing)
    if part.width is not None or part.last_at is not None:
        progress = replace(progress, width=part.width, last_at=part.last_at)
    return PartitionCommit(part.epoch, progress if part.suspicion is None else part.suspicion.stamp(progress))
