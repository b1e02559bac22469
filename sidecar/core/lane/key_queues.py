"""Ordered mode: one line of records for each key, or for each partition; only the first of a line may be delivered.

A line's first record stays first until it is done, through every retry in place, so what is behind it is never
delivered before it (contract §6). Lines belong to partitions, and go with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Literal, TypeAlias

from sidecar.core.record import Partition, Record

OrderBy: TypeAlias = Literal["key", "partition"]
Key: TypeAlias = tuple[Partition, bytes | None]


class KeyQueues:
    """The lines of one lane. Records join in the order of their offsets."""

    def __init__(self, by: OrderBy) -> None:
        self._by = by
        self._lines: dict[Key, deque[Record]] = {}

    def enqueue(self, record: Record) -> bool:
        """Stand in line; True when the record is the first and may go, as often as it asks."""
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
        """The first of a line is done; who is the first now."""
        key = self._key(record)
        line = self._lines.get(key)
        if line is None or line[0].offset != record.offset:
            return None
        line.popleft()
        if line:
            return line[0]
        del self._lines[key]
        return None

    def shed(self, partition: Partition, gone: Collection[int]) -> list[Record]:
        """Take out of a partition's lines what stands behind a first record, and the first ones at the offsets `gone`;
        the records behind."""
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
        """Forget the lines of partitions that are given up."""
        self._lines = {key: line for key, line in self._lines.items() if key[0] not in partitions}

    def _key(self, record: Record) -> Key:
        return (record.source, record.key if self._by == "key" else None)
