"""A rate as a bucket of tokens: each token lets one record go. Pure; times are steady milliseconds.

All is counted in whole numbers, so a rate is kept exactly, however long it runs and however rarely it is looked at.
"""

from __future__ import annotations

from reconsume.sidecar.core.invariant import ensure
from reconsume.topics.rates import Rate

BURST_MS = 1_000
"""ms whose tokens a bucket holds at most: what was not used before that is gone. With more, a service that was idle
would get a burst that it never agreed to; with less, a pause of the sidecar would lose records of the rate."""
GRAIN_MS = 10
"""ms between two wake-ups for tokens at least: with one for each token of 1 000/s, waking would cost more than sending.
Records of higher rates go some at a time."""
RESERVED_MS = 250
"""ms between two looks while all tokens are reserved for records that nobody has received yet (pull): no time at which
one more is free can be known."""


class Bucket:
    """The tokens of one rate. It is empty at the start: restarts must not give the service bursts.

    Invariant: it holds no more than its burst.
    """

    def __init__(self, rate: Rate, now_ms: int) -> None:
        self.rate = rate
        self._level = 0
        """Tokens, in parts of `rate.per_ms`: each millisecond adds `rate.count` of them."""
        self._at_ms = now_ms

    @property
    def burst(self) -> int:
        """Tokens at most: those of a second, and at least one."""
        return max(1, self.rate.count * BURST_MS // self.rate.per_ms)

    def tokens(self, now_ms: int) -> int:
        """Return how many tokens there are at a steady time."""
        if now_ms > self._at_ms:
            added = (now_ms - self._at_ms) * self.rate.count
            # With its beginning of one token more, it is exact however late it is looked at within the burst.
            self._level = min(self._level + added, (self.burst + 1) * self.rate.per_ms - 1)
            self._at_ms = now_ms
        return self._level // self.rate.per_ms

    def take(self, records: int) -> None:
        """Note that records go, at the time of the last look at the tokens: a full bucket gains nothing before that.

        In pull they may be more than there are tokens, after a change of the rate.
        """
        self._level -= records * self.rate.per_ms

    def next_at(self, reserved: int, now_ms: int) -> int:
        """Return the steady time at which to look for one more token than are reserved.

        `reserved`: tokens of records that are offered and not received yet (pull).
        """
        if reserved >= self.burst:
            return now_ms + RESERVED_MS
        missing = (reserved + 1) * self.rate.per_ms - self._level
        return max(self._at_ms - (-missing // self.rate.count), now_ms + GRAIN_MS)

    def change(self, rate: Rate, now_ms: int) -> None:
        """Let another rate hold from now on. The tokens that there are stay, up to the burst of the new one."""
        tokens, self.rate = self.tokens(now_ms), rate
        self._level = min(tokens, self.burst) * rate.per_ms

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self._level < (self.burst + 1) * self.rate.per_ms, "a bucket holds no more than its burst")
