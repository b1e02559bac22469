"""What hands records to whoever answers for them: the push client, batches of it, leases; or nobody (relay)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sidecar.core.ports import Reply
from sidecar.core.record import Partition, Record
from sidecar.core.tally import Distribution


class Delivery(Protocol):
    """The ports `Deliver` and `Recall` in one, for both lanes. Made and called on the event loop."""

    durations: Distribution
    """Seconds that deliveries took, of those that were sent."""

    def __call__(self, record: Record, reply: Reply) -> None:
        """Start one delivery; `reply` gets its outcome later, exactly once."""

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Give back what the service does not have yet; when `lost`, what it has too: no answer would count."""

    def close(self) -> None:
        """Take no more deliveries; what is not with the service is cancelled."""


class Nobody:
    """The delivery of relay mode, where the service reads the ready topic itself: no record ever comes here."""

    def __init__(self) -> None:
        self.durations = Distribution((1.0,))

    def __call__(self, record: Record, reply: Reply) -> None:
        """A record here is a fault of the program: it would neither be delivered nor moved. Raises RuntimeError."""
        raise RuntimeError(f"a relay delivers nothing: {record.source}@{record.offset}")

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Nothing is out."""

    def close(self) -> None:
        """Nothing is open."""
