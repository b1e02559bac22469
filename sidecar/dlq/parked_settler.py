"""Settle all that is parked, as an operator does once what it failed of was mended.

`queue_settler.py` settles one record, and sees by its event what became of it. Here the queues themselves are read: one
reading tells of all decisions that are open, where a look for the events of each would read the group's events.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from reconsume.sidecar.core.lane.in_place_queues import OrderBy
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.waiting_keys import WaitingKey, WaitingRecord
from reconsume.sidecar.dlq.decisions import decision_about, expect_decidable, has_ended
from reconsume.sidecar.dlq.settlements import SettlementWriter
from reconsume.sidecar.dlq.topics import DlqTopics
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.queues.queue_listing import WaitingScan, Wanted, read_waiting
from reconsume.sidecar.kafka.scan import Report
from reconsume.topics.policy_record import MOST_OPEN, SettlementRecord

WAIT_S = 10.0
"""Seconds in which none of the open decisions is carried out, after which they are left to their owners."""
LOOK_EVERY_S = 1.0
"""Seconds between two readings of the queues. A decision is carried out within some tenths of a second."""


class Decision(NamedTuple):
    """What is decided about all of them: how each ends, why, and who says so."""

    how: str
    why: str
    by: str


class SettledAll(NamedTuple):
    """What became of a settlement of all, by the records' ids; of all others nothing was decided.

    `done`: carried out. `open`: written, and not carried out yet. `others`: somebody else has decided about it since.
    """

    done: frozenset[str]
    open: frozenset[str]
    others: frozenset[str]


class Look(NamedTuple):
    """What one look has seen of the decisions that are open: `done` and `others` as in `SettledAll`."""

    done: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()


class ParkedSettler:
    """Settles what is parked in the queues of one group. Each call blocks.

    `order`: as `LaneOptions.order`. Every method raises BrokerError if Kafka does not answer, and ContractError if a
    topic is missing.
    """

    def __init__(self, there: DlqTopics, policy: Policy, order: OrderBy) -> None:
        self._there, self._policy, self._order = there, policy, order

    def read(self, topics: Iterable[str], report: Report) -> WaitingScan:
        """Return what waits in the queues of some main topics, each key by its first record."""
        return read_waiting(self._there.cluster, self._policy, topics, self._order, Wanted(), report)

    def expect_decidable(self) -> None:
        """Raise ContractError if nothing may be settled now."""
        expect_decidable(self._there, self._policy)

    def settle(
        self,
        records: Sequence[WaitingRecord],
        decision: Decision,
        report_done: Callable[[int], None],
        stop: threading.Event,
    ) -> SettledAll:
        """Decide about records, and see that it is carried out, until `stop` is set.

        `report_done`: called with the number of those that are done.
        """
        waiting, made, ended = deque(records), dict[str, SettlementRecord](), Look()
        moved_at = time.monotonic()
        with SettlementWriter(self._there.kafka, self._there.names) as writer:
            while (waiting or made) and not stop.is_set() and time.monotonic() < moved_at + WAIT_S:
                fresh = {record.id: decision_about(record, *decision) for record in self._taken(waiting, made)}
                writer.write(fresh)
                made |= fresh
                stop.wait(LOOK_EVERY_S)
                look = self._look(made)
                with suppress(BrokerError):  # they act no more, and go when there is no room for others
                    writer.forget(look.done)
                made = {ident: one for ident, one in made.items() if ident not in look.done | look.others}
                ended = Look(ended.done | look.done, ended.others | look.others)
                if any(look):
                    moved_at = time.monotonic()
                    report_done(len(ended.done))
        return SettledAll(ended.done, frozenset(made), ended.others)

    def parked_anew(self, settled: SettledAll) -> int:
        """Return how many of the records that are done are parked by now: they were tried, and have failed again.

        0 if Kafka does not answer.
        """
        with suppress(BrokerError):
            return len(parked_among(self._scan(settled.done).keys.by_due()))
        return 0

    def _taken(self, waiting: deque[WaitingRecord], made: Iterable[str]) -> list[WaitingRecord]:
        """Take out the records to decide about now: as many as there is room for, since owners pass over more, and
        others may decide too. What takes the place of a decision that is open needs no room."""
        open_ids = self._there.settlements().waiting.keys() if waiting else ()
        room, taken = MOST_OPEN - len({*open_ids, *made}), list[WaitingRecord]()
        for record in [waiting.popleft() for _ in range(len(waiting))]:
            is_new = record.id not in open_ids
            if is_new and room <= 0:
                waiting.append(record)
                continue
            room -= is_new
            taken.append(record)
        return taken

    def _look(self, made: Mapping[str, SettlementRecord]) -> Look:
        """Return what has become of decisions. The topic is read after the queues, so that what is forgotten as done is
        ours but for some milliseconds. If Kafka does not answer, nothing was seen."""
        if not made:
            return Look()
        with suppress(BrokerError):
            return self._look_at_queues(made)
        return Look()

    def _scan(self, ids: Collection[str]) -> WaitingScan:
        topics = sorted({ident.rsplit(":", 2)[0] for ident in ids})
        wanted = Wanted(ids=ids, most_kept=MOST_OPEN)
        return read_waiting(self._there.cluster, self._policy, topics, self._order, wanted, lambda _read, _of: None)

    def _look_at_queues(self, made: Mapping[str, SettlementRecord]) -> Look:
        scan = self._scan(made.keys())
        if scan.missing:  # what was not read is not known to be gone
            return Look()
        states = {record.id: record for key in scan.keys.by_due() for record in key.records}
        return look_of(made, states, self._there.settlements().waiting)


def look_of(
    made: Mapping[str, SettlementRecord],
    states: Mapping[str, WaitingRecord],
    present: Mapping[str, SettlementRecord],
) -> Look:
    """Return what has become of decisions, by what waits and by the decisions that are in the topic now.

    A decision that another one has replaced is that one's, whatever became of the record.
    """
    nonces = {ident: one.nonce for ident, one in present.items()}
    ended = {ident for ident, one in made.items() if has_ended(one, states.get(ident))}
    done = {ident for ident in ended if nonces.get(ident, made[ident].nonce) == made[ident].nonce}
    others = {ident for ident, one in made.items() if nonces.get(ident) != one.nonce} - done
    return Look(frozenset(done), frozenset(others))


def parked_among(keys: Iterable[WaitingKey]) -> list[WaitingKey]:
    """Return the keys whose first record is parked."""
    return [key for key in keys if key.first.parked]
