"""Find the record that ends its service, alone or together with the sidecar, and put it into the DLQ (contract 1.10).

A *death* makes suspects of the records that were with the service. `suspicion.py` says which of a partition are, and
how much care it needs; this gate acts on it, for the partitions of one lane. It comes last of all gates, as it takes
what the others only look at: a mark.

Suspects go one at a time over the whole instance (`SingleFile`): each only after a commit has marked it, the next only
after another commit has taken that mark away. So if the process dies, the progress of one partition names the record
that was alone with the service. A suspect that was alone at its `max_deaths`-th death becomes a dead letter. The count
is in the progress, so it goes on in the next owner; the head of `suspicion.py` has an example over several owners.

**An example** where the sidecar lives, and sees its service die (`Died`), with `max_deaths` 3:

    what happens                                     | what the gate does
    -------------------------------------------------|----------------------------------------------------------------
    the connections with 4, 5 and 6 are lost at once | `died` for each: they are suspects with one death, exactly these
                                                     | three. The partition joins the single file, they are ready again
    `pass_or_keep` is asked for 4                    | nothing may be out: it marks 4, stops it, and has that committed
    the commit is in Kafka (`committed`)             | 4 has its turn, and goes
    4 is answered                                    | it is cleared; a commit takes the mark away, and 5 comes
    5 goes alone, and the service dies               | two deaths, once alone. It is marked once more
    5 goes alone, and the service dies               | its third death, alone: `_dead_letter` with `crashed-service`
    6 goes alone, and is answered                    | no suspect is left; once Kafka knows that, delivery is as usual

Meanwhile all that is no suspect waits, in this partition and in others: with a second record in flight, a death would
say nothing. What waits for nothing, or hangs, keeps nobody waiting (`tick`).

A lane asks the gate only for partitions with a suspicion, so that it costs nothing where no owner has crashed. Without
`max_deaths` (relay, broadcast) there is no gate. Event loop alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from reconsume.sidecar.core.decide import NackWait, Postpone, RetryInPlace, dead_letter_crashing, decide
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.outcome import Cancelled, Died, NotSent, Outcome
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.partition import KEPT, PartitionState
from reconsume.sidecar.core.ports import Notice
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.reasons import NotDelivered, NotFetched
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.sidecar.core.suspicion import IDLE_MS, Reach, Stage, Step, Suspicion, exact_suspicion, suspicion_of
from reconsume.topics.transitions import Wait

if TYPE_CHECKING:
    from reconsume.sidecar.core.decisions import Decisions
    from reconsume.sidecar.core.ownership import Machines


CHECK_EVERY_MS = 1_000
"""ms between checks for partitions that are suspect no longer."""


SUSPECTS = "suspects"
"""The name of these checks in the agenda."""


class SuspectGate:
    """What stands between the ready records of suspect partitions and their delivery, for one lane.

    Invariants: only partitions at stage single stand in single file; a mark that is on its way has a record or takes
    one away.
    """

    def __init__(
        self,
        machines: Machines,
        dispatcher: Dispatcher,
        decisions: Decisions,
        notice: Notice,
        unclean: Mapping[Partition, int],
    ) -> None:
        """`unclean`: what `unclean_partitions` returned before this process restarted in place."""
        self._partitions, self._waiting, self._commits = machines.partitions, machines.waiting, machines.commits
        self._room, self._agenda = machines.room, machines.agenda
        self._dispatcher, self._file = dispatcher, dispatcher.single_file
        self._decisions, self._notice = decisions, notice
        self._full_at_ms = -NEVER
        """The steady time (ms) at which the lane was last seen without room for more records."""
        self._unclean = dict(unclean)
        """The digest of the progress that this process has in Kafka, by partition given up without that mark. If one
        returns with the same progress, no owner has crashed, because this process is alive."""

    @property
    def _most(self) -> int:
        """The crashes that are allowed; the group's policy may change them."""
        return self._decisions.policy.max_deaths or NEVER

    # --- partitions come and go --------------------------------------------------------------------------------------

    def granted(self, partition: PartitionState, progress: Progress) -> None:
        """Suspect an assigned partition by the progress that its last owner left."""
        digest = self._unclean.pop(partition.source, None)
        died = progress.ours and not progress.clean and digest != _digest(partition.source, progress)
        if died:
            self._notice("taken-up", partition.source, progress.deaths + 1, progress.next)
        suspicion = suspicion_of(progress, progress.deaths + died, self._most, self._dispatcher.most_records, died=died)
        partition.suspicion = suspicion
        if suspicion.stage is Stage.SINGLE:
            self._file.join(partition.source)
        if suspicion.stage is not Stage.FRESH:
            self._check_soon()

    def closing(self, partitions: Iterable[PartitionState]) -> None:
        """Take the mark away from partitions that are being given up, because nothing more of them is delivered."""
        for partition in partitions:
            if partition.suspicion is not None and partition.suspicion.mark is not None:
                self._unmark(partition, partition.suspicion)

    def stopped(self, partition: PartitionState) -> None:
        """Take the mark of a blocked partition away whose marked record waits at hand: it is let go, and nothing else
        could have its turn."""
        if partition.suspicion is not None and self._file.turn == partition.source:
            self._unmark(partition, partition.suspicion)

    def kept_back(self, partition: PartitionState, suspicion: Suspicion) -> None:
        """Give the turn of a record that an operator holds to the next one: else its partition would wait for it."""
        self.stopped(partition)
        if suspicion.stage is Stage.FEW:
            self._let_try(partition, 1)

    def dropped(self, partition: PartitionState) -> None:
        """Forget a partition that is gone, except for its last committed progress."""
        if not partition.commit.progress.clean:
            self._unclean[partition.source] = _digest(partition.source, partition.commit.progress)
        if partition.source in self._file.sources:
            self._check_soon()
        self._file.drop(partition.source)

    def unclean_partitions(self) -> Mapping[Partition, int]:
        """Return what a restart in place must take along: Kafka did not take the last commits of these partitions."""
        return self._unclean

    def log_ended(self, partition: PartitionState, now: Now) -> None:
        """Note that the log of a partition has no more records: from now on time can clear it."""
        if partition.suspicion is not None and partition.suspicion.arrivals.meet(now):
            self._check_soon()

    # --- the service dies, and the sidecar lives --------------------------------------------------------------------

    def died(self, partition: PartitionState, record: Record, now: Now) -> bool:
        """Suspect a record that the service had when it died; return whether it is a dead letter now.

        Otherwise it is delivered again.
        """
        suspicion = partition.suspicion
        if suspicion is None:
            suspicion = partition.suspicion = exact_suspicion(now)
        deaths, was_alone = suspicion.count_death(record.offset), suspicion.mark == record.offset
        if not partition.closing:
            self._file.join(partition.source)
            self._check_soon()
        if was_alone:
            self._unmark(partition, suspicion)
        if not was_alone or deaths < self._most:
            return False
        suspicion.suspects.clear(record.offset, comes_again=False, was_alone=True)
        self._dead_letter(partition, record, deaths, now)
        return True

    # --- the way of one record ---------------------------------------------------------------------------------------

    def pass_or_keep(self, partition: PartitionState, suspicion: Suspicion, record: Record, now: Now) -> bool:
        """Let a record pass, or keep it until it may, or dead-letter it. Return whether it passes."""
        if suspicion.arrivals.meet(now):
            self._check_soon()
        suspicion.arrivals.ready_at_ms = now.steady_ms
        if record.offset == suspicion.culprit:
            suspicion.culprit = None
            self._dead_letter(partition, record, suspicion.deaths, now)
            return False
        if self._awaits_culprit(partition, suspicion, now):
            self._waiting.stop_record(partition, record, NotDelivered.SUSPECT)
            return False
        suspicion.close_window(record.offset, partition.due_ms(record), now)
        if suspicion.stage is Stage.SINGLE:
            passes = self._send_alone(partition, suspicion, record, now)
        else:
            passes = self._send_few(partition, suspicion, record)
        if passes:
            suspicion.out.sent[record.offset] = now.steady_ms
        return passes

    def _dead_letter(self, partition: PartitionState, record: Record, deaths: int, now: Now) -> None:
        self._notice("crashing-record", partition.source, deaths, record.offset)
        decision = dead_letter_crashing(record, deaths, self._decisions.policy, now.wall_ms)
        self._decisions.write(partition, record, decision, now)
        if partition.kind.under is not None:
            self._let_try(partition)  # what has awaited it
        self._check_soon()

    def _send_few(self, partition: PartitionState, suspicion: Suspicion, record: Record) -> bool:
        """Allow a record only if Kafka knows that it may be in flight (`reach`), and only a few of them at once.

        After another crash these records go alone.
        """
        if not suspicion.reach.covers(record.offset):
            self._waiting.stop_record(partition, record, NotDelivered.SUSPECT)
            if suspicion.reach.opening and suspicion.reach.known is None:  # as of most records at a start
                return False
            stopped = self._waiting.stopped_by_gates(partition, suspicion.most_in_flight)
            next_ones = [record.offset for record in stopped]
            if suspicion.want_reach(next_ones, partition.in_flight - len(suspicion.out.hung)):
                self._commit(partition)
            return False
        if suspicion.is_suspect(record.offset):
            suspicion.suspects.add(record.offset, suspicion.deaths_of(record.offset))
        return True

    def _send_alone(self, partition: PartitionState, suspicion: Suspicion, record: Record, now: Now) -> bool:
        if suspicion.mark == record.offset:  # and Kafka knows: until then there is no room in the single file
            self._file.turn = None
            return True
        is_harmless = record.offset in suspicion.suspects.cleared or not suspicion.is_suspect(record.offset)
        if is_harmless and suspicion.is_exact and partition.source not in self._file.sources:
            return True  # its suspects are held, or wait for something else
        if is_harmless and not (suspicion.suspects.open and self._leaves_no_room(partition, now)):
            self._waiting.stop_record(partition, record, NotDelivered.SUSPECT)
            if record.offset not in suspicion.suspects.cleared and self._is_last(partition, suspicion):
                self._narrow(partition, suspicion)
            return False
        self._file.join(partition.source)
        if self._dispatcher.in_flight > len(self._file.hung):  # deliveries in flight must be answered first
            self._waiting.repeat_record(partition, record)
            return False
        self._mark(partition, suspicion, record)
        return False

    def _is_last(self, partition: PartitionState, suspicion: Suspicion) -> bool:
        """Return whether no suspect is left, now that a record has come that is none."""
        return not suspicion.suspects.open and not (
            partition.kind.under is not None and self._has_coming(partition, suspicion)
        )

    def _has_coming(self, partition: PartitionState, suspicion: Suspicion) -> bool:
        """Return whether suspects of a queue are being read or ready: a record with a higher offset may come first."""
        queues = self._decisions.queues
        reading: Iterable[int] = () if queues is None else queues.being_read(partition)
        ready = (record.offset for record in self._waiting.ready.of(partition.source))
        return suspicion.awaits(chain(reading, ready))

    def _mark(self, partition: PartitionState, suspicion: Suspicion, record: Record) -> None:
        suspicion.set_mark(record)
        self._waiting.stop_record(partition, record, NotDelivered.SUSPECT)
        self._await_commit(partition)

    def answered(
        self, partition: PartitionState, suspicion: Suspicion, record: Record, outcome: Outcome, now: Now
    ) -> None:
        """Clear a record whose delivery has ended with an answer: it did not crash the service.

        A record that is to be delivered again stays a suspect, up to a limit of answers (`TRIES`).
        """
        suspicion.out.remove(record.offset)
        if not isinstance(outcome, NotSent | Died | Cancelled):
            decision = decide(record, outcome, self._decisions.policy, now.wall_ms)
            comes_again = isinstance(decision, Wait | Postpone | NackWait | RetryInPlace) and not suspicion.is_exact
            is_marked = suspicion.mark == record.offset
            suspicion.suspects.clear(record.offset, comes_again=comes_again, was_alone=is_marked)
        if suspicion.mark == record.offset:
            self._unmark(partition, suspicion)
        elif suspicion.stage is Stage.FEW:
            self._let_try(partition, 1)

    def _unmark(self, partition: PartitionState, suspicion: Suspicion) -> None:
        """Take the mark away before any other delivery: else a crash by another record would be blamed on this one."""
        suspicion.unmark()
        self._await_commit(partition)

    def _await_commit(self, partition: PartitionState) -> None:
        """Let no record go, of any lane, before this partition's commit is in Kafka."""
        self._file.turn, self._file.marking = None, partition.source
        self._commit(partition)

    def _commit(self, partition: PartitionState) -> None:
        self._commits.at_once(partition)
        self._agenda.wake_by(0)

    # --- what Kafka knows --------------------------------------------------------------------------------------------

    def committed(self, partition: PartitionState, suspicion: Suspicion, progress: Progress | None) -> None:
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
            partition.suspicion = None
        elif suspicion.is_exact and not suspicion.suspects.open:
            self._end_exact(partition, progress)
        elif suspicion.stage is Stage.FEW:
            self._let_try(partition, suspicion.suspects.window)
        elif self._file.marking is None and (
            suspicion.is_passed(partition.offsets.first) or self._keeps_others(partition, suspicion)
        ):
            self._narrow(partition, suspicion)

    def _end_exact(self, partition: PartitionState, progress: Progress) -> None:
        """Deliver as usual again once Kafka knows that no suspect is left."""
        if progress.deaths or progress.reach is not None:
            self._commit(partition)
            return
        self._file.leave(partition.source)
        self._let_try(partition)
        partition.suspicion = None

    def _keeps_others(self, partition: PartitionState, suspicion: Suspicion) -> bool:
        """Return whether records of a queue have come before its last suspect, which is answered now."""
        if partition.kind.under is None or not self._is_last(partition, suspicion):
            return False
        withheld = (record.offset for record in self._waiting.stopped_by_gates(partition))
        return any(offset not in suspicion.suspects.cleared for offset in withheld)

    def _marked(self, partition: PartitionState, suspicion: Suspicion) -> None:
        record, suspicion.marked = suspicion.marked, None
        if record is not None and partition.blocked:
            self._unmark(partition, suspicion)
        elif record is not None:
            self._waiting.let_record_try(partition, record)
            self._file.turn = partition.source

    def _let_try(self, partition: PartitionState, most: int | None = None) -> None:
        """Let withheld records try again: all of them, or the first `most`, which can go soon."""
        if not partition.blocked:
            self._waiting.let_try(partition, most, first=True)

    def _narrow(self, partition: PartitionState, suspicion: Suspicion) -> None:
        """End the delivery one at a time: no record that can have been in flight has crashed the service.

        The records behind are delivered with less care, at stage few; where only known records were suspects, as usual.
        """
        if suspicion.is_exact:
            self._commit(partition)
            return
        partition.suspicion = suspicion.narrowed(self._most, partition.offsets.first)
        self._file.leave(partition.source)
        self._let_try(partition)
        self._commit(partition)

    # --- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """Clear partitions and records whose time of suspicion is over; a blocked one must not make the others wait."""
        if self._room.is_full_with(0):
            self._full_at_ms = now.steady_ms
        for partition in self._partitions.values():
            suspicion = partition.suspicion
            if suspicion is None or suspicion.stage is Stage.FRESH:
                continue
            if suspicion.is_unmet and partition.source not in self._file.sources:
                continue
            suspicion.arrivals.begin(now)
            self._agenda.set_time(SUSPECTS, now.steady_ms + CHECK_EVERY_MS)
            self._clear_hung(partition, suspicion, now)
            if suspicion.is_exact:
                self._forget_done(partition, suspicion)
            if suspicion.mark is None and self._file.marking != partition.source:
                self._take_step(partition, suspicion, now)

    def _clear_hung(self, partition: PartitionState, suspicion: Suspicion, now: Now) -> None:
        """Clear the records that have been with the service for long; the next ones go beside them."""
        offsets = suspicion.out.take_hung(self._decisions.policy.hang_ms, now)
        for offset in offsets:
            suspicion.suspects.clear(offset, comes_again=False, was_alone=suspicion.mark == offset)
        self._file.hung.update((partition.source, offset) for offset in offsets)
        if suspicion.mark in offsets:
            self._unmark(partition, suspicion)
        elif offsets and suspicion.stage is Stage.FEW:
            self._let_try(partition)

    def _forget_done(self, partition: PartitionState, suspicion: Suspicion) -> None:
        """Forget known suspects that have ended in another way, as by an operator."""
        for offset in [offset for offset in suspicion.suspects.open if partition.offsets.is_done(offset)]:
            del suspicion.suspects.open[offset]
        if not suspicion.suspects.open:
            self._commit(partition)

    def _take_step(self, partition: PartitionState, suspicion: Suspicion, now: Now) -> None:
        if suspicion.stage is Stage.SINGLE and self._waiting.ready.has(partition.source):
            suspicion.arrivals.ready_at_ms = now.steady_ms
        unread = self._has_unread(partition, suspicion, now)
        match suspicion.after_time(partition.throughput.load, partition.blocked, now, unread=unread):
            case Step.TO_FRESH:
                # A commit takes the reach out of Kafka before any record beyond it is delivered.
                partition.suspicion = Suspicion(0, Stage.FRESH, reach=Reach(opening=True))
                self._file.leave(partition.source)
                self._commit(partition)
            case Step.TO_FEW:
                self._narrow(partition, suspicion)
            case Step.LEAVE:
                self._file.leave(partition.source)
                if suspicion.is_exact:
                    self._let_try(partition)  # they need not wait for a suspect that is held, or not ready
                    return
                had_awaited = partition.kind.under is not None and suspicion.culprit is not None
                if had_awaited or self._leaves_no_room(partition, now):
                    self._let_try(partition, 1)

    def _has_unread(self, partition: PartitionState, suspicion: Suspicion, now: Now) -> bool:
        """Return whether suspects of a partition may be still to come from Kafka.

        What was let go comes only if there is room for it. Where the partition's own records in memory leave none, they
        must go on and make room: else it would wait for itself.
        """
        if (partition.throughput.load == 0 and self._was_full(now)) or self._is_held(partition):
            return True  # what an operator holds is delivered later, and may be what crashes the service
        # Records of a queue that were in flight at the crash are due now and read first: the rest are no suspects.
        if partition.kind.under is not None:
            is_coming = suspicion.stage is Stage.SINGLE and self._has_coming(partition, suspicion)
            return is_coming or self._awaits_culprit(partition, suspicion, now)
        if next(partition.offsets.to_reread(), None) is None and not _was_refused(partition, suspicion):
            return False
        return not self._leaves_no_room(partition, now)

    def _awaits_culprit(self, partition: PartitionState, suspicion: Suspicion, now: Now) -> bool:
        """Return whether the others of a queue wait for the record that crashes the service, as none does for long.

        They may be read before it, and a mark of theirs would take the only evidence against it out of Kafka: two such
        records in one queue then cost processes in turn, without an end.
        """
        culprit = suspicion.culprit
        if culprit is None or partition.kind.under is None or suspicion.stage is not Stage.SINGLE:
            return False
        return not (
            partition.offsets.is_done(culprit) or self._has_held_heads(partition) or suspicion.arrivals.is_quiet(now)
        )

    def _is_held(self, partition: PartitionState) -> bool:
        """Return whether an operator holds records of a partition that are not in memory."""
        return partition.offsets.counts[KEPT] > 0 or self._has_held_heads(partition)

    def _has_held_heads(self, partition: PartitionState) -> bool:
        """Return whether an operator holds first records of a queue."""
        queues = self._decisions.queues
        return queues is not None and queues.held_heads(partition) > 0

    def _leaves_no_room(self, partition: PartitionState, now: Now) -> bool:
        """Return whether a partition's own records in memory leave no room for what is still to come of it.

        Those that are no suspects must go too then, alone, as suspects do: they keep the others from being read.
        """
        is_paused = partition.paused is not None and now.steady_ms - partition.paused.at_ms >= IDLE_MS
        return partition.throughput.load > 0 and (is_paused or self._was_full(now))

    def _was_full(self, now: Now) -> bool:
        return now.steady_ms - self._full_at_ms < IDLE_MS

    def _check_soon(self) -> None:
        self._agenda.set_earlier(SUSPECTS, 0)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for source, partition in self._partitions.items():
            if partition.suspicion is not None:
                partition.suspicion.check()
            if source in self._file.sources:
                stage = None if partition.suspicion is None else partition.suspicion.stage
                ensure(stage is Stage.SINGLE, f"{source} goes in single file at stage {stage}")


def _digest(source: Partition, progress: Progress) -> int:
    """Return the same number for the same progress, in whatever process."""
    return zlib.crc32(f"{progress.next} {encode(source, progress)}".encode())


def _was_refused(partition: PartitionState, suspicion: Suspicion) -> bool:
    """Return whether records of a partition were read that it had no room for, and are to be fetched again.

    Until then it may have nothing in memory. What is not due was not in flight.
    """
    if partition.paused is not None and partition.paused.because is NotFetched.NOT_DUE:
        return False
    return partition.offsets.unread <= suspicion.arrivals.last_seen
