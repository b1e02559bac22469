"""What a lane decides about a record, and where that takes it: back to wait in memory, or to the outbox to be written.

The rules are pure (`core/decide.py`); this carries out what they say.
"""

from __future__ import annotations

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.core.decide import (
    LEASE_EXPIRED,
    NACKED,
    Decision,
    LeaveUncommitted,
    Postpone,
    RetryInPlace,
    dead_letter_unreadable,
    decide,
    decide_draining,
)
from reconsume.sidecar.core.lane.commits import Commits
from reconsume.sidecar.core.lane.memory import LaneMemory
from reconsume.sidecar.core.lane.outbox import Outbox
from reconsume.sidecar.core.lane.outputs import with_outputs
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.queue_copies import QueueCopies
from reconsume.sidecar.core.lane.queue_heads import QueueHeads
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.outcome import Expired, Failed, Outcome, Outputs, Rejected
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.reason_classes import ReasonClasses
from reconsume.sidecar.core.record import Now, Record
from reconsume.topics.transition_records import writes_of
from reconsume.topics.transitions import DONE, Commit, Wait, Written

STAYS = (Wait, Postpone, RetryInPlace)
"""The decisions after which a record stays in memory, and comes again from there. As a union it would be made anew for
each record."""


def reason_of(outcome: Outcome) -> str:
    """Return the class of the failure after which a record is retried in place."""
    if isinstance(outcome, Expired):
        return LEASE_EXPIRED.reason
    return outcome.reason if isinstance(outcome, Failed) else NACKED


class Decisions:
    """The decisions of one lane, by one policy at a time.

    Each record that is decided about is afterwards in memory, in the outbox, or left to whoever reads it again.
    """

    def __init__(
        self,
        policy: Policy,
        waiting: WaitingRecords,
        outbox: Outbox,
        memory: LaneMemory,
        commits: Commits,
        dispatcher: Dispatcher,
        counters: LaneCounters,
    ) -> None:
        self.policy = policy
        """The one in force, which `Lane.apply_policy` replaces."""
        self._waiting, self._outbox, self._memory, self._commits = waiting, outbox, memory, commits
        self._dispatcher, self._counters = dispatcher, counters
        self._reasons = ReasonClasses()
        self._queue_copies: QueueCopies | None = None
        self._queue_heads: QueueHeads | None = None

    def write_to(self, queue_copies: QueueCopies, queue_heads: QueueHeads) -> None:
        """Tell the queues of what is decided, from now on: these write by these decisions themselves."""
        self._queue_copies, self._queue_heads = queue_copies, queue_heads

    def decide(self, partition: LanePartition, record: Record, outcome: Outcome, now: Now) -> bool:
        """Decide what follows from an outcome, and do it.

        Return whether the lane's timer is to be set anew: not where a batch in flight does that with its result.
        """
        if isinstance(outcome, Failed) and not self.policy.understands(outcome.delay, outcome.level):
            self._counters.odd_requests += 1
        if isinstance(outcome, (Failed, Rejected)):  # a union would be made anew for each record
            # The reason is the service's text: as a label of metrics it could have any number of values.
            outcome = self._reasons.bounded(outcome, now.wall_ms)
            self._counters.failed(record, outcome.reason, outcome.text)
        elif isinstance(outcome, Expired):
            self._counters.failed(record, LEASE_EXPIRED.reason)
        # Contract 9.4: while the sidecar drains, a failure makes no dead letter.
        rule = decide_draining if self._dispatcher.closed else decide
        decision: Decision = rule(record, outcome, self.policy, now.wall_ms)
        # Contract 5.7: once a person has decided about a record of a queue, it is not tried again from memory.
        if isinstance(decision, STAYS) and (settled := self._stays(partition, record, now)) is not None:
            self.write(partition, record, settled, now)
            return self._commits.in_flight is None
        match decision:
            case LeaveUncommitted():
                partition.leave()
            case Wait(ms=0):
                self._waiting.repeat(record)
            case Wait(ms=ms):
                self._waiting.delay(record, now.steady_ms + ms)
            case Postpone(ms=ms):  # contract 8.6: no attempt was spent, but since when it waits is kept
                self._waiting.delay(record.postponed(now.wall_ms), now.steady_ms + ms)
            case RetryInPlace(ms=ms):
                tried = record.tried(now.wall_ms)
                partition.retry_in_place(tried, now.wall_ms + ms, reason_of(outcome))
                self._waiting.delay(tried, now.steady_ms + ms)
            case _:
                self.write(partition, record, decision, now, getattr(outcome, "outputs", ()))
                return self._commits.in_flight is None
        return True

    def _stays(self, partition: LanePartition, record: Record, now: Now) -> Commit | Written | None:
        return None if self._queue_heads is None else self._queue_heads.stays(partition, record, now)

    def write(
        self, partition: LanePartition, record: Record, decision: Commit | Written, now: Now, outputs: Outputs = ()
    ) -> None:
        """Have what a decision writes go with the next batch. `outputs`: what the service asked to be written with it
        (contract 1.12)."""
        plain = not outputs or decision != DONE  # else there is something to write
        if plain and self._queue_copies is not None and self._queue_copies.settles(partition, record, decision):
            return
        partition.settled()
        writes = writes_of(record, decision, self.policy, now.wall_ms)
        if outputs:
            before = record.weight
            record, outputs = with_outputs(record, outputs, self.policy)
            # They stay in memory until Kafka has them, and count there as what their record weighs more.
            self._memory.add(partition, record.weight - before)
        self._outbox.add(SettledRecord(record, decision, writes + outputs, len(outputs)))

    def give_up_unreadable(self, partition: LanePartition, record: Record, now: Now) -> None:
        """Have a record whose headers break their form dead-lettered (contract 3.6): it is never delivered, and never
        lost."""
        self._counters.bad_headers += 1
        self.write(partition, record, dead_letter_unreadable(record, self.policy, now.wall_ms), now)
