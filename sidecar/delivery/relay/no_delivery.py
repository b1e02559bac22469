"""What hands records to whoever answers for them: the push client, batches of it, leases; or nobody (relay)."""

from __future__ import annotations

from collections.abc import Collection

from sidecar.core.counters import Histogram
from sidecar.core.ports import Reply
from sidecar.core.record import Partition, Record


class NoDelivery:
    """The delivery of relay mode, where the service reads the ready topic itself: no record ever comes here."""

    def __init__(self) -> None:
        self.durations = Histogram((1.0,))

    def __call__(self, record: Record, reply: Reply) -> None:
        """A record here is a fault of the program: it would neither be delivered nor moved. Raises RuntimeError."""
        raise RuntimeError(f"a relay delivers nothing: {record.source}@{record.offset}")

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Nothing is out."""

    def close(self) -> None:
        """Nothing is open."""
