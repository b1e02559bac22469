"""Settled records on their way into Kafka: in batches, one batch in flight at a time, the refused ones held."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from sidecar.core.commit_batch import CommitBatch, PartitionCommit, Refusal, SettledRecord
from sidecar.core.lane.partition import PartitionState
from sidecar.core.lane.refused_progress import RefusedProgress
from sidecar.core.record import NEVER, Now, Partition

GROUP_FOR = 20
"""ms between the end of one transaction and the start of the next under load. Below ~100 records a transaction costs
8–12 ms whatever is in it (measured on Kafka 4.3). Small ones waste the time of the broker."""
GROUP_MAX = 2_000
"""Waiting records that start a transaction at once: 65 k records/s at 30 ms each."""
GROUP_MOST = 4_000
"""Records in a transaction at most. Records that came during the last transaction go along: more of them then share its
fixed cost."""
PROGRESS_EVERY = 1_000
"""ms between commits of progress alone: after a crash at most this much is delivered a second time."""
MOST_HELD = 64
"""Refused entries of one partition. With more of them nothing of the partition is delivered: each is tried again alone.
`memory.py` bounds their bytes."""
FIRST_RETRY, LAST_RETRY = 500, 5_000
"""ms between attempts to write a refused entry, at first and at most. It is short, so that the entry is written soon
after an operator has repaired the topic."""


@dataclass(slots=True)
class Held:
    """A refused entry.

    `at`: the steady time (ms) of its next attempt. `backoff`: ms of this wait; the next one is twice as long.
    """

    refusal: Refusal
    at: int
    backoff: int = FIRST_RETRY


class Outbox:
    """Hold settled records, and decide what the next transaction holds and when it starts."""

    def __init__(self) -> None:
        self.out: CommitBatch | None = None
        self.held: dict[tuple[Partition, int], Held] = {}
        self.unwritable = RefusedProgress()
        self._pending: deque[SettledRecord] = deque()
        self._ended = -GROUP_FOR
        self._progress_at = -PROGRESS_EVERY
        self._was_alone = False
        self._most = self._most_partitions = GROUP_MOST
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

    def next_at(self, moved: bool) -> int:
        """Return the steady time at which the next batch may start.

        `NEVER` while one is in flight, or if nothing is to be done. `moved`: some progress is not committed yet.
        """
        if self.out is not None:
            return NEVER
        at = self._progress_at + PROGRESS_EVERY if moved else NEVER
        if self._pending:
            at = min(at, self._ended if len(self._pending) >= GROUP_MAX else self._ended + GROUP_FOR)
        if self.held:
            at = min(at, min(map(self._due, self.held.values())))
        return min(at, self.unwritable.next_at()) if self.unwritable else at

    def take(self, parts: Mapping[Partition, PartitionState], now: Now) -> CommitBatch | None:
        """Return the next batch, which is in flight from now on; None if there is nothing to commit."""
        if self.unwritable:
            self.sort_out()
        entries, alone, tried = self._entries(parts, now)
        offsets: dict[Partition, set[int]] = {}
        source, extra = None, set[int]()
        for entry in entries:
            record = entry.record
            if record.source is not source:  # records of one partition follow each other, and share the object
                source, extra = record.source, offsets.setdefault(record.source, set())
            extra.add(record.offset)
        shares = {source: _share(parts[source], extra) for source, extra in offsets.items()}
        if tried is not None and tried not in shares:
            shares[tried] = _share(parts[tried], ())
        if not alone:  # a retried entry is likely to be refused, and so would be all that goes with it
            shares |= self._progress(parts, shares, now)
        if shares:
            self.out = CommitBatch(entries, shares, alone)
        return self.out

    def ended(self, now: Now, *, committed: bool = False) -> None:
        """End the batch in flight, which has its result; if it was committed, the next ones may be twice as large."""
        self.out = None
        self._ended = now.steady
        if committed:
            self._most = min(self._most * 2, GROUP_MOST)
            self._most_partitions = min(self._most_partitions * 2, GROUP_MOST)

    def again(self, entries: Iterable[SettledRecord]) -> None:
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
        backoff = FIRST_RETRY if before is None else min(before.backoff * 2, LAST_RETRY)
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
        again = [
            key for key, held in self.held.items() if held.refusal.about != "record" and held.refusal.where == where
        ]
        self._pending.extend(self.held.pop(key).refusal.entry for key in again)

    def apart(self, batch: CommitBatch) -> None:
        """Halve the size of the next batches until one is in Kafka.

        Kafka refuses a batch and names no cause, so smaller ones must find it: fewer entries, or without any entry
        fewer partitions.
        """
        if batch.entries:
            self._most = max(1, len(batch.entries) // 2)
        else:
            self._most_partitions = max(1, len(batch.commits) // 2)
            self.progress_now()

    def sort_out(self) -> None:
        """Keep the entries of partitions apart whose progress Kafka refuses."""
        self._pending = self.unwritable.sort_out(self._pending)

    def progress_now(self) -> None:
        """Let all progress go with the next batch: Kafka has refused a batch for the progress of some partitions."""
        self._progress_at = -NEVER

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop every entry of partitions that are gone; the next owner delivers the records again."""
        self.unwritable.drop(partitions)
        self._pending = deque(entry for entry in self._pending if entry.record.source not in partitions)
        self.held = {key: held for key, held in self.held.items() if key[0] not in partitions}

    def drop_held(self, partitions: Collection[Partition]) -> list[Partition]:
        """Drop the refused entries of partitions that are being given up; return the partition of each.

        An entry that is being retried just now stays: whether it is in Kafka is not known yet.
        """
        trying = () if self.out is None else {_key(entry) for entry in self.out.entries}
        gone = [key for key in self.held if key[0] in partitions and key not in trying]
        for key in gone:
            del self.held[key]
        return [key[0] for key in gone]

    def held_by_partition(self) -> Counter[Partition]:
        """Return how many entries Kafka refuses, by the partition of their record."""
        return Counter(source for source, _ in self.held)

    def _entries(
        self, parts: Mapping[Partition, PartitionState], now: Now
    ) -> tuple[tuple[SettledRecord, ...], bool, Partition | None]:
        """Return the entries of the next batch, whether they go alone, and the partition whose progress is tried."""
        late = [held for held in self.held.values() if self._due(held) <= now.steady]
        tried = self.unwritable.due(now.steady) if self.unwritable else None
        rest = self._pending or self._progress_wanted(parts, now)
        self._was_alone = (bool(late) or tried is not None) and not (rest and self._was_alone)
        if self._was_alone and tried is not None:  # in turn with the rest, so that neither waits for the other for ever
            return self.unwritable.take(tried, self._most), True, tried
        if self._was_alone:
            return (min(late, key=lambda held: held.at).refusal.entry,), True, None
        size = min(len(self._pending), self._most)
        return tuple(self._pending.popleft() for _ in range(size)), False, None

    def _due(self, held: Held) -> int:
        return max(held.at, self._not_before.get(held.refusal.where, held.at))

    def _progress_wanted(self, parts: Mapping[Partition, PartitionState], now: Now) -> bool:
        everything = now.steady - self._progress_at >= PROGRESS_EVERY
        return any(
            part.dirty and (everything or _hurries(part)) and part.source not in self.unwritable
            for part in parts.values()
        )

    def _progress(
        self, parts: Mapping[Partition, PartitionState], taken: Collection[Partition], now: Now
    ) -> dict[Partition, PartitionCommit]:
        """Return the commits of partitions with progress alone.

        All of them are due once a second; an urgent partition, or a closing one that is idle, at once.
        """
        everything = now.steady - self._progress_at >= PROGRESS_EVERY
        wanted = [
            part
            for source, part in parts.items()
            if part.dirty and source not in taken and (everything or _hurries(part)) and source not in self.unwritable
        ]
        if everything and len(wanted) <= self._most_partitions:
            self._progress_at = now.steady
        return {part.source: _share(part, ()) for part in wanted[: self._most_partitions]}


def _key(entry: SettledRecord) -> tuple[Partition, int]:
    return entry.record.source, entry.record.offset


def _hurries(part: PartitionState) -> bool:
    return part.urgent or (part.closing and part.idle)


def _share(part: PartitionState, extra: Collection[int]) -> PartitionCommit:
    part.dirty = part.urgent = False
    # Clean as soon as the release begins: at `lock_timeout` deliveries are still in flight, but no owner has crashed.
    progress = part.tracker.snapshot(extra, clean=part.closing)
    if part.width is not None or part.last_at is not None:
        progress = replace(progress, width=part.width, last_at=part.last_at)
    return PartitionCommit(part.epoch, progress if part.suspicion is None else part.suspicion.stamp(progress))
