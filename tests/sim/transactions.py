"""A model of one transactional id at Kafka, under the protocol that librdkafka speaks.

Its epoch stays the same from one transaction to the next, also on Kafka 4. So a request that comes late acts on the
transaction that is open by then, unless a new producer of the id has raised the epoch (`test_late_conformance.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.topics.transition_records import Copy
from tests.sim.kafka_model import KafkaModel

FENCED, WRONG_STATE = "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE"
Offsets = Mapping[Partition, Progress]


class LateEnd(NamedTuple):
    """An EndTxn that was sent again, and whose first copy is still on its way."""

    epoch: int
    commits: bool


class LateOffsets(NamedTuple):
    """The same of a TxnOffsetCommit. `refusal`: what the group's coordinator says to its membership by then."""

    epoch: int
    offsets: Offsets
    refusal: Callable[[], str]


class TransactionalId:
    """What the broker knows of one id, and so of one producer id. Each call returns the broker's error, or nothing.

    `forgetful`: the group's coordinator of Kafka 3.9 keeps the offsets of an open transaction by producer id. When it
    refuses others, of a former epoch, it lets go of those too, until it reads its log anew.
    """

    def __init__(self, kafka: KafkaModel, group: str, *, forgetful: bool = False) -> None:
        self.epoch = 0
        self._forgetful = forgetful
        self._kafka, self._group = kafka, group
        self._copies: list[Copy] = []
        self._offsets: dict[Partition, Progress] = {}
        self._open = self._has_group = False
        self._committed: bool | None = None
        """How the last transaction ended; None: there was none under this epoch."""

    def prepare(self) -> None:
        """A new producer: what is open is aborted, and the epoch is another one."""
        if self._open:
            self._end(commits=False)
        self.epoch, self._committed = self.epoch + 1, None

    def write(self, copies: Iterable[Copy]) -> None:
        """The present producer's records; they begin a transaction if none is open."""
        self._copies += copies
        self._open = self._open or bool(self._copies)

    def add_group(self) -> None:
        """The present producer's AddOffsetsToTxn, which begins a transaction too."""
        self._open = self._has_group = True

    def take_offsets(self, epoch: int, offsets: Offsets) -> str:
        """A TxnOffsetCommit: what comes last counts."""
        if epoch < self.epoch:
            if self._forgetful:
                self._offsets = {place: own for place, own in self._offsets.items() if place not in offsets}
            return FENCED
        if not self._has_group:
            return WRONG_STATE
        self._offsets |= offsets
        return ""

    def end(self, epoch: int, *, commits: bool) -> str:
        """An EndTxn: of what is open, whoever has begun it; else it repeats what the last one has said."""
        if epoch < self.epoch:
            return FENCED
        if not self._open:
            return "" if self._committed is commits else WRONG_STATE
        self._end(commits=commits)
        return ""

    def come(self, late: LateEnd | LateOffsets) -> str:
        """A request of former times arrives."""
        if isinstance(late, LateEnd):
            return self.end(late.epoch, commits=late.commits)
        return late.refusal() or self.take_offsets(late.epoch, late.offsets)

    def _end(self, *, commits: bool) -> None:
        if commits:
            self._kafka.transact(self._group, self._copies, self._offsets)
        else:
            self._kafka.leave_aborted(self._copies)
        self._copies, self._offsets, self._open, self._has_group, self._committed = [], {}, False, False, commits
