"""A model of what reads for the owner of partitions, beside its consumer: notes, and ranges of partitions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from reconsume.sidecar.core.ports import ScannedRange
from reconsume.sidecar.core.record import Partition, Record, weight_of
from reconsume.topics.owner_notes import PARTITION, OwnerNotes
from tests.sim.samples import read

if TYPE_CHECKING:
    from tests.sim.process import LaneHost

TAKES = (1, 20, 900)
"""ms that a reading takes."""
MOST = 7
"""Records of one scan at most."""


class NotesModel:
    """Port `NotesReads` of one lane."""

    def __init__(self, host: LaneHost) -> None:
        self._host, self._world = host, host.world

    def read_notes(self, wanted: Mapping[Partition, int]) -> None:
        """Read what Kafka has by now, and answer later."""
        notes, topic = OwnerNotes(frozenset(wanted)), self._world.everything.names.policy
        for stored in self._world.kafka.logs[Partition(topic, PARTITION)].records:
            notes.take(stored.key, stored.value)
        self._host.process.later(self._world.random.choice(TAKES), partial(self._found, wanted, notes))

    def _found(self, wanted: Mapping[Partition, int], notes: OwnerNotes) -> None:
        self._host.acts += 1
        self._host.lane.notes_read(wanted, notes, self._host.process.now())

    def scan(self, source: Partition, epoch: int, begin: int, end: int) -> None:
        """Read some of a range, and answer later. A partition without a leader is not read."""
        log = self._world.kafka.logs.get(source)
        stored = [] if log is None or not log.led else [one for one in log.after(begin, MOST) if one.offset < end]
        records = list[Record]()
        for one in stored:
            life, fault = read(one.headers, self._host.process.policy, self._host.process.now().wall_ms)
            weight = weight_of(one.key, one.value, one.headers, life)
            records.append(
                Record(source, one.offset, epoch, one.appended, one.key, one.value, one.headers, life, fault, weight)
            )
        reached = records[-1].offset + 1 if records else begin
        reached = end if log is not None and log.led and len(records) < MOST else reached
        scanned = ScannedRange(source, epoch, begin, reached, tuple(records))
        self._host.process.later(self._world.random.choice(TAKES), partial(self._scanned, scanned))

    def _scanned(self, scanned: ScannedRange) -> None:
        self._host.acts += 1
        self._host.lane.scanned(scanned, self._host.process.now())
