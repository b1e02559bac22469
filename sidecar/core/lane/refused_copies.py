"""Hold the records whose copies Kafka refuses, and block their partition if no other record of it could do better.

A missing topic blocks every partition whose failures go there. A record that is too large, or whose target partition
accepts nothing, is held alone; its partition is blocked only with too many of them. A blocked partition keeps no
waiting records in memory: over weeks they would take the room of all others. A partition whose own progress Kafka
refuses is blocked as well (`refused_progress.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sidecar.core.commit_batch import Refusal
from sidecar.core.lane.outbox import MOST_HELD
from sidecar.core.lane.ownership import Ownership
from sidecar.core.lane.partition import PartitionState
from sidecar.core.lane.parts import LaneParts
from sidecar.core.record import Now, Partition


class RefusedCopies:
    """The refused copies of one lane."""

    def __init__(self, parts: LaneParts, ownership: Ownership) -> None:
        self._parts, self._ownership = parts, ownership

    def refused(self, refusals: Iterable[Refusal], now: Now) -> None:
        """Hold what Kafka refuses, and block the partitions where that is necessary."""
        for refusal in refusals:
            self._refused(refusal, now)
        outbox, partitions = self._parts.outbox, self._parts.partitions
        for source in outbox.crowded() if len(outbox.held) > MOST_HELD else ():
            if not partitions[source].blocked:
                self._stop(partitions[source], "too many of its copies are refused")

    def accepted_again(self, now: Now) -> None:
        """Let the blocked partitions continue, because what blocked them seems to accept records again."""
        unwritable = self._parts.outbox.unwritable
        self._unblock((part for part in self._parts.partitions.values() if part.source not in unwritable), now)

    def progress_refused(self, reasons: Mapping[Partition, str], now: Now) -> None:
        """Block the partitions whose progress Kafka refuses; their records that are out are settled with it."""
        self._parts.outbox.progress_now()
        for source, reason in reasons.items():
            part = self._parts.partitions.get(source)
            if part is None:
                continue
            if part.closing:  # the next owner begins where Kafka's progress is; to wait would delay the rebalance
                self._ownership.lost((source,))
                continue
            self._parts.outbox.unwritable.refuse(source, now.steady)
            if not part.blocked:
                self._stop(part, f"its progress is refused: {reason}")

    def progress_accepted(self, sources: Iterable[Partition], now: Now) -> None:
        """Let the partitions go on whose progress Kafka takes again."""
        for source in sources:
            entries = self._parts.outbox.unwritable.accepted(source)
            if entries is not None and (part := self._parts.partitions.get(source)) is not None:
                self._parts.outbox.extend(entries)
                self._unblock((part,), now)

    def _unblock(self, parts: Iterable[PartitionState], now: Now) -> None:
        self._parts.ready.extend(self._parts.paused.unblock(parts, now.steady))

    def _refused(self, refusal: Refusal, now: Now) -> None:
        outbox = self._parts.outbox
        part = self._ownership.owner_of(refusal.entry.record)
        if part is None:
            return
        if part.closing:  # to wait until the topic is repaired would only delay the rebalance
            outbox.forget(refusal.entry)
            part.unsettled -= 1
        elif outbox.refuse(refusal, now):
            self.accepted_again(now)
        elif refusal.about == "topic":
            self._stop(part, refusal.reason)

    def _stop(self, part: PartitionState, reason: str) -> None:
        self._parts.paused.block(part, reason)
        self._let_go(part)

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
            self._ownership.add_bytes(part, -sum(record.weight for record in waiting))
            parts.paused.let_go(part, waiting)
