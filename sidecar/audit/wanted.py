"""Offsets of a partition: those that it has, and those that an audit wants to see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class First(NamedTuple):
    """The timestamps of the first and the last record that were read of a partition, epoch ms."""

    first: int
    last: int


class Pick:
    """The wanted offsets of a partition, which are asked for in rising order."""

    def __init__(self, offsets: Iterator[int]) -> None:
        self._offsets = offsets
        self._next = next(offsets, None)

    def takes(self, offset: int) -> bool:
        """Move to the first wanted offset that is not below this one; return whether it is this one."""
        while self._next is not None and self._next < offset:
            self._next = next(self._offsets, None)
        return self._next == offset
