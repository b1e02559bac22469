"""What a lane decides about a record, and where that takes it: back to wait in memory, or to the outbox to be written.

The rules are pure (`core/decide.py`); this carries out what they say. Each record that is decided about is afterwards
in memory, SETTLED, or CALLED_OFF to whoever reads it again.

A relay decides about many records at once, with the result of the usual way, at a third of its cost: due records at the
head of a run enter the next transaction together, and are done together. It does in bulk what `Fetching.admit`,
`transitions.after_wait`, `transition_records` and the lane do for each record alone. Records that need more work take
the usual way: not due, broken, of a topic not known here, beyond the span, or refused before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.core.decide import (
    Decision,
    LeaveUncommitted,
    NackWait,
    Postpone,
    RetryInPlace,
    dead_letter_unreadable,
    decide,
    decide_draining,
)
from reconsume.sidecar.core.outcome import Expired, Failed, Outcome, Outputs, Rejected
from reconsume.sidecar.core.ownership import Machines
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.partition import CALLED_OFF, SETTLED, FetchedRecords, PartitionState, TriedRecord
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.reason_classes import ReasonClasses
from reconsume.sidecar.core.record import Now, Record, weight_of
from reconsume.topics import transitions
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.decision_record import COMMIT, DEAD_LETTER
from reconsume.topics.headers_fast import for_topic
from reconsume.topics.outputs import stamped
from reconsume.topics.render_headers import attempt_before
from reconsume.topics.transition_records import Copy, writes_of
from reconsume.topics.transitions import DONE, Commit, Forward, Hop, Requeue, Retry, Wait, Written

if TYPE_CHECKING:
    from reconsume.sidecar.core.queues import LongWaits
    from reconsume.sidecar.core.settling import Settling


class ByHand(NamedTuple):
    """What an operator has decided about a record that waits: `how` (`decision_record.WAYS`), why, and who. `by`: the
    id of the decision. `attempt`: the one that it is for; None: the one that waits."""

    how: str
    why: str
    who: str
    by: str
    attempt: Attempt | None = None


class Ruled(NamedTuple):
    """What an operator's decision makes of a record. `by`: the id of the decision."""

    decision: Commit | Written
    by: str


def ruled_by_hand(said: ByHand, record: Record, now: Now) -> Ruled:
    """Return what an operator's decision makes of a record that waits (contract 5.7)."""
    decision: Commit | Written
    if said.how == DEAD_LETTER:
        decision = transitions.dead_by_hand(record, said.why, now.wall_ms, said.who)
    elif said.how == COMMIT:
        decision = transitions.done_by_hand(record, said.why, said.who)
    else:
        decision = transitions.tried_now(record, said.why, said.by, now.wall_ms, said.who)
    return Ruled(decision, said.by)


Stays: TypeAlias = Wait | Postpone | NackWait | RetryInPlace
"""The decisions after which a record stays in memory, and comes again from there."""
Ruleable: TypeAlias = Stays | Retry | Requeue | Hop
"""The decisions that what an operator has decided meanwhile replaces."""


