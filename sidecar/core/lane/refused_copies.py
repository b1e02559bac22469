"""Hold the records whose copies Kafka refuses, and block their partition if no other record of it could do better.

A missing topic blocks every partition whose failures go there. A record that is too large, or whose target partition
accepts nothing, is held alone; its partition is blocked only if too many of them are held, or too many bytes. A blocked
partition keeps no waiting records in memory: over weeks they would take the room of all others.

Whether a partition is blocked follows from the copies that are held now (`review`), and from nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sidecar.core.commit_batch import Refusal
from sidecar.core.lane.outbox import MOST_HELD
from sidecar.core.lane.ownership import Ownership
from sidecar.core.lane.partition import PartitionState
from sidecar.core.lane.parts import LaneParts
from sidecar.core.ports import Notice
from sidecar.core.record import Now, Partition

TOO_MANY = "too many of its copies are refused"
TOO_LARGE = "its refused copies take too much memory"


class RefusedCopies:
    """The refused copies of one lane."""

    def __init__(self, parts: LaneParts, ownership: Ownership, notice: Notice) -> None:
        self._parts, self._ownership, self._notice = parts, ownership, notice

    def refused(self, refusals: Iterable[Refusal], now: Now) -> None:
        """Hold what Kafka refuses."""
        for refusal in refusals:
            part = self._ownership.owner_of(refusal.entry.record)
            if part is None:
                continue
            if part.closing:  # to wait until the topic is repaired would only delay the rebalance
                self._parts.outbox.forget(refusal.entry)
                part.unsettled -= 1
            else:
                self._parts.outbox.refuse(refusal, now)
                if part.blocked:  # what was in flight when it was blocked may have come back
                    self._let_go(part)

    def review(self, now: Now) -> None:
        """Block and unblock partitions by the copies that are held now."""
        parts, sizes, missing = self._parts, Counter[Partition](), dict[Partition, str]()
        for (source, _), held in parts.outbox.held.items():
            sizes[source] += held.refusal.entry.record.weight
            if held.refusal.about == "topic":
                missing[source] = held.refusal.reason
        parts.memory.hold(sizes)
        counts = parts.outbox.held_by_partition()
        for source, part in parts.partitions.items():
            if part.closing or not (part.blocked or source in sizes):
                continue
            reason = missing.get(source) or self._crowds(part, counts[source])
            if part.blocked and not reason:
                self._go_on(part, now)
            elif reason and not part.blocked:
                self._stop(part, reason, counts[source])
            else:
                part.blocked = reason

    def _crowds(self, part: PartitionState, count: int) -> str:
        if count > (MOST_HELD * 3 // 4 if part.blocked else MOST_HELD):
            return TOO_MANY
        return TOO_LARGE if self._parts.memory.crowds(part) else ""

    def _stop(self, part: PartitionState, reason: str, count: int) -> None:
        self._parts.paused.block(part, reason)
        self._let_go(part)
        self._notice("blocked", part.source, count, part.tracker.first)

    def _go_on(self, part: PartitionState, now: Now) -> None:
        self._parts.ready.extend(self._parts.paused.unblock(part, now.steady))
        self._notice("unblocked", part.source, 0, part.tracker.first)

    def _let_go(self, part: PartitionState) -> None:
        """Drop the records of a blocked partition that wait in memory; they are fetched again later."""
        parts = self._parts
        waiting = [record for record in parts.ready if record.source == part.source and not record.again]
        if waiting:
            others = [record for record in parts.ready if record.source != part.source or record.again]
            parts.ready.clear()  # in place: the dispatcher keeps this deque
            parts.ready.extend(others)
        waiting += parts.delayed.take(part.source)
        if part.suspicion is None:  # else they are withheld for another reason (`quarantine.py`)
            waiting += [record for record in part.withheld if not record.again]
            part.withheld = [record for record in part.withheld if record.again]
        if parts.key_queues is not None:
            waiting += parts.key_queues.shed(part.source, {record.offset for record in waiting})
        if waiting:
            parts.memory.add(part, -sum(record.weight for record in waiting))
            parts.paused.let_go(part, waiting)
