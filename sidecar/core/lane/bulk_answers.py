"""Many records that one answer committed, taken in at once: what `Lane.answered` does, but once for each partition.

Only the commonest outcome is worth it, a main record that the service took: it costs a third of what it costs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sidecar.core.counters import LaneCounters
from sidecar.core.lane.ownership import Ownership
from sidecar.core.lane.partition import PartitionState
from sidecar.core.lane.quarantine import Quarantine
from sidecar.core.outcome import COMMITTED, label_of
from sidecar.core.pace.dispatcher import Dispatcher
from sidecar.core.record import Now, Record


class BulkAnswers:
    """Gathers them while the gate tells a batch's outcomes; `settle` is called when all are told."""

    def __init__(self, gate: Dispatcher, tenure: Ownership, tally: LaneCounters, suspects: Quarantine) -> None:
        self._gate, self._tenure, self._tally, self._suspects = gate, tenure, tally, suspects
        self._records: list[Record] = []

    def add(self, record: Record) -> None:
        """The service took this record too."""
        self._records.append(record)

    def apply(self, finish: Callable[[PartitionState, Record], None], now: Now) -> Iterator[PartitionState]:
        """Finish all of them; each partition when it is done with."""
        for records in self._runs():
            self._gate.committed_many(records, now)
            part = self._tenure.owner_of(records[0])
            if part is None:
                self._tally.fenced_answers += len(records)
                continue
            part.in_flight -= len(records)
            self._tally.deliveries[part.source.topic, part.level, label_of(COMMITTED)] += len(records)
            for record in records:
                if part.suspicion is not None:
                    self._suspects.answered(part, part.suspicion, record, COMMITTED, now)
                finish(part, record)
            yield part

    def _runs(self) -> Iterator[list[Record]]:
        """The records, those of one partition and assignment that came one after the other together."""
        run: list[Record] = []
        records, self._records = self._records, []
        for record in records:
            if run and (record.source is not run[0].source or record.epoch != run[0].epoch):
                yield run
                run = []
            run.append(record)
        if run:
            yield run
