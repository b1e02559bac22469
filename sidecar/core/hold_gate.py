"""What an operator holds is kept back (contract 10.4): it gets no turn, and others go on.

A record that is held when its turn comes is dropped from memory: it is KEPT, and is fetched again when its hold is
over. Where that cannot be, because its order or its tries in place are known to memory alone, the record itself waits.
A partition of which every record is held is paused instead.

A hold is looked at where a record would leave: when it is sent, and when a relay passes it on. So whatever let a record
go (a level, the queue of its key, the gate after crashes) need not know of holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from reconsume.sidecar.core.fetching import Fetching
from reconsume.sidecar.core.holds import NO_HOLDS, Hold, Holds
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.partition import AWAY, KEPT, Entry, FetchedRecords, PartitionState
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.reasons import NotDelivered, NotFetched
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.sidecar.core.waiting import WaitingRecords

MOST_HELD = 50_000
"""Records of a lane that holds by key, or by topic in a level that all topics share, keep back by their offsets. Each
costs some 100 bytes. Beyond it those partitions are paused that have their part of it."""
LOOK_AGAIN_MS = 10_000
"""ms after which a partition that is paused for `MOST_HELD` is fetched again, and paused again if that is still so."""


class HoldGate:
    """The holds in force, and what they keep back, for one lane. `ordered`: whether the order is known to memory alone.

    Invariant: nothing is kept back for a hold that is not in force.
    """

    def __init__(
        self,
        partitions: Mapping[Partition, PartitionState],
        waiting: WaitingRecords,
        fetching: Fetching,
        policy: Callable[[], Policy],
        *,
        ordered: bool,
    ) -> None:
        self.holds, self.in_force = NO_HOLDS, False
        """Whether anything is held: asked for each record."""
        self._partitions, self._waiting, self._fetching = partitions, waiting, fetching
        self._policy, self._ordered = policy, ordered

    def apply(self, holds: Holds, now: Now) -> None:
        """Obey these holds from now on, and release what only earlier holds have kept back."""
        self.holds, self.in_force = holds, bool(holds)
        for partition in self._partitions.values():
            if not partition.closing:
                self._let_go_on(partition, now)

    def is_held(self, record: Record) -> bool:
        """Return whether a record of this lane is held."""
        partition = self._partitions.get(record.source)
        return partition is not None and self.hold_of(partition, record) is not None

    def hold_of(self, partition: PartitionState, record: Record) -> Hold | None:
        """Return the hold that keeps a record back; None if none does."""
        return self.holds.of(record, partition.kind.level)

    # --- records are kept back --------------------------------------------------------------------------------------

    def pauses(self, partition: PartitionState, run: FetchedRecords, now: Now) -> bool:
        """Pause a partition if nothing of it is delivered now; return whether that is so."""
        if not run.records:
            return False
        covers = self._covers(partition)
        if not (covers or self._holds_too_much(partition)):
            return False
        # What others keep back may be another instance's meanwhile.
        until_ms = NEVER if covers else now.steady_ms + LOOK_AGAIN_MS
        self._fetching.pause(partition, run.records[0].offset, until_ms, NotFetched.HELD)
        return True

    def _covers(self, partition: PartitionState) -> bool:
        """Return whether all that a partition can have is held. A queue is read on: its keys must be known."""
        if partition.kind.under is not None:
            return False
        topic: str | None = partition.source.topic
        if partition.kind.delay_ms is not None:
            policy = self._policy()
            role = policy.names.role(partition.source.topic, policy.topics)
            topic = None if role is None else role.topic
        return self.holds.covers(partition.kind.level, topic)

    def _holds_too_much(self, partition: PartitionState) -> bool:
        own, counts = _count_held(partition), map(_count_held, self._partitions.values())
        return own * len(self._partitions) >= MOST_HELD and sum(counts) >= MOST_HELD

    def keep_back(self, partition: PartitionState, record: Record, decision: str = "") -> None:
        """Keep a record back that is held and whose turn has come.

        `decision`: the id of the decision whose rate keeps it back (`settling.py`); empty: a hold does. A record of a
        queue stays in the queue, for which its lane sees (AWAY).
        """
        by, ident = NotDelivered.DECIDED, decision
        if not decision:
            hold = self.hold_of(partition, record)
            assert hold is not None
            by, ident = NotDelivered.HELD, hold.id
        entry = partition.offsets.entries[record.offset]
        if partition.kind.under is not None and not record.memory_only:
            self._fetching.drop_from_memory(partition, entry)
            self._waiting.shed_record(record)
        # Contract 10.4: its order within its key, or its tries in place, are known in memory alone.
        elif self._ordered or record.memory_only:
            self._waiting.stop_record(partition, record, by, ident)
        else:
            # The offset is enough, as it is fetched again at the hold's end; days of payloads would not fit.
            entry.stopped_by, entry.hold = by, ident
            self._fetching.drop_from_memory(partition, entry)

    # --- and go on --------------------------------------------------------------------------------------------------

    def _let_go_on(self, partition: PartitionState, now: Now) -> None:
        """Let go on what no hold keeps back any more."""
        self._waiting.let_held(partition, lambda record: self.hold_of(partition, record) is None)
        held = (entry for entry in partition.offsets.kept_back() if entry.stopped_by is NotDelivered.HELD)
        free = [entry for entry in held if entry.hold not in self.holds.ids]
        is_paused = partition.paused is not None and partition.paused.because is NotFetched.HELD
        if free or (is_paused and not self._covers(partition)):
            self._fetch_free(partition, free, now)

    def let_undecided(self, partition: PartitionState, decisions: Collection[str], now: Now) -> None:
        """Let go on what was kept back for another decision than these."""

        def is_over(entry: Entry) -> bool:
            return entry.stopped_by is NotDelivered.DECIDED and entry.hold not in decisions

        offsets = partition.offsets
        self._waiting.let_held(partition, lambda record: is_over(offsets.entries[record.offset]))
        if free := [entry for entry in offsets.kept_back() if is_over(entry)]:
            self._fetch_free(partition, free, now)

    def _fetch_free(self, partition: PartitionState, free: Sequence[Entry], now: Now) -> None:
        for entry in free:
            entry.stopped_by, entry.hold = None, ""
            partition.offsets.move(entry, AWAY)  # from now on it is to be read again
        self._fetching.fetch_held(partition, [entry.offset for entry in free], now.steady_ms)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for source, partition in self._partitions.items():
            held = {one.hold for one in partition.offsets.kept_back() if one.stopped_by is NotDelivered.HELD}
            past = held - self.holds.ids
            ensure(partition.closing or not past, f"{source} is held by {past}, which are not in force")


def _count_held(partition: PartitionState) -> int:
    """Return how many records of a partition are kept back by their offsets alone."""
    return partition.offsets.counts[KEPT]
