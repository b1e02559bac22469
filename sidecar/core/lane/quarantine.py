"""Find the record that crashes its service together with the sidecar, and put it into the DLQ (contract 1.10).

A crashed sidecar leaves progress without a clean mark, so the next owner of the partition knows. After fewer than
`max_deaths` − 1 crashes in a row records are delivered as usual, only fewer at a time: losing a node must not delay
them by minutes.

After more crashes, the records that may have been in flight go one at a time over the whole instance. Each goes only
after a commit has marked it. The next goes only after another commit has taken that mark away. If the owner after
`max_deaths` crashes finds a mark, it names the record that crashes them.

Before the first delivery from a partition a commit takes the clean mark away. Otherwise a crash before the first commit
would never leave a trace. `suspicion.py` has a table of the stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from sidecar.core.decide import Postpone, RetryInPlace, decide, quarantine
from sidecar.core.lane.partition import LanePartition
from sidecar.core.lane.parts import LaneCalls, LaneParts
from sidecar.core.lane.suspicion import Suspicion, suspicion_of
from sidecar.core.lane.suspicion_time import IDLE, after_time
from sidecar.core.outcome import Cancelled, NotSent, Outcome
from sidecar.core.pace.dispatcher import Dispatcher
from sidecar.core.progress import Progress
from sidecar.core.record import NEVER, Now, Partition, Record
from topics.transitions import Wait

LOOK_EVERY = 1_000
"""ms between checks for such partitions."""


class Quarantine:
    """The partitions of one lane whose records need care before they are delivered."""

    def __init__(self, dispatcher: Dispatcher, parts: LaneParts, lane: LaneCalls) -> None:
        self.alarm = NEVER
        """The steady time (ms) of the next check for partitions that are suspect no longer."""
        self._full_at = -NEVER
        """The steady time (ms) at which the lane was last seen without room for more records."""
        self._dispatcher, self._parts, self._lane = dispatcher, parts, lane
        self._let_go: dict[Partition, int] = {}
        """The hash of the progress that this process committed last, by partition that it gave up. If a partition
        returns with the same progress, no owner has crashed, because this process is alive. The progress itself is not
        kept: with many done offsets it takes a megabyte."""

    # --- partitions come and go --------------------------------------------------------------------------------------

    def granted(self, partition: LanePartition, found: Progress) -> None:
        """Set the stage of an assigned partition by the progress that its last owner left."""
        partition.has_committed(found)
        most = self._lane.policy().max_deaths
        if most is None:
            return
        died = found.ours and not found.clean and self._let_go.pop(partition.source, None) != hash(found)
        if died:
            self._lane.notice("taken-up", partition.source, found.deaths + 1, found.next)
        suspicion = suspicion_of(found, found.deaths + died, most, self._dispatcher.pace.full, died=died)
        partition.suspect(suspicion)
        if suspicion.stage == "alone":
            self._dispatcher.alone.add(partition.source)
        if suspicion.stage != "first":
            self._look_at_once()

    def closing(self, parts: Iterable[LanePartition]) -> None:
        """Take the mark away from partitions that are being given up, because nothing more of them is delivered."""
        for partition in parts:
            if partition.suspicion is not None and partition.suspicion.mark is not None:
                self._unmark(partition, partition.suspicion)

    def dropped(self, partition: LanePartition) -> None:
        """Forget a partition that is gone, except for its last committed progress."""
        self._let_go[partition.source], dispatcher = hash(partition.committed), self._dispatcher
        if dispatcher.marking == partition.source:
            dispatcher.marking = None
        if partition.source in dispatcher.alone:
            dispatcher.leave(partition.source)
            self._look_at_once()

    # --- the way of one record ---------------------------------------------------------------------------------------

    def may_deliver(self, partition: LanePartition, suspicion: Suspicion, record: Record, now: Now) -> bool:
        """Return whether a record may be delivered at once; if not, it is kept until it may, or dead-lettered."""
        if suspicion.meets(now):
            self._look_at_once()
        suspicion.touched = now.steady
        if record.offset == suspicion.culprit:
            self._quarantine(partition, suspicion, record, now)
            return False
        return (self._deliver_alone if suspicion.stage == "alone" else self._deliver_limited)(
            partition, suspicion, record, now
        )

    def log_ended(self, partition: LanePartition, now: Now) -> None:
        """Note that the log of a partition has no more records: from now on time can clear it."""
        if partition.suspicion is not None and partition.suspicion.meets(now):
            self._look_at_once()

    def _quarantine(self, partition: LanePartition, suspicion: Suspicion, record: Record, now: Now) -> None:
        suspicion.culprit = None
        self._lane.notice("quarantined", partition.source, suspicion.deaths, record.offset)
        self._lane.write(partition, record, quarantine(record, suspicion.deaths, self._lane.policy(), now.wall), now)
        self._look_at_once()

    def _deliver_limited(self, partition: LanePartition, suspicion: Suspicion, record: Record, now: Now) -> bool:
        """Allow a record only if Kafka knows that it may be in flight (`reach`), and only a few of them at once.

        After another crash these records go alone.
        """
        if not suspicion.reaches(record.offset):
            partition.withhold(record)
            if suspicion.reach_out(
                [record.offset for record in partition.withheld[: suspicion.group]], partition.in_flight
            ):
                self._ask(partition)
            return False
        if suspicion.suspects(record.offset, partition.due(record), now):
            suspicion.suspect(record.offset)
        return True

    def _deliver_alone(self, partition: LanePartition, suspicion: Suspicion, record: Record, now: Now) -> bool:
        if suspicion.mark == record.offset:  # and Kafka knows: until then the dispatcher has no room
            return True
        if record.offset in suspicion.cleared or not suspicion.suspects(record.offset, partition.due(record), now):
            partition.withhold(record)
            if not suspicion.left and record.offset not in suspicion.cleared:
                self._together(partition, suspicion)
            return False
        self._dispatcher.alone.add(partition.source)
        if self._dispatcher.in_flight:  # deliveries in flight must be answered first
            self._parts.ready.appendleft(record)
            return False
        self._mark(partition, suspicion, record)
        return False

    def _mark(self, partition: LanePartition, suspicion: Suspicion, record: Record) -> None:
        suspicion.suspect(record.offset)
        suspicion.mark, suspicion.waiting, suspicion.opening = record.offset, record, True
        self._dispatcher.marking = partition.source
        self._ask(partition)

    def answered(
        self, partition: LanePartition, suspicion: Suspicion, record: Record, outcome: Outcome, now: Now
    ) -> None:
        """Clear a record whose delivery has ended with an answer: it did not crash the service.

        A record that is to be delivered again stays a suspect, up to a limit of answers (`suspicion.TRIES`).
        """
        answered = not isinstance(outcome, NotSent | Cancelled)
        if answered:
            decision = decide(record, outcome, self._lane.policy(), now.wall)
            suspicion.hears(record.offset, again=isinstance(decision, Wait | Postpone | RetryInPlace))
        if suspicion.mark == record.offset:
            self._unmark(partition, suspicion)
            if answered and not partition.closing:
                self._mark_next(partition, suspicion)
        elif suspicion.stage == "together":
            self._release(partition, 1)

    def _mark_next(self, partition: LanePartition, suspicion: Suspicion) -> None:
        """Mark the next record with the same commit that takes the mark away: half as many commits."""
        following = next((record for record in self._parts.ready if record.source == partition.source), None)
        if following is not None and suspicion.follows(following.offset):
            self._parts.ready.remove(following)
            self._mark(partition, suspicion, following)

    def _unmark(self, partition: LanePartition, suspicion: Suspicion) -> None:
        """Take the mark away before any other delivery: else a crash by another record would be blamed on this one."""
        suspicion.mark = suspicion.waiting = None
        self._dispatcher.marking = partition.source
        self._ask(partition)

    def _ask(self, partition: LanePartition) -> None:
        self._parts.commits.at_once(partition)
        self._lane.wake_by(0)

    # --- what Kafka knows --------------------------------------------------------------------------------------------

    def committed(self, partition: LanePartition, suspicion: Suspicion, progress: Progress | None) -> None:
        """Release what waited for the progress that is in Kafka now (None: the commit failed)."""
        if progress is None:
            self._parts.commits.at_once(partition)
            return
        if self._dispatcher.marking == partition.source and progress.mark == suspicion.mark:
            self._dispatcher.marking = None
            self._marked(partition, suspicion)
        if not suspicion.opens(progress):
            return
        if suspicion.stage != "alone":
            suspicion.reach = progress.reach
            self._release(partition, None if suspicion.stage == "first" else suspicion.window)
        elif self._dispatcher.marking is None and suspicion.outlived(partition.tracker.first):
            self._together(partition, suspicion)
        if suspicion.stage == "first":
            partition.suspect(None)

    def _marked(self, partition: LanePartition, suspicion: Suspicion) -> None:
        record, suspicion.waiting = suspicion.waiting, None
        if record is not None and partition.blocked:
            partition.withhold(record)
            self._unmark(partition, suspicion)
        elif record is not None:
            self._dispatcher.send_next(self._parts.ready, record)

    def _release(self, partition: LanePartition, most: int | None = None) -> None:
        """Let withheld records try again: all of them, or the first `most`, which can go soon."""
        if not partition.blocked:
            self._parts.ready.extendleft(reversed(partition.take_withheld(most)))

    def _together(self, partition: LanePartition, suspicion: Suspicion) -> None:
        """End the delivery one at a time: no record that can have been in flight has crashed the service.

        The records behind are delivered with less care, at stage `together`.
        """
        partition.suspect(suspicion.calmed(self._lane.policy().max_deaths or 0, partition.tracker.first))
        self._dispatcher.leave(partition.source)
        self._release(partition)
        self._ask(partition)

    # --- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """Clear partitions that have outlived their suspicion; a blocked one must not make the others wait."""
        if now.steady < self.alarm:
            return
        self.alarm = NEVER
        if self._parts.memory.full:
            self._full_at = now.steady
        for partition in self._parts.partitions.values():
            suspicion = partition.suspicion
            if (
                suspicion is None
                or suspicion.stage == "first"
                or (suspicion.unmet and partition.source not in self._dispatcher.alone)
            ):
                continue
            suspicion.begin(now)
            self.alarm = now.steady + LOOK_EVERY
            if suspicion.mark is None and self._dispatcher.marking != partition.source:
                self._look(partition, suspicion, now)

    def _look(self, partition: LanePartition, suspicion: Suspicion, now: Now) -> None:
        ready = chain(self._parts.ready, self._dispatcher.aside) if suspicion.stage == "alone" else ()
        # Those of an earlier assignment of the partition may still be aside. They never go: all would wait for ever.
        waits = any(record.source == partition.source and record.epoch == partition.epoch for record in ready)
        match after_time(suspicion, partition, now, waits=waits, roomy=now.steady - self._full_at >= IDLE):
            case "first":
                # A commit takes the reach out of Kafka before any record beyond it is delivered.
                partition.suspect(Suspicion(0, "first", opening=True))
                self._dispatcher.leave(partition.source)
                self._ask(partition)
            case "together":
                self._together(partition, suspicion)
            case "leave":
                self._dispatcher.leave(partition.source)

    def _look_at_once(self) -> None:
        self.alarm = 0
        self._lane.wake_by(0)
