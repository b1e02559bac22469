"""The evidence against the records of one partition after crashes, and the stage that follows from it: state alone.

    stage    | what it means                                | leaves to, when
    ---------|----------------------------------------------|----------------
    none     | no suspicion: delivery as usual              | first, together, alone: at the next assignment
    first    | no crash counts; delivery waits for a commit | none: that commit (not clean, no `reach`) is in Kafka
    together | crashes: few in flight, none beyond `reach`  | first: `QUIET` ms passed, and all suspects are answered
    alone    | more crashes: suspects go one at a time      | together: every offset up to `reach` is done
    alone    |                                              | together: the next record is no suspect, and none is left
    alone    |                                              | together: no record for `IDLE` ms, and no suspect is left
    alone    |                                              | first: `QUIET` ms passed, and nothing of it is in memory
    alone    |                                              | together: the same, but its culprit is still to come

What time alone does is in `suspicion_time.py`. It ends no stage while suspects may be still to come.

At stage none `LanePartition.suspicion` is None; without `max_deaths` it always is. For an assigned partition the stage
follows from the progress that its last owner committed (`suspicion_of`). Every stage also ends when the partition goes.

What is done at each stage is in `quarantine.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from msgspec.structs import replace

from sidecar.core.progress import Progress
from sidecar.core.record import Now, Record

FEWEST, MOST = 32, 256
"""Records of a partition that are suspects: as many as can be in flight, within these bounds. The last owner may have
had more in flight. Each crash moves its progress, so they come in turn. One at a time even these take seconds or
minutes."""
SMALLEST = 4
"""Records of a partition that may be in flight after a crash: this many, or an eighth of the window if that is more.
Those in flight at the next crash go one at a time later, and they are likely to be the slow ones."""
QUIET = 10_000
"""ms that an owner must live before nothing is held against its partition any more. The last owner had up to a second
of done records that Kafka did not know, and they come first."""

TRIES = 3
"""Answers that clear a suspect if each of them only makes it come again. A throttle says nothing about a record, and
one that fails in place may crash the service at its next attempt. Other records of its partition wait, so there is a
limit."""

Stage: TypeAlias = Literal["first", "together", "alone"]
"""`first`: nothing is held against the partition, and its records wait for a commit without the clean mark. `together`:
its owner crashed. `alone`: its owners crashed so often that its records go one at a time."""


@dataclass(slots=True)
class Suspicion:
    """The suspicion of a partition whose records need care.

    `deaths`: how many owners in a row crashed with records of it in flight. `culprit`: the record that the last of them
    had in flight alone, if that was one crash too many.
    """

    deaths: int
    stage: Stage
    culprit: int | None = None
    window: int = MOST
    """How many of its records are suspects."""
    group: int = MOST
    """How many of its records may be in flight after a crash."""
    since: Now | None = None
    """When the stage began, or very nearly; None until a caller gave the time."""
    opening: bool = False
    """Whether records of it are to be delivered: from now on a commit without the clean mark says so."""
    opened: bool = False
    """Whether that commit is in Kafka."""
    mark: int | None = None
    """The offset that is in flight alone, or about to be."""
    waiting: Record | None = None
    """The record of the mark, while the mark is on its way into Kafka."""
    seen: int = 0
    """How many of its records have counted as suspects."""
    left: set[int] = field(default_factory=set)
    """Suspects that no answer has cleared yet."""
    heard: Counter[int] = field(default_factory=Counter)
    """How often suspects were answered and have to come again, by offset."""
    cleared: set[int] = field(default_factory=set)
    """Suspects that went alone and were answered."""
    touched: int = 0
    """When a record of it was last ready to be delivered (steady ms)."""
    met: bool = False
    """Whether a record of it was ready, or its log ended, since the owner got it. Other partitions may come first for a
    long time."""
    reach: int | None = None
    """The offset behind which no record is delivered: Kafka knows it, or it comes from the last owner."""
    wanted: int = -1
    """The `reach` that is needed, and that the next commit carries."""

    def suspect(self, offset: int) -> None:
        """Count a record that is about to be delivered as a suspect: it may have been in flight at the last crash."""
        if offset not in self.left:
            self.seen += 1
            self.left.add(offset)

    def hears(self, offset: int, *, again: bool) -> None:
        """Note that a delivery was answered. `again`: the record is not done and comes once more."""
        if again and offset in self.left:
            self.heard[offset] += 1
            if self.heard[offset] < TRIES:
                return
        self.left.discard(offset)
        if offset == self.mark:
            self.cleared.add(offset)

    def begin(self, now: Now) -> Now:
        """Return when the stage began: now, if that was not known before."""
        if self.since is None:
            self.since, self.touched = now, now.steady
        return self.since

    def meets(self, now: Now) -> bool:
        """Note that a record is ready, or that the log ended; return whether that is the first of it."""
        self.begin(now)
        first, self.met = not self.met, True
        return first

    def suspects(self, offset: int, due: int, now: Now) -> bool:
        """Return whether a record may have been in flight when the last owner crashed.

        `due`: when it could be delivered at the earliest, epoch ms.
        """
        if offset in self.left:
            return True
        if self.stage == "alone" and self.reach is not None:
            return offset <= self.reach
        since = self.begin(now)
        # Due after the stage began: not in flight before. After `QUIET` ms no later record is a suspect either.
        if now.steady - since.steady >= QUIET and due > since.wall:
            self.seen = max(self.seen, self._most)
        return self.seen < self._most

    @property
    def _most(self) -> int:
        return self.window if self.stage == "together" else 2 * self.window  # in flight, and done without Kafka knowing

    def follows(self, offset: int) -> bool:
        """Return whether a record is the next suspect to go alone."""
        if offset in self.cleared or offset == self.culprit:
            return False
        return self.seen < self._most if self.reach is None else offset <= self.reach

    def reaches(self, offset: int) -> bool:
        """Return whether a record may go now: if it crashes the service, the next owner knows that it may be the
        cause."""
        return self.opened and (self.reach is None or offset <= self.reach)

    def reach_out(self, offsets: Sequence[int], in_flight: int) -> bool:
        """Want the lowest of these offsets to be delivered, as many as there is room for.

        Return whether that takes a commit.
        """
        ask, self.opening = not self.opening, True
        room = self.group - in_flight
        if self.reach is not None and room > 0:
            wanted = offsets[:room][-1]
            ask |= wanted > max(self.reach, self.wanted)
            self.wanted = max(self.wanted, wanted)
        return ask

    def opens(self, progress: Progress) -> bool:
        """Note that progress is in Kafka; return whether its records may be delivered now.

        Progress that an earlier suspicion committed does not allow that.
        """
        if not self.opening or progress.clean or (self.stage == "first" and progress.reach is not None):
            return False
        self.opened = True
        return True

    @property
    def unmet(self) -> bool:
        """Whether its suspects may be still to come, so that time alone clears nothing."""
        return not self.met or (self.stage == "together" and self.culprit is not None)

    def calmed(self, most: int, first: int) -> Suspicion:
        """Return the suspicion that remains when no record delivered alone has crashed the service.

        `first`: the lowest offset that is not done.
        """
        reach = first - 1 if self.reach is None else self.reach
        return Suspicion(
            max(0, most - 2),
            "together",
            self.culprit,
            self.window,
            self.group,
            opening=True,
            opened=self.opened,
            met=self.met,
            reach=reach,
        )

    def outlived(self, first: int) -> bool:
        """Return whether all that may have been in flight is done. `first`: the lowest offset that is not done."""
        return self.mark is None and self.reach is not None and first > self.reach

    def stamp(self, progress: Progress) -> Progress:
        """Return the progress with all that the next owner must know; clean while nothing of it was delivered."""
        clean = progress.clean or not self.opening
        mark = None if clean or self.mark is None or progress.covers(self.mark) else self.mark
        reach = None if self.reach is None else max(self.reach, self.wanted, progress.next - 1)
        return replace(progress, clean=clean, deaths=self.deaths, mark=mark, reach=reach)


def suspicion_of(found: Progress, deaths: int, most: int, full: int, *, died: bool) -> Suspicion:
    """Return the suspicion of a partition after `deaths` crashes in a row, of which `most` are allowed.

    `found`: the progress of the last owner. `died`: whether that owner crashed. `full`: how many records can be in
    flight at once.
    """
    stage: Stage = "first" if deaths == 0 else "alone" if deaths >= max(1, most - 1) else "together"
    if stage == "alone" and found.reach is not None and found.reach < found.next:  # no record was in flight
        deaths, stage = max(0, most - 2), "together"
    reach = {"first": None, "together": found.next - 1, "alone": found.reach}[stage]
    guilty = died and deaths >= most and found.mark is not None and not found.covers(found.mark)
    window = min(max(full, FEWEST), MOST)
    return Suspicion(deaths, stage, found.mark if guilty else None, window, max(SMALLEST, window // 8), reach=reach)
