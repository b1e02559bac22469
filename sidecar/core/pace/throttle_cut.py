"""How large the share of answers is that ask for time, and how much the pace is cut for it. Pure.

A service that is overloaded asks all of its callers, or more of them the more are in flight. One customer's limit asks
a fixed share, however few are in flight: to slow down for it would cost all others and help nobody. So an eighth of the
answers costs nothing, and what is beyond it is cut in proportion: by half if all answers ask.
"""

from __future__ import annotations

from math import sqrt

from reconsume.sidecar.core.invariant import ensure

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
CUT_EVERY_MS = 1_000
"""ms after which answers that all ask count again, if deliveries are too few to make a round."""
PATIENCE_MS = 10_000
"""ms after which `LEAST` answers are enough, if a round takes longer."""


class ThrottleCut:
    """The answers since the last judgement, and whether all of the window before it asked for time.

    Invariant: those that ask for time are some of the answers.
    """

    def __init__(self) -> None:
        self.others = 0
        """Answers since the last one that asked for time, none of which did. The pace adds to it."""
        self._answers = self._throttled = self._round = self._row = 0
        self._all_asked_before = True
        """Whether all answers of the window before asked; so it is as long as there was none."""
        self._since_ms = -CUT_EVERY_MS

    def throttled(self, limit: int, now_ms: int) -> float:
        """Note an answer that asks for time, with `limit` deliveries in flight at most, at a steady time (ms).

        Return the part of the limit to cut: 0 if it is not yet time, or if the share is small; 0.5 if all answers ask.
        All deliveries that were in flight together get this answer together, so they are judged together.
        """
        window = max(limit, self._round, LEAST)
        self._row = 1 if self.others else self._row + 1
        if self.others >= window:
            self._begin(now_ms, all_asked=False)
        else:
            self._answers += self.others
        self.others = 0
        self._answers += 1
        self._throttled += 1
        lasted_ms = now_ms - self._since_ms
        everything = self._throttled == self._answers and self._all_asked_before
        # All of them ask, which chance does not explain: to wait for a whole sample would only ask more often in vain.
        if self._row >= SURE or everything:
            judged, cut = self._answers >= self._round or lasted_ms >= CUT_EVERY_MS, ALL
        else:
            judged = self._answers >= window or (self._answers >= LEAST and lasted_ms >= PATIENCE_MS)
            cut = cut_of(self._throttled / self._answers, self._answers)
        if not judged:
            return 0.0
        self._begin(now_ms, all_asked=self._throttled == self._answers)
        self._round = limit if cut else 0
        return cut

    def _begin(self, now_ms: int, *, all_asked: bool) -> None:
        """Begin another window. `all_asked`: whether all answers of the one before it asked for time."""
        self._answers = self._throttled = 0
        self._since_ms, self._all_asked_before = now_ms, all_asked

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(0 <= self._throttled <= self._answers, "those that ask are some of the answers")


def cut_of(share: float, answers: int) -> float:
    """Return the part of the limit to cut for a share of so many answers: 0 if chance can explain it."""
    if share < FREE + CHANCE * sqrt(FREE * (1 - FREE) / answers):
        return 0.0
    return (share - FREE) / (1 - FREE) * ALL
