"""Finds the record that kills its service together with the sidecar, and puts it into the DLQ (contract §5).

Whoever dies leaves progress without a clean mark, so its successor knows. Until `max_deaths` − 1 owners in a row have
died, records go out as ever: a node that is lost must not cost minutes. Then those that may have been out go one at a
time over the whole instance, each only after a commit has marked it, and the next only after another has taken that
mark away; a mark that is found by the owner after `max_deaths` deaths names the one. Before the first delivery from a
partition a commit takes the clean mark away, or a death before the first commit would leave no trace, for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from sidecar.core.decide import Commit, RetryInPlace, Wait, Written, decide, quarantine
from sidecar.core.lane.partition import PartitionState
from sidecar.core.lane.suspicion import Suspicion, suspicion_of
from sidecar.core.outcome import Cancelled, NotSent, Outcome
from sidecar.core.pace.dispatcher import Dispatcher
from sidecar.core.policy import Policy
from sidecar.core.ports import Notice
from sidecar.core.progress import Progress
from sidecar.core.record import NEVER, Now, Partition, Record

IDLE = 3_000
"""ms without a suspect after which a partition keeps the others waiting no longer: what was out is there by then."""
LOOK_EVERY = 1_000
"""ms between looks for such partitions."""

Write: TypeAlias = Callable[[PartitionState, Record, Commit | Written, Now], None]


class Ways(NamedTuple):
    """What this organ uses of its lane. `want` asks for a tick at a steady time (ms)."""

    policy: Callable[[], Policy]
    ready: deque[Record]
    parts: Mapping[Partition, PartitionState]
    write: Write
    want: Callable[[int], None]
    notice: Notice


class Quarantine:
    """The partitions of one lane whose records need care before they are delivered."""

    def __init__(self, gate: Dispatcher, ways: Ways) -> None:
        self.asking = False
        """Whether some partition's progress should be committed at once."""
        self.alarm = NEVER
        """The steady time (ms) of the next look for partitions that are no suspects any more."""
        self._gate, self._ways = gate, ways
        self._let_go: dict[Partition, Progress | None] = {}
        """What this process committed last of partitions that it has let go: it lives, so if they return with that,
        nobody has died."""

    # --- partitions come and go --------------------------------------------------------------------------------------

    def granted(self, part: PartitionState, found: Progress) -> None:
        """A partition is ours, with the progress that its last owner left."""
        part.committed = found
        most = self._ways.policy().max_deaths
        if most is None:
            return
        died = found.ours and not found.clean and self._let_go.pop(part.source, None) != found
        if died:
            self._ways.notice("taken-up", part.source, found.deaths + 1, found.next)
        part.suspicion = watch = suspicion_of(found, found.deaths + died, most, self._gate.pace.full, died=died)
        if watch.stage == "alone":
            self._gate.alone.add(part.source)
        if watch.stage != "first":
            self._look_at_once()

    def closing(self, parts: Iterable[PartitionState]) -> None:
        """Partitions are being given up: nothing more of them goes out, so their mark is taken away."""
        for part in parts:
            if part.suspicion is not None and part.suspicion.mark is not None:
                self._unmark(part, part.suspicion)

    def dropped(self, part: PartitionState) -> None:
        """A partition is gone."""
        self._let_go[part.source], gate = part.committed, self._gate
        if gate.marking == part.source:
            gate.marking = None
        if part.source in gate.alone:
            gate.leave(part.source)
            self._look_at_once()

    # --- the way of one record ---------------------------------------------------------------------------------------

    def may_deliver(self, part: PartitionState, watch: Suspicion, record: Record, now: Now) -> bool:
        """Whether a record may be delivered at once; if not, it is kept until it may, or dead-lettered."""
        watch.begin(now)
        if not watch.met:
            self._look_at_once()
        watch.touched, watch.met = now.steady, True
        if record.offset == watch.culprit:
            self._quarantine(part, watch, record, now)
            return False
        return (self._deliver_alone if watch.stage == "alone" else self._deliver_limited)(part, watch, record, now)

    def _quarantine(self, part: PartitionState, watch: Suspicion, record: Record, now: Now) -> None:
        watch.culprit = None
        self._ways.notice("quarantined", part.source, watch.deaths, record.offset)
        self._ways.write(part, record, quarantine(record, watch.deaths, self._ways.policy(), now.wall), now)
        self._look_at_once()

    def _deliver_limited(self, part: PartitionState, watch: Suspicion, record: Record, now: Now) -> bool:
        """As ever, but not many at once, and none that Kafka would not know of: these go alone after another death."""
        if not watch.reaches(record.offset):
            part.withhold(record)
            if watch.reach_out([record.offset for record in part.withheld[: watch.group]], part.in_flight):
                self._ask(part)
            return False
        if watch.suspects(record.offset, part.due(record), now):
            watch.suspect(record.offset)
        return True

    def _deliver_alone(self, part: PartitionState, watch: Suspicion, record: Record, now: Now) -> bool:
        gate = self._gate
        if watch.mark == record.offset:  # and Kafka knows: until then the gate has no room
            return True
        if record.offset in watch.cleared or not watch.suspects(record.offset, part.due(record), now):
            part.withhold(record)
            if not watch.left and record.offset not in watch.cleared:
                self._together(part, watch)
            return False
        gate.alone.add(part.source)
        if gate.in_flight:  # what is out already must be answered first
            self._ways.ready.appendleft(record)
            return False
        self._mark(part, watch, record)
        return False

    def _mark(self, part: PartitionState, watch: Suspicion, record: Record) -> None:
        watch.suspect(record.offset)
        watch.mark, watch.waiting, watch.opening = record.offset, record, True
        self._gate.marking = part.source
        self._ask(part)

    def answered(self, part: PartitionState, watch: Suspicion, record: Record, outcome: Outcome, now: Now) -> None:
        """A delivery has ended: the record killed nobody, and kills nobody if it does not come again."""
        answered = not isinstance(outcome, NotSent | Cancelled)
        if answered:
            decision = decide(record, outcome, self._ways.policy(), now.wall)
            watch.hears(record.offset, again=isinstance(decision, Wait | RetryInPlace))
        if watch.mark == record.offset:
            self._unmark(part, watch)
            if answered and not part.closing:
                self._mark_next(part, watch)
        elif watch.stage == "together":
            self._release(part, 1)

    def _mark_next(self, part: PartitionState, watch: Suspicion) -> None:
        """Let the commit that takes the mark away mark the next one: half as many."""
        ready = self._ways.ready
        following = next((record for record in ready if record.source == part.source), None)
        if following is not None and watch.follows(following.offset):
            ready.remove(following)
            self._mark(part, watch, following)

    def _unmark(self, part: PartitionState, watch: Suspicion) -> None:
        """Take the mark away, before anything else goes out: another's death would be laid to this record."""
        watch.mark = watch.waiting = None
        self._gate.marking = part.source
        self._ask(part)

    def _ask(self, part: PartitionState) -> None:
        part.dirty = part.urgent = self.asking = True
        self._ways.want(0)

    # --- what Kafka knows --------------------------------------------------------------------------------------------

    def committed(self, part: PartitionState, watch: Suspicion, progress: Progress | None) -> None:
        """A partition's progress is in Kafka (None: it is not): what waited for that may go."""
        if progress is None:
            part.urgent = self.asking = True
            return
        if self._gate.marking == part.source and progress.mark == watch.mark:
            self._gate.marking = None
            self._marked(part, watch)
        if not watch.opens(progress):
            return
        if watch.stage != "alone":
            watch.reach = progress.reach
            self._release(part, None if watch.stage == "first" else watch.window)
        elif self._gate.marking is None and watch.outlived(part.tracker.first):
            self._together(part, watch)
        if watch.stage == "first":
            part.suspicion = None

    def _marked(self, part: PartitionState, watch: Suspicion) -> None:
        record, watch.waiting = watch.waiting, None
        if record is not None and part.blocked:
            part.withhold(record)
            self._unmark(part, watch)
        elif record is not None:
            self._gate.send_next(self._ways.ready, record)

    def _release(self, part: PartitionState, most: int | None = None) -> None:
        """Let what is withheld try again, or as many of it as can go soon."""
        if not part.blocked:
            self._ways.ready.extendleft(reversed(part.withheld[:most]))
            del part.withheld[:most]

    def _together(self, part: PartitionState, watch: Suspicion) -> None:
        """Nothing that can have been out has killed us; with some care for what is behind it, all go as ever."""
        part.suspicion = watch.calmed(self._ways.policy().max_deaths or 0, part.tracker.first)
        self._gate.leave(part.source)
        self._release(part)
        self._ask(part)

    # --- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """Clear partitions that have outlived their suspicion; one that is stopped does not make the others wait."""
        if now.steady < self.alarm:
            return
        self.alarm = NEVER
        for part in self._ways.parts.values():
            watch = part.suspicion
            if watch is None or watch.stage == "first" or watch.unmet:
                continue
            watch.begin(now)
            self.alarm = now.steady + LOOK_EVERY
            if watch.mark is None and self._gate.marking != part.source:
                self._look(part, watch, now)

    def _look(self, part: PartitionState, watch: Suspicion, now: Now) -> None:
        if watch.over(now, part.load):
            part.suspicion = Suspicion(
                0, "first", opening=True
            )  # Kafka forgets the reach before anything goes beyond it
            self._gate.leave(part.source)
            self._ask(part)
        elif watch.stage == "alone":
            if any(record.source == part.source for record in self._ways.ready):
                watch.touched = now.steady  # it waits for the suspects of another partition
            idle = now.steady - watch.touched >= IDLE
            if part.blocked or (idle and watch.left):  # what is left comes again after a while, and goes alone then
                self._gate.leave(part.source)
            elif idle:
                self._together(part, watch)

    def _look_at_once(self) -> None:
        self.alarm = 0
        self._ways.want(0)
