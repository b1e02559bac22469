"""Settled records on their way into Kafka, and when the next transaction of a lane starts, and what it holds.

`Outbox` has the records that are SETTLED: those that wait for a transaction, those whose copies Kafka refuses, and
those of partitions whose progress Kafka refuses. `Commits` takes of them what the next transaction holds, with the
progress of their partitions, and of others whose progress has moved. At most one transaction is in flight, so under
load each takes what has come during the last one.

Each partition has one time, `CommitState.by_ms`: NEVER while its progress is in Kafka, within the second if that
moved (`soon`), and at once if something waits for the commit (`at_once`).

A refused copy is tried again alone, every 0.5 to 5 s (contract 7.6). A missing topic refuses all copies for it, so one
of these is tried on behalf of all. A right that is missing, or metadata that a broker does not take, refuses the whole
transaction for one partition: such a partition goes into no batch of others, and is tried alone with its own records.
`results.py` says what follows from the result of a transaction. Event loop alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.commit_batch import CommitBatch, PartitionCommit, Refusal, SettledRecord
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.partition import PartitionState
from reconsume.sidecar.core.record import NEVER, Now, Partition, RecordId
from reconsume.topics.transition_records import Copy

BATCH_FOR_MS = 20
"""ms between the end of one transaction and the start of the next under load. Below ~100 records a transaction costs
8–12 ms whatever is in it (measured on Kafka 4.3). Small ones waste the time of the broker."""
BATCH_MAX = 2_000
"""Waiting records that start a transaction at once: 65 k records/s at 30 ms each."""
BATCH_MOST = 4_000
"""Records in a transaction at most. Records that came during the last transaction go along: more of them then share its
fixed cost."""
PROGRESS_EVERY_MS = 1_000
"""ms between commits of progress alone: after a crash at most this much is delivered a second time."""
MOST_REFUSED = 64
"""Refused entries of one partition. With more of them nothing of the partition is delivered: each is tried again alone.
`room.py` bounds their bytes."""
FIRST_TRY_MS, LAST_TRY_MS = 500, 5_000
"""ms between two tries of what Kafka refuses, at first and at most: it goes on soon after an operator has repaired the
cause."""
COMMIT = "commit"
"""The name of the next transaction in the agenda."""


@dataclass(slots=True)
class Backoff:
    """When something is tried next (`at_ms`, steady), which is `wait_ms` after the last try."""

    at_ms: int
    wait_ms: int = FIRST_TRY_MS

    def wait_longer(self, now: Now) -> None:
        """Try after twice as long as the last time."""
        self.wait_ms = min(self.wait_ms * 2, LAST_TRY_MS)
        self.at_ms = now.steady_ms + self.wait_ms

    def check(self, what: object) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(FIRST_TRY_MS <= self.wait_ms <= LAST_TRY_MS, f"{what} waits {self.wait_ms} ms for its next try")


@dataclass(slots=True)
class RefusedEntry:
    """A settled record whose writes Kafka refuses."""

    refusal: Refusal
    backoff: Backoff


@dataclass(slots=True)
class RefusedPartition:
    """A partition whose progress Kafka refuses, for a `reason` that people read. `entries` go with its next try."""

    reason: str
    backoff: Backoff
    entries: deque[SettledRecord] = field(default_factory=deque)


class Outbox:
    """The settled records of one lane.

    Invariants: a refused entry stands under its own record; the entries of a partition are of its own records.
    """

    def __init__(self) -> None:
        self.pending: deque[SettledRecord] = deque()
        """Those that wait for a transaction, in their order."""
        self.refused: dict[RecordId, RefusedEntry] = {}
        self.unwritable: dict[Partition, RefusedPartition] = {}
        self._not_before_ms: dict[str, int] = {}
        """The steady time (ms) of the next try, by the topic or partition that accepts nothing."""

    def next_at(self, ended_ms: int) -> int:
        """Return the steady time (ms) at which a batch with settled records may start; NEVER if there are none.

        `ended_ms`: when the last batch ended.
        """
        at_ms = NEVER
        if self.pending:
            # A transaction costs the broker as much for one record as for many, so few records wait for more.
            at_ms = ended_ms if len(self.pending) >= BATCH_MAX else ended_ms + BATCH_FOR_MS
        if self.refused:
            at_ms = min(at_ms, *map(self._due_ms, self.refused.values()))
        if self.unwritable:
            at_ms = min(at_ms, *(refused.backoff.at_ms for refused in self.unwritable.values()))
        return at_ms

    def entries(self, in_flight: CommitBatch | None) -> Iterator[SettledRecord]:
        """Yield all settled records but those of the batch in flight, in which a refused entry may be tried again."""
        tried = set() if in_flight is None else {id_of(entry) for entry in in_flight.entries}
        yield from self.pending
        yield from (refused.refusal.entry for key, refused in self.refused.items() if key not in tried)
        for partition in self.unwritable.values():
            yield from partition.entries

    def drop_partitions(self, partitions: Collection[Partition]) -> None:
        """Drop every entry of partitions that are gone; the next owner delivers the records again."""
        for source in partitions:
            self.unwritable.pop(source, None)
        self.pending = deque(entry for entry in self.pending if entry.record.source not in partitions)
        self.refused = {key: refused for key, refused in self.refused.items() if key[0] not in partitions}

    # --- refused copies ---------------------------------------------------------------------------------------------

    def refuse_entry(self, refusal: Refusal, now: Now) -> None:
        """Keep a refused entry, and try it again later, alone.

        If its topic refused everything before, and now only this record or one partition, all entries that were refused
        for that topic go with the next batch.
        """
        key = id_of(refusal.entry)
        before = self.refused.pop(key, None)
        backoff = Backoff(now.steady_ms + FIRST_TRY_MS)
        if before is not None:
            backoff = before.backoff
            backoff.wait_longer(now)
            if before.refusal.about == "topic" != refusal.about:
                self._try_all(before.refusal.where)
        # Contract 7.6: it is tried again every 0.5 to 5 s, until Kafka takes it.
        self.refused[key] = RefusedEntry(refusal, backoff)
        if refusal.where:
            self._not_before_ms[refusal.where] = backoff.at_ms

    def entry_accepted(self, entry: SettledRecord) -> None:
        """Note that an entry is in Kafka. If it was refused before, its target seems to accept records again.

        All other entries that were refused for the same target then go with the next batch.
        """
        refused = self.refused.pop(id_of(entry), None)
        # A record that was too large says nothing about others: each of these keeps its own time.
        if refused is not None and refused.refusal.about != "record":
            self._try_all(refused.refusal.where)

    def forget_entry(self, entry: SettledRecord) -> None:
        """Drop a refused entry."""
        self.refused.pop(id_of(entry), None)

    def forget_refused(self, partitions: Collection[Partition], in_flight: CommitBatch | None) -> list[RecordId]:
        """Drop the refused entries of partitions that are being given up; return what they were.

        An entry that is being retried just now, in the batch in flight, stays: whether it is in Kafka is not known yet.
        """
        trying = () if in_flight is None else {id_of(entry) for entry in in_flight.entries}
        dropped = [key for key in self.refused if key[0] in partitions and key not in trying]
        for key in dropped:
            del self.refused[key]
        return dropped

    def put_back(self, entries: Iterable[SettledRecord]) -> None:
        """Put the entries of a failed batch first into the next one, in their order.

        A refused entry stays where it is.
        """
        # First, because the partitions' progress waits for these.
        self.pending.extendleft(reversed([entry for entry in entries if id_of(entry) not in self.refused]))

    def put_off(self, entries: Iterable[SettledRecord], now: Now) -> None:
        """Try refused entries later: they were tried, and Kafka does not take the progress with them."""
        for entry in entries:
            if (refused := self.refused.get(id_of(entry))) is not None:
                refused.backoff.wait_longer(now)

    def entry_due(self, steady_ms: int) -> SettledRecord | None:
        """Return the refused entry that has waited longest for its next try; None if none is due."""
        late = [refused for refused in self.refused.values() if self._due_ms(refused) <= steady_ms]
        return min(late, key=lambda refused: refused.backoff.at_ms).refusal.entry if late else None

    def _try_all(self, where: str) -> None:
        """Put all entries that were refused for one target into the next batch; Kafka may refuse one again."""
        self._not_before_ms.pop(where, None)
        retried = [
            key
            for key, refused in self.refused.items()
            if refused.refusal.about != "record" and refused.refusal.where == where
        ]
        self.pending.extend(self.refused.pop(key).refusal.entry for key in retried)

    def _due_ms(self, refused: RefusedEntry) -> int:
        # One try of a target at a time: a missing topic would cost the committer a second for each entry.
        at_ms = refused.backoff.at_ms
        return max(at_ms, self._not_before_ms.get(refused.refusal.where, at_ms))

    # --- refused progress -------------------------------------------------------------------------------------------

    def refuse_progress(self, source: Partition, reason: str, now: Now) -> None:
        """Keep a partition apart, and try it later: after twice as long as the last time."""
        if (refused := self.unwritable.get(source)) is None:
            self.unwritable[source] = RefusedPartition(reason, Backoff(now.steady_ms + FIRST_TRY_MS))
        else:
            refused.reason = reason
            refused.backoff.wait_longer(now)

    def sort_out(self) -> None:
        """Keep the entries of partitions apart whose progress Kafka refuses."""
        if self.unwritable:
            others = deque[SettledRecord]()
            for entry in self.pending:
                refused = self.unwritable.get(entry.record.source)
                (others if refused is None else refused.entries).append(entry)
            self.pending = others

    def partition_due(self, steady_ms: int) -> Partition | None:
        """Return the partition that has waited longest for the next try of its progress; None if none is due."""
        unwritable = self.unwritable
        source = min(unwritable, key=lambda source: unwritable[source].backoff.at_ms, default=None)
        return source if source is not None and unwritable[source].backoff.at_ms <= steady_ms else None

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for key, entry in self.refused.items():
            ensure(id_of(entry.refusal.entry) == key, f"the refused entry of {key} is of its record")
            entry.backoff.check(key)
        for source, partition in self.unwritable.items():
            partition.backoff.check(source)
            own = {one.record.source for one in partition.entries} <= {source}
            ensure(own, f"{source} has no other's entries")


TakeNotes: TypeAlias = Callable[[Sequence[SettledRecord], dict[Partition, PartitionCommit]], tuple[Copy, ...]]


class Proof(Enum):
    """Whether the brokers take the longest metadata that progress may need (contract 7.2)."""

    OWED = "owed"
    """It is not known yet, and nothing is delivered: a padded position goes first."""
    REFUSED = "refused"
    """They do not: the process ends."""
    PROVEN = "proven"


class Commits:
    """The transactions of one lane.

    Invariants: `_by_ms` is at most the `by_ms` of every partition whose progress Kafka takes; a batch has the
    progress of each of its entries' partitions.
    """

    def __init__(
        self, partitions: Mapping[Partition, PartitionState], outbox: Outbox, agenda: Agenda, proof: Proof
    ) -> None:
        self.in_flight: CommitBatch | None = None
        self.proof = proof
        self._partitions, self._outbox, self._agenda = partitions, outbox, agenda
        self._by_ms = NEVER
        """The earliest time of all partitions, or an earlier one."""
        self._ended_ms = -BATCH_FOR_MS
        self._progress_at_ms = -PROGRESS_EVERY_MS
        """When all progress was committed last (steady ms)."""
        self._was_alone = False
        """Whether the last batch was one try of something refused: it takes turns with the rest."""
        self._most = self._most_partitions = BATCH_MOST
        self.note: TakeNotes | None = None
        """Returns the notes that go with a batch (`notes.py`); None while nothing is noted of any partition."""

    # --- when -------------------------------------------------------------------------------------------------------

    def soon(self, partition: PartitionState) -> None:
        """Have the progress of a partition committed within the second; at once if its release waits for that alone."""
        # Contract 7.1: successes are committed within a second. 9.1: a release waits for nothing else.
        is_released = partition.closing and partition.in_flight == 0
        self._want(partition, 0 if is_released else self._progress_at_ms + PROGRESS_EVERY_MS)

    def at_once(self, partition: PartitionState) -> None:
        """Have the progress of a partition committed with the next transaction, which starts as soon as it can."""
        self._want(partition, 0)

    def all_at_once(self) -> None:
        """Let all progress go with the next batch: Kafka has refused a batch for the progress of some partitions."""
        self._progress_at_ms = -NEVER
        for partition in self._partitions.values():
            if partition.commit.by_ms != NEVER:
                self._want(partition, 0)

    def entry_added(self) -> None:
        """Note that a record was settled: have the next transaction start in time."""
        count = len(self._outbox.pending)
        if self.in_flight is None and (count == 1 or count == BATCH_MAX):
            self._agenda.set_earlier(COMMIT, self._outbox.next_at(self._ended_ms))

    def next_at(self) -> int:
        """Return the steady time (ms) at which the next batch may start; NEVER while one is in flight, or if nothing is
        to be done."""
        if self.in_flight is not None:
            return NEVER
        if self.proof is Proof.OWED and self._partition_to_prove() is not None:
            return 0
        return min(self._by_ms, self._outbox.next_at(self._ended_ms))

    def _want(self, partition: PartitionState, at_ms: int) -> None:
        if at_ms < partition.commit.by_ms:
            partition.commit.by_ms = at_ms
            if at_ms < self._by_ms:
                self._by_ms = at_ms
                if self.in_flight is None:
                    self._agenda.set_earlier(COMMIT, at_ms)

    def _earliest(self) -> int:
        unwritable = self._outbox.unwritable  # these have times of their own
        times = (partition.commit.by_ms for source, partition in self._partitions.items() if source not in unwritable)
        return min(times, default=NEVER)

    # --- what -------------------------------------------------------------------------------------------------------

    def take_batch(self, now: Now) -> CommitBatch | None:
        """Return the next batch, which is in flight from now on; None if there is nothing to commit."""
        if self.proof is Proof.OWED and (partition := self._partition_to_prove()) is not None:
            # Contract 7.2: alone, and before the first delivery.
            self.in_flight = CommitBatch((), {partition.source: partition.position()}, padded=True)
            return self.in_flight
        self._outbox.sort_out()
        entries, is_alone, tried = self._take_entries(now)
        shares = self._take_commits(entries)
        if tried is not None and tried not in shares:
            shares[tried] = self._partitions[tried].take_commit(())
        if not is_alone:  # a retried entry is likely to be refused, and so would be all that goes with it
            shares |= self._take_progress(shares, now)
        if shares:
            notes = () if self.note is None else self.note(entries, shares)
            self.in_flight = CommitBatch(entries, shares, is_alone, notes=notes)
        self._by_ms = self._earliest()
        return self.in_flight

    def _partition_to_prove(self) -> PartitionState | None:
        """Return the partition whose position shows what the brokers take; None if there is none to be tried now."""
        owned, unwritable = self._partitions.items(), self._outbox.unwritable
        return next((one for source, one in owned if not (one.closing or source in unwritable)), None)

    def _take_entries(self, now: Now) -> tuple[tuple[SettledRecord, ...], bool, Partition | None]:
        """Take the entries of the next batch; return them, whether they go alone, and the partition whose progress is
        tried."""
        outbox = self._outbox
        late, tried = outbox.entry_due(now.steady_ms), outbox.partition_due(now.steady_ms)
        has_rest = bool(outbox.pending or self._wanted((), now))
        # Contract 7.6, 7.7: a refused entry, or the progress of a refused partition, goes alone: it would refuse all
        # others. In turn with the rest, so that neither waits for the other for ever.
        self._was_alone = (late is not None or tried is not None) and not (has_rest and self._was_alone)
        if self._was_alone and tried is not None:
            return self._pop(outbox.unwritable[tried].entries), True, tried
        if self._was_alone and late is not None:
            return (late,), True, None
        return self._pop(outbox.pending), False, None

    def _pop(self, entries: deque[SettledRecord]) -> tuple[SettledRecord, ...]:
        if len(entries) > self._most:
            return tuple(entries.popleft() for _ in range(self._most))
        taken = tuple(entries)
        entries.clear()
        return taken

    def _take_commits(self, entries: Iterable[SettledRecord]) -> dict[Partition, PartitionCommit]:
        # Contract 7.1: a copy and the progress of its partition are in one transaction, or neither is.
        offsets: dict[Partition, set[int]] = {}
        source, extra = None, set[int]()
        for entry in entries:
            record = entry.record
            if record.source is not source:  # records of one partition follow each other, and share the object
                source, extra = record.source, offsets.setdefault(record.source, set())
            extra.add(record.offset)
        return {source: self._partitions[source].take_commit(extra) for source, extra in offsets.items()}

    def _wanted(self, taken: Collection[Partition], now: Now) -> list[PartitionState]:
        unwritable = self._outbox.unwritable
        return [
            partition
            for source, partition in self._partitions.items()
            if partition.commit.by_ms <= now.steady_ms and source not in taken and source not in unwritable
        ]

    def _take_progress(self, taken: Collection[Partition], now: Now) -> dict[Partition, PartitionCommit]:
        """Take the commits of the partitions with progress alone whose time has come, once a second all of them."""
        wanted = self._wanted(taken, now)
        if now.steady_ms - self._progress_at_ms >= PROGRESS_EVERY_MS and len(wanted) <= self._most_partitions:
            self._progress_at_ms = now.steady_ms
        return {partition.source: partition.take_commit(()) for partition in wanted[: self._most_partitions]}

    # --- its end ----------------------------------------------------------------------------------------------------

    def end_batch(self, now: Now, *, committed: bool) -> None:
        """End the batch in flight, which has its result; if it was committed, the next ones may be twice as large."""
        self.in_flight = None
        self._ended_ms = now.steady_ms
        if committed:
            self._most = min(self._most * 2, BATCH_MOST)
            self._most_partitions = min(self._most_partitions * 2, BATCH_MOST)

    def halve(self, batch: CommitBatch) -> None:
        """Halve the size of the next batches until one is in Kafka.

        Kafka refuses a batch and names no cause, so smaller ones must find it: fewer entries, or without any entry
        fewer partitions.
        """
        if batch.entries:
            self._most = max(1, len(batch.entries) // 2)
        else:
            self._most_partitions = max(1, len(batch.commits) // 2)
            self.all_at_once()

    def progress_accepted(self, sources: Iterable[Partition]) -> None:
        """Let the settled records of partitions go whose progress Kafka takes again."""
        for source in sources:
            if (refused := self._outbox.unwritable.pop(source, None)) is not None:
                self._outbox.pending.extend(refused.entries)
        self._by_ms = min(self._by_ms, self._earliest())

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self._by_ms <= self._earliest(), "no commit is later than it is wanted")
        ensure(1 <= self._most <= BATCH_MOST and 1 <= self._most_partitions <= BATCH_MOST, "a batch has room for one")
        if (batch := self.in_flight) is not None:
            ensure(bool(batch.commits), "a batch carries the progress of its entries")
            entries = {entry.record.source for entry in batch.entries}
            ensure(entries <= batch.commits.keys(), "each entry of a batch goes with its partition's progress")


UNANSWERED_MS = 8_000
"""ms after which a transaction that has not ended raises the doubt: the client's session timeout (`client_config.py`).
A member that could end none for so long may be removed."""
DOUBT = "doubt"
"""The name of that moment in the agenda."""


class MembershipDoubt:
    """Whether this instance may have lost its partitions without knowing it: a lane that keeps an order sends nothing
    then.

    A member that its group does not hear from is removed after the session timeout, and others get its partitions.
    Mostly its client notices that by its own clock. It does not while it joins again: it keeps its partitions
    meanwhile, for as long as the coordinator gives no answer (seen for 25 s, after a broker had gone). The transactions
    tell it sooner: Kafka refuses those of a member that is none any more, or does not end them.

    `ordered`: whether the lane keeps an order; else a second delivery does no harm. Invariant: in doubt a transaction
    is in flight, and its result ends the doubt.
    """

    def __init__(self, commits: Commits, dispatcher: Dispatcher, agenda: Agenda, *, ordered: bool) -> None:
        self._commits, self._dispatcher, self._agenda, self._ordered = commits, dispatcher, agenda, ordered
        self._is_raised = False

    def batch_taken(self, now: Now) -> None:
        """Note that a transaction begins, whose end may be awaited for too long."""
        if self._ordered:
            self._agenda.set_time(DOUBT, now.steady_ms + UNANSWERED_MS)

    def raise_doubt(self) -> None:
        """Note that the transaction in flight takes too long, or was refused as one of no member; it is tried again."""
        if self._ordered and not self._is_raised and self._commits.in_flight is not None:
            self._is_raised = True
            self._dispatcher.doubts += 1

    def batch_ended(self) -> None:
        """Note that the transaction in flight has its result: this instance is a member, or has lost what it had."""
        self._agenda.set_time(DOUBT, NEVER)
        if self._is_raised:
            self._is_raised = False
            self._dispatcher.doubts -= 1

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(not self._is_raised or self._commits.in_flight is not None, "a result is to come that ends the doubt")


def id_of(entry: SettledRecord) -> RecordId:
    """Return which record an entry settles."""
    return entry.record.source, entry.record.offset


def refused_by_partition(outbox: Outbox) -> Counter[Partition]:
    """Return how many entries Kafka refuses, by the partition of their record."""
    return Counter(source for source, _ in outbox.refused)
