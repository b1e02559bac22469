"""The lane: hold a record until it may be delivered, deliver it, decide what the outcome means, commit the decision.

The consumer, the service, the committer and the timer call it, and it acts through ports, all on the event loop.
Nothing else moves a record. Its way, from top to bottom: `received`, `send`, `answered`, `committed`. Each of these
changes entries, and then `_end_turn` does everything that follows, in one order: what has changed in queues,
deliveries, the next transaction, and the next wake-up.

Where a record is, is in the map of its partition (`partition.py`). Around it are the machines: what waits in memory
(`waiting.py`), which partitions are fetched (`fetching.py`), how much memory each may have (`room.py`), what is on its
way into Kafka (`outbox.py`, `results.py`), what is decided (`decisions.py`), when to be called (`agenda.py`). Before a
delivery each record passes the gates, of which the one of suspects comes last (`suspects.py`); the order of keys,
rates, shares and the pace have agreed before (`order.py`, `pace/`). `why.py` says why something waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.commit_batch import CommitResult
from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.core.decisions import Decisions, forward_due
from reconsume.sidecar.core.facts import ShownLane
from reconsume.sidecar.core.fetching import Fetching
from reconsume.sidecar.core.gates import Gates
from reconsume.sidecar.core.hold_gate import HoldGate
from reconsume.sidecar.core.holds import Holds
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.notes import NOTES, REFUSED, NoteKeeper, coming_bytes
from reconsume.sidecar.core.order import KeyQueues, OrderBy
from reconsume.sidecar.core.outbox import COMMIT, DOUBT, Commits, MembershipDoubt, Outbox, Proof
from reconsume.sidecar.core.outcome import COMMITTED, Cancelled, Died, Outcome, label_of
from reconsume.sidecar.core.owned_queue import OwnedQueue, QueueTies
from reconsume.sidecar.core.ownership import Machines, Ownership
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.partition import (
    CALLED_OFF,
    DELAYED,
    OUT,
    READY,
    AssignedPartition,
    Entry,
    FetchedRecords,
    PartitionState,
)
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Ports, ScannedRange
from reconsume.sidecar.core.position_reset import RESETS, PositionResets, ResetOrder, stamped
from reconsume.sidecar.core.progress import Bounds
from reconsume.sidecar.core.queues import LongWaits
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.sidecar.core.results import CommitResults, ResultCalls
from reconsume.sidecar.core.room import ROOM, Room, RoomMaker, SharedRoom
from reconsume.sidecar.core.settling import Settling
from reconsume.sidecar.core.suspects import SUSPECTS, SuspectGate
from reconsume.sidecar.core.waiting import WaitingRecords
from reconsume.sidecar.core.why import Why
from reconsume.topics.attempt import retry_state_of
from reconsume.topics.decision_record import DecisionRecord
from reconsume.topics.owner_notes import OwnerNotes
from reconsume.topics.position_ranges import PartitionResets, Resets
from reconsume.topics.tags import TagFilter

NO_PARTITIONS: Mapping[Partition, int] = MappingProxyType({})
PACE = "pace"
"""The name of the next tick of the pace, or of a rate, in the agenda."""


class LaneOptions(NamedTuple):
    """What a lane admits, and how much of it.

    `room`: bytes that may be handed over and not done before the consumer fetches no more; `shared`: those that lanes
    of other groups may have too. `order`: delivery one at a
    time for each key or each partition; None: no order. `wanted`: the filter of the records to deliver; None: all.
    `bounds`: how far a partition may go beyond its first open record. `proves_room`: nothing is delivered before the
    brokers have taken the longest metadata that progress may need. `weight`: its part of the deliveries in proportion
    to the other lane, while records of both wait. `unclean`: the partitions that this process gave up without the clean
    mark before it restarted in place (`SuspectGate.unclean_partitions`).
    """

    room: int
    order: OrderBy | None = None
    wanted: TagFilter | None = None
    bounds: Bounds = Bounds()
    weight: int = 1
    proves_room: bool = False
    shared: SharedRoom | None = None
    unclean: Mapping[Partition, int] = NO_PARTITIONS


class Lane:
    """One lane. `waits` maps each topic to its level delay in ms (0: ready topic); a main topic is not in it."""

    def __init__(
        self, policy: Policy, waits: Mapping[str, int], ports: Ports, dispatcher: Dispatcher, options: LaneOptions
    ) -> None:
        partitions: dict[Partition, PartitionState] = {}
        self.partitions: Mapping[Partition, PartitionState] = partitions
        has_queues, is_ordered = policy.has_queues and not waits, options.order is not None
        agenda, outbox = Agenda(ports.wake), Outbox()
        keys = None if options.order is None else KeyQueues(options.order, named=has_queues)
        room = Room(options.room, partitions, dispatcher.pace, agenda, ordered=is_ordered, shared=options.shared)
        waiting, fetching = WaitingRecords(partitions, agenda, options.room, keys), Fetching(ports.fetch, room, agenda)
        commits = Commits(partitions, outbox, agenda, Proof.OWED if options.proves_room else Proof.PROVEN)
        doubt = MembershipDoubt(commits, dispatcher, agenda, ordered=is_ordered)
        maker = RoomMaker(room, waiting, fetching, dispatcher, partitions)
        machines = self.machines = Machines(partitions, agenda, waiting, room, maker, fetching, outbox, commits, doubt)
        decisions = self.decisions = Decisions(policy, machines, dispatcher, LaneCounters())
        self.notes = NoteKeeper(
            *(partitions, machines.fetching, machines.commits, room, agenda, ports.notes),
            *(lambda: decisions.policy.names.policy, ports.notice),
        )
        suspects = None
        if policy.max_deaths is not None:  # contract 1.10: without it a crash says nothing of a record
            suspects = SuspectGate(machines, dispatcher, decisions, ports.notice, options.unclean)
        self.suspects = suspects
        self.ownership = Ownership(machines, waits, options.bounds, suspects, ports.recall, self._partitions_dropped)
        if has_queues:
            assert ports.queues is not None
            ties = QueueTies(
                options.order or "key",
                machines,
                self.ownership,
                decisions,
                ports.queues,
                ports.filling,
                self._finish,
                self._end_turn,
                lambda state: self.resets.supersedes(state),
            )
            decisions.queues = LongWaits(ties)
        calls = ResultCalls(self._finish, ports.notice)
        self.results = CommitResults(machines, self.ownership, decisions, suspects, calls, self.notes)
        self.hold_gate = HoldGate(
            partitions, machines.waiting, machines.fetching, lambda: decisions.policy, ordered=is_ordered
        )
        self.resets = PositionResets(machines, self.ownership, self.notes.use, ports.repeat_takeover, ports.notice)
        self.notes.resets_read = self._resets_read
        self.settling = Settling(machines, decisions, self.notes, self.hold_gate, ports.notes)
        decisions.settling = self.settling
        self.why = Why(machines, self.resets, self.hold_gate, dispatcher, decisions.queues)
        self.gates = Gates(machines, decisions, self.why, self.resets, self.hold_gate, self.settling, suspects)
        self._ports, self._dispatcher, self._wanted = ports, dispatcher, options.wanted
        self._accepted: list[Record] = []
        """What one answer has accepted, while its outcomes are passed on; empty between two calls."""
        dispatcher.join(self, options.weight)

    # --- what others ask --------------------------------------------------------------------------------------------

    @property
    def ready(self) -> ReadyFlows:
        """The records that may be delivered (asked by the dispatcher)."""
        return self.machines.waiting.ready

    @property
    def queues(self) -> LongWaits | None:
        """What waits in queue topics; None unless order survives long waits."""
        return self.decisions.queues

    @property
    def counters(self) -> LaneCounters:
        """What happened."""
        return self.decisions.counters

    @property
    def shown(self) -> ShownLane:
        """What the lane shows of itself."""
        return ShownLane(self.machines, self.ownership, self.queues, self.why)

    @property
    def room(self) -> Room:
        """The memory of the lane."""
        return self.machines.room

    @property
    def has_open(self) -> bool:
        """Whether a record of its partitions is not done, or waits to be read (asked by the dispatcher)."""
        return self.shown.has_open()

    def is_full_with(self, under_way: int) -> bool:
        """Return whether nothing more may be handed over, beside so many bytes that are; for the consumer's thread."""
        return self.machines.room.is_full_with(under_way)

    def wakes_by(self, at_ms: int) -> bool:
        """Return whether the lane has asked to be ticked at a steady time (ms) at the latest."""
        return self.machines.agenda.wakes_by(at_ms)

    # --- its policy, and what an operator holds ---------------------------------------------------------------------

    def apply_policy(self, policy: Policy, waits: Mapping[str, int]) -> None:
        """Decide by another policy from now on; records that wait already keep their due time."""
        self.decisions.policy = policy
        self.ownership.waits = waits
        if self.queues is not None:
            self.queues.look_again()
            self.machines.agenda.wake_by(0)  # nothing else may happen here for hours

    def hold(self, holds: Holds, now: Now) -> None:
        """Deliver nothing that these holds keep back, and release what only earlier holds have kept back."""
        self.hold_gate.apply(holds, now)
        if holds:
            self._ports.withdraw(self.hold_gate.is_held)
        if self.queues is not None:
            self.queues.obey(holds)
        self._end_turn(now)

    def decide(self, decisions: Mapping[str, DecisionRecord], now: Now) -> None:
        """Carry out what operators have decided about waiting records: these decisions, by their ids, and no others."""
        self.settling.decide(decisions, now)
        self._end_turn(now)

    def rewrite_notes(self) -> None:
        """Write what is noted of its partitions again: the policy topic may be another one."""
        self.notes.rewrite()
        self.resets.rewrite()

    def reset(self, orders: Iterable[ResetOrder], known: Resets, now: Now) -> None:
        """Carry out these resets of the position of its main partitions, and deliver no copy that they supersede.

        `orders`: all that are open. `known`: all that owners have carried out.
        """
        self.notes.use()
        self.resets.hear(orders, known, now)
        self._end_turn(now)

    # --- its partitions ---------------------------------------------------------------------------------------------

    def assigned(self, grants: Iterable[AssignedPartition], now: Now) -> None:
        """Start partitions where their last owner left off."""
        grants = tuple(grants)
        self.ownership.begin_partitions(grants)
        for grant in grants:
            if grant.partition.topic not in self.ownership.waits:
                self.resets.begin(grant.partition, None, now)
        self.notes.begin_partitions([self.partitions[grant.partition] for grant in grants], now)
        self.settling.begin_partitions([self.partitions[grant.partition] for grant in grants])
        if self.queues is not None:
            self.queues.assigned(grants)
        self.tick(now)

    def release(self, partitions: Collection[Partition], done: Callable[[], None], now: Now) -> None:
        """Give partitions up in order; call `done` once all deliveries in flight are answered and committed."""
        self.ownership.release_partitions(partitions, done, now)
        self.tick(now)

    def lost(self, partitions: Collection[Partition]) -> None:
        """Drop partitions that another member owns by now, or whose time to finish is over; commit nothing."""
        self.ownership.lose_partitions(partitions)
        self.machines.agenda.wake_by(0)  # the places that were kept for them are for others now

    def cut(self, source: Partition, epoch: int, wanted: int, low: int, now: Now) -> None:
        """Count the records that are lost unread, from the offset `wanted` on: the log begins at `low` now."""
        self.ownership.cut(source, epoch, wanted, low)
        self.tick(now)

    def truncated(self, source: Partition, high: int) -> None:
        """Drop a partition whose log ends at `high` now, and count what was not done."""
        self.ownership.truncate(source, high)
        self.machines.agenda.wake_by(0)

    def notes_read(self, wanted: Mapping[Partition, int], notes: OwnerNotes, now: Now) -> None:
        """Take in what owners have noted of partitions, which were `wanted` under these epochs."""
        self.settling.take_notes(self.notes.take_notes(wanted, notes, now), notes)
        self._end_turn(now)

    def scanned(self, scanned: ScannedRange, now: Now) -> None:
        """Take in records of a range that was asked for."""
        self.settling.scanned(scanned, now)
        self.machines.room_maker.look_if_due(now)
        self._end_turn(now)

    def _resets_read(self, source: Partition, resets: PartitionResets | None, now: Now) -> None:
        """Take in the resets of a partition that begins, before anything of it is fetched."""
        if source.topic not in self.ownership.waits and self.partitions[source].kind.under is None:
            self.resets.begin(source, resets, now)
            if self.queues is not None:
                self.queues.notes_read(source)

    def _partitions_dropped(self, partitions: Collection[Partition]) -> None:
        self.notes.drop_partitions(partitions)
        self.settling.drop_partitions(partitions)
        if self.queues is not None:
            self.queues.dropped(partitions)

    # --- the way of one record: received ----------------------------------------------------------------------------

    def received(self, runs: Iterable[FetchedRecords], now: Now) -> None:
        """Admit what the consumer hands over; a run that its partition does not accept is dropped."""
        for run in runs:
            partition = self.partitions.get(run.partition)
            # Contract 9.1: what was fetched under an earlier assignment, or before a seek, is no record of this one.
            if partition is None or not partition.accepts(run):
                continue
            if self.hold_gate.in_force and self.hold_gate.pauses(partition, run, now):
                continue
            if partition.commit.resets is not None:
                run = stamped(run, partition.commit.resets)
            if partition.suspicion is not None and run.records:
                arrivals = partition.suspicion.arrivals
                arrivals.last_seen = max(arrivals.last_seen, run.records[-1].offset)
            if self.queues is None or self.queues.admits(partition, run):
                self._take_run(partition, run, now)
        self.machines.room_maker.look_if_due(now)
        self._end_turn(now)

    def _take_run(self, partition: PartitionState, run: FetchedRecords, now: Now) -> None:
        if run.last_at_ms is not None:
            partition.commit.last_at_ms = run.last_at_ms
        if self.decisions.policy.relay and not (self.hold_gate.in_force or self.settling.in_force):
            run = forward_due(partition, run, self.machines, self.decisions, now)
        going, counters = list[Record](), self.decisions.counters
        keeps = None if self.queues is None else self.queues.keeper(partition)
        for record, entry, remaining_ms in self.machines.fetching.admit(partition, run, now):
            # Contract 3.6: a copy whose headers break their form is never delivered, and never lost.
            if record.fault:
                self.decisions.give_up_unreadable(partition, record, now)
            # Contract 6.12: a record whose tag nobody subscribed to is done, without a delivery.
            elif self._wanted is not None and not self._wanted(record):
                counters.passed_over[record.source.topic] += 1
                self._finish(partition, record)
            elif keeps is not None and keeps(partition, record):
                pass
            # Contract 2.3: never early, whatever the broker's clock says (`append_times.py`).
            elif remaining_ms > 0:
                self.machines.waiting.delay_record(partition, entry, now.steady_ms + remaining_ms)
            elif record.retry_state is None or self.gates.pass_after_wait(partition, entry, now):
                going.append(record)
        self.machines.waiting.release_run(partition, going)
        if run.end is not None:
            self._log_ended(partition, run.end, now)

    def _log_ended(self, partition: PartitionState, end: int, now: Now) -> None:
        if partition.kind.delay_ms:
            partition.append_times.note(end - 1, now.steady_ms)
        if self.suspects is not None:
            self.suspects.log_ended(partition, now)
        if partition.paused is None and partition.offsets.reached(end):
            self.machines.commits.soon(partition)
        if self.queues is not None:
            self.queues.main_ended(partition, end)

    # --- sent -------------------------------------------------------------------------------------------------------

    def send(self, record: Record, now: Now) -> bool:
        """Deliver one ready record (called by the dispatcher); return False if a gate does not allow it now."""
        partition = self.partitions.get(record.source)
        if partition is None or partition.epoch != record.epoch:
            return False
        if not self.gates.pass_or_keep(partition, record, now):
            return False
        # An attempt in place has no due time of its own, and neither has what came behind another.
        if record.retry_state is not None and record.is_fresh_here and not retry_state_of(record).behind:
            self.decisions.counters.late(record, partition.kind.delay_ms, now.wall_ms)
        offsets = partition.offsets
        offsets.move(offsets.entries[record.offset], OUT)
        self._ports.deliver(record, self.answered)
        return True

    # --- answered ---------------------------------------------------------------------------------------------------

    def answered(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Process the outcome of a delivery; an answer for an older assignment is counted and dropped."""
        if self._dispatcher.gathering and outcome is COMMITTED and record.retry_state is None:
            self._accepted.append(record)
            return
        self._dispatcher.answered(record, outcome, now)
        partition, decisions = self.partitions.get(record.source), self.decisions
        if partition is None or partition.epoch != record.epoch:
            # Contract 9.1: an answer for an earlier assignment is counted, and changes nothing.
            decisions.counters.fenced_answers += not isinstance(outcome, Cancelled)
        else:
            decisions.counters.answered(record, partition.kind.level, label_of(outcome))
            load, is_dead = partition.throughput.load, False
            if self.suspects is not None:
                # Contract 9.4: while the sidecar drains, the service is being stopped too.
                if outcome is not COMMITTED and isinstance(outcome, Died) and not self._dispatcher.closed:
                    is_dead = self.suspects.died(partition, record, now)
                elif partition.suspicion is not None:
                    self.suspects.answered(partition, partition.suspicion, record, outcome, now)
            if outcome is COMMITTED and record.retry_state is None:
                self._finish(partition, record)
            elif not is_dead:
                decisions.decide_outcome(partition, record, outcome, now)
            # Else nothing waits for room, or nothing has made any.
            if partition.closing or (partition.paused is not None and partition.throughput.load < load):
                self._room_was_made(partition, now)
        if not self._dispatcher.in_round:
            self.go_on(now)

    def answered_in_bulk(self, now: Now) -> None:
        """Process the main records that one batch response has accepted (called by the dispatcher), and continue.

        As `answered` for each of them, at a third of its cost.
        """
        records, self._accepted = self._accepted, []
        for run in _runs_of(records):
            self._dispatcher.committed_many(run, now)
            partition = self.ownership.owner_of(run[0])
            if partition is None:
                self.counters.fenced_answers += len(run)
                continue
            self.counters.deliveries[partition.source.topic, partition.kind.level, label_of(COMMITTED)] += len(run)
            if partition.suspicion is not None or partition.closing or self.machines.waiting.keys is not None:
                for record in run:
                    if self.suspects is not None and partition.suspicion is not None:
                        self.suspects.answered(partition, partition.suspicion, record, COMMITTED, now)
                    self._finish(partition, record)
            else:  # as `_finish` for each of them
                weight = partition.offsets.finish_out(run)
                self.machines.room.add_bytes(partition, -weight)
                partition.throughput.done_bytes += weight
                if partition.commit.by_ms == NEVER:
                    self.machines.commits.soon(partition)
            self._room_was_made(partition, now)
        self.go_on(now)

    def _finish(self, partition: PartitionState, record: Record, *, is_covered: bool = False) -> None:
        """End the way of a record. `is_covered`: the progress that is in Kafka has it already."""
        throughput, commits = partition.throughput, self.machines.commits
        self.machines.room.add_bytes(partition, -record.weight)
        throughput.done_bytes += record.weight
        partition.offsets.finish(record.offset)
        if partition.closing:
            # Contract 9.1: what ends a drain halfway repeats only what the service has not answered.
            commits.at_once(partition)
        elif not is_covered and partition.commit.by_ms == NEVER:
            commits.soon(partition)
        if (queues := self.decisions.queues) is not None:
            queues.finished(record)
        elif self.machines.waiting.keys is not None:
            waiting = self.machines.waiting
            if (following := waiting.next_of_key(record)) is not None:
                waiting.let_next(following)

    def _room_was_made(self, partition: PartitionState, now: Now) -> None:
        """Let a partition go on of which something has ended."""
        if partition.closing:
            if partition.in_flight == 0 and partition.commit.by_ms != NEVER:
                self.machines.commits.at_once(partition)  # the release waits for nothing else
            self.ownership.check_releases()
        elif partition.paused is not None:
            self.machines.fetching.resume_if_ready(partition, now.steady_ms)

    # --- committed --------------------------------------------------------------------------------------------------

    def committed(self, result: CommitResult, now: Now) -> None:
        """Process the committer's result of the batch in flight."""
        self.results.apply_result(result, now)
        if self.resets.moving or self.resets.owing:
            self.resets.committed(result, now)
        self.machines.room_maker.look_if_due(now)  # the copies that Kafka takes now count in the room again
        self._end_turn(now)  # records that were queued behind a dead letter may be delivered

    def member_refused(self) -> None:
        """Note that Kafka has refused the batch in flight, as one of no member of the group; it is tried again."""
        self.machines.doubt.raise_doubt()

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """Do what is due at `now`; the lane asks for the next call through the port `wake`."""
        agenda = self.machines.agenda
        agenda.begin_tick()
        self._dispatcher.tick(now)
        for what in list(agenda.take_due(now.steady_ms)):
            match what:
                case Entry():
                    self._delay_ended(what, now)
                case PartitionState():
                    self.machines.fetching.look_at_paused(what, now)
                case OwnedQueue():
                    what.look_soon()
                case _:
                    self._look_at(what, now)
        self._end_turn(now)
        agenda.wake_for_first()

    def _look_at(self, what: object, now: Now) -> None:
        """Look at a part of the lane whose time has come; the end of the turn sees to the others."""
        if what == SUSPECTS and self.suspects is not None:
            self.suspects.tick(now)
        elif what == ROOM:
            self.machines.room_maker.look(now)
        elif what == NOTES:
            self.notes.read_missing()
        elif what == REFUSED:
            self.notes.is_refused = False
        elif what == DOUBT:
            self.machines.doubt.raise_doubt()
        elif what == RESETS:
            self.resets.tick(now)

    def _delay_ended(self, entry: Entry, now: Now) -> None:
        record = entry.record
        if record is None or entry.where is not DELAYED or (partition := self.ownership.owner_of(record)) is None:
            return
        self.machines.waiting.end_delay(entry)
        if partition.closing:
            partition.offsets.move(entry, CALLED_OFF)
            return
        if record.retry_state is None or partition.kind.under is not None:
            self.machines.waiting.release_record(partition, entry)
            return
        partition.offsets.move(entry, READY)
        if self.gates.pass_after_wait(partition, entry, now):
            self.machines.waiting.release_record(partition, entry)

    def _end_turn(self, now: Now) -> None:
        """Do what follows from the events of a call of the lane."""
        if self.resets.has_orders:
            self.resets.turn(now)
        if self.queues is not None:
            self.queues.turn(now)
            self.machines.room_maker.look_if_due(now)
        if self.settling.in_force:
            self.settling.turn(now)
        self._dispatcher.dispatch(now)
        self._start_commit(now)
        self.machines.agenda.set_time(PACE, self._dispatcher.look_for_hangs(now))

    def go_on(self, now: Now) -> None:
        """Do the same after answers (called by the dispatcher), of which most lead to nothing but the next delivery."""
        if self.resets.has_orders:
            self.resets.turn(now)
        if (queues := self.decisions.queues) is not None:
            queues.turn(now)
        if self.settling.in_force:
            self.settling.turn(now)
        self._dispatcher.dispatch(now)
        agenda = self.machines.agenda
        if agenda.times.get(COMMIT, NEVER) <= now.steady_ms:
            self._start_commit(now)
        # An outage may have begun, what was sent may hang, or records wait for a rate.
        if (at_ms := self._dispatcher.look_for_hangs(now)) != agenda.times.get(PACE, NEVER):
            agenda.set_time(PACE, at_ms)

    def _start_commit(self, now: Now) -> None:
        """Start the transaction that is due, and have the next one started in time."""
        commits = self.machines.commits
        if commits.next_at() <= now.steady_ms and (batch := commits.take_batch(now)) is not None:
            self.machines.doubt.batch_taken(now)
            self._ports.commit(batch)
        self.machines.agenda.set_time(COMMIT, commits.next_at())

    # --- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise BrokenInvariantError if the lane's state is one that must not be. Slow: for tests, and now and then."""
        machines = self.machines
        ensure(not self._accepted, "every accepted record of a batch was finished")
        out = sum(partition.in_flight for partition in self.partitions.values())
        ensure(self._dispatcher.in_flight >= out, "what is out has its place in flight")
        settled = {(entry.record.source, entry.record.offset) for entry in machines.outbox.entries(None)}
        if (batch := machines.commits.in_flight) is not None:
            settled |= {(entry.record.source, entry.record.offset) for entry in batch.entries}
        for source, partition in self.partitions.items():
            partition.check()
            weight = sum(e.record.weight for e in partition.offsets.entries.values() if e.record is not None)
            weight, load = weight + coming_bytes(partition), partition.throughput.load
            ensure(load == weight, f"{source} has {load} bytes, found {weight}")
            for entry in partition.offsets.entries.values():
                is_settled = (source, entry.offset) in settled
                ensure(is_settled or entry.where.name != "SETTLED", f"{source}@{entry.offset} is on its way into Kafka")
        machines.fetching.check(self.partitions.values())
        for checked in (
            machines.waiting,
            machines.outbox,
            machines.commits,
            machines.room,
            machines.doubt,
            machines.agenda,
            self.notes,
            self.ownership,
            self.resets,
            self.settling,
            self.hold_gate,
            self._dispatcher,
        ):
            checked.check()
        if self.suspects is not None:
            self.suspects.check()
        if self.queues is not None:
            self.queues.check()


def _runs_of(records: Iterable[Record]) -> Iterable[list[Record]]:
    """Yield records in runs: those of one partition and assignment that follow each other."""
    run: list[Record] = []
    for record in records:
        if run and (record.source is not run[0].source or record.epoch != run[0].epoch):
            yield run
            run = []
        run.append(record)
    if run:
        yield run
