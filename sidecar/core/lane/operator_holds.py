"""Keep back what an operator holds (contract 10.4): it gets no turn, and others go on.

A record that is held when its turn comes is let go from memory: it stays begun and not done, and is fetched again when
its hold is over. Only its offset is kept. Where that cannot be, because its order or its tries in place are known to
memory alone, the record itself waits. A partition of which every record is held is paused instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reconsume.sidecar.core.holds import NO_HOLDS, Holds
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.crash_gate import CrashGate
from reconsume.sidecar.core.lane.memory import LaneMemory
from reconsume.sidecar.core.lane.partition import Because, FetchedRecords, LanePartition
from reconsume.sidecar.core.lane.paused import PausedPartitions
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record

MOST_HELD = 50_000
"""Records of a lane that holds by key, or by topic in a level that all topics share, keep back by their offsets. Each
costs some 100 bytes. Beyond it those partitions are paused that have their part of it."""

LOOK_AGAIN_MS = 10_000
"""ms after which a partition that is paused for `MOST_HELD` is fetched again, and paused again if that is still so."""

Withdraw = Callable[[Callable[[Record], bool]], None]
"""`Delivery.withdraw`."""


class OperatorHolds:
    """The holds in force, and what they keep back, for one lane.

    Invariant: nothing is kept back for a hold that is not in force.
    """

    def __init__(
        self,
        partitions: Mapping[Partition, LanePartition],
        waiting: WaitingRecords,
        memory: LaneMemory,
        paused: PausedPartitions,
        gate: CrashGate | None,
        policy: Callable[[], Policy],
        withdraw: Withdraw,
        put_back: Callable[[Record], None],
        *,
        ordered: bool,
    ) -> None:
        """`put_back`: takes a record of a queue back, which stays there while it is held."""
        self.holds = NO_HOLDS
        self._partitions, self._waiting, self._memory, self._paused = partitions, waiting, memory, paused
        self._gate, self._policy, self._ordered = gate, policy, ordered
        self._withdraw, self._put_back = withdraw, put_back

    def apply(self, holds: Holds, now: Now) -> None:
        """Obey these holds from now on, and let go on what others have kept back."""
        self.holds = holds
        for partition in self._partitions.values():
            if not partition.closing:
                self._let_go_on(partition, now)
        if holds:
            self._withdraw(self._is_held)

    def _is_held(self, record: Record) -> bool:
        partition = self._partitions.get(record.source)
        return partition is not None and self.holds.of(record, partition.level) is not None

    # --- records are kept back ---------------------------------------------------------------------------------------

    def pauses(self, partition: LanePartition, run: FetchedRecords, now: Now) -> bool:
        """Pause a partition if nothing of it is delivered now; return whether that is so."""
        if not run.records:
            return False
        covers = self._covers(partition)
        if not (covers or self._holds_too_much(partition)):
            return False
        # What others keep back may be another instance's meanwhile.
        until_ms = NEVER if covers else now.steady_ms + LOOK_AGAIN_MS
        self._paused.pause(partition, run.records[0].offset, until_ms, Because.HELD)
        return True

    def _covers(self, partition: LanePartition) -> bool:
        """Return whether all that a partition can have is held. A queue is read on: its keys must be known."""
        if partition.under is not None:
            return False
        topic: str | None = partition.source.topic
        if partition.level_delay_ms is not None:
            policy = self._policy()
            role = policy.names.role(partition.source.topic, policy.topics)
            topic = None if role is None else role.topic
        return self.holds.covers(partition.level, topic)

    def _holds_too_much(self, partition: LanePartition) -> bool:
        own, partitions = len(partition.held), self._partitions.values()
        return own * len(partitions) >= MOST_HELD and sum(len(one.held) for one in partitions) >= MOST_HELD

    def keeps(self, partition: LanePartition, record: Record, now: Now) -> bool:
        """Keep a record back whose turn has come, if it is held; return whether that is so."""
        hold = self.holds.of(record, partition.level)
        if hold is None:
            return False
        if partition.under is not None and not record.memory_only:
            partition.put_back(record.offset)
            self._memory.add(partition, -record.weight)
            self._waiting.put_back(record)
            self._put_back(record)
        # Contract 10.4: its order within its key, or its tries in place, are known in memory alone.
        elif self._ordered or record.memory_only:
            partition.wait_held()
            self._waiting.hold(record)
        else:
            # The offset is enough, as it is fetched again at the hold's end; days of payloads would not fit.
            partition.keep_back(record.offset, hold.id)
            self._memory.add(partition, -record.weight)
        if self._gate is not None and partition.suspicion is not None:
            self._gate.kept_back(partition, partition.suspicion)
        return True

    # --- and go on ---------------------------------------------------------------------------------------------------

    def _let_go_on(self, partition: LanePartition, now: Now) -> None:
        """Let go on what no hold keeps back any more."""
        if partition.held_in_memory:
            free = self._waiting.let_held(
                partition.source, lambda record: self.holds.of(record, partition.level) is None
            )
            partition.wait_held(-free)
        free_offsets = [offset for offset, ident in partition.held.items() if ident not in self.holds.ids]
        pause = partition.paused
        held = pause is not None and pause.because is Because.HELD
        if not (free_offsets or (held and not self._covers(partition))):
            return
        self._paused.fetch_held(partition, free_offsets, now.steady_ms)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for source, partition in self._partitions.items():
            past = set(partition.held.values()) - self.holds.ids
            ensure(partition.closing or not past, f"{source} is held by {past}, which are not in force")
