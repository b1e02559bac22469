"""The lane: hold a record until it may be delivered, deliver it, decide what the outcome means, commit the decision.

The consumer, the service, the committer and the timer call it, and it acts through ports, all on one thread. Nothing
else moves a record. Its way, from top to bottom: `received`, `send`, `answered`, `committed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from sidecar.core.commit_batch import CommitResult, SettledRecord, WrittenAt
from sidecar.core.counters import LaneCounters
from sidecar.core.decide import (
    LEASE_EXPIRED,
    Decision,
    LeaveUncommitted,
    Postpone,
    RetryInPlace,
    dead_letter_unreadable,
    decide,
    decide_draining,
)
from sidecar.core.holds import Holds
from sidecar.core.invariant import ensure
from sidecar.core.lane.admission import LaneOptions, admit
from sidecar.core.lane.blocked_partitions import BlockedPartitions
from sidecar.core.lane.bulk import BulkAnswers, RelayBulk
from sidecar.core.lane.calls import LaneCalls
from sidecar.core.lane.commits import Commits
from sidecar.core.lane.crash_gate import CrashGate
from sidecar.core.lane.facts import LaneFacts, facts_of
from sidecar.core.lane.invariants import check_records
from sidecar.core.lane.long_waits import LongWaits
from sidecar.core.lane.memory import LaneMemory
from sidecar.core.lane.operator_holds import OperatorHolds
from sidecar.core.lane.outbox import Outbox
from sidecar.core.lane.outputs import with_outputs
from sidecar.core.lane.owned_queue import LaneTies
from sidecar.core.lane.ownership import Ownership
from sidecar.core.lane.partition import AssignedPartition, FetchedRecords, LanePartition
from sidecar.core.lane.paused import PausedPartitions
from sidecar.core.lane.room_shares import RoomShares
from sidecar.core.lane.timer import LaneTimer
from sidecar.core.lane.waiting import WaitingRecords
from sidecar.core.outcome import (
    COMMITTED,
    Cancelled,
    Expired,
    Failed,
    Outcome,
    Outputs,
    Rejected,
    label_of,
    output_refused,
)
from sidecar.core.pace.dispatcher import Dispatcher
from sidecar.core.policy import Policy
from sidecar.core.ports import Ports
from sidecar.core.reason_classes import ReasonClasses
from sidecar.core.record import Now, Partition, Record
from topics.attempt import retry_state_of
from topics.transition_records import writes_of
from topics.transitions import DONE, Commit, Forward, Wait, Written, after_wait


class Lane:
    """One lane. `waits` maps each topic to its level delay in ms (0: ready topic); a main topic is not in it."""

    def __init__(
        self, policy: Policy, waits: Mapping[str, int], ports: Ports, dispatcher: Dispatcher, options: LaneOptions
    ) -> None:
        self._policy, self._ports, self._dispatcher, self._wanted = policy, ports, dispatcher, options.wanted
        self._reasons, self.counters = ReasonClasses(), LaneCounters()
        self._ordered = options.order is not None
        partitions: dict[Partition, LanePartition] = {}
        self._partitions: Mapping[Partition, LanePartition] = partitions
        memory = self.memory = LaneMemory(options.room, partitions, dispatcher.pace, ordered=self._ordered)
        queued = policy.has_queues and not waits
        waiting = self._waiting = WaitingRecords(options.room, options.order, named=queued)
        self.ready = waiting.ready
        outbox = self.outbox = Outbox()

        def wake_by(at_ms: int) -> None:
            self._timer.wake_by(at_ms)

        commits = self.commits = Commits(partitions, outbox, wake_by)
        paused = self.paused = PausedPartitions(ports.fetch, memory)
        calls = LaneCalls(lambda: self._policy, self._write, wake_by, ports.notice, self._output_refused, self._let_go)
        counted = policy.max_deaths is not None
        gate = CrashGate(partitions, waiting, commits, memory, dispatcher, calls) if counted else None
        self._gate = gate
        self.ownership = Ownership(
            partitions, waits, options.bounds, memory, waiting, outbox, commits, paused, gate, ports.recall
        )
        self._blocked = BlockedPartitions(self.ownership, outbox, waiting, memory, commits, paused, gate, calls)
        self._room = RoomShares(partitions, memory, waiting, paused, dispatcher.dispatch)
        self._operator_holds = OperatorHolds(
            *(partitions, waiting, memory, paused, gate, calls.policy, ports.withdraw, self._put_back),
            ordered=self._ordered,
        )
        self._active_holds: OperatorHolds | None = None
        """The same while a hold is in force: without one a record pays nothing for it."""
        self.queues: LongWaits | None = None
        if queued:
            finish, end_turn = self._finish, self._end_turn
            ties = LaneTies(
                *(self.ownership, waiting, memory, commits, paused, ports.queues, *calls[:2], finish, end_turn),
                ports.filling,
            )
            self.queues = LongWaits(options.order or "key", ties)
        self._timer = LaneTimer(commits, waiting, paused, self._room, gate, dispatcher, ports, self.queues)
        self._relay_bulk = RelayBulk(self.ownership, memory, outbox, self.counters)
        self._bulk_answers = BulkAnswers(dispatcher, self.ownership, gate, self.counters)
        dispatcher.join(self, options.weight)

    def allow_far(self, allowed: bool) -> None:
        """Let records begin at any distance from the first open one; else within SPAN, as older versions read it."""
        self.ownership.allow_far(allowed)

    def apply_policy(self, policy: Policy, waits: Mapping[str, int]) -> None:
        """Decide by another policy from now on; records that wait already keep their due time."""
        self._policy = policy
        self.ownership.apply_delays(waits)
        if self.queues is not None:
            self.queues.look_again()

    def hold(self, holds: Holds, now: Now) -> None:
        """Deliver nothing that these holds keep back, and what others have kept back."""
        self._active_holds = self._operator_holds if holds else None
        self._operator_holds.apply(holds, now)
        if self.queues is not None:
            self.queues.heads.obey(holds)
        self._end_turn(now)

    def _put_back(self, record: Record) -> None:
        if self.queues is not None:
            self.queues.heads.put_back(record)

    def facts(self, steady_ms: int) -> LaneFacts:
        """Return what is true of the lane now, at a steady time (ms)."""
        queues = {} if self.queues is None else self.queues.facts()
        return facts_of(self._partitions, self._waiting, self.outbox, self.ownership.records_lost, steady_ms, queues)

    def owned(self) -> Collection[Partition]:
        """Return the partitions that are owned, with those of queues."""
        return self._partitions.keys()

    def put_off(self, steady_ms: int) -> frozenset[tuple[Partition, int]]:
        """Return partition and offset of the records in memory whose time has not come, at a steady time (ms)."""
        return frozenset((record.source, record.offset) for record in self._waiting.put_off(steady_ms))

    def waiting_by_topic(self) -> Counter[str]:
        """Return how many records wait in memory, by the topic that they were read from."""
        return self._waiting.count_by_topic()

    def waiting(self) -> int:
        """Return how many records wait in memory for their time or for a place in flight."""
        return self._waiting.count

    def unsaved_at_loss(self) -> int:
        """Return how many records, at most, were answered but not in Kafka when their partition went."""
        return self.ownership.uncommitted_at_loss

    def unsaved(self) -> int:
        """Return the same, and those of the partitions that are still here."""
        return self.unsaved_at_loss() + sum(partition.unsaved for partition in self._partitions.values())

    def check(self) -> None:
        """Raise BrokenInvariantError if the lane's state is one that must not be. Slow: for tests, and now and then."""
        check_records(self._partitions, self._waiting, self.outbox, self.commits)
        out = sum(partition.in_flight for partition in self._partitions.values())
        ensure(self._dispatcher.in_flight >= out, "what is out has its place in flight")
        self.paused.check(self._partitions.values())
        objects = (
            self._waiting,
            self.outbox,
            self.commits,
            self.memory,
            self._room,
            self.ownership,
            self._bulk_answers,
            self._operator_holds,
        )
        for checked in (*self._partitions.values(), *objects, self._dispatcher, self._gate, self.queues):
            if checked is not None:
                checked.check()

    # --- its partitions ----------------------------------------------------------------------------------------------

    def assigned(self, grants: Iterable[AssignedPartition], now: Now) -> None:
        """Start partitions where their last owner left off."""
        grants = tuple(grants)
        self.ownership.assigned(grants)
        if self.queues is not None:
            self.queues.assigned(grants)
        self.tick(now)

    def release(self, partitions: Collection[Partition], done: Callable[[], None], now: Now) -> None:
        """Give partitions up in order; call `done` once all deliveries in flight are answered and committed."""
        self.ownership.release(partitions, done)
        self.tick(now)

    def lost(self, partitions: Collection[Partition]) -> None:
        """Drop partitions that another member owns by now, or whose time to finish is over; commit nothing."""
        self.ownership.lost(partitions)

    def cut(self, source: Partition, epoch: int, wanted: int, low: int, now: Now) -> None:
        """Count the records that are lost unread, from the offset `wanted` on: the log begins at `low` now."""
        self.ownership.cut(source, epoch, wanted, low)
        self.tick(now)

    def truncated(self, source: Partition, high: int) -> None:
        """Drop a partition whose log ends at `high` now, and count what was not done."""
        self.ownership.truncated(source, high)

    def _end_turn(self, now: Now) -> None:
        """Do what follows from the events of a call of the lane."""
        if self.queues is not None:
            self.queues.turn(now)
            self._room.admitted(now)
        self._dispatcher.dispatch(now)
        self._timer.schedule(now)

    def is_full_with(self, under_way: int) -> bool:
        """Return whether nothing more may be handed over, beside so many bytes that are; for the consumer's thread."""
        return self.memory.is_full_with(under_way)

    # --- the way of one record -------------------------------------------------------------------------------------

    def received(self, runs: Iterable[FetchedRecords], now: Now) -> None:
        """Admit what the consumer hands over; a run that its partition does not accept is dropped."""
        for run in runs:
            partition = self._partitions.get(run.partition)
            # Contract 9.1: what was fetched under an earlier assignment, or before a seek, is no record of this one.
            if partition is None or not partition.accepts(run):
                continue
            if self._active_holds is not None and self._active_holds.pauses(partition, run, now):
                continue
            if partition.suspicion is not None and run.records:
                partition.suspicion.see(run.records[-1].offset)
            if self.queues is None or self.queues.mains.admits(partition, run):
                self._take_up(partition, run, now)
        self._room.admitted(now)
        self._end_turn(now)

    def _take_up(self, partition: LanePartition, run: FetchedRecords, now: Now) -> None:
        if run.last_at_ms is not None:
            partition.read_up_to(run.last_at_ms)
        if self._policy.relay and self._active_holds is None:
            run = self._relay_bulk.forward_due(partition, run, self._policy, now)
        going: list[Record] = []
        for record, remaining in admit(partition, run, self.paused, now, self.memory.limit_of(partition)):
            self.memory.add(partition, record.weight)
            # Contract 3.6: a copy whose headers break their form is never delivered, and never lost.
            if record.fault:
                self.counters.bad_headers += 1
                self._write(partition, record, dead_letter_unreadable(record, self._policy, now.wall_ms), now)
            # Contract 6.12: a record whose tag nobody subscribed to is done, without a delivery.
            elif self._wanted is not None and not self._wanted(record):
                self.counters.passed_over[record.source.topic] += 1
                self._finish(partition, record)
            elif self.queues is not None and self.queues.mains.keeps(partition, record):
                pass
            # Contract 2.3: never early, whatever the broker's clock says (`append_times.py`).
            elif remaining > 0:
                self._waiting.delay(record, now.steady_ms + remaining)
            elif record.retry_state is None or self._after_wait(partition, record, now):
                going.append(record)
        self._waiting.release_run(going)
        if run.end is not None:
            self._log_ended(partition, run.end, now)

    def _log_ended(self, partition: LanePartition, end: int, now: Now) -> None:
        if partition.level_delay_ms:
            partition.append_times.note(end - 1, now.steady_ms)
        if self._gate is not None:
            self._gate.log_ended(partition, now)
        if partition.paused is None and partition.tracker.reached(end):
            self.commits.soon(partition)
        if self.queues is not None:
            self.queues.mains.main_ended(partition, end)

    def _after_wait(self, partition: LanePartition, record: Record, now: Now) -> bool:
        """Do what follows once the level delay of a record is over; return whether it may be delivered now."""
        decision = after_wait(record, self._policy, now.wall_ms, self._waiting.patience_ms)
        if not isinstance(decision, Wait):
            if isinstance(decision, Forward):
                if self._active_holds is not None and self._active_holds.keeps(partition, record, now):
                    return False
                self.counters.late(record, partition.level_delay_ms, now.wall_ms)
            self._write(partition, record, decision, now)
            return False
        if decision.ms > 0:
            self._waiting.delay(record, now.steady_ms + decision.ms)
            return False
        return True

    def send(self, record: Record, now: Now) -> bool:
        """Deliver one ready record (called by the dispatcher); return False if its partition does not allow it now."""
        partition = self.ownership.owner_of(record)
        # Contract 9.1: a partition that is given up sends nothing new.
        if partition is None or partition.closing:
            return False
        # Contract 7.6: its copies are refused, so each further attempt could not be counted.
        if partition.blocked:
            self._waiting.withhold(record)
            return False
        if self._active_holds is not None and self._active_holds.keeps(partition, record, now):
            return False
        suspicion, gate = partition.suspicion, self._gate
        if suspicion is not None and gate is not None and not gate.pass_or_keep(partition, suspicion, record, now):
            return False
        # An attempt in place has no due time of its own, and neither has what came behind another.
        if record.retry_state is not None and record.again == 0 and not retry_state_of(record).behind:
            self.counters.late(record, partition.level_delay_ms, now.wall_ms)
        partition.sent()
        self._ports.deliver(record, self.answered)
        return True

    def answered(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Process the outcome of a delivery; an answer for an older assignment is counted and dropped."""
        if self._dispatcher.gathering and outcome is COMMITTED and record.retry_state is None:
            self._bulk_answers.add(record)
            return
        self._dispatcher.answered(record, outcome, now)
        partition = self.ownership.owner_of(record)
        if partition is None:
            # Contract 9.1: an answer for an earlier assignment is counted, and changes nothing.
            self.counters.fenced_answers += not isinstance(outcome, Cancelled)
            self._timer.schedule(now)  # an outage may have begun: the timer must wake the lane for its end
        else:
            partition.answered()
            if partition.suspicion is not None and self._gate is not None:
                self._gate.answered(partition, partition.suspicion, record, outcome, now)
            self.counters.answered(record, partition.level, label_of(outcome))
            load = partition.load
            if outcome is COMMITTED and record.retry_state is None:
                self._finish(partition, record)
            else:
                self._decide(partition, record, outcome, now)
            if partition.closing or partition.load < load:  # else nothing has made room
                self._changed(partition, now)
        self._go_on(now)

    def answered_in_bulk(self, now: Now) -> None:
        """Process the records that one batch response committed (called by the dispatcher), and continue."""
        for partition in self._bulk_answers.apply(self._finish, now):
            self._changed(partition, now)
        self._go_on(now)

    def _go_on(self, now: Now) -> None:
        if self.queues is not None:
            self.queues.turn(now)
        self._dispatcher.dispatch(now)
        # An outage may have begun, a probe was sent that may hang, or records wait for a rate.
        self._timer.wake_by(self._dispatcher.next_at(now))

    def _decide(self, partition: LanePartition, record: Record, outcome: Outcome, now: Now) -> None:
        if isinstance(outcome, Failed) and not self._policy.understands(outcome.delay, outcome.level):
            self.counters.odd_requests += 1
        if isinstance(outcome, (Failed, Rejected)):  # a union would be made anew for each record
            outcome = self._reasons.bounded(outcome, now.wall_ms)
            self.counters.failed(record, outcome.reason)
        elif isinstance(outcome, Expired):
            self.counters.failed(record, LEASE_EXPIRED.reason)
        # Contract 9.4: while the sidecar drains, a failure makes no dead letter.
        rule = decide_draining if self._dispatcher.closed else decide
        decision: Decision = rule(record, outcome, self._policy, now.wall_ms)
        match decision:
            case LeaveUncommitted():
                partition.leave()
            case Wait(ms=0):
                self._waiting.repeat(record)
            case Wait(ms=ms):
                self._waiting.delay(record, now.steady_ms + ms)
            case Postpone(ms=ms):
                self._waiting.delay(record.postponed(now.wall_ms), now.steady_ms + ms)
            case RetryInPlace(ms=ms):
                partition.retried_in_place(record)
                self._waiting.delay(record.tried(now.wall_ms), now.steady_ms + ms)
            case _:
                self._write(partition, record, decision, now, getattr(outcome, "outputs", ()))
                if self.commits.in_flight is not None:
                    return  # the result of the batch in flight schedules the next step
        self._timer.schedule(now)

    def _write(
        self, partition: LanePartition, record: Record, decision: Commit | Written, now: Now, outputs: Outputs = ()
    ) -> None:
        plain = not outputs or decision != DONE  # else there is something to write
        if plain and self.queues is not None and self.queues.copies.settles(partition, record, decision):
            return
        partition.settled()
        writes = writes_of(record, decision, self._policy, now.wall_ms)
        if outputs:
            before = record.weight
            record, outputs = with_outputs(record, outputs, self._policy)
            self.memory.add(partition, record.weight - before)
        self.outbox.add(SettledRecord(record, decision, writes + outputs, len(outputs)))

    def _output_refused(self, partition: LanePartition, entry: SettledRecord, why: str, now: Now) -> None:
        """Let a record fail whose outputs Kafka does not take."""
        partition.unsettle()
        self.outbox.forget(entry)
        self._decide(partition, entry.record, output_refused(why), now)

    def _let_go(self, partition: LanePartition) -> None:
        """Have what a blocked queue has let go wait in its queue again."""
        if self.queues is not None:
            self.queues.heads.let_go(partition)

    def committed(self, result: CommitResult, now: Now) -> None:
        """Process the committer's result of the batch in flight."""
        self.commits.ended(now, committed=result.committed)
        if result.apart:
            self.commits.halve(result.batch)
        # Contract 7.4, 7.11: what did not happen is committed again from memory; nothing is delivered again for it.
        self.outbox.put_back(entry for entry in result.again if self.ownership.owner_of(entry.record) is not None)
        self._all_written(result, now)
        if result.refused:
            self._blocked.refused(result.refused, now)
        outbox = self.outbox
        # Contract 7.2: a broker that takes less metadata gets a shorter done set, never a refused commit.
        if result.most is not None:
            self.ownership.shorten(result.most)
            if not result.committed:
                self.commits.all_at_once()
        if result.unwritable or result.too_long:
            self._blocked.progress_refused(result, now)
        if result.committed and outbox.unwritable:
            self.commits.progress_accepted(result.batch.commits, now)
        if outbox.refused or outbox.unwritable or self.memory.refused_bytes:
            self._blocked.review(now)
            self._room.admitted(now)  # the copies that Kafka takes now count in the room again
        if outbox.unwritable or self.memory.awaits:
            self.memory.look_for_awaited()
        self.ownership.committed(result, now)
        self._end_turn(now)  # records that were queued behind a dead letter may be delivered

    def _all_written(self, result: CommitResult, now: Now) -> None:
        straight, located = self._policy.relay and result.committed, result.located
        if located and self.queues is not None:
            self.queues.copies.transaction_ended(result.producer)
        for index, entry in enumerate(self._relay_bulk.settle(result.done) if straight else result.done):
            self._written(entry, result.committed, now, located.get(index))
        if located and self.queues is not None:
            self.queues.copies.take_located()

    def _written(self, entry: SettledRecord, with_progress: bool, now: Now, where: WrittenAt | None) -> None:
        partition = self.ownership.owner_of(entry.record)
        if partition is None:
            return
        partition.unsettle()
        self.counters.count(entry.decision)
        if self.queues is not None:
            self.queues.copies.written(entry, where, now)
        self._finish(partition, entry.record, covered=with_progress, copied=True)
        if self.outbox.refused:
            self.outbox.accepted(entry)

    def _finish(self, partition: LanePartition, record: Record, *, covered: bool = False, copied: bool = False) -> None:
        """End the way of a record. `covered`: the progress that is in Kafka has it already. `copied`: something was
        written for it."""
        self.memory.add(partition, -record.weight)
        partition.finish(record, copied=copied)
        if not (covered or partition.uncommitted):
            self.commits.soon(partition)
        if self.queues is not None:
            self.queues.mains.finished(record)
        elif self._ordered:  # asked here, because a call for each record would cost a hundredth of its way
            self._waiting.done(record)

    def _changed(self, partition: LanePartition, now: Now) -> None:
        if partition.closing:
            if partition.in_flight == 0 and partition.uncommitted:
                self.commits.at_once(partition)  # the release waits for nothing else
            self._timer.schedule(now)
            self.ownership.check_releases()
        elif partition.paused is not None:
            self.paused.resume_if_ready(partition, now.steady_ms)

    # --- time ------------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """Do what is due at `now`; the lane asks for the next call through the port `wake`."""
        self._timer.fired()
        self._dispatcher.tick(now)
        if self._gate is not None:
            self._gate.tick(now)
        self._room.tick(now)
        for record in self._waiting.take_due(now.steady_ms):
            partition = self.ownership.owner_of(record)
            if partition is None or partition.closing:
                continue
            if record.retry_state is None or partition.under is not None or self._after_wait(partition, record, now):
                self._waiting.release(record)
        self.paused.resume_due(self._partitions.values(), now.steady_ms)
        self._end_turn(now)
