"""The evidence against the records of one partition after crashes, and the stage that follows from it: state alone.

    stage  | what it means                                | leaves to, when
    -------|----------------------------------------------|----------------
    none   | no suspicion: delivery as usual              | fresh, few, single: at the next assignment
    fresh  | no crash counts; delivery waits for a commit | none: that commit (not clean, no `reach`) is in Kafka
    few    | crashes: few in flight, none beyond `reach`  | fresh: `QUIET_MS` passed, and all suspects are answered
    single | more crashes: suspects go one at a time      | few: every offset up to `reach` is done
    single |                                              | few: the next record is no suspect, and none is left
    single |                                              | few: no record for `IDLE_MS`, and no suspect is left
    single |                                              | fresh: `QUIET_MS` passed, and nothing of it is in memory
    single |                                              | few: the same, but its culprit is still to come

Records of a queue come by their time, and not by their offsets: there one that is being read, or is ready, is left too.

Time alone ends no stage while suspects may be still to come (`after_time`): they may wait behind records of other
partitions that fill the lane's memory, behind the suspects of another partition, for a leader, or for room. A record
that was read, and that its partition had no room for, is still to come, unless it is not due.

At stage none `LanePartition.suspicion` is None; without `max_deaths` it always is. For an assigned partition the stage
follows from the progress that its last owner committed (`suspicion_of`). Every stage also ends when the partition goes.

What is done at each stage is in `crash_gate.py`.
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

HUNG_MS = 30_000
"""ms after which a suspect that is still with the service is cleared, because sidecar and service have lived beside it
so long. Less, and a record that takes the service's memory slowly would never be found; more, and records that only
hang would keep the others back."""


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
class Suspicion:
    """The suspicion of a partition whose records need care.

    `deaths`: how many owners in a row crashed with records of it in flight. `culprit`: the record that the last of them
    had in flight alone, if that was one crash too many.

    Invariants: a mark is a suspect, and only stage single has one; no offset is suspected and cleared at once; there
    are no more suspects than `suspected` counts; what hangs is out.
    """

    deaths: int
    stage: Stage
    culprit: int | None = None
    window: int = MOST
    """How many of its records are suspects."""
    most_in_flight: int = MOST
    """How many of its records may be in flight after a crash."""
    since: Now | None = None
    """When the stage began, or very nearly; None until a caller gave the time."""
    opening: bool = False
    """Whether records of it are to be delivered: from now on a commit without the clean mark says so."""
    opened: bool = False
    """Whether that commit is in Kafka."""
    mark: int | None = None
    """The offset that is in flight alone, or about to be."""
    marked: Record | None = None
    """The record of the mark, while the mark is on its way into Kafka."""
    suspected: int = 0
    """How many of its records have counted as suspects."""
    suspects: set[int] = field(default_factory=set)
    """Suspects that no answer has cleared yet."""
    answers: Counter[int] = field(default_factory=Counter)
    """How often suspects were answered and have to come again, by offset."""
    cleared: set[int] = field(default_factory=set)
    """Suspects that went alone and were answered."""
    sent: dict[int, int] = field(default_factory=dict)
    """When each record of it that is out was sent (steady ms), by offset."""
    hung: set[int] = field(default_factory=set)
    """Records that are out for `HUNG_MS` or longer, and so were cleared: they keep nothing back."""
    ready_at_ms: int = 0
    """When a record of it was last ready to be delivered (steady ms)."""
    met: bool = False
    """Whether a record of it was ready, or its log ended, since the owner got it. Other partitions may come first for a
    long time."""
    last_seen: int = -1
    """The highest offset that was read of it, be there room for that record or not."""
    reach: int | None = None
    """The offset behind which no record is delivered: Kafka knows it, or it comes from the last owner."""
    reach_wanted: int = -1
    """The `reach` that is needed, and that the next commit carries."""

    # --- suspect, clear, mark ---------------------------------------------------------------------------------------

    def begin(self, now: Now) -> None:
        """Note when the stage began: now, if that was not known before."""
        if self.since is None:
            self.since, self.ready_at_ms = now, now.steady_ms

    def meet(self, now: Now) -> bool:
        """Note that a record is ready, or that the log ended; return whether that is the first of it."""
        self.begin(now)
        first, self.met = not self.met, True
        return first

    def see(self, offset: int) -> None:
        """Note that a record was read, be there room for it or not."""
        self.last_seen = max(self.last_seen, offset)

    def close_window(self, offset: int, due_ms: int, now: Now) -> None:
        """Suspect no further record if this one was due (epoch ms) only after the stage began, and that was quiet.

        It was not in flight when the last owner crashed, and neither is any that comes after it.
        """
        if offset not in self.suspects and self.is_quiet(now) and due_ms > (self.since or now).wall_ms:
            self.suspected = max(self.suspected, self._most)

    def suspect(self, offset: int) -> None:
        """Count a record that is about to be delivered as a suspect: it may have been in flight at the last crash."""
        if offset not in self.suspects:
            self.suspected += 1
            self.suspects.add(offset)

    def answered(self, offset: int, *, comes_again: bool) -> None:
        """Clear a record whose delivery was answered. `comes_again`: the record is not done."""
        # Contract 1.10: a throttle or a retry in place is no proof, so it clears a suspect only after some of them.
        if comes_again and offset in self.suspects:
            self.answers[offset] += 1
            if self.answers[offset] < TRIES:
                return
        self.suspects.discard(offset)
        if offset == self.mark:
            self.cleared.add(offset)

    def went(self, offset: int, now: Now) -> None:
        """Note that a record of it is out."""
        self.sent[offset] = now.steady_ms

    def came_back(self, offset: int) -> None:
        """Note that a record of it is out no more, whatever came of it."""
        self.sent.pop(offset, None)
        self.hung.discard(offset)

    def clear_hung(self, now: Now) -> list[int]:
        """Clear the records that have been out for `HUNG_MS`; return their offsets."""
        offsets = [
            offset for offset, at in self.sent.items() if now.steady_ms - at >= HUNG_MS and offset not in self.hung
        ]
        for offset in offsets:
            self.answered(offset, comes_again=False)
        self.hung.update(offsets)
        return offsets

    def set_mark(self, record: Record) -> None:
        """Mark a record that goes alone once a commit has told Kafka: a suspect, or one that keeps them from coming."""
        if record.offset in self.cleared:  # and was counted
            self.cleared.discard(record.offset)
            self.suspects.add(record.offset)
        self.suspect(record.offset)
        self.mark, self.marked, self.opening = record.offset, record, True

    def unmark(self) -> None:
        """Take the mark away."""
        self.mark = self.marked = None

    def want_reach(self, offsets: Sequence[int], in_flight: int) -> bool:
        """Want the lowest of these offsets to be delivered, as many as there is room for.

        Return whether that takes a commit.
        """
        takes_commit, self.opening = not self.opening, True
        room = self.most_in_flight - in_flight
        if self.reach is not None and room > 0:
            wanted = offsets[:room][-1]
            takes_commit |= wanted > max(self.reach, self.reach_wanted)
            self.reach_wanted = max(self.reach_wanted, wanted)
        return takes_commit

    def open_by(self, progress: Progress) -> bool:
        """Note that progress is in Kafka; return whether its records may be delivered now.

        Progress that an earlier suspicion committed does not allow that.
        """
        if not self.opening or progress.clean or (self.stage is Stage.FRESH and progress.reach is not None):
            return False
        self.opened = True
        if self.stage is Stage.FEW:
            self.reach = progress.reach
        return True

    # --- questions --------------------------------------------------------------------------------------------------

    def is_suspect(self, offset: int) -> bool:
        """Return whether a record may have been in flight when the last owner crashed."""
        if offset in self.suspects:
            return True
        if self.stage is Stage.SINGLE and self.reach is not None:
            return offset <= self.reach
        return self.suspected < self._most

    @property
    def _most(self) -> int:
        # Of a partition in single file: in flight, and done without Kafka knowing.
        return self.window if self.stage is Stage.FEW else 2 * self.window

    def awaits(self, offsets: Iterable[int]) -> bool:
        """Return whether one of these records is a suspect that nothing has cleared."""
        return any(offset not in self.cleared and self.is_suspect(offset) for offset in offsets)

    def is_reached(self, offset: int) -> bool:
        """Return whether a record may go now: if it crashes the service, the next owner knows that it may be the
        cause."""
        return self.opened and (self.reach is None or offset <= self.reach)

    def is_quiet(self, now: Now) -> bool:
        """Return whether the owner has lived long enough."""
        return self.since is not None and now.steady_ms - self.since.steady_ms >= QUIET_MS

    @property
    def unmet(self) -> bool:
        """Whether its suspects may be still to come, so that time alone clears nothing."""
        return not self.met or (self.stage is Stage.FEW and self.culprit is not None)

    def is_over(self, load: int, now: Now) -> bool:
        """Return whether the owner has lived long enough, and all that may have been in flight is answered.

        `load`: the bytes that the partition holds, or any if more may be still to come.
        """
        if self.unmet or not self.is_quiet(now):
            return False
        return load == 0 or (self.stage is Stage.FEW and self.suspected >= self.window and not self.suspects)

    def after_time(self, load: int, blocked: str, now: Now, *, unread: bool) -> Step:
        """Return what becomes of a partition that has no mark.

        `load`: the bytes that it holds. `blocked`: why nothing of it is delivered. `unread`: whether suspects may be
        still to come from Kafka.
        """
        if self.is_over(load or unread, now):
            return Step.TO_FRESH if self.culprit is None else Step.TO_FEW  # the culprit is not read yet
        if self.stage is not Stage.SINGLE:
            return Step.STAY
        idle = now.steady_ms - self.ready_at_ms >= IDLE_MS
        if blocked or (idle and (self.suspects or self.unmet or unread)):
            return Step.LEAVE
        return Step.TO_FEW if idle else Step.STAY

    def is_passed(self, first: int) -> bool:
        """Return whether all that may have been in flight is done. `first`: the lowest offset that is not done."""
        return self.mark is None and self.reach is not None and first > self.reach

    def narrowed(self, most: int, first: int) -> Suspicion:
        """Return the suspicion that remains when no record delivered alone has crashed the service.

        `most`: the crashes that are allowed. `first`: the lowest offset that is not done.
        """
        return Suspicion(
            max(0, most - 2),
            Stage.FEW,
            self.culprit,
            self.window,
            self.most_in_flight,
            opening=True,
            opened=self.opened,
            met=self.met,
            last_seen=self.last_seen,
            reach=first - 1 if self.reach is None else self.reach,
            sent=self.sent,
            hung=self.hung,
        )

    def with_crash_state(self, progress: Progress) -> Progress:
        """Return the progress with all that the next owner must know; clean while nothing of it was delivered."""
        clean = progress.clean or not self.opening
        mark = None if clean or self.mark is None or progress.covers(self.mark) else self.mark
        reach = None if self.reach is None else max(self.reach, self.reach_wanted, progress.next - 1)
        return replace(progress, clean=clean, deaths=self.deaths, mark=mark, reach=reach)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        marked = self.marked
        ensure(self.mark is None or self.stage is Stage.SINGLE, f"a mark at {self.stage.name} is in single file")
        ensure(marked is None or marked.offset == self.mark, "the record that waits for its mark is the marked one")
        ensure(self.suspects.isdisjoint(self.cleared), "no suspect is cleared already")
        ensure(self.suspected >= len(self.suspects), "each suspect was counted")
        ensure(self.hung <= self.sent.keys(), "what hangs is still out")
        ensure(not self.opened or self.opening, "what Kafka knows was wanted")


def suspicion_of(progress: Progress, deaths: int, most: int, full: int, *, died: bool) -> Suspicion:
    """Return the suspicion of a partition after `deaths` crashes in a row, of which `most` are allowed.

    `progress`: the progress of the last owner. `died`: whether that owner crashed. `full`: how many records can be in
    flight at once.
    """
    stage = Stage.FRESH if deaths == 0 else Stage.SINGLE if deaths >= max(1, most - 1) else Stage.FEW
    if (
        stage is Stage.SINGLE and progress.reach is not None and progress.reach < progress.next
    ):  # no record was in flight
        deaths, stage = max(0, most - 2), Stage.FEW
    reach = {Stage.FRESH: None, Stage.FEW: progress.next - 1, Stage.SINGLE: progress.reach}[stage]
    guilty = died and deaths >= most and progress.mark is not None and not progress.covers(progress.mark)
    window = min(max(full, FEWEST), MOST)
    return Suspicion(deaths, stage, progress.mark if guilty else None, window, max(SMALLEST, window // 8), reach=reach)
