"""The lane: hold a record until it may be delivered, deliver it, decide what the outcome means, commit the decision.

The consumer, the service, the committer and the timer call it, and it acts through ports, all on one thread. Nothing
else moves a record. Its way, from top to bottom: `received`, `send`, `answered`, `committed`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from reconsume.sidecar.core.commit_batch import CommitResult, SettledRecord
from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.core.holds import Holds
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.admission import LaneOptions, admit
from reconsume.sidecar.core.lane.blocked_partitions import BlockedPartitions
from reconsume.sidecar.core.lane.bulk import BulkAnswers, RelayBulk
from reconsume.sidecar.core.lane.calls import LaneCalls
from reconsume.sidecar.core.lane.commit_results import CommitResults
from reconsume.sidecar.core.lane.commits import Commits
from reconsume.sidecar.core.lane.crash_gate import CrashGate
from reconsume.sidecar.core.lane.decisions import Decisions
from reconsume.sidecar.core.lane.invariants import check_records
from reconsume.sidecar.core.lane.long_waits import LongWaits
from reconsume.sidecar.core.lane.membership_doubt import MembershipDoubt
from reconsume.sidecar.core.lane.memory import LaneMemory
from reconsume.sidecar.core.lane.operator_holds import OperatorHolds
from reconsume.sidecar.core.lane.outbox import Outbox
from reconsume.sidecar.core.lane.owned_queue import LaneTies
from reconsume.sidecar.core.lane.ownership import Ownership
from reconsume.sidecar.core.lane.partition import AssignedPartition, FetchedRecords, LanePartition
from reconsume.sidecar.core.lane.paused import PausedPartitions
from reconsume.sidecar.core.lane.room_shares import RoomShares
from reconsume.sidecar.core.lane.shown import ShownLane
from reconsume.sidecar.core.lane.timer import LaneTimer
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.outcome import COMMITTED, Cancelled, Outcome, label_of, output_refused
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Ports
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.topics.attempt import retry_state_of
from reconsume.topics.transitions import Forward, Wait, after_wait


class Lane:
    """One lane. `waits` maps each topic to its level delay in ms (0: ready topic); a main topic is not in it."""

    def __init__(
        self, policy: Policy, waits: Mapping[str, int], ports: Ports, dispatcher: Dispatcher, options: LaneOptions
    ) -> None:
        self._ports, self._dispatcher, self._wanted = ports, dispatcher, options.wanted
        self.counters = counters = LaneCounters()
        self._ordered = options.order is not None
        partitions: dict[Partition, LanePartition] = {}
        self._partitions: Mapping[Partition, LanePartition] = partitions
        memory = self.memory = LaneMemory(options.room, partitions, dispatcher.pace, ordered=self._ordered)
        queued = policy.has_queues and not waits  # what waits in levels has no order to keep
        waiting = self._waiting = WaitingRecords(options.room, options.order, named=queued)
        self.ready = waiting.ready
        outbox = self.outbox = Outbox()

        # The timer looks at all other parts, so it is made last, and some of them wake it.
        def wake_by(at_ms: int) -> None:
            self._timer.wake_by(at_ms)

        commits = self.commits = Commits(partitions, outbox, wake_by, unproven=options.proves_room)
        paused = self.paused = PausedPartitions(ports.fetch, memory)
        decisions = self._decisions = Decisions(policy, waiting, outbox, memory, commits, dispatcher, counters)
        calls = LaneCalls(
            *(lambda: decisions.policy, decisions.write, wake_by, ports.notice, self._output_refused, self._let_go)
        )
        counted = policy.max_deaths is not None  # contract 1.10: else a crash says nothing of a record
        gate = self._gate = CrashGate(partitions, waiting, commits, memory, dispatcher, calls) if counted else None
        ownership = self.ownership = Ownership(
            partitions, waits, options.bounds, memory, waiting, outbox, commits, paused, gate, ports.recall
        )
        blocked = BlockedPartitions(ownership, outbox, waiting, memory, commits, paused, gate, calls)
        room = self._room = RoomShares(partitions, memory, waiting, paused, dispatcher.dispatch)
        self._operator_holds = OperatorHolds(
            *(partitions, waiting, memory, paused, gate, calls.policy, ports.withdraw, self._put_back),
            ordered=self._ordered,
        )
        self._active_holds: OperatorHolds | None = None
        """The same while a hold is in force: without one a record pays nothing for it."""
        queues = self.queues = self._queues_of(options, calls) if queued else None
        doubt = self._doubt = MembershipDoubt(commits, dispatcher, ordered=self._ordered)
        self._timer = LaneTimer(commits, waiting, paused, room, gate, dispatcher, ports, doubt, queues)
        self._relay_bulk = RelayBulk(ownership, memory, outbox, counters)
        self._bulk_answers = BulkAnswers(dispatcher, ownership, gate, counters)
        self._results = CommitResults(
            *(ownership, outbox, commits, memory, blocked, room, self._relay_bulk),
            *(queues, decisions, counters, self._finish),
        )
        self.shown = ShownLane(partitions, ownership, waiting, outbox, commits, queues)
        dispatcher.join(self, options.weight)

    def _queues_of(self, options: LaneOptions, calls: LaneCalls) -> LongWaits:
        """Return the queues of this lane, which write by its decisions, and are told of these."""
        ties = LaneTies(
            *(self.ownership, self._waiting, self.memory, self.commits, self.paused, self._ports.queues, *calls[:2]),
            *(self._finish, self._end_turn, self._ports.filling),
        )
        queues = LongWaits(options.order or "key", ties)
        self._decisions.write_to(queues.copies, queues.heads)
        return queues

    def apply_policy(self, policy: Policy, waits: Mapping[str, int]) -> None:
        """Decide by another policy from now on; records that wait already keep their due time."""
        self._decisions.policy = policy
        self.ownership.apply_delays(waits)
        if self.queues is not None:
            self.queues.look_again()
            self._timer.wake_by(0)  # nothing else may happen here for hours

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
            self._timer.wake_by(0)  # amid a dispatch, maybe of the other lane, behind this one's look at its queues

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
            self._doubt,
            self._timer,
        )
        for checked in (*self._partitions.values(), *objects, self._dispatcher, self._gate, self.queues):
            if checked is not None:
                checked.check()

    def wakes_by(self, at_ms: int) -> bool:
        """Return whether the lane has asked to be ticked at a steady time (ms) at the latest."""
        return self._timer.wakes_by(at_ms)

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
        self._timer.wake_by(0)  # the places that were kept for them are for others now

    def cut(self, source: Partition, epoch: int, wanted: int, low: int, now: Now) -> None:
        """Count the records that are lost unread, from the offset `wanted` on: the log begins at `low` now."""
        self.ownership.cut(source, epoch, wanted, low)
        self.tick(now)

    def truncated(self, source: Partition, high: int) -> None:
        """Drop a partition whose log ends at `high` now, and count what was not done."""
        self.ownership.truncated(source, high)
        self._timer.wake_by(0)

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
        if self._decisions.policy.relay and self._active_holds is None:
            run = self._relay_bulk.forward_due(partition, run, self._decisions.policy, now)
        going: list[Record] = []
        keeps = None if self.queues is None else self.queues.mains.keeper(partition)
        for record, remaining in admit(partition, run, self.paused, now, self.memory.limit_of(partition)):
            self.memory.add(partition, record.weight)
            # Contract 3.6: a copy whose headers break their form is never delivered, and never lost.
            if record.fault:
                self._decisions.give_up_unreadable(partition, record, now)
            # Contract 6.12: a record whose tag nobody subscribed to is done, without a delivery.
            elif self._wanted is not None and not self._wanted(record):
                self.counters.passed_over[record.source.topic] += 1
                self._finish(partition, record)
            elif keeps is not None and keeps(partition, record):
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
        decision = after_wait(record, self._decisions.policy, now.wall_ms, self._waiting.patience_ms)
        if not isinstance(decision, Wait):
            if isinstance(decision, Forward):
                if self._active_holds is not None and self._active_holds.keeps(partition, record, now):
                    return False
                self.counters.late(record, partition.level_delay_ms, now.wall_ms)
            self._decisions.write(partition, record, decision, now)
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
        # Contract 7.2: nothing is delivered before it is known that progress of any length can be committed.
        if partition.blocked or self.commits.unproven:
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
            elif self._decisions.decide(partition, record, outcome, now):
                self._timer.schedule(now)
            if partition.closing or partition.load < load:  # else nothing has made room
                self._changed(partition, now)
        self._go_on(now)

    @property
    def has_open(self) -> bool:
        """Whether a record of its partitions is not done, or waits to be read (asked by the dispatcher)."""
        return self.shown.has_open()

    def answered_in_bulk(self, now: Now) -> None:
        """Process the records that one batch response committed (called by the dispatcher), and continue."""
        for partition in self._bulk_answers.apply(self._finish, now):
            self._changed(partition, now)
        self._go_on(now)

    def _go_on(self, now: Now) -> None:
        looked = self.queues is not None and self.queues.turn(now)
        self._dispatcher.dispatch(now)
        if looked:  # there may be other deadlines
            self._timer.schedule(now)
            return
        # An outage may have begun, what was sent may hang, or records wait for a rate.
        self._timer.wake_by(self._dispatcher.look_for_hangs(now))

    def _output_refused(self, partition: LanePartition, entry: SettledRecord, why: str, now: Now) -> None:
        """Let a record fail whose outputs Kafka does not take."""
        partition.unsettle()
        self.outbox.forget(entry)
        if self._decisions.decide(partition, entry.record, output_refused(why), now):
            self._timer.schedule(now)

    def _let_go(self, partition: LanePartition) -> None:
        """Have what a blocked queue has let go wait in its queue again."""
        if self.queues is not None:
            self.queues.heads.let_go(partition)

    def committed(self, result: CommitResult, now: Now) -> None:
        """Process the committer's result of the batch in flight."""
        self._doubt.ended()
        self._results.apply(result, now)
        self._end_turn(now)  # records that were queued behind a dead letter may be delivered

    def member_refused(self) -> None:
        """Note that Kafka has refused the batch in flight, as one of no member of the group; it is tried again."""
        self._doubt.refused()

    def _finish(self, partition: LanePartition, record: Record, *, covered: bool = False) -> None:
        """End the way of a record. `covered`: the progress that is in Kafka has it already."""
        self.memory.add(partition, -record.weight)
        partition.finish(record)
        if partition.closing:
            # Contract 9.1: what ends a drain halfway repeats only what the service has not answered.
            self.commits.at_once(partition)
        elif not (covered or partition.uncommitted):
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
        self._doubt.tick(now)
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
