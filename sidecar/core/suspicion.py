"""What is held against one partition after a crash: values and rules, which ask no other machine (contract 1.10).

A crash tells little. The progress that the dead owner left says how many owners in a row have crashed (`deaths`), which
record went alone (`mark`), and how far records were released for delivery (`reach`). `suspicion_of` makes a `Suspicion`
of it for the next owner. While one lasts, each progress that is committed carries what the owner after that must know
(`with_crash_state`). `suspects.py` carries out what is decided here.

A *suspect* is a record that was, or may have been, in flight at a death. It is cleared by an answer, after some if each
only makes it come again (TRIES), or after it was in flight for `hang_ms`. How much care a partition needs is its
*stage*:

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

At stage none `PartitionState.suspicion` is None; without `max_deaths` it always is. Every stage also ends when the
partition goes. *Exact* is a suspicion whose suspects a live sidecar knows by name; no others are suspects then.

Before the first delivery from a partition a commit takes the clean mark away (fresh). Otherwise a death before the
first commit would never leave a trace. After fewer than `max_deaths` - 1 deaths in a row records are delivered as
usual, only fewer at a time: losing a node must not delay them by minutes. After more, those that may have been in
flight are the suspects. If the owner after `max_deaths` deaths finds a mark, it names the record that caused them.

**An example**, with `max_deaths` 3, and a record at offset 107 that takes the whole pod down whenever it is delivered:

    owner | finds in the progress          | stage  | does, until 107 kills it
    ------|--------------------------------|--------|---------------------------------------------------------------
    A     | next 90, clean                 | fresh  | commits "not clean", then delivers as usual: 90 to 121 are out
    B     | next 95, deaths 0              | few    | deaths 1: four at a time, and first a commit says how far they
          |                                |        | reach. In the end 104 to 107 are out
    C     | next 104, deaths 1, reach 107  | single | deaths 2: 104 to 107 are suspects. It marks 104, commits,
          |                                |        | delivers, commits the end of 104 and the mark of 105, and so on
    D     | next 107, deaths 2, mark 107   | single | deaths 3: 107 is the culprit. It becomes a dead letter without
          |                                |        | a delivery, and what comes behind is delivered as usual soon

Time alone ends no stage while suspects may be still to come (`after_time`): they may wait behind records of other
partitions that fill the lane's memory, behind the suspects of another partition, for a leader, or for room. A record
that was read, and that its partition had no room for, is still to come, unless it is not due. Records of a queue come
by their time, and not by their offsets: there one that is being read, or is ready, is left too.

Event loop alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from msgspec.structs import replace

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Now, Record

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
