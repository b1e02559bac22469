"""Whether this instance may have lost its partitions without knowing it: a lane that keeps an order sends nothing then.

A member that its group does not hear from is removed after the session timeout, and others get its partitions. Mostly
its client notices that by its own clock. It does not while it joins again: it keeps its partitions meanwhile, for as
long as the coordinator gives no answer (seen for 25 s, after a broker had gone). The transactions tell it sooner: Kafka
refuses those of a member that is none any more, or does not end them.
"""

from __future__ import annotations

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.commits import Commits
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.record import NEVER, Now

UNANSWERED_MS = 8_000
"""ms after which a transaction that has not ended raises the doubt: the client's session timeout (`client_config.py`).
A member that could end none for so long may be removed."""


class MembershipDoubt:
    """The doubt of one lane. `ordered`: whether it keeps an order; else a second delivery does no harm.

    Invariant: in doubt a transaction is in flight, and its result ends the doubt.
    """

    def __init__(self, commits: Commits, dispatcher: Dispatcher, *, ordered: bool) -> None:
        self._commits, self._dispatcher, self._ordered = commits, dispatcher, ordered
        self._doubts = False

    @property
    def alarm_ms(self) -> int:
        """The steady time (ms) from which on the transaction in flight raises the doubt."""
        waits = self._ordered and not self._doubts and self._commits.in_flight is not None
        return self._commits.taken_ms + UNANSWERED_MS if waits else NEVER

    def tick(self, now: Now) -> None:
        """See whether the transaction in flight takes too long."""
        if now.steady_ms >= self.alarm_ms:
            self._begin()

    def refused(self) -> None:
        """Note that Kafka has refused the transaction in flight, as one of no member. It is tried again."""
        if self._ordered and self._commits.in_flight is not None:
            self._begin()

    def ended(self) -> None:
        """Note that the transaction in flight has its result: this instance is a member, or has lost what it had."""
        if self._doubts:
            self._doubts = False
            self._dispatcher.doubts -= 1

    def _begin(self) -> None:
        if not self._doubts:
            self._doubts = True
            self._dispatcher.doubts += 1

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(not self._doubts or self._commits.in_flight is not None, "a result is to come that ends the doubt")
