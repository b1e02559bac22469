"""The copies in queues that this process has just written itself: what it reads back of them it knows already.

To parse the headers of a copy takes longer than all else that is done with it when it is read. So what they say is kept
from the commit until then, by the offset that the broker has reported.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from confluent_kafka import Message

from sidecar.core.commit_batch import SettledRecord
from sidecar.core.record import Partition, Record, weight_of
from topics.render_headers import as_read
from topics.retry_headers import RetryState
from topics.transitions import Commit

MOST = 5_000
"""Copies that are known at most: more than a transaction has. Those of an aborted one are never read, and age out."""
LONGEST_KEY = 1_024
"""Bytes of a key that is kept. A copy with a longer one is parsed: nothing counts the memory of what is kept here."""


class OwnCopy(NamedTuple):
    """What is known of a copy. `size`: bytes of its value. `timestamp`: as the broker reported it, epoch ms."""

    epoch: int
    timestamp: int
    key: bytes | None
    size: int
    retry_state: RetryState
    weight: int

    def record(self, source: Partition, offset: int) -> Record:
        """Return what a lane takes in of a queue: without the payload, which is read again when it is due."""
        state = self.retry_state
        return Record(source, offset, self.epoch, self.timestamp, self.key, None, None, state, "", self.weight)


class OwnCopies:
    """The copies that were written last and not read back, for any thread."""

    def __init__(self) -> None:
        self._copies: dict[tuple[Partition, int], OwnCopy] = {}
        self._read_to: dict[Partition, int] = {}
        """The offset below which each queue was read."""
        self._others: list[Partition] = []
        self._lock = threading.Lock()

    def written(self, entries: Sequence[SettledRecord], located: Mapping[int, tuple[int, int]]) -> None:
        """Note the copies that are being committed: `located` has their offsets and timestamps, by index."""
        copies = [
            _own_copy(entry, *where)
            for index, where in located.items()
            if len((entry := entries[index]).record.key or b"") <= LONGEST_KEY
        ]
        with self._lock:
            self._others += [queue for (queue, offset), _ in copies if offset < self._read_to.get(queue, 0)]
            self._copies.update(copies)
            for key in list(islice(self._copies, max(0, len(self._copies) - MOST))):
                del self._copies[key]

    def read_up_to(self, queue: Partition, offset: int) -> None:
        """Note that a queue was read below an offset: what is written to it from now on lies there or behind it."""
        with self._lock:
            self._read_to[queue] = offset

    def others(self) -> list[Partition]:
        """Return the queues that are another log than was read, since a copy was appended below that."""
        with self._lock:
            return list(self._others)

    def take(self, message: Message, source: Partition, epoch: int) -> OwnCopy | None:
        """Return what is known of a message that was read; None if it must be parsed.

        A queue that was made anew may have another record at the same offset.
        """
        with self._lock:
            copy = self._copies.pop((source, message.offset() or 0), None)
        if copy is None or copy.epoch != epoch or copy.timestamp != message.timestamp()[1]:
            return None
        return copy if copy.key == message.key() and copy.size == len(message) else None

    def forget(self, source: Partition) -> None:
        """Forget the copies in a queue that is read no more."""
        with self._lock:
            self._read_to.pop(source, None)
            self._others = [queue for queue in self._others if queue != source]
            for key in [key for key in self._copies if key[0] == source]:
                del self._copies[key]


def _own_copy(entry: SettledRecord, offset: int, timestamp: int) -> tuple[tuple[Partition, int], OwnCopy]:
    """Return where the copy of an entry lies, and what whoever parses it would know.

    Its queue has the epoch of the record.
    """
    copy = entry.writes[0]
    assert not isinstance(entry.decision, Commit), "what is done has no copy in a queue"
    state = as_read(entry.decision.retry_state)
    weight = weight_of(copy.key, copy.value, copy.headers, state)
    known = OwnCopy(entry.record.epoch, timestamp, copy.key, len(copy.value or b""), state, weight)
    return (Partition(copy.topic, copy.spread), offset), known
