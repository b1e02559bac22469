"""Settle a record that waits in a queue: the one way for the command line, the API and the dashboard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from reconsume.sidecar.core.lane.in_place_queues import OrderBy
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.dlq.decisions import Decided, decide, decision_about, expect_decidable, fault_of_decision
from reconsume.sidecar.dlq.topics import DlqTopics
from reconsume.sidecar.dlq.waiting import WaitingRecord, find_waiting
from reconsume.sidecar.errors import BrokerError, LetterError
from reconsume.sidecar.printable import plural, printable
from reconsume.topics.events import Event
from reconsume.topics.policy_record import COMMIT, DEAD_LETTER, RETRY_NOW

WAIT_S = 10.0
"""Seconds for the owner of the record to carry a decision out. In a call this includes the time to find the record."""
SHORTEST_WAIT_S = 0.5
"""Seconds that a call waits at least once it has written: a decision that took long to be made is answered all the
same."""
ENDS = {COMMIT: "done", DEAD_LETTER: "a dead letter", RETRY_NOW: "tried now"}
"""What a record is after each decision, in words."""

_READING = threading.Lock()
"""One queue of a process is read at a time: its records, without their values, are in memory meanwhile."""

ReadEvents: TypeAlias = Callable[[str, int], Sequence[Event]]
"""Returns the events of the record with this id, from some time before a moment (epoch ms)."""


class NotWaitingError(LetterError):
    """The record waits in no queue of the group."""


class Settleable(NamedTuple):
    """A record that can be settled so."""

    waiting: WaitingRecord
    how: str


class QueueSettler:
    """Settles the records that wait in the queues of one group. Any thread may call it; each call blocks.

    `policy`: returns the policy in force. `order`: as `LaneOptions.order`; None: the group has no queues.
    Every method raises BrokerError if Kafka does not answer, and ContractError if a topic is missing.
    """

    def __init__(
        self, there: DlqTopics, policy: Callable[[], Policy], order: OrderBy | None, events: ReadEvents
    ) -> None:
        self._there, self._policy, self._order, self._events = there, policy, order, events

    def find(self, ident: str, how: str, within: float | None = None) -> Settleable:
        """Return a record that can be settled so; nothing is written. `within`: seconds, None: as long as it takes.

        Raises NotWaitingError, and LetterError if it waits and cannot be settled so.
        """
        deadline = None if within is None else time.monotonic() + within
        if not _READING.acquire(timeout=-1 if within is None else within):
            raise BrokerError("other queues were read all the time; nothing was decided")
        try:
            policy = self._policy()
            waiting = None if self._order is None else find_waiting(self._there, policy, self._order, ident, deadline)
            if waiting is None:
                raise NotWaitingError(f"{printable(ident)} waits in no queue of this group")
            if fault := fault_of_decision(waiting, how):
                raise LetterError(f"{printable(ident)} cannot be settled so: {fault}")
            expect_decidable(self._there, policy, ident)
            return Settleable(waiting, how)
        finally:
            _READING.release()

    def decide(self, record: Settleable, why: str, by: str, within: float = WAIT_S) -> Decided:
        """Write a decision, and wait `within` seconds for its event. `by`: who decides.

        Raises LetterError if the record's answer came first: then nothing was settled.
        """
        waiting = record.waiting
        ident = waiting.state.id
        decision = decision_about(waiting.state, record.how, why, by)
        decided = decide(self._there, waiting, decision, lambda: tuple(self._events(ident, decision.at)), within)
        if decided.event is not None and not decided.as_decided:
            raise LetterError(
                f"nothing was settled: the answer to {printable(ident)} came first, and it is {decided.event.state} "
                f"after {plural(decided.event.times, 'retry')} now; settle it anew if it still waits"
            )
        return decided

    def settle(self, ident: str, how: str, why: str, by: str, within: float = WAIT_S) -> Decided:
        """Settle a record in some `within` seconds. Raises as `find` and `decide` do."""
        began = time.monotonic()
        record = self.find(ident, how, within)
        remaining_s = within - (time.monotonic() - began)
        return self.decide(record, why, by, max(SHORTEST_WAIT_S, remaining_s))
