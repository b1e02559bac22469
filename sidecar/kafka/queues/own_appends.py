"""Where this process appends copies to queues. One below what was read of a queue tells that it is another log.

Copies become readable when they are committed, and they are noted here before that. So a reader cannot have come so far
in the log to which they are appended.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from reconsume.sidecar.core.commit_batch import SettledRecord, WrittenAt
from reconsume.sidecar.core.record import Partition


class OwnAppends:
    """Compares where copies are appended with how far each queue was read, for any thread."""

    def __init__(self) -> None:
        self._read_to: dict[Partition, int] = {}
        """The offset below which each queue was read."""
        self._ends: dict[Partition, int] = {}
        """The offset behind the copy that was appended last to each queue."""
        self._others: list[Partition] = []
        self._lock = threading.Lock()

    def appended(self, entries: Sequence[SettledRecord], located: Mapping[int, WrittenAt]) -> None:
        """Note the copies that are being committed: `located` says where they lie, by the index of their entry."""
        edges: dict[tuple[str, int], list[int]] = {}
        for index, (offset, _) in located.items():
            copy = entries[index].writes[0]
            if (edge := edges.get(name := (copy.topic, copy.spread))) is None:
                edges[name] = [offset, offset]
            elif offset > edge[1]:  # as nearly always
                edge[1] = offset
            elif offset < edge[0]:
                edge[0] = offset
        with self._lock:
            for name, (lowest, highest) in edges.items():
                if (read_to := self._read_to.get(queue := Partition(*name))) is not None:
                    self._ends[queue] = highest + 1
                    if lowest < read_to:
                        self._others.append(queue)

    def read_up_to(self, queue: Partition, offset: int) -> None:
        """Note that a queue was read, or is known, below an offset: what is appended from now on lies behind that."""
        with self._lock:  # the reader says how far it is, and the lane how far it knows: whoever is ahead, is right
            self._read_to[queue] = max(self._read_to.get(queue, 0), offset)

    def end_of_own(self, queue: Partition) -> int:
        """Return the offset behind the copy that was appended last to a queue; 0 if none was since it is read."""
        with self._lock:
            return self._ends.get(queue, 0)

    def others(self) -> list[Partition]:
        """Return the queues that are another log than was read, since a copy was appended below that."""
        with self._lock:
            return list(self._others)

    def forget(self, queue: Partition) -> None:
        """Forget a queue that is read no more."""
        with self._lock:
            self._read_to.pop(queue, None)
            self._ends.pop(queue, None)
            self._others = [other for other in self._others if other != queue]
