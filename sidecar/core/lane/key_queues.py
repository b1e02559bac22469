"""Ordered mode: a queue of records for each key, or for each partition.

Only the first record of a queue may be delivered. It stays first until it is done, through every retry in place. So the
records behind it are never delivered before it (contract 5.1). Queues belong to partitions, and are dropped with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Literal, TypeAlias

from sidecar.core.record import Partition, Record

OrderBy: TypeAlias = Literal["key", "partition"]
Key: TypeAlias = tuple[Partition, bytes | None]


class KeyQueues:
    """The key queues of one lane. Records are added in the order of their offsets."""

    def __init__(self, by: OrderBy) -> None:
        self._by = by
        self._lines: dict[Key, deque[Record]] = {}

    def enqueue(self, record: Record) -> bool:
        """Add a record to its queue; return True if it is the first, also on a repeated call, and may be delivered."""
        if self._by == "key" and record.key is None:
            return True  # records without a key have no order among themselves
        key = self._key(record)
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = deque((record,))
            return True
        if line[0].offset == record.offset:
            return True
        line.append(record)
        return False

    def finish(self, record: Record) -> Record | None:
        """Remove the first record of a queue, which is done; return the record that is first now, or None."""
        key = self._key(record)
        line = self._lines.get(key)
        if line is None or line[0].offset != record.offset:
            return None
        line.popleft()
        if line:
            return line[0]
        del self._lines[key]
        return None

    def behind(self) -> Iterator[Record]:
        """Return the records that wait behind the first ones of their queues."""
        return (record for line in self._lines.values() for record in list(line)[1:])

    def shed(self, partition: Partition, gone: Collection[int]) -> list[Record]:
        """Remove the records behind the first ones from the queues of a partition, and return them.

        The first records at the offsets `gone` are removed too.
        """
        behind: list[Record] = []
        for key in [key for key in self._lines if key[0] == partition]:
            first, *rest = self._lines[key]
            behind += rest
            if first.offset in gone:
                del self._lines[key]
            else:
                self._lines[key] = deque((first,))
        return behind

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop the queues of partitions that are given up."""
        self._lines = {key: line for key, line in self._lines.items() if key[0] not in partitions}

    def _key(self, record: Record) -> Key:
        return (record.source, record.key if self._by == "key" else None)
