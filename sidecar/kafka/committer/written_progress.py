"""How a committer writes progress: with its stamp, and no longer than the brokers take.

Nobody tells how much that is (`offset.metadata.max.bytes`), but each transaction says something: the brokers took so
many characters, or refused so many. After a refusal an eighth less is written. Where progress must be longer than that,
or wait, any length below the shortest refused one is tried; and while progress waits a little more at each try, because
an operator may have raised the limit.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from confluent_kafka import TopicPartition

from reconsume.sidecar.core.commit_batch import CommitBatch, PartitionCommit
from reconsume.sidecar.core.progress_bounds import LONGEST, SPARE
from reconsume.sidecar.core.progress_codec import Length
from reconsume.sidecar.core.progress_stamp import encode_kept_at
from reconsume.sidecar.core.record import Partition

STEP = 8
"""What was refused is made shorter by this part."""
RISES = 32
"""By this part more is tried, at each try of progress that waits."""


class WrittenProgress:
    """The progress of the last batch as it was written, and the bound that Kafka has shown.

    `most`: characters that the brokers take, as far as is known. A longer text is only tried where it cannot be
    shorter.
    """

    def __init__(self, most: int = LONGEST) -> None:
        self.most = most
        self.last: Mapping[Partition, tuple[int, str]] = {}
        """The offsets and metadata of the last batch."""
        self.too_long: frozenset[Partition] = frozenset()
        """The partitions of the last batch whose progress the brokers do not take, however short: the batch must not be
        written."""
        self._taken = 0
        """The most characters that the brokers took, since they last refused as many."""
        self._refused = self._ceiling = most + 1
        """The fewest that they refused, and how many are worth to be tried by now, plus one."""

    def offsets(self, batch: CommitBatch) -> list[TopicPartition]:
        """Return the offsets of a batch for the client, and note them as the last ones.

        Those of the partitions in `too_long` are left out.
        """
        texts = {source: self._text(source, share) for source, share in batch.commits.items()}
        self.too_long = frozenset(source for source, text in texts.items() if text is None)
        if self.too_long:
            self._ceiling = min(LONGEST + 1, self._ceiling + self._ceiling // RISES + 1)
        self.last = {
            source: (batch.commits[source].progress.next, text) for source, text in texts.items() if text is not None
        }
        return [TopicPartition(*source, offset, metadata) for source, (offset, metadata) in self.last.items()]

    def _text(self, source: Partition, share: PartitionCommit) -> str | None:
        length = Length(self.most, max(self.most, self._ceiling - 1), SPARE)
        # A done set that was cut may say the same before and after a batch. So it carries a part that is in no other
        # batch, or the committed text could not tell whether this one is in Kafka.
        return encode_kept_at(source, share.progress, share.kept, length, secrets.token_hex(4))

    @property
    def _longest(self) -> int:
        return max((len(metadata) for _, metadata in self.last.values()), default=0)

    def shorten(self) -> bool:
        """Take in that Kafka has refused the metadata for its length. Return whether a shorter form is left."""
        if not (longest := self._longest):
            return False
        self._refused = min(self._refused, longest)
        self._ceiling = self._refused
        if self._taken >= self._refused:
            self._taken = 0
        self._bound()
        return True

    def confirm(self) -> bool:
        """Take in that Kafka has taken the metadata. Return whether `most` has changed by that."""
        before, longest = self.most, self._longest
        if longest > self._taken:
            self._taken = longest
            if longest >= self._refused:  # an operator has raised the limit
                self._refused = min(LONGEST + 1, 2 * longest)
                self._ceiling = max(self._ceiling, self._refused)
            self._bound()
        return self.most != before

    def _bound(self) -> None:
        shorter = self._refused - self._refused // STEP - 1
        self.most = LONGEST if self._refused > LONGEST else max(self._taken, shorter)
