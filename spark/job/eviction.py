"""How rows leave the view's state by age, seldom: the query that looks for them takes turns with one that does not.

Spark looks at every row of the state after every batch of a query that has a watermark, and at none without. Both
queries are the same one to its checkpoint. Knows no Spark, as `supervisor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from spark.job.supervisor import Running, fault_of

BATCHES = 2
"""What a sweep takes: W is found in its first batch, and rows leave by it in the second."""
SETTLED = 600.0
"""Seconds from a start to its first sweep: the backlog comes first, and jobs that live for hours sweep too."""


class Sweeping(Running, Protocol):
    """A query that forgets old rows."""

    @property
    def batches(self) -> int:
        """How many batches it has ended. Raises GoneError."""


class EvictingQuery:
    """A running query that gives way to `sweep` for BATCHES every `every` seconds; `now` are seconds.

    Whatever `quick` raises in the beginning is raised; later, what either raises is the query's fault.
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

    @property
    def fault(self) -> str | None:
        """Why the query that has its turn has ended, or could not begin; None while it runs. Raises GoneError.

        Who asks is the job's clock: a turn that is due is taken now.
        """
        if (fault := self._running.fault) is not None:
            return fault
        return fault_of(self._take_turns)

    def stop(self) -> None:
        """End the one that has its turn. Raises GoneError."""
        self._running.stop()

    def _take_turns(self) -> None:
        if self._sweeping is None and self._now() >= self._due:
            self._say("the view query looks for rows that are to be forgotten")
            self._running.stop()
            self._running = self._sweeping = self._sweep()
        elif self._sweeping is not None and self._sweeping.batches >= BATCHES:
            self._running.stop()
            self._running, self._sweeping = self._quick(), None
            self._due = self._now() + self._every
            self._say("the view query has forgotten the rows that were to be")
