"""Gaps that aborted transactions leave in the offsets of a topic, for readers that fetch little at a time.

Such readers may get records of aborted transactions as committed ones (`client_config.WHOLE`). The first aborted
transaction of a piece is left out rightly, so that a gap comes first, unless reading begins behind it. What is behind
the gap has to be read anew, with larger fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import Message

from reconsume.sidecar.kafka.admin.descriptions import PartitionName

MARKER = 1
"""Offsets that the end of a committed transaction takes. Where more are missing, one was aborted, two ended at once, or
records left."""


def is_gap(offset: int, after: int) -> bool:
    """Return whether a transaction may have been aborted before the record at `offset`. `after`: the next offset."""
    return offset > after + MARKER


class UntilGap:
    """The messages of a reader up to the first gap. `positions`: the next offset of each partition."""

    def __init__(self, messages: Iterable[Message], positions: Mapping[PartitionName, int]) -> None:
        self.met = False
        """Whether a gap has ended them."""
        self._messages, self._next = messages, dict(positions)

    def __iter__(self) -> Iterator[Message]:
        for message in self._messages:
            partition, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            if message.error() is None:
                if is_gap(offset, self._next.get(partition, offset)):
                    self.met = True
                    return
                self._next[partition] = offset + 1
            yield message