class Decisions:
    """The decisions of one lane, by one policy at a time."""

    def __init__(self, policy: Policy, machines: Machines, dispatcher: Dispatcher, counters: LaneCounters) -> None:
        self.policy = policy
        """The one in force, which `Lane.apply_policy` replaces."""
        self.counters = counters
        self.queues: LongWaits | None = None
        """The queues, which are told of what is decided."""
        self.settling: Settling
        """What operators have decided."""
        self._machines, self._dispatcher = machines, dispatcher
        self._reasons = ReasonClasses()

    def decide_outcome(self, partition: PartitionState, record: Record, outcome: Outcome, now: Now) -> None:
        """Decide what follows from an outcome, and do it."""
        outcome = self._count_failure(record, outcome, now)
        # Contract 9.4: while the sidecar drains, a failure makes no dead letter.
        rule = decide_draining if self._dispatcher.closed else decide
        decision: Decision = rule(record, outcome, self.policy, now.wall_ms)
        # Contract 5.7: once an operator has decided about a record, its failure leads to no retry.
        if (ruled := self._ruled_meanwhile(partition, record, decision, now)) is not None:
            self.write(partition, record, ruled.decision, now, settled_by=ruled.by)
        elif isinstance(decision, Stays):
            self._keep_in_memory(partition, record, decision, outcome, now)
        elif isinstance(decision, LeaveUncommitted):
            partition.offsets.move(partition.offsets.entries[record.offset], CALLED_OFF)
        else:
            self.write(partition, record, decision, now, getattr(outcome, "outputs", ()))

    def _keep_in_memory(
        self, partition: PartitionState, record: Record, decision: Stays, outcome: Outcome, now: Now
    ) -> None:
        """Have a record come again from memory."""
        entry = partition.offsets.entries[record.offset]
        match decision:
            case Wait(ms=0):
                self._machines.waiting.repeat_record(partition, record)
                return
            case Postpone():  # contract 8.6: no attempt was spent, but since when it waits is kept
                entry.record = record.postponed(now.wall_ms)
            case NackWait():
                entry.record = record.nacked()
            case RetryInPlace(ms=ms):
                partition.offsets.tried += entry.tried is None
                entry.record = record.tried(now.wall_ms)
                entry.tried = TriedRecord(entry.record, now.wall_ms + ms, reason_of(outcome))
        self._machines.waiting.delay_record(partition, entry, now.steady_ms + decision.ms)

    def _ruled_meanwhile(self, partition: PartitionState, record: Record, decision: Decision, now: Now) -> Ruled | None:
        """Return what an operator has decided about a record that is to stay in memory, or to be retried; None if none
        has."""
        ruled = None
        if self.queues is not None and isinstance(decision, Stays):
            ruled = self.queues.decided_meanwhile(partition, record, now)
        if ruled is None and self.settling.in_force and isinstance(decision, Ruleable):
            ruled = self.settling.decided_meanwhile(partition, record, now)
        return ruled

    def _count_failure(self, record: Record, outcome: Outcome, now: Now) -> Outcome:
        """Count a failed attempt, and return the outcome with a reason of a bounded number."""
        if isinstance(outcome, (Failed, Rejected)):  # a union would be made anew for each record
            if isinstance(outcome, Failed) and (outcome.delay is not None or outcome.level is not None):
                self.counters.odd_requests += not self.policy.understands(outcome.delay, outcome.level)
            # The reason is the service's text: as a label of metrics it could have any number of values.
            outcome = self._reasons.bounded(outcome, now.wall_ms)
            self.counters.failures.add(record, outcome.reason, outcome.text)
        elif isinstance(outcome, Expired):
            self.counters.failures.add(record, outcome.reason)
        return outcome

    def write(
        self,
        partition: PartitionState,
        record: Record,
        decision: Commit | Written,
        now: Now,
        outputs: Outputs = (),
        settled_by: str = "",
    ) -> None:
        """Have what a decision writes go with the next batch. `outputs`: what the service asked to be written with it
        (contract 1.12). `settled_by`: the id of the operator's decision that it carries out; empty for none."""
        has_nothing_else = not outputs or decision != DONE
        if self.queues is not None and has_nothing_else and self.queues.settles(partition, record, decision):
            return
        writes = writes_of(record, decision, self.policy, now.wall_ms)
        offsets = partition.offsets
        entry = offsets.entries[record.offset]
        if outputs:
            before = record.weight
            record, outputs = self._with_outputs(record, outputs)
            # They stay in memory until Kafka has them, and count there as what their record weighs more.
            self._machines.room.add_bytes(partition, record.weight - before)
            entry.record = record
        offsets.move(entry, SETTLED)
        self._machines.outbox.pending.append(
            SettledRecord(record, decision, writes + outputs, len(outputs), settled_by)
        )
        self._machines.commits.entry_added()

    def _with_outputs(self, record: Record, outputs: Outputs) -> tuple[Record, Outputs]:
        """Return the record with the weight of its outputs, which it has until it is done, and the outputs stamped."""
        trace = attempt_before(record.headers or []) if self.policy.traced else None
        more_bytes = sum(weight_of(copy.key, copy.value, copy.headers, None) for copy in outputs)
        group = self.policy.names.group
        # Contract 13.2: what a service asks to be written is memory of the lane too, until it is in Kafka.
        return replace(record, weight=record.weight + more_bytes), stamped(
            outputs, group, record.id, attempt_of(record), trace
        )

    def give_up_unreadable(self, partition: PartitionState, record: Record, now: Now) -> None:
        """Have a record whose headers break their form dead-lettered (contract 3.6): it is never delivered, and never
        lost."""
        self.counters.bad_headers += 1
        self.write(partition, record, dead_letter_unreadable(record, self.policy, now.wall_ms), now)


def reason_of(outcome: Outcome) -> str:
    """Return the class of the failure after which a record is retried in place."""
    return outcome.reason if isinstance(outcome, Failed | Expired) else ""


def is_about_output(refusal: Refusal) -> bool:
    """Return whether Kafka refuses for good what the service asked to be written.

    A partition without a leader is no reason to fail: the record waits for it, as for that of a copy.
    """
    entry = refusal.entry
    # Contract 7.7: what has no leader now will have one. To fail would spend a retry for an outage of Kafka.
    if not entry.outputs or refusal.about == "partition":
        return False
    topic = refusal.where.partition("[")[0]
    return not topic or any(copy.topic == topic for copy in entry.output_writes)


# --- a relay: many records at once -----------------------------------------------------------------------------------


def forward_due(
    partition: PartitionState, run: FetchedRecords, machines: Machines, decisions: Decisions, now: Now
) -> FetchedRecords:
    """Forward the due records at the head of a run to the ready topic; return the rest of the run."""
    policy, offsets, wall_ms = decisions.policy, partition.offsets, now.wall_ms
    wait_ms, ready, topics = partition.kind.delay_ms or 0, policy.names.ready, policy.topics
    if run.records and offsets.end_of_done(run.records[0].offset) is not None:
        return run  # the usual way passes over it
    entries, late, taken, load_bytes = list[SettledRecord](), list[int](), 0, 0
    for record in run.records:
        retry_state, offset = record.retry_state, record.offset  # None if the headers are broken or cannot be read
        # Contract 3.6, 2.9, 7.2: bad headers, a topic of others, and an offset too far ahead need the usual way.
        if retry_state is None or retry_state.topic not in topics or not offsets.may_begin(offset):
            break
        due_ms = max(retry_state.due_at, record.timestamp + wait_ms)
        if due_ms > wall_ms:
            break
        taken += 1
        if offsets.begin(offset, SETTLED, record) is not None:
            late.append(wall_ms - due_ms)
            load_bytes += record.weight
            copy = Copy(ready, record.key, record.value, for_topic(record.headers or [], ready), record.source.number)
            entries.append(SettledRecord(record, Forward(retry_state), (copy,)))
    decisions.counters.lateness.add_all(late)
    machines.room.add_bytes(partition, load_bytes)
    machines.outbox.pending.extend(entries)
    return run._replace(records=run.records[taken:])
