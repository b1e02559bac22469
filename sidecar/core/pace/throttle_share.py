"""How large the share of answers is that ask for time, and how much the pace is cut for it. Pure.

A service that is overloaded asks all of its callers, or more of them the more are in flight. One customer's limit asks
a fixed share, however few are in flight: to slow down for it would cost all others and help nobody. So an eighth of the
answers costs nothing, and what is beyond it is cut in proportion: by half if all answers ask.
"""

from __future__ import annotations

from math import sqrt

FREE = 1 / 8
"""The share of answers that may ask for time and slow nothing down."""
LEAST = 64
"""Answers that a share is judged by at least. With fewer, chance alone makes a tenth look like a quarter."""
CHANCE = 2.0
"""Standard deviations by which a share must be above `FREE`: else the pace would flicker."""
SURE = 8
"""Answers in a row that all ask for time, after which it is no chance, whatever came before them."""
ALL = 0.5
"""The part of the limit that is cut if all answers ask for time."""
CUT_EVERY = 1_000
"""ms after which answers that all ask count again, if deliveries are too few to make a round."""
PATIENCE = 10_000
"""ms after which `LEAST` answers are enough, if a round takes longer."""


class ThrottleShare:
    """The answers since the last judgement, and those of the window before it."""

    def __init__(self) -> None:
        self.others = 0
        """Answers since the last one that asked for time, none of which did. The pace adds to it."""
        self._heard = self._asked = self._round = self._row = 0
        self._heard_before = self._asked_before = 0
        self._since = -CUT_EVERY

    def asked(self, limit: int, now: int) -> float:
        """Note an answer that asks for time, with `limit` deliveries in flight at most, at a steady time (ms).

        Return the part of the limit to cut: 0 if it is not yet time, or if the share is small; 0.5 if all answers ask.
        All deliveries that were in flight together get this answer together, so they are judged together.
        """
        window = max(limit, self._round, LEAST)
        self._row = 1 if self.others else self._row + 1
        if self.others >= window:
            self._begin(self.others, 0, now)
        else:
            self._heard += self.others
        self.others = 0
        self._heard += 1
        self._asked += 1
        lasted = now - self._since
        everything = self._asked == self._heard and self._asked_before == self._heard_before
        if self._row >= SURE or everything:
            judged, cut = self._heard >= self._round or lasted >= CUT_EVERY, ALL
        else:
            judged = self._heard >= window or (self._heard >= LEAST and lasted >= PATIENCE)
            cut = cut_of(self._asked / self._heard, self._heard)
        if not judged:
            return 0.0
        self._begin(self._heard, self._asked, now)
        self._round = limit if cut else 0
        return cut

    def _begin(self, heard: int, asked: int, now: int) -> None:
        """Begin another window. The one before it had these answers."""
        self._heard_before, self._asked_before = heard, asked
        self._heard = self._asked = 0
        self._since = now


def cut_of(share: float, heard: int) -> float:
    """Return the part of the limit to cut for a share of so many answers: 0 if chance can explain it."""
    if share < FREE + CHANCE * sqrt(FREE * (1 - FREE) / heard):
        return 0.0
    return (share - FREE) / (1 - FREE) * ALL
