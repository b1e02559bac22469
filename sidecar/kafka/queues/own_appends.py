"""Where this process appends copies to queues. One below what was read of a queue tells that it is another log.

Copies become readable when they are committed, and they are noted here before that. So a reader cannot have come so far
in the log to which they are appended.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from sidecar.core.commit_batch import SettledRecord, WrittenAt
from sidecar.core.record import Partition


class OwnAppends:
    """Compares where copies are appended with how far each queue was read, for any thread."""

    def __init__(self) -> None:
        self._read_to: dict[Partition, int] = {}
        """The offset below which each queue was read."""
        self._others: list[Partition] = []
        self._lock = threading.Lock()

    def appended(self, entries: Sequence[SettledRecord], located: Mapping[int, WrittenAt]) -> None:
        """Note the copies that are being committed: `located` says where they lie, by the index of their entry."""
        lowest: dict[tuple[str, int], int] = {}
        for index, (offset, _) in located.items():
            copy = entries[index].writes[0]
            name = copy.topic, copy.spread
            if offset < lowest.get(name, offset + 1):
                lowest[name] = offset
        with self._lock:
            for name, offset in lowest.items():
                if offset < self._read_to.get(queue := Partition(*name), 0):
                    self._others.append(queue)

    def read_up_to(self, queue: Partition, offset: int) -> None:
        """Note that a queue was read below an offset: what is appended from now on lies there or behind it."""
        with self._lock:
            self._read_to[queue] = offset

    def others(self) -> list[Partition]:
        """Return the queues that are another log than was read, since a copy was appended below that."""
        with self._lock:
            return list(self._others)

    def forget(self, queue: Partition) -> None:
        """Forget a queue that is read no more."""
        with self._lock:
            self._read_to.pop(queue, None)
            self._others = [other for other in self._others if other != queue]
