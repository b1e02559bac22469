"""A partition of a topic, as every part names it. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"
