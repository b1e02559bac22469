"""How a committer writes progress: with its stamp, and no longer than the brokers take."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from confluent_kafka import TopicPartition

from sidecar.core.commit_batch import CommitBatch, PartitionCommit
from sidecar.core.offset_ranges import OffsetRanges
from sidecar.core.progress_bounds import LONGEST
from sidecar.core.progress_stamp import encode_kept_at
from sidecar.core.record import Partition


class WrittenProgress:
    """The progress of the last batch as it was written, and the bound that Kafka has shown."""

    def __init__(self) -> None:
        self.most = LONGEST
        """Characters that the brokers take (`offset.metadata.max.bytes`), as far as is known."""
        self.last: Mapping[Partition, tuple[int, str]] = {}
        """The offsets and metadata of the last batch."""
        self.too_long: frozenset[Partition] = frozenset()
        """The partitions of the last batch whose progress the brokers do not take, however short: the batch must not be
        written."""

    def offsets(self, batch: CommitBatch) -> list[TopicPartition]:
        """Return the offsets of a batch for the client, and note them as the last ones.

        Those of the partitions in `too_long` are left out.
        """
        texts = {source: self._text(source, share) for source, share in batch.commits.items()}
        self.too_long = frozenset(source for source, text in texts.items() if text is None)
        if self.too_long:  # the limit is only known to lie between two lengths, and an operator may have raised it
            self.most = min(2 * self.most, LONGEST)
        self.last = {
            source: (batch.commits[source].progress.next, text) for source, text in texts.items() if text is not None
        }
        return [TopicPartition(*source, offset, metadata) for source, (offset, metadata) in self.last.items()]

    def _text(self, source: Partition, share: PartitionCommit) -> str | None:
        whole = encode_kept_at(source, share.progress, OffsetRanges.of(share.progress.done), self.most)
        if whole is not None:
            return whole
        # A done set that was cut may say the same before and after a batch. So it carries a part that is in no other
        # batch, or the committed text could not tell whether this one is in Kafka.
        return encode_kept_at(source, share.progress, share.kept, self.most, secrets.token_hex(4))

    def shorten(self) -> bool:
        """Take in that Kafka has refused the metadata for its length. Return whether a shorter form is left."""
        longest = max((len(metadata) for _, metadata in self.last.values()), default=0)
        if not longest:
            return False
        self.most = longest // 2
        return True
