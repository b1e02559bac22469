"""The delivery of relay mode, which delivers nothing."""

from __future__ import annotations

from collections.abc import Collection

from sidecar.core.counters import Histogram
from sidecar.core.ports import Reply
from sidecar.core.record import Partition, Record


class NoDelivery:
    """The delivery of relay mode, where the service reads the ready topic itself. No record ever comes here."""

    def __init__(self) -> None:
        self.durations = Histogram((1.0,))

    def __call__(self, record: Record, reply: Reply) -> None:
        """Raise RuntimeError: a record here is a bug, because it would be neither delivered nor moved."""
        raise RuntimeError(f"a relay delivers nothing: {record.source}@{record.offset}")

    def recall(self, partitions: Collection[Partition], *, lost: bool) -> None:
        """Do nothing: no record is out."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
