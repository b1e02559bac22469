"""The memory that large answers of all connections may take together."""

from __future__ import annotations

UNCOUNTED = 64 * 1024
"""Bytes of a body that take no room: each delivery may have an answer of this size."""


class AnswerRoom:
    """Bytes beyond UNCOUNTED of the answers that are being read.

    Invariant: `free` is not negative.
    """

    def __init__(self, most: int) -> None:
        self.free = most

    def take_bytes(self, size: int) -> bool:
        """Take `size` bytes; return False, and take nothing, if there are not as many."""
        if size > self.free:
            return False
        self.free -= size
        return True

    def give_bytes_back(self, size: int) -> None:
        """Give bytes back that were taken."""
        self.free += size
