"""The records of a lane that wait in memory, and the moves between the ways in which they do.

    READY    it has a place in its flow (`pace/topic_turns.py`)
    DELAYED  its time is in the agenda
    BEHIND   an earlier record of its key is not done (`order.py`)
    STOPPED  a gate has stopped it

The flows, the agenda and the key queues are indexes of the partitions' entries: each move changes entry and index
together. What is dropped from memory is AWAY: it is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.fetching import HOLD_WITHIN_MS
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.order import KeyQueues
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.partition import BEHIND, CALLED_OFF, DELAYED, READY, STOPPED, Entry, PartitionState
from reconsume.sidecar.core.reasons import NotDelivered
from reconsume.sidecar.core.record import NEVER, Partition, Record

SHARE = 4
"""One part in this many of a lane's room. While the waiting records take more than that, no record joins them that
would wait longer than `HOLD_WITHIN_MS`: it would keep the lane from everything else."""


class WaitingRecords:
    """The waiting records of one lane. `room_bytes`: what the lane may hold. `keys`: None without an order.

    Invariants: each index has exactly the entries that say so; `_delayed_bytes` is the weight of what is delayed.
    """

    def __init__(
        self,
        partitions: Mapping[Partition, PartitionState],
        agenda: Agenda,
        room_bytes: int,
        keys: KeyQueues | None,
    ) -> None:
        self.ready = ReadyFlows()
        self.keys = keys
        self._partitions, self._agenda = partitions, agenda
        self._most_delayed_bytes, self._delayed_bytes = room_bytes // SHARE, 0

    @property
    def patience_ms(self) -> int:
        """The ms that one more record may wait for its time: what waits long must not keep the lane from the rest."""
        return NEVER if self._delayed_bytes < self._most_delayed_bytes else HOLD_WITHIN_MS

    # --- a record begins to wait, and goes on -----------------------------------------------------------------------

    def release_record(self, partition: PartitionState, entry: Entry) -> None:
        """Let a record go that need not wait for its time: it is ready, unless an earlier one of its key is not
        done."""
        assert entry.record is not None
        if self.keys is None or self.keys.enqueue(entry.record):
            partition.offsets.move(entry, READY)
            self.ready.append(entry.record)
        else:
            partition.offsets.move(entry, BEHIND)

    def release_run(self, partition: PartitionState, records: Sequence[Record]) -> None:
        """Let records of one partition go that have just begun, as READY: without an order this costs next to nothing a
        record."""
        if self.keys is None:
            self.ready.extend(records)
            return
        firsts, offsets = list[Record](), partition.offsets
        for record in records:
            if self.keys.enqueue(record):
                firsts.append(record)
            else:
                offsets.move(offsets.entries[record.offset], BEHIND)
        self.ready.extend(firsts)

    def repeat_record(self, partition: PartitionState, record: Record) -> None:
        """Put a record that came back into its flow, ahead of those of its partition that were read after it."""
        partition.offsets.move(partition.offsets.entries[record.offset], READY)
        if partition.kind.under is None:
            self.ready.put_in_order(record)
        else:  # a queue is read by time
            self.ready.put_first((record,))

    def delay_record(self, partition: PartitionState, entry: Entry, until_ms: int) -> None:
        """Keep a record until the steady time `until_ms`."""
        assert entry.record is not None
        partition.offsets.move(entry, DELAYED)
        entry.until_ms = until_ms
        self._delayed_bytes += entry.record.weight
        self._agenda.set_time(entry, until_ms)

    def end_delay(self, entry: Entry) -> None:
        """Note that the time of a delayed record has come, or is not waited for any more."""
        assert entry.record is not None
        self._delayed_bytes -= entry.record.weight
        self._agenda.set_time(entry, NEVER)

    def stop_record(self, partition: PartitionState, record: Record, by: NotDelivered, hold: str = "") -> None:
        """Keep a record back for a gate. Lower offsets go first, whatever was tried and stopped again.

        `hold`: as of `Entry`; what an operator holds waits for `let_held`, all else for `let_try`.
        """
        entry = partition.offsets.entries[record.offset]
        partition.offsets.move(entry, STOPPED)
        entry.stopped_by, entry.hold = by, hold

    def stopped_by_gates(self, partition: PartitionState, most: int | None = None) -> list[Record]:
        """Return the records of a partition that gates have stopped, by offset, `most` of them: not those that an
        operator holds, and not the one that waits for its mark (`suspects.py`)."""
        marked = None if partition.suspicion is None else partition.suspicion.marked
        stopped = partition.offsets.stopped()
        records = (entry.record for entry in stopped if not entry.hold and entry.record is not None)
        # Not more than are asked for: at a start each record is stopped until a commit, and each looks at the first.
        return list(islice((one for one in records if marked is None or one.offset != marked.offset), most))

    def let_try(self, partition: PartitionState, most: int | None = None, *, first: bool) -> None:
        """Let the records of a partition that gates have stopped try again: `most` of them, or all; before all others
        if `first`."""
        self._let_go_on(partition, self.stopped_by_gates(partition, most), first=first)

    def let_record_try(self, partition: PartitionState, record: Record) -> None:
        """Let one record try again before all others."""
        self._let_go_on(partition, [record], first=True)

    def let_held(self, partition: PartitionState, is_free: Callable[[Record], bool]) -> None:
        """Let records go before all others that an operator has held, if nobody holds them now."""
        held = (entry.record for entry in partition.offsets.stopped() if entry.hold and entry.record is not None)
        self._let_go_on(partition, [record for record in held if is_free(record)], first=True)

    def _let_go_on(self, partition: PartitionState, records: Sequence[Record], *, first: bool) -> None:
        for record in records:
            entry = partition.offsets.entries[record.offset]
            entry.stopped_by, entry.hold = None, ""
            partition.offsets.move(entry, READY)
        (self.ready.put_first if first else self.ready.extend)(records)

    def pick_record(self, partition: PartitionState, entry: Entry) -> int:
        """Take a record out of the way in which it waits, to end it; return the steady time (ms) to which it would have
        waited, 0 if to none."""
        assert entry.record is not None
        if entry.where is DELAYED:
            self.end_delay(entry)
            return entry.until_ms
        if entry.where is READY:
            self.ready.pick(entry.record)
        elif entry.where is STOPPED:
            entry.stopped_by, entry.hold = None, ""
        return 0

    # --- the order of keys ------------------------------------------------------------------------------------------

    def next_of_key(self, record: Record) -> Record | None:
        """Note that a record is done; return the next one of its key, which the caller lets go."""
        return None if self.keys is None else self.keys.finish(record)

    def let_next(self, record: Record) -> None:
        """Let a record go that `next_of_key` has returned."""
        offsets = self._partitions[record.source].offsets
        offsets.move(offsets.entries[record.offset], READY)
        self.ready.append(record)

    def take_line(self, record: Record) -> list[Record]:
        """Take out of their queue what waits of the key of a record: `record`, which `next_of_key` has returned, and
        all behind."""
        # Contract 5.5: what waits behind a failing key goes to its queue with it, in its order.
        return [] if self.keys is None else self.keys.take_line(record)

    def has_line(self, source: Partition, line: bytes) -> bool:
        """Return whether records of a line (`line_of`) wait here, or are out."""
        return self.keys is not None and self.keys.holds(source, line)

    # --- partitions go, or stop -------------------------------------------------------------------------------------

    def drop_partitions(self, partitions: Iterable[PartitionState]) -> None:
        """Forget the waiting records of partitions that are given up: their next owner delivers them."""
        partitions = list(partitions)
        sources = [partition.source for partition in partitions]
        self.ready.drop(sources)
        if self.keys is not None:
            self.keys.drop(sources)
        for partition in partitions:
            for entry in partition.offsets.entries.values():
                if entry.where is DELAYED:
                    self.end_delay(entry)
                if entry.where in (READY, DELAYED, BEHIND, STOPPED):
                    partition.offsets.move(entry, CALLED_OFF)
                    entry.stopped_by, entry.hold = None, ""

    def take_back(self, partition: PartitionState, *, stopped: bool) -> list[Entry]:
        """Take out what can be fetched again; the caller lets it go.

        Those that are retried in place stay, because their count is kept nowhere else. `stopped`: also what gates have
        stopped.
        """
        source, entries = partition.source, partition.offsets.entries
        taken = [entries[record.offset] for record in self.ready.take_back(source)]
        for entry in entries.values():
            if entry.where is DELAYED and entry.record is not None and entry.record.is_fresh_here:
                self.end_delay(entry)
                taken.append(entry)
        going = (record for record in self.stopped_by_gates(partition) if record.is_fresh_here) if stopped else ()
        for record in going:
            entries[record.offset].stopped_by = None  # a gate stops it again when it comes again
            taken.append(entries[record.offset])
        return taken + self._shed(partition, {entry.offset for entry in taken})

    def take_back_ready(self, partition: PartitionState, from_offset: int = 0) -> list[Entry]:
        """Take out what is ready, or behind its key, and can be fetched again; the caller lets it go.

        What is delayed stays: the service may have asked for the wait, and fetched again it would come at once.
        `from_offset`: only from this offset on.
        """
        entries = partition.offsets.entries
        taken = [entries[record.offset] for record in self.ready.take_back(partition.source, from_offset)]
        return taken + self._shed(partition, {entry.offset for entry in taken}, from_offset)

    def _shed(self, partition: PartitionState, firsts: Collection[int], from_offset: int = 0) -> list[Entry]:
        if self.keys is None:
            return []
        shed = self.keys.shed(partition.source, firsts, from_offset)
        return [partition.offsets.entries[record.offset] for record in shed]

    def shed_record(self, record: Record) -> None:
        """Forget a record of a queue whose turn had come: its copy is read again later."""
        if self.keys is not None:
            self.keys.shed(record.source, {record.offset})

    # --- questions --------------------------------------------------------------------------------------------------

    def behind_held(self, partition: PartitionState) -> set[int]:
        """Return the offsets of the records that wait behind one of their key that an operator holds."""
        entries = partition.offsets.entries.values()
        held = {(partition.source, entry.offset) for entry in entries if entry.hold and entry.record is not None}
        if not held or self.keys is None:
            return set()
        others = {record.offset for record in self.keys.behind(held) if record.source == partition.source}
        return {entry.offset for entry in entries if entry.where is BEHIND} - others

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        self.ready.check()
        waits = {where: set[tuple[Partition, int]]() for where in (READY, BEHIND)}
        delayed_bytes = 0
        for source, partition in self._partitions.items():
            for entry in partition.offsets.entries.values():
                if entry.where in waits:
                    waits[entry.where].add((source, entry.offset))
                elif entry.where is DELAYED and entry.record is not None:
                    delayed_bytes += entry.record.weight
                    ensure(self._agenda.time_of(entry) == entry.until_ms, f"{entry.record.id} comes in its time")
        ready = [(record.source, record.offset) for record in self.ready]
        ensure(sorted(ready) == sorted(waits[READY]), "each ready record has one place in its flow")
        ensure(self._delayed_bytes == delayed_bytes, "what is delayed has the bytes of its records")
        if self.keys is not None:
            self.keys.check()
            behind = {(record.source, record.offset) for record in self.keys.behind()}
            ensure(behind == waits[BEHIND], "each record behind its key stands in a queue")
