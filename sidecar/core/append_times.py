"""When the records of a level partition were appended: by the broker's clock, as far as what was seen bears it out.

A level ends one delay after the broker's timestamp, and the clock of the broker may be minutes off. If it is ahead,
each record would wait longer than its level, by the whole difference. If it is behind, the level would seem to be over
at once, and a record that is not due yet would hop from level to level without a pause.

So the lane notes up to which offset the log reached, and when it saw that. The notes below and above a record say
between which times it was appended. With its timestamp, that bounds how far the broker's clock is ahead, and each
record narrows these bounds. The clock is corrected by no more than they demand.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.record import NEVER, Now

HANDED_OVER_MS = 3_000
"""ms that it may take until the lane learns how far a log reaches; a record may have come meanwhile."""
GRAIN = 32
"""Notes within one level delay. After a step of the broker's clock a wait may be off by the time between two notes."""
MOST_NOTES = 2 * GRAIN
"""Notes kept of a partition. They cover twice the delay of its level, whatever the delay is."""


class Note(NamedTuple):
    """The offsets up to `last` are there at the steady time `since_ms` or before; until `until_ms` no other came."""

    last: int
    since_ms: int
    until_ms: int


NOTHING = Note(-1, -NEVER, -NEVER)


class AppendTimes:
    """What was seen of the log of one partition. `delay_ms`: ms of its level.

    Invariants: notes reach further one after the other, and are bounded; the least that the clock is ahead is not more
    than the most.
    """

    __slots__ = ("_between_ms", "_clock_ahead_least_ms", "_clock_ahead_most_ms", "_notes", "_passed")

    def __init__(self, delay_ms: int) -> None:
        self._between_ms = delay_ms // GRAIN
        self._notes: deque[Note] = deque(maxlen=MOST_NOTES)
        self._passed = NOTHING
        """The last note whose offsets are all below the record that was asked for last."""
        self._clock_ahead_least_ms, self._clock_ahead_most_ms = -NEVER, NEVER
        """How far (ms) the broker's clock is ahead of ours, at least and at most."""

    def note(self, last: int, steady_ms: int) -> None:
        """Note that the log reaches up to the offset `last`, and no further, as of a moment ago (steady ms)."""
        notes = self._notes
        newest = notes[-1] if notes else self._passed
        if last > newest.last:
            before = notes[-2] if len(notes) > 1 else self._passed
            if notes and newest.since_ms - before.since_ms < self._between_ms:
                notes.pop()
            notes.append(Note(last, steady_ms, steady_ms))
        elif last == newest.last:
            newest = newest._replace(until_ms=steady_ms)
            if notes:
                notes[-1] = newest
            else:
                self._passed = newest

    def is_over(self, offset: int, steady_ms: int) -> bool:
        """Return whether a level that is over by the broker's clock is over, if the offset was appended by `steady_ms`.

        This is the short way for nearly every record: nothing shows that the clock of the broker is behind. It drops
        the notes below the offset, as `appended` does: offsets must come in rising order.
        """
        return self._clock_ahead_most_ms >= 0 and self._pass_notes_below(offset) <= steady_ms

    def appended(self, offset: int, timestamp: int, now: Now) -> int:
        """Return the steady time (ms) at which a record was appended, by its timestamp and by what was seen.

        What the record shows of the broker's clock narrows the bounds for the next one. Offsets must come in rising
        order.
        """
        earliest_ms, by_clock_ms = self._pass_notes_below(offset), timestamp - now.wall_ms + now.steady_ms
        least_ms, most_ms = by_clock_ms - self._latest(offset, now.steady_ms), by_clock_ms - earliest_ms
        # Contract 2.3: the clock is corrected by no more than what was seen demands.
        low_ms, high_ms = max(self._clock_ahead_least_ms, least_ms), min(self._clock_ahead_most_ms, most_ms)
        if low_ms > high_ms:  # a clock was set, or another broker leads the partition now
            low_ms, high_ms = least_ms, most_ms
        self._clock_ahead_least_ms, self._clock_ahead_most_ms = low_ms, high_ms
        return by_clock_ms - min(max(0, low_ms), high_ms)

    def _pass_notes_below(self, offset: int) -> int:
        """Drop older notes, so offsets come in rising order. Return the earliest time at which the record was there."""
        notes = self._notes
        while notes and notes[0].last < offset:
            self._passed = notes.popleft()
        return self._passed.until_ms - HANDED_OVER_MS if offset > self._passed.last else -NEVER

    def _latest(self, offset: int, steady_ms: int) -> int:
        if offset <= self._passed.last:
            return self._passed.since_ms
        return self._notes[0].since_ms if self._notes else steady_ms

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        notes = [self._passed, *self._notes]
        ensure(len(self._notes) <= MOST_NOTES, "the notes are bounded")
        ensure(all(note.since_ms <= note.until_ms for note in notes), "a note begins before it ends")
        ensure(all(a.last < b.last for a, b in pairwise(notes)), "each note reaches further than the one before")
        ensure(self._clock_ahead_least_ms <= self._clock_ahead_most_ms, "the bounds of the clock leave room")
