"""Find the record that ends its service, alone or together with the sidecar, and put it into the DLQ (contract 1.10).

A *death* makes suspects of the records that were with the service. Suspects go one at a time over the whole instance:
each only after a commit has marked it, the next only after another commit has taken that mark away. A suspect that was
alone at its `max_deaths`-th death becomes a dead letter. The count is in the progress, so it goes on in the next owner.

If the sidecar lives, it knows what was on the lost connections (`Died`): these records are the suspects, and no others
(`Suspicion.is_exact`).

If the sidecar dies too, it leaves progress without a clean mark, so the next owner of the partition knows of the death,
and not of the records. After fewer than `max_deaths` − 1 such deaths in a row records are delivered as usual, only
fewer at a time: losing a node must not delay them by minutes. After more, those that may have been in flight are the
suspects. If the owner after `max_deaths` deaths finds a mark, it names the record that caused them.

Before the first delivery from a partition a commit takes the clean mark away. Otherwise a death before the first commit
would never leave a trace.

    stage  | what it means                                | leaves to, when
    -------|----------------------------------------------|----------------
    none   | no suspicion: delivery as usual              | fresh, few, single: at the next assignment
    none   |                                              | single: the service dies, and the sidecar lives
    fresh  | no crash counts; delivery waits for a commit | none: that commit (not clean, no `reach`) is in Kafka
    few    | deaths: few in flight, none beyond `reach`   | fresh: `QUIET_MS` passed, and all suspects are answered
    few    |                                              | single: the service dies, and the sidecar lives
    single | suspects go one at a time                    | few: every offset up to `reach` is done
    single | the same, exact                              | none: no suspect is left, and Kafka knows
    single |                                              | few: the next record is no suspect, and none is left
    single |                                              | few: no record for `IDLE_MS`, and no suspect is left
    single |                                              | fresh: `QUIET_MS` passed, and nothing of it is in memory
    single |                                              | few: the same, but its culprit is still to come

Records of a queue come by their time, and not by their offsets: there one that is being read, or is ready, is left too.

Time alone ends no stage while suspects may be still to come (`after_time`): they may wait behind records of other
partitions that fill the lane's memory, behind the suspects of another partition, for a leader, or for room. A record
that was read, and that its partition had no room for, is still to come, unless it is not due.

At stage none `PartitionState.suspicion` is None; without `max_deaths` it always is. For an assigned partition the stage
follows from the progress that its last owner committed (`suspicion_of`). Every stage also ends when the partition goes.

A lane asks the gate only for partitions with a suspicion, so that it costs nothing where no owner has crashed. Without
`max_deaths` (relay, broadcast) there is no gate. Event loop alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.decide import NackWait, Postpone, RetryInPlace, dead_letter_crashing, decide
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.outbox import Commits
from reconsume.sidecar.core.outcome import Cancelled, Died, NotSent, Outcome
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.partition import KEPT, PartitionState
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Notice
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.reasons import NotDelivered, NotFetched
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.sidecar.core.room import Room
from reconsume.sidecar.core.waiting import WaitingRecords
from reconsume.topics.transitions import Commit, Wait, Written

FEWEST, MOST = 32, 256
"""Records of a partition that are suspects: as many as can be in flight, within these bounds. The last owner may have
had more in flight. Each crash moves its progress, so they come in turn. One at a time even these take seconds or
minutes."""
SMALLEST = 4
"""Records of a partition that may be in flight after a crash: this many, or an eighth of the window if that is more.
Those in flight at the next crash go one at a time later, and they are likely to be the slow ones. Without this limit,
and `reach`, an instance with 256 places would deliver a thousand records one at a time instead of fifty."""
QUIET_MS = 10_000
"""ms that an owner must live before nothing is held against its partition any more. The last owner had up to a second
of done records that Kafka did not know, and they come first."""
IDLE_MS = 3_000
"""ms without a suspect after which a partition keeps no others waiting: what was in flight has come by then."""
TRIES = 3
"""Answers that clear a suspect if each of them only makes it come again. A throttle says nothing about a record, and
one that fails in place may crash the service at its next attempt. Other records of its partition wait, so there is a
limit."""


class Stage(Enum):
    """How much care the records of a partition need."""

    FRESH = auto()
    """Nothing is held against the partition, and its records wait for a commit without the clean mark."""
    FEW = auto()
    """Its owner crashed: only a few of its records are in flight."""
    SINGLE = auto()
    """Its owners crashed so often that its records go one at a time."""


class Step(Enum):
    """What becomes of a partition because time has passed."""

    STAY = auto()
    LEAVE = auto()
    """It holds up no other partition, and its suspects go one at a time when they come."""
    TO_FEW = auto()
    TO_FRESH = auto()


@dataclass(slots=True)
class Suspects:
    """Which records of a partition may have been in flight when its last owner crashed.

    Invariants: no offset is suspected and cleared at once; there are no more suspects than `counted` says.
    """

    window: int = MOST
    """How many records are suspects."""
    counted: int = 0
    """How many have counted as suspects."""
    open: dict[int, int] = field(default_factory=dict)
    """Suspects that no answer has cleared yet, and with how many deaths each was in flight."""
    answers: Counter[int] = field(default_factory=Counter)
    """How often suspects were answered and have to come again, by offset."""
    cleared: set[int] = field(default_factory=set)
    """Suspects that went alone and were answered."""

    def add(self, offset: int, deaths: int) -> None:
        """Count a record as a suspect: it was, or may have been, in flight at so many deaths."""
        self.counted += offset not in self.cleared and offset not in self.open
        self.cleared.discard(offset)
        self.open[offset] = deaths

    def clear(self, offset: int, *, comes_again: bool, was_alone: bool) -> None:
        """Clear a record whose delivery was answered. `comes_again`: the record is not done."""
        # Contract 1.10: a throttle or a retry in place is no proof, so it clears a suspect only after some of them.
        if comes_again and offset in self.open:
            self.answers[offset] += 1
            if self.answers[offset] < TRIES:
                return
        self.open.pop(offset, None)
        if was_alone:
            self.cleared.add(offset)


@dataclass(slots=True)
class OutRecords:
    """The records of a suspect partition that are with the service. Invariant: what hangs is out."""

    sent: dict[int, int] = field(default_factory=dict)
    """When each was sent (steady ms), by offset."""
    hung: set[int] = field(default_factory=set)
    """Those that are out for so long that they were cleared: they keep nothing back."""

    def remove(self, offset: int) -> None:
        """Note that a record is out no more, whatever came of it."""
        self.sent.pop(offset, None)
        self.hung.discard(offset)

    def take_hung(self, hang_ms: int, now: Now) -> list[int]:
        """Return those that have been out for `hang_ms` since the last call."""
        long_out = [one for one, at in self.sent.items() if now.steady_ms - at >= hang_ms and one not in self.hung]
        self.hung.update(long_out)
        return long_out


@dataclass(slots=True)
class Reach:
    """How far records of a partition may be delivered, by what Kafka knows."""

    opening: bool = False
    """Whether records of it are to be delivered: from now on a commit without the clean mark says so."""
    opened: bool = False
    """Whether that commit is in Kafka."""
    known: int | None = None
    """The offset behind which no record is delivered: Kafka knows it, or it comes from the last owner."""
    wanted: int = -1
    """The one that is needed, and that the next commit carries."""

    def covers(self, offset: int) -> bool:
        """Return whether a record may go now: if it crashes the service, the next owner knows that it may be the
        cause."""
        return self.opened and (self.known is None or offset <= self.known)


@dataclass(slots=True)
class Arrivals:
    """What has come of a partition since its stage began."""

    since: Now | None = None
    """When the stage began, or very nearly; None until a caller gave the time."""
    ready_at_ms: int = 0
    """When a record of it was last ready to be delivered (steady ms)."""
    met: bool = False
    """Whether a record of it was ready, or its log ended, since the owner got it. Other partitions may come first for a
    long time."""
    last_seen: int = -1
    """The highest offset that was read of it, be there room for that record or not."""

    def begin(self, now: Now) -> None:
        """Note when the stage began: now, if that was not known before."""
        if self.since is None:
            self.since, self.ready_at_ms = now, now.steady_ms

    def meet(self, now: Now) -> bool:
        """Note that a record is ready, or that the log ended; return whether that is the first of it."""
        self.begin(now)
        is_first, self.met = not self.met, True
        return is_first

    def is_quiet(self, now: Now) -> bool:
        """Return whether the owner has lived long enough."""
        return self.since is not None and now.steady_ms - self.since.steady_ms >= QUIET_MS


@dataclass(slots=True)
class Suspicion:
    """The suspicion of a partition whose records need care.

    `deaths`: how many owners in a row crashed with records of it in flight. `culprit`: the record that the last of them
    had in flight alone, if that was one crash too many. `most_in_flight`: how many of its records may be in flight
    after a crash. `mark`: the offset that is in flight alone, or about to be; `marked`: its record, while the mark is
    on its way into Kafka.

    Invariant: a mark is a suspect, and only stage single has one.
    """

    deaths: int
    stage: Stage
    culprit: int | None = None
    most_in_flight: int = MOST
    mark: int | None = None
    marked: Record | None = None
    suspects: Suspects = field(default_factory=Suspects)
    out: OutRecords = field(default_factory=OutRecords)
    reach: Reach = field(default_factory=Reach)
    arrivals: Arrivals = field(default_factory=Arrivals)
    is_exact: bool = False
    """Whether its suspects are those that a live sidecar knows, and no others."""

    def set_mark(self, record: Record) -> None:
        """Mark a record that goes alone once a commit has told Kafka: a suspect, or one that keeps them from coming."""
        self.suspects.add(record.offset, self.suspects.open.get(record.offset, self.deaths))
        self.mark, self.marked, self.reach.opening = record.offset, record, True

    def unmark(self) -> None:
        """Take the mark away."""
        self.mark = self.marked = None

    def close_window(self, offset: int, due_ms: int, now: Now) -> None:
        """Suspect no further record if this one was due (epoch ms) only after the stage began, and that was quiet.

        It was not in flight when the last owner crashed, and neither is any that comes after it.
        """
        since = self.arrivals.since or now
        if offset not in self.suspects.open and self.arrivals.is_quiet(now) and due_ms > since.wall_ms:
            self.suspects.counted = max(self.suspects.counted, self._most_suspects)

    def want_reach(self, offsets: Sequence[int], in_flight: int) -> bool:
        """Want the lowest of these offsets to be delivered, as many as there is room for.

        Return whether that takes a commit.
        """
        reach, room = self.reach, self.most_in_flight - in_flight
        takes_commit, reach.opening = not reach.opening, True
        if reach.known is not None and room > 0:
            wanted = offsets[:room][-1]
            takes_commit |= wanted > max(reach.known, reach.wanted)
            reach.wanted = max(reach.wanted, wanted)
        return takes_commit

    def open_by(self, progress: Progress) -> bool:
        """Note that progress is in Kafka; return whether its records may be delivered now.

        Progress that an earlier suspicion committed does not allow that.
        """
        if not self.reach.opening or progress.clean or (self.stage is Stage.FRESH and progress.reach is not None):
            return False
        self.reach.opened = True
        if self.stage is Stage.FEW:
            self.reach.known = progress.reach
        return True

    def count_death(self, offset: int) -> int:
        """Note that the service died with a record, and the sidecar lives; return at how many deaths it was in flight.

        From now on suspects go one at a time. Of a partition whose last owner died, all that was delivered may be one.
        """
        deaths = self.deaths_of(offset) + 1
        self.out.remove(offset)
        self.suspects.add(offset, deaths)
        self.stage = Stage.SINGLE
        return deaths

    # --- questions --------------------------------------------------------------------------------------------------

    def deaths_of(self, offset: int) -> int:
        """Return at how many deaths a record was, or may have been, in flight."""
        return self.suspects.open.get(offset, self.deaths if self.is_suspect(offset) else 0)

    def is_suspect(self, offset: int) -> bool:
        """Return whether a record was, or may have been, in flight at a death."""
        if offset in self.suspects.open:
            return True
        if self.is_exact:
            return False
        if self.stage is Stage.SINGLE and self.reach.known is not None:
            return offset <= self.reach.known
        return self.suspects.counted < self._most_suspects

    @property
    def _most_suspects(self) -> int:
        # Of a partition in single file: in flight, and done without Kafka knowing.
        return self.suspects.window if self.stage is Stage.FEW else 2 * self.suspects.window

    def awaits(self, offsets: Iterable[int]) -> bool:
        """Return whether one of these records is a suspect that nothing has cleared."""
        return any(offset not in self.suspects.cleared and self.is_suspect(offset) for offset in offsets)

    @property
    def is_unmet(self) -> bool:
        """Whether its suspects may be still to come, so that time alone clears nothing."""
        return not self.arrivals.met or (self.stage is Stage.FEW and self.culprit is not None)

    def after_time(self, load: int, blocked: str, now: Now, *, unread: bool) -> Step:
        """Return what becomes of a partition that has no mark.

        `load`: the bytes that it holds. `blocked`: why nothing of it is delivered. `unread`: whether suspects may be
        still to come from Kafka.
        """
        suspects, is_met = self.suspects, not self.is_unmet
        are_answered = self.stage is Stage.FEW and suspects.counted >= suspects.window and not suspects.open
        if is_met and self.arrivals.is_quiet(now) and (are_answered or not (load or unread)):
            return Step.TO_FRESH if self.culprit is None else Step.TO_FEW  # the culprit is not read yet
        if self.stage is not Stage.SINGLE:
            return Step.STAY
        is_idle = now.steady_ms - self.arrivals.ready_at_ms >= IDLE_MS
        if blocked or (is_idle and (suspects.open or not is_met or unread)):
            return Step.LEAVE
        return Step.TO_FEW if is_idle else Step.STAY

    def is_passed(self, first: int) -> bool:
        """Return whether all that may have been in flight is done. `first`: the lowest offset that is not done."""
        return self.mark is None and self.reach.known is not None and first > self.reach.known

    def narrowed(self, most: int, first: int) -> Suspicion:
        """Return the suspicion that remains when no record delivered alone has crashed the service.

        `most`: the crashes that are allowed. `first`: the lowest offset that is not done.
        """
        known = first - 1 if self.reach.known is None else self.reach.known
        return Suspicion(
            max(0, most - 2),
            Stage.FEW,
            self.culprit,
            self.most_in_flight,
            suspects=Suspects(self.suspects.window),
            out=self.out,
            reach=Reach(opening=True, opened=self.reach.opened, known=known),
            arrivals=Arrivals(met=self.arrivals.met, last_seen=self.arrivals.last_seen),
        )

    def with_crash_state(self, progress: Progress) -> Progress:
        """Return the progress with all that the next owner must know; clean while nothing of it was delivered."""
        clean, known = progress.clean or not self.reach.opening, self.reach.known
        mark = None if clean or self.mark is None or progress.covers(self.mark) else self.mark
        suspects = {offset: deaths for offset, deaths in self.suspects.open.items() if not progress.covers(offset)}
        if self.is_exact:
            known = max(suspects, default=None)
        reach = None if known is None else max(known, self.reach.wanted, progress.next - 1)
        deaths = max(self.deaths, *suspects.values(), 0) if mark is None else suspects.get(mark, self.deaths)
        return replace(progress, clean=clean, deaths=deaths, mark=mark, reach=reach)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        marked, suspects = self.marked, self.suspects
        ensure(self.mark is None or self.stage is Stage.SINGLE, f"a mark at {self.stage.name} is in single file")
        ensure(marked is None or marked.offset == self.mark, "the record that waits for its mark is the marked one")
        ensure(suspects.cleared.isdisjoint(suspects.open), "no suspect is cleared already")
        ensure(suspects.counted >= len(suspects.open), "each suspect was counted")
        ensure(self.out.hung <= self.out.sent.keys(), "what hangs is still out")
        ensure(not self.reach.opened or self.reach.opening, "what Kafka knows was wanted")
        ensure(not self.is_exact or self.stage is Stage.SINGLE, "known suspects are in single file")


def exact_suspicion(now: Now) -> Suspicion:
    """Return the suspicion of a partition whose records were delivered as usual when the service died."""
    reach = Reach(opening=True, opened=True)
    arrivals = Arrivals(since=now, ready_at_ms=now.steady_ms, met=True)
    return Suspicion(0, Stage.SINGLE, reach=reach, arrivals=arrivals, is_exact=True)


def suspicion_of(progress: Progress, deaths: int, most: int, full: int, *, died: bool) -> Suspicion:
    """Return the suspicion of a partition after `deaths` crashes in a row, of which `most` are allowed.

    `progress`: the progress of the last owner. `died`: whether that owner crashed. `full`: how many records can be in
    flight at once.
    """
    stage = Stage.FRESH if deaths == 0 else Stage.SINGLE if deaths >= max(1, most - 1) else Stage.FEW
    was_idle = progress.reach is not None and progress.reach < progress.next  # no record was in flight
    if stage is Stage.SINGLE and was_idle:
        deaths, stage = max(0, most - 2), Stage.FEW
    known = {Stage.FRESH: None, Stage.FEW: progress.next - 1, Stage.SINGLE: progress.reach}[stage]
    guilty = died and deaths >= most and progress.mark is not None and not progress.covers(progress.mark)
    window = min(max(full, FEWEST), MOST)
    culprit, most_in_flight = progress.mark if guilty else None, max(SMALLEST, window // 8)
    return Suspicion(deaths, stage, culprit, most_in_flight, suspects=Suspects(window), reach=Reach(known=known))


CHECK_EVERY_MS = 1_000
"""ms between checks for partitions that are suspect no longer."""


SUSPECTS = "suspects"
"""The name of these checks in the agenda."""


class SuspectCalls(NamedTuple):
    """What the gate asks of its lane. `write`: has a decision written.

    `being_read`: the offsets of the records of a queue that are being read, and whose turn it is. `has_held_heads`:
    whether an operator holds first records of a queue.
    """

    policy: Callable[[], Policy]
    write: Callable[[PartitionState, Record, Commit | Written, Now], None]
    notice: Notice
    being_read: Callable[[PartitionState], Iterable[int]]
    has_held_heads: Callable[[PartitionState], bool]


class SuspectGate:
    """What stands between the ready records of suspect partitions and their delivery, for one lane.

    Invariants: only partitions at stage single stand in single file; a mark that is on its way has a record or takes
    one away.
    """

    def __init__(
        self,
        partitions: Mapping[Partition, PartitionState],
        waiting: WaitingRecords,
        commits: Commits,
        room: Room,
        dispatcher: Dispatcher,
        agenda: Agenda,
        calls: SuspectCalls,
    ) -> None:
        self._full_at_ms = -NEVER
        """The steady time (ms) at which the lane was last seen without room for more records."""
        self._partitions, self._waiting, self._commits, self._room = partitions, waiting, commits, room
        self._dispatcher, self._file, self._agenda, self._calls = dispatcher, dispatcher.single_file, agenda, calls
        self._former: dict[Partition, int] = {}
        """The hash of the progress that this process committed last, by partition that it gave up. If a partition
        returns with the same progress, no owner has crashed, because this process is alive. The progress itself is not
        kept: with many done offsets it takes a megabyte."""

    @property
    def _most(self) -> int:
        """The crashes that are allowed; the group's policy may change them."""
        return self._calls.policy().max_deaths or NEVER

    # --- partitions come and go --------------------------------------------------------------------------------------

    def granted(self, partition: PartitionState, progress: Progress) -> None:
        """Suspect an assigned partition by the progress that its last owner left."""
        died = progress.ours and not progress.clean and self._former.pop(partition.source, None) != hash(progress)
        if died:
            self._calls.notice("taken-up", partition.source, progress.deaths + 1, progress.next)
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
        self._former[partition.source] = hash(partition.commit.progress)
        if partition.source in self._file.sources:
            self._check_soon()
        self._file.drop(partition.source)

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
        self._calls.notice("crashing-record", partition.source, deaths, record.offset)
        decision = dead_letter_crashing(record, deaths, self._calls.policy(), now.wall_ms)
        self._calls.write(partition, record, decision, now)
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
        ready = (record.offset for record in self._waiting.ready.of(partition.source))
        return suspicion.awaits(chain(self._calls.being_read(partition), ready))

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
            decision = decide(record, outcome, self._calls.policy(), now.wall_ms)
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
        offsets = suspicion.out.take_hung(self._calls.policy().hang_ms, now)
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
            partition.offsets.is_done(culprit)
            or self._calls.has_held_heads(partition)
            or suspicion.arrivals.is_quiet(now)
        )

    def _is_held(self, partition: PartitionState) -> bool:
        """Return whether an operator holds records of a partition that are not in memory."""
        if self._calls.has_held_heads(partition):
            return True
        return partition.offsets.counts[KEPT] > 0

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


def _was_refused(partition: PartitionState, suspicion: Suspicion) -> bool:
    """Return whether records of a partition were read that it had no room for, and are to be fetched again.

    Until then it may have nothing in memory. What is not due was not in flight.
    """
    if partition.paused is not None and partition.paused.because is NotFetched.NOT_DUE:
        return False
    return partition.offsets.unread <= suspicion.arrivals.last_seen
