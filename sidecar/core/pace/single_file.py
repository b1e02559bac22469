"""The partitions whose records go one at a time over all lanes, while the records of all others wait.

Nobody waits for a partition whose own records wait for a limit of their topic: the dispatcher has it leave the file.
"""

from __future__ import annotations

from collections.abc import Collection

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.record import Partition


class SingleFile:
    """The single file of one dispatcher (`lane/crash_gate.py` fills it). Usually it is empty, which costs nothing.

    Invariants: a partition that is marked stands in the file, unless it is being given up.
    """

    def __init__(self) -> None:
        self.sources: dict[Partition, None] = {}
        """Its partitions, in the order in which they joined. While there are any, only their records go."""
        self.marking: Partition | None = None
        """The partition whose commit must be in Kafka before any record goes."""
        self.turn: Partition | None = None
        """The partition whose marked record goes next, before any other."""

        self.hung: set[tuple[Partition, int]] = set()
        """Partition and offset of records that hang with the service: cleared by time, so nothing waits for them."""

    def join(self, source: Partition) -> None:
        """Deliver the records of a partition in single file, and keep those of all other partitions back."""
        self.sources[source] = None

    def leave(self, source: Partition) -> None:
        """End the single file of a partition; after the last one the records of all others go again."""
        self.sources.pop(source, None)
        if self.turn == source:
            self.turn = None

    def drop(self, source: Partition) -> None:
        """Forget a partition that is gone; nothing waits for its commit."""
        self.leave(source)
        if self.marking == source:
            self.marking = None

    def room(self, limit: int) -> int:
        """Return how many records may be in flight, where the pace allows `limit`."""
        # Contract 1.10: one suspect at a time, and none before its mark is in Kafka. What hung for 30 s is cleared, and
        # takes no room.
        return 0 if self.marking is not None else min(1 + len(self.hung), limit)

    @property
    def may_go(self) -> Collection[Partition]:
        """The partitions of which a record may go now."""
        return self.sources if self.turn is None else (self.turn,)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self.turn is None or self.turn in self.sources, f"{self.turn} has its turn in the single file")
        ensure(self.turn is None or self.marking is None, "no mark is on its way while a marked record has its turn")
