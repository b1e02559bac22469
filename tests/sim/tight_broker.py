"""A lane whose batches go through the real writer of progress, to a broker that takes little metadata."""

from __future__ import annotations

from typing import Any

from reconsume.sidecar.core.commit_batch import CommitBatch, CommitResult
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_stamp import decode_at
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.committer.written_progress import WrittenProgress
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS


class TightBroker:
    """What is in Kafka. `limit`: the longest metadata that it takes, in characters."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.committed: dict[Partition, tuple[int, str]] = {}
        self.copied: list[int] = []
        """The offset of each record of which a copy was written."""
        self.refusals = 0

    def progress(self, source: Partition = ORDERS) -> Progress:
        """What a new owner finds."""
        offset, text = self.committed.get(source, (0, None))
        return decode_at(source, offset, text)


class TightRig(Rig):
    """An owner of partitions whose progress is in a `TightBroker`."""

    def __init__(self, broker: TightBroker, **terms: Any) -> None:
        super().__init__(**{"concurrency": 20_000, "room": 1 << 30} | terms)
        self.whole = False
        self.broker = broker
        self.writer = WrittenProgress()

    def pass_time(self, ms: int, step: int = 500) -> None:
        """Let time pass, and every batch go to the broker."""
        for _ in range(0, ms, step):
            while self.batches:
                self.lane.committed(self._written(self.batches.pop(0)), self.now)
            self.run(step)

    def _written(self, batch: CommitBatch) -> CommitResult:
        places = self.writer.offsets(batch)
        if self.writer.too_long:
            return CommitResult(
                batch, False, again=batch.entries, too_long=dict.fromkeys(self.writer.too_long, "too long")
            )
        if any(len(place.metadata or "") > self.broker.limit for place in places):
            self.broker.refusals += 1
            assert self.writer.shorten(), "an offset without metadata is never too long"
            return CommitResult(batch, False, again=batch.entries, most=self.writer.most)
        self.broker.committed |= self.writer.last
        self.broker.copied += [entry.record.offset for entry in batch.entries]
        most = self.writer.most if self.writer.confirm() else None
        return CommitResult(batch, True, done=batch.entries, most=most)
