"""What is known against the records of one partition: state alone. What follows from it is in `quarantine.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from msgspec.structs import replace

from sidecar.core.progress import Progress
from sidecar.core.record import Now, Record

FEWEST, MOST = 32, 256
"""Records of a partition that are suspects: as many as can be out, within these bounds. A predecessor may have had more
out; each death moves its progress, so they come in turn, and one at a time these already take seconds or minutes."""
SMALLEST = 4
"""Records of a partition that may be out after a death, or an eighth of the window. Those that are out at the next one
go one at a time later on, and they are likely to be the slow ones."""
QUIET = 10_000
"""ms that an owner must live before nothing is held against its partition any more. Its predecessor had a second's
worth of records done that Kafka did not know, and they come first."""

TRIES = 3
"""Answers that clear a suspect when each of them only has it come again: to be throttled says nothing of a record, and
one that fails in place may kill at its next try. What is behind it in its partition waits, so there is an end."""

Stage: TypeAlias = Literal["first", "together", "alone"]
"""Nothing is known against it and nothing of it was delivered yet; its owner died; its owners died so often that its
records go one at a time."""


@dataclass(slots=True)
class Suspicion:
    """A partition whose records need care. `deaths`: how many owners in a row died with records of it out.

    `culprit`: the record that the last of them had out alone, when that was one death too many.
    """

    deaths: int
    stage: Stage
    culprit: int | None = None
    window: int = MOST
    """How many of its records are suspects."""
    group: int = MOST
    """How many of them may be out after a death."""
    since: Now | None = None
    """When the stage began, or very nearly; None until somebody knew the time."""
    opening: bool = False
    """Records of it are to be delivered: from now on a commit without the clean mark says so."""
    opened: bool = False
    """That commit is in Kafka."""
    mark: int | None = None
    """The offset that is out alone, or about to be."""
    waiting: Record | None = None
    """The record of the mark, while that is on its way into Kafka."""
    seen: int = 0
    """How many of its records have counted as suspects."""
    left: set[int] = field(default_factory=set)
    """Suspects that no answer has cleared yet."""
    heard: Counter[int] = field(default_factory=Counter)
    """How often suspects were answered and have to come again."""
    cleared: set[int] = field(default_factory=set)
    """Suspects that went alone and were answered."""
    touched: int = 0
    """When a record of it wanted to go last (steady ms)."""
    met: bool = False
    """Whether any did since its owner got it. Those of other partitions may come first for a long time."""
    reach: int | None = None
    """The offset behind which no record is let go: Kafka knows it, or it comes from the last owner."""
    wanted: int = -1
    """The offset that it should be, and shall be after the next commit."""

    def suspect(self, offset: int) -> None:
        """Count a record that is going to be delivered as one that may have been out when the last owner died."""
        if offset not in self.left:
            self.seen += 1
            self.left.add(offset)

    def hears(self, offset: int, *, again: bool) -> None:
        """Take in that a delivery was answered. `again`: the record is not done with and comes once more."""
        if again and offset in self.left:
            self.heard[offset] += 1
            if self.heard[offset] < TRIES:
                return
        self.left.discard(offset)
        if offset == self.mark:
            self.cleared.add(offset)

    def begin(self, now: Now) -> Now:
        """When the stage began: now, unless that was said before."""
        if self.since is None:
            self.since, self.touched = now, now.steady
        return self.since

    def suspects(self, offset: int, due: int, now: Now) -> bool:
        """Whether a record may have been out when the last owner died; one that came `due` (epoch ms) since was not."""
        if offset in self.left:
            return True
        if self.stage == "alone" and self.reach is not None:
            return offset <= self.reach
        since = self.begin(now)
        if now.steady - since.steady >= QUIET and due > since.wall:
            self.seen = max(self.seen, self._most)
        return self.seen < self._most

    @property
    def _most(self) -> int:
        return self.window if self.stage == "together" else 2 * self.window  # what was out, and what was done unknown

    def follows(self, offset: int) -> bool:
        """Whether a record is the next suspect to go alone."""
        if offset in self.cleared or offset == self.culprit:
            return False
        return self.seen < self._most if self.reach is None else offset <= self.reach

    def reaches(self, offset: int) -> bool:
        """Whether a record may go now: if it kills, the successor will know that it may have been this one."""
        return self.opened and (self.reach is None or offset <= self.reach)

    def reach_out(self, offsets: Sequence[int], in_flight: int) -> bool:
        """Want the lowest of these to be let go, as many as there is room for; whether that takes a commit."""
        ask, self.opening = not self.opening, True
        room = self.group - in_flight
        if self.reach is not None and room > 0:
            wanted = offsets[:room][-1]
            ask |= wanted > max(self.reach, self.wanted)
            self.wanted = max(self.wanted, wanted)
        return ask

    def opens(self, progress: Progress) -> bool:
        """Whether what is in Kafka now lets its records go; what a suspicion before this one committed does not."""
        if not self.opening or progress.clean or (self.stage == "first" and progress.reach is not None):
            return False
        self.opened = True
        return True

    @property
    def unmet(self) -> bool:
        """Whether what it is about may be still to come, so that time alone clears nothing."""
        return self.stage == "together" and (not self.met or self.culprit is not None)

    def over(self, now: Now, load: int) -> bool:
        """Whether its owner has lived long enough, and all that may have been out is answered. `load`: bytes it has."""
        if now.steady - self.begin(now).steady < QUIET:
            return False
        return load == 0 or (self.stage == "together" and self.seen >= self.window and not self.left)

    def calmed(self, most: int, first: int) -> Suspicion:
        """What is left of it when no record has killed its owner alone. `first`: the lowest offset that is not done."""
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
        """Whether all that may have been out is done; `first`: the lowest offset that is not."""
        return self.mark is None and self.reach is not None and first > self.reach

    def stamp(self, progress: Progress) -> Progress:
        """The progress with all that a successor must know; clean while nothing of it was delivered."""
        clean = progress.clean or not self.opening
        mark = None if clean or self.mark is None or progress.covers(self.mark) else self.mark
        reach = None if self.reach is None else max(self.reach, self.wanted, progress.next - 1)
        return replace(progress, clean=clean, deaths=self.deaths, mark=mark, reach=reach)


def suspicion_of(found: Progress, deaths: int, most: int, full: int, *, died: bool) -> Suspicion:
    """What is to be thought of a partition after so many deaths, the last one just now or not; `most` is allowed.

    `full`: how many records can be out at once.
    """
    stage: Stage = "first" if deaths == 0 else "alone" if deaths >= max(1, most - 1) else "together"
    if stage == "alone" and found.reach is not None and found.reach < found.next:  # nothing was out
        deaths, stage = max(0, most - 2), "together"
    reach = {"first": None, "together": found.next - 1, "alone": found.reach}[stage]
    guilty = died and deaths >= most and found.mark is not None and not found.covers(found.mark)
    window = min(max(full, FEWEST), MOST)
    return Suspicion(deaths, stage, found.mark if guilty else None, window, max(SMALLEST, window // 8), reach=reach)
