"""How a committer writes progress: with its stamp, and no longer than the brokers take."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from confluent_kafka import TopicPartition

from sidecar.core.commit_batch import CommitBatch
from sidecar.core.progress_codec import LONGEST
from sidecar.core.progress_stamp import encode_at
from sidecar.core.record import Partition


class WrittenProgress:
    """The progress of the last batch as it was written, and the bound that Kafka has shown."""

    def __init__(self) -> None:
        self.most = LONGEST
        """Characters that the brokers take (`offset.metadata.max.bytes`), as far as is known."""
        # A done set that was cut short may say the same before and after a batch. So shortened progress carries a part
        # of its own, or the committed text could not tell whether the batch happened.
        self.last: Mapping[Partition, tuple[int, str]] = {}
        """The offsets and metadata of the last batch."""

    def offsets(self, batch: CommitBatch) -> list[TopicPartition]:
        """Return the offsets of a batch for the client, and note them as the last ones."""
        # A done set that was cut may say the same before and after a batch. A part that is in no other batch tells
        # whether this one is in Kafka.
        once = secrets.token_hex(4) if self.most < LONGEST else ""
        self.last = {
            source: (share.progress.next, encode_at(source, share.progress, self.most, once))
            for source, share in batch.commits.items()
        }
        return [TopicPartition(*source, offset, metadata) for source, (offset, metadata) in self.last.items()]

    def too_long(self) -> bool:
        """Take in that Kafka has refused the metadata for its length. Return whether a shorter form is left."""
        longest = max((len(metadata) for _, metadata in self.last.values()), default=0)
        if not longest:
            return False
        self.most = longest // 2
        return True
