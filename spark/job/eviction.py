"""Remove old rows from the view's state: at times a sweep, which has a watermark, replaces the normal query.

After every batch of a query that has a watermark, Spark reads every row of the state. It reads none for a query without
one. For the checkpoint both are the same query. As `supervisor`, this module imports nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from spark.job.supervisor import Running, fault_of

BATCHES = 2
"""Batches of a sweep: the first one computes W, and in the second one rows leave by it."""
SETTLED = 600.0
"""Seconds from a start to its first sweep. The backlog comes first, but jobs that run only for hours must sweep too."""


class Sweeping(Running, Protocol):
    """A query that forgets old rows."""

    @property
    def batches(self) -> int:
        """The number of batches that the query has finished. Raises GoneError if Java has ended."""


class EvictingQuery:
    """A running query that a sweep replaces for BATCHES batches, every `every` seconds.

    `quick` starts the normal query, and `sweep` the sweep. `now` returns seconds. An error of `quick` in the
    constructor is raised. Later, an error of either is the query's fault.
    """

    def __init__(
        self,
        quick: Callable[[], Running],
        sweep: Callable[[], Sweeping],
        every: float,
        now: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._quick, self._sweep, self._every, self._now, self._say = quick, sweep, every, now, say
        self._sweeping: Sweeping | None = None
        self._running = quick()
        self._due = now() + min(every, SETTLED)

    def turn(self) -> str | None:
        """Change between query and sweep, if that is due. Return why the current one has ended or could not start.

        None while it runs. Raises GoneError if Java has ended.
        """
        if (fault := self._running.turn()) is not None:
            return fault
        return fault_of(self._take_turns)

    def stop(self) -> None:
        """Stop the current query. Raises GoneError if Java has ended."""
        self._running.stop()

    def _take_turns(self) -> None:
        if self._sweeping is None and self._now() >= self._due:
            self._say("the view query begins to remove old rows")
            self._running.stop()
            self._running = self._sweeping = self._sweep()
        elif self._sweeping is not None and self._sweeping.batches >= BATCHES:
            self._running.stop()
            self._running, self._sweeping = self._quick(), None
            self._due = self._now() + self._every
            self._say("the view query has removed the old rows")
