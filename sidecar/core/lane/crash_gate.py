"""Find the record that crashes its service together with the sidecar, and put it into the DLQ (contract 1.10).

A crashed sidecar leaves progress without a clean mark, so the next owner of the partition knows. After fewer than
`max_deaths` − 1 crashes in a row records are delivered as usual, only fewer at a time: losing a node must not delay
them by minutes.

After more crashes, the records that may have been in flight go one at a time over the whole instance. Each goes only
after a commit has marked it. The next goes only after another commit has taken that mark away. If the owner after
`max_deaths` crashes finds a mark, it names the record that crashes them.

Before the first delivery from a partition a commit takes the clean mark away. Otherwise a crash before the first commit
would never leave a trace. `suspicion.py` has a table of the stages.

A lane asks the gate only for partitions with a suspicion, so that it costs nothing where no owner has crashed. Without
`max_deaths` (relay, broadcast) there is no gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from reconsume.sidecar.core.decide import Postpone, RetryInPlace, dead_letter_crashing, decide
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.calls import LaneCalls
from reconsume.sidecar.core.lane.commits import Commits
from reconsume.sidecar.core.lane.memory import LaneMemory
from reconsume.sidecar.core.lane.partition import Because, LanePartition
from reconsume.sidecar.core.lane.suspicion import IDLE_MS, Stage, Step, Suspicion, suspicion_of
from reconsume.sidecar.core.lane.waiting import WaitingRecords
from reconsume.sidecar.core.outcome import Cancelled, NotSent, Outcome
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.transitions import Wait

CHECK_EVERY_MS = 1_000
"""ms between checks for partitions that are suspect no longer."""


class CrashGate:
    """What stands between the ready records of suspect partitions and their delivery, for one lane.

    Invariants: only partitions at stage single stand in single file; a mark that is on its way has a record or takes
    one away.
    """

    def __init__(
        self,
        partitions: Mapping[Partition, LanePartition],
        waiting: WaitingRecords,
        commits: Commits,
        memory: LaneMemory,
        dispatcher: Dispatcher,
        calls: LaneCalls,
    ) -> None:
        self.alarm_ms = NEVER
        """The steady time (ms) of the next check for partitions that are suspect no longer."""
        self._full_at_ms = -NEVER
        """The steady time (ms) at which the lane was last seen without room for more records."""
        self._partitions, self._waiting, self._commits, self._memory = partitions, waiting, commits, memory
        self._dispatcher, self._file, self._calls = dispatcher, dispatcher.single_file, calls
        self._former: dict[Partition, int] = {}
        """The hash of the progress that this process committed last, by partition that it gave up. If a partition
        returns with the same progress, no owner has crashed, because this process is alive. The progress itself is not
        kept: with many done offsets it takes a megabyte."""

    @property
    def _most(self) -> int:
        """The crashes that are allowed; the group's policy may change them."""
        return self._calls.policy().max_deaths or NEVER

    # --- partitions come and go --------------------------------------------------------------------------------------

    def granted(self, partition: LanePartition, progress: Progress) -> None:
        """Suspect an assigned partition by the progress that its last owner left."""
        died = progress.ours and not progress.clean and self._former.pop(partition.source, None) != hash(progress)
        if died:
            self._calls.notice("taken-up", partition.source, progress.deaths + 1, progress.next)
        suspicion = suspicion_of(progress, progress.deaths + died, self._most, self._dispatcher.pace.full, died=died)
        partition.suspect(suspicion)
        if suspicion.stage is Stage.SINGLE:
            self._file.join(partition.source)
        if suspicion.stage is not Stage.FRESH:
            self._check_soon()

    def closing(self, partitions: Iterable[LanePartition]) -> None:
        """Take the mark away from partitions that are being given up, because nothing more of them is delivered."""
        for partition in partitions:
            if partition.suspicion is not None and partition.suspicion.mark is not None:
                self._unmark(partition, partition.suspicion)

    def stopped(self, partition: LanePartition) -> None:
        """Take the mark of a blocked partition away whose marked record waits at hand: it is let go, and nothing else
        could have its turn."""
        if partition.suspicion is not None and self._file.turn == partition.source:
            self._unmark(partition, partition.suspicion)

    def kept_back(self, partition: LanePartition, suspicion: Suspicion) -> None:
        """Give the turn of a record that an operator holds to the next one: else its partition would wait for it."""
        self.stopped(partition)
        if suspicion.stage is Stage.FEW:
            self._let_try(partition, 1)

    def dropped(self, partition: LanePartition) -> None:
        """Forget a partition that is gone, except for its last committed progress."""
        self._former[partition.source] = hash(partition.committed)
        if partition.source in self._file.sources:
            self._check_soon()
        self._file.drop(partition.source)

    def log_ended(self, partition: LanePartition, now: Now) -> None:
        """Note that the log of a partition has no more records: from now on time can clear it."""
        if partition.suspicion is not None and partition.suspicion.meet(now):
            self._check_soon()

    # --- the way of one record ---------------------------------------------------------------------------------------

    def pass_or_keep(self, partition: LanePartition, suspicion: Suspicion, record: Record, now: Now) -> bool:
        """Let a record pass, or keep it until it may, or dead-letter it. Return whether it passes."""
        if suspicion.meet(now):
            self._check_soon()
        suspicion.ready_at_ms = now.steady_ms
        if record.offset == suspicion.culprit:
            self._dead_letter(partition, suspicion, record, now)
            return False
        if _awaits_culprit(partition, suspicion, now):
            self._waiting.withhold(record)
            return False
        suspicion.close_window(record.offset, partition.due(record), now)
        if suspicion.stage is Stage.SINGLE:
            passes = self._send_alone(partition, suspicion, record, now)
        else:
            passes = self._send_few(partition, suspicion, record)
        if passes:
            suspicion.went(record.offset, now)
        return passes

    def _dead_letter(self, partition: LanePartition, suspicion: Suspicion, record: Record, now: Now) -> None:
        suspicion.culprit = None
        self._calls.notice("crashing-record", partition.source, suspicion.deaths, record.offset)
        self._calls.write(
            partition, record, dead_letter_crashing(record, suspicion.deaths, self._calls.policy(), now.wall_ms), now
        )
        if partition.under is not None:
            self._let_try(partition)  # what has awaited it
        self._check_soon()

    def _send_few(self, partition: LanePartition, suspicion: Suspicion, record: Record) -> bool:
        """Allow a record only if Kafka knows that it may be in flight (`reach`), and only a few of them at once.

        After another crash these records go alone.
        """
        if not suspicion.is_reached(record.offset):
            self._waiting.withhold(record)
            withheld = self._waiting.withheld(partition.source)[: suspicion.most_in_flight]
            next_ones = [record.offset for record in withheld]
            if suspicion.want_reach(next_ones, partition.in_flight - len(suspicion.hung)):
                self._commit(partition)
            return False
        if suspicion.is_suspect(record.offset):
            suspicion.suspect(record.offset)
        return True

    def _send_alone(self, partition: LanePartition, suspicion: Suspicion, record: Record, now: Now) -> bool:
        if suspicion.mark == record.offset:  # and Kafka knows: until then there is no room in the single file
            self._file.turn = None
            return True
        is_harmless = record.offset in suspicion.cleared or not suspicion.is_suspect(record.offset)
        if is_harmless and not (suspicion.suspects and self._leaves_no_room(partition, now)):
            self._waiting.withhold(record)
            if record.offset not in suspicion.cleared and self._is_last(partition, suspicion):
                self._narrow(partition, suspicion)
            return False
        self._file.join(partition.source)
        if self._dispatcher.in_flight > len(self._file.hung):  # deliveries in flight must be answered first
            self._waiting.repeat(record)
            return False
        self._mark(partition, suspicion, record)
        return False

    def _is_last(self, partition: LanePartition, suspicion: Suspicion) -> bool:
        """Return whether no suspect is left, now that a record has come that is none."""
        return not suspicion.suspects and not (partition.under is not None and self._has_coming(partition, suspicion))

    def _has_coming(self, partition: LanePartition, suspicion: Suspicion) -> bool:
        """Return whether suspects of a queue are being read or ready: a record with a higher offset may come first."""
        ready = (record.offset for record in self._waiting.ready.of(partition.source))
        return suspicion.awaits(chain(partition.requested, ready))

    def _mark(self, partition: LanePartition, suspicion: Suspicion, record: Record) -> None:
        suspicion.set_mark(record)
        self._await_commit(partition)

    def answered(
        self, partition: LanePartition, suspicion: Suspicion, record: Record, outcome: Outcome, now: Now
    ) -> None:
        """Clear a record whose delivery has ended with an answer: it did not crash the service.

        A record that is to be delivered again stays a suspect, up to a limit of answers (`suspicion.TRIES`).
        """
        suspicion.came_back(record.offset)
        if not isinstance(outcome, NotSent | Cancelled):
            decision = decide(record, outcome, self._calls.policy(), now.wall_ms)
            suspicion.answered(record.offset, comes_again=isinstance(decision, Wait | Postpone | RetryInPlace))
        if suspicion.mark == record.offset:
            self._unmark(partition, suspicion)
        elif suspicion.stage is Stage.FEW:
            self._let_try(partition, 1)

    def _unmark(self, partition: LanePartition, suspicion: Suspicion) -> None:
        """Take the mark away before any other delivery: else a crash by another record would be blamed on this one."""
        suspicion.unmark()
        self._await_commit(partition)

    def _await_commit(self, partition: LanePartition) -> None:
        """Let no record go, of any lane, before this partition's commit is in Kafka."""
        self._file.turn, self._file.marking = None, partition.source
        self._commit(partition)

    def _commit(self, partition: LanePartition) -> None:
        self._commits.at_once(partition)
        self._calls.wake_by(0)

    # --- what Kafka knows --------------------------------------------------------------------------------------------

    def committed(self, partition: LanePartition, suspicion: Suspicion, progress: Progress | None) -> None:
        """Release what waited for the progress that is in Kafka now (None: the commit failed)."""
        if progress is None:
            self._commits.at_once(partition)
            return
        if self._file.marking == partition.source and progress.mark == suspicion.mark:
            self._file.marking = None
            self._marked(partition, suspicion)
        if not suspicion.open_by(progress):
            return
        if suspicion.stage is Stage.FRESH:
            self._let_try(partition)
            partition.suspect(None)
        elif suspicion.stage is Stage.FEW:
            self._let_try(partition, suspicion.window)
        elif self._file.marking is None and (
            suspicion.is_passed(partition.tracker.first) or self._keeps_others(partition, suspicion)
        ):
            self._narrow(partition, suspicion)

    def _keeps_others(self, partition: LanePartition, suspicion: Suspicion) -> bool:
        """Return whether records of a queue have come before its last suspect, which is answered now."""
        if partition.under is None or not self._is_last(partition, suspicion):
            return False
        withheld = (record.offset for record in self._waiting.withheld(partition.source))
        return any(offset not in suspicion.cleared for offset in withheld)

    def _marked(self, partition: LanePartition, suspicion: Suspicion) -> None:
        record, suspicion.marked = suspicion.marked, None
        if record is not None and partition.blocked:
            self._waiting.withhold(record)
            self._unmark(partition, suspicion)
        elif record is not None:
            self._waiting.repeat(record)
            self._file.turn = partition.source

    def _let_try(self, partition: LanePartition, most: int | None = None) -> None:
        """Let withheld records try again: all of them, or the first `most`, which can go soon."""
        if not partition.blocked:
            self._waiting.let_try(partition.source, most, first=True)

    def _narrow(self, partition: LanePartition, suspicion: Suspicion) -> None:
        """End the delivery one at a time: no record that can have been in flight has crashed the service.

        The records behind are delivered with less care, at stage few.
        """
        partition.suspect(suspicion.narrowed(self._most, partition.tracker.first))
        self._file.leave(partition.source)
        self._let_try(partition)
        self._commit(partition)

    # --- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """Clear partitions and records whose time of suspicion is over; a blocked one must not make the others wait."""
        if now.steady_ms < self.alarm_ms:
            return
        self.alarm_ms = NEVER
        if self._memory.full:
            self._full_at_ms = now.steady_ms
        for partition in self._partitions.values():
            suspicion = partition.suspicion
            if suspicion is None or suspicion.stage is Stage.FRESH:
                continue
            if suspicion.unmet and partition.source not in self._file.sources:
                continue
            suspicion.begin(now)
            self.alarm_ms = now.steady_ms + CHECK_EVERY_MS
            self._clear_hung(partition, suspicion, now)
            if suspicion.mark is None and self._file.marking != partition.source:
                self._take_step(partition, suspicion, now)

    def _clear_hung(self, partition: LanePartition, suspicion: Suspicion, now: Now) -> None:
        """Clear the records that have been with the service for long; the next ones go beside them."""
        offsets = suspicion.clear_hung(now)
        self._file.hung.update((partition.source, offset) for offset in offsets)
        if suspicion.mark in offsets:
            self._unmark(partition, suspicion)
        elif offsets and suspicion.stage is Stage.FEW:
            self._let_try(partition)

    def _take_step(self, partition: LanePartition, suspicion: Suspicion, now: Now) -> None:
        if suspicion.stage is Stage.SINGLE and self._waiting.ready.has(partition.source):
            suspicion.ready_at_ms = now.steady_ms
        unread = self._has_unread(partition, suspicion, now)
        match suspicion.after_time(partition.load, partition.blocked, now, unread=unread):
            case Step.TO_FRESH:
                # A commit takes the reach out of Kafka before any record beyond it is delivered.
                partition.suspect(Suspicion(0, Stage.FRESH, opening=True))
                self._file.leave(partition.source)
                self._commit(partition)
            case Step.TO_FEW:
                self._narrow(partition, suspicion)
            case Step.LEAVE:
                self._file.leave(partition.source)
                had_awaited = partition.under is not None and suspicion.culprit is not None
                if had_awaited or self._leaves_no_room(partition, now):
                    self._let_try(partition, 1)

    def _has_unread(self, partition: LanePartition, suspicion: Suspicion, now: Now) -> bool:
        """Return whether suspects of a partition may be still to come from Kafka.

        What was let go comes only if there is room for it. Where the partition's own records in memory leave none, they
        must go on and make room: else it would wait for itself.
        """
        if (partition.load == 0 and self._was_full(now)) or partition.held or partition.held_heads:
            return True  # what an operator holds is delivered later, and may be what crashes the service
        # What was in flight of a queue is due at once, and is asked for first; what else waits there was not.
        if partition.under is not None:
            is_coming = suspicion.stage is Stage.SINGLE and self._has_coming(partition, suspicion)
            return is_coming or _awaits_culprit(partition, suspicion, now)
        if not (partition.tracker.dropped or _was_refused(partition, suspicion)):
            return False
        return not self._leaves_no_room(partition, now)

    def _leaves_no_room(self, partition: LanePartition, now: Now) -> bool:
        """Return whether a partition's own records in memory leave no room for what is still to come of it.

        Those that are no suspects must go too then, alone, as suspects do: they keep the others from being read.
        """
        is_paused = partition.paused is not None and now.steady_ms - partition.paused.at_ms >= IDLE_MS
        return partition.load > 0 and (is_paused or self._was_full(now))

    def _was_full(self, now: Now) -> bool:
        return now.steady_ms - self._full_at_ms < IDLE_MS

    def _check_soon(self) -> None:
        self.alarm_ms = 0
        self._calls.wake_by(0)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for source, partition in self._partitions.items():
            if partition.suspicion is not None:
                partition.suspicion.check()
            if source in self._file.sources:
                stage = None if partition.suspicion is None else partition.suspicion.stage
                ensure(stage is Stage.SINGLE, f"{source} goes in single file at stage {stage}")


def _awaits_culprit(partition: LanePartition, suspicion: Suspicion, now: Now) -> bool:
    """Return whether the others of a queue wait for the record that crashes the service, as none does for long.

    They may be read before it, and a mark of theirs would take the only evidence against it out of Kafka: two such
    records in one queue then cost processes in turn, without an end.
    """
    culprit = suspicion.culprit
    if culprit is None or partition.under is None or suspicion.stage is not Stage.SINGLE:
        return False
    return not (partition.tracker.is_done(culprit) or partition.held_heads or suspicion.is_quiet(now))


def _was_refused(partition: LanePartition, suspicion: Suspicion) -> bool:
    """Return whether records of a partition were read that it had no room for, and are to be fetched again.

    Until then it may have nothing in memory. What is not due was not in flight.
    """
    if partition.paused is not None and partition.paused.because is Because.NOT_DUE:
        return False
    return partition.tracker.unread <= suspicion.last_seen
