"""Settle all that is parked, as an operator does once what it failed of was mended.

`queue_settler.py` settles one record, and sees by its event what became of it. Here the queues themselves are read: one
reading tells of all decisions that are open, where a look for the events of each would read the group's events.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sidecar.core.lane.in_place_queues import OrderBy
from sidecar.core.policy import Policy
from sidecar.core.waiting_keys import WaitingKey, WaitingRecord
from sidecar.dlq.decisions import decision_about, expect_decidable, has_ended
from sidecar.dlq.settlements import SettlementWriter
from sidecar.dlq.topics import DlqTopics
from sidecar.kafka.queues.queue_listing import Report, WaitingScan, Wanted, read_waiting
from topics.policy_record import MOST_OPEN, SettlementRecord

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
    """What became of a settlement of all. `done`: ids of what was carried out, `open`: of what is written and was not
    carried out yet. Of all others nothing was decided."""

    done: frozenset[str]
    open: frozenset[str]


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

    def queueless(self) -> tuple[str, ...]:
        """Return the instances that live and carry out nothing: they are of an older version.

        Raises ContractError if nothing may be settled now.
        """
        return expect_decidable(self._there, self._policy).queueless

    def settle(
        self,
        records: Sequence[WaitingRecord],
        topics: Sequence[str],
        decision: Decision,
        report_done: Callable[[int], None],
        stop: threading.Event,
    ) -> SettledAll:
        """Decide about records of these topics, and see that it is carried out, until `stop` is set.

        `report_done`: called with the number of those that are done.
        """
        waiting, made, done = deque(records), dict[str, SettlementRecord](), set[str]()
        room = MOST_OPEN - len(self._there.settlements().waiting.keys() - {record.id for record in records})
        moved_at = time.monotonic()
        with SettlementWriter(self._there.kafka, self._there.names) as writer:
            while (waiting or made) and not stop.is_set() and time.monotonic() < moved_at + WAIT_S:
                now = [waiting.popleft() for _ in range(min(len(waiting), room - len(made)))]
                fresh = {record.id: decision_about(record, *decision) for record in now}
                writer.write(fresh)
                made |= fresh
                stop.wait(LOOK_EVERY_S)
                if ended := self._ended(topics, made):
                    writer.forget(ended)
                    made = {ident: one for ident, one in made.items() if ident not in ended}
                    done |= ended
                    moved_at = time.monotonic()
                    report_done(len(done))
        return SettledAll(frozenset(done), frozenset(made))

    def _ended(self, topics: Sequence[str], made: Mapping[str, SettlementRecord]) -> set[str]:
        """Return the ids of the decisions that were carried out."""
        if not made:
            return set()
        wanted = Wanted(ids=made.keys(), most_kept=MOST_OPEN)
        scan = read_waiting(self._there.cluster, self._policy, topics, self._order, wanted, lambda _read, _of: None)
        if scan.missing:  # what was not read is not known to be gone
            return set()
        states = {record.id: record for key in scan.keys.by_due() for record in key.records}
        return {ident for ident, one in made.items() if has_ended(one, states.get(ident))}


def parked_among(keys: Iterable[WaitingKey], reasons: Collection[str] = ()) -> list[WaitingKey]:
    """Return the keys whose first record is parked, for one of these reasons, if there are any."""
    parked = (key for key in keys if key.first.parked)
    return [key for key in parked if not reasons or key.first.reason in reasons]
