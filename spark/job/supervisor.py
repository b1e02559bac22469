"""Keep queries running: a query that ends is started again after its own wait, while the others go on.

This module imports nothing of Spark. A query is an interface, so tests of restarts use a clock that does not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from reconsume.spark.errors import GoneError, first_line

FIRST_WAIT = 1.0
"""Seconds before the first restart; doubled by each failure that follows."""


LONGEST_WAIT = 60.0
"""Seconds of the longest wait before a restart."""


HEALTHY_AFTER = 300.0
"""Seconds of running after which earlier failures no longer count."""


@dataclass(frozen=True, slots=True)
class Streak:
    """The number of failures in a row."""

    failures: int = 0

    def failed(self, ran: float) -> Streak:
        """Return the streak with one more failure, after `ran` seconds; a new streak if the query had been healthy."""
        return Streak(1 if ran >= HEALTHY_AFTER else self.failures + 1)

    @property
    def wait(self) -> float:
        """Seconds until the next start."""
        # The exponent is bounded, because 2.0 ** 1024 overflows.
        return min(FIRST_WAIT * 2.0 ** min(self.failures - 1, 10), LONGEST_WAIT)


PASSING = "it begins again"
"""The end of a query that is no failure: it begins again after FIRST_WAIT."""


LOOK_SECONDS = 0.2
"""Seconds between two checks whether the queries still run."""


class Running(Protocol):
    """A query that was started."""

    def turn(self) -> str | None:
        """Do what is due now. Return why the query has ended, as one sentence; None while it runs.

        Raises GoneError if Java has ended.
        """

    def stop(self) -> None:
        """Stop the query between two batches, or within one that takes too long. Raises GoneError if Java has ended."""


class Clock(Protocol):
    """Time, and the request to stop."""

    def now(self) -> float:
        """Return seconds of a clock that never goes back."""

    def pause(self, seconds: float) -> bool:
        """Wait for `seconds`. Return True, at once, when the job must stop."""


Start = Callable[[], Running]
"""A function that starts a query. Every error but GoneError is a failure of the query."""


@dataclass(slots=True)
class SupervisedQuery:
    """One query: how it is started, whether it runs, and its failures.

    `began` and `again_at` are seconds of the clock.
    """

    start: Start
    running: Running | None = None
    streak: Streak = field(default_factory=Streak)
    began: float = 0.0
    again_at: float = 0.0
    given_up: bool = False


class Supervisor:
    """The loop that runs the queries until a request to stop, or until no query is left.

    A query that has failed `most` times in a row is given up, and the others go on without it. A query is not started
    for the first time before `may_begin` returns True. `waiting` is called while a query waits for a start, and as one
    begins.
    """

    def __init__(
        self,
        starts: Mapping[str, Start],
        clock: Clock,
        *,
        most: int,
        say: Callable[[str], None],
        restarting: Callable[[str], None] = lambda _name: None,
        giving_up: Callable[[str], None] = lambda _name: None,
        waiting: Callable[[str], None] = lambda _name: None,
        may_begin: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        self._queries = {name: SupervisedQuery(start) for name, start in starts.items()}
        self._clock, self._most, self._say, self._restarting = clock, most, say, restarting
        self._giving_up, self._waiting, self._may_begin = giving_up, waiting, may_begin

    def run(self) -> bool:
        """Run until the end; return True if no query was given up. Raises GoneError if Java has ended.

        After a request to stop, all queries are stopped first, at the same time.
        """
        while (queries := self._kept_queries()) and not self._clock.pause(LOOK_SECONDS):
            for name, query in queries.items():
                self._look(name, query)
        running = {name: query.running for name, query in self._queries.items() if query.running is not None}
        for name, fault in stopped_together(running).items():
            self._say(f"the {name} query did not stop: {fault}")
        return len(queries) == len(self._queries)

    def _kept_queries(self) -> dict[str, SupervisedQuery]:
        return {name: query for name, query in self._queries.items() if not query.given_up}

    def _look(self, name: str, query: SupervisedQuery) -> None:
        if query.running is None:
            if self._clock.now() < query.again_at or not (query.streak.failures or self._may_begin(name)):
                self._waiting(name)
                return
            fault = self._begin(name, query)
        else:
            fault = query.running.turn()
        if fault == PASSING:
            query.running, query.again_at = None, self._clock.now() + FIRST_WAIT
        elif fault is not None:
            self._failed(name, query, fault)

    def _begin(self, name: str, query: SupervisedQuery) -> str | None:
        if query.streak.failures:
            self._restarting(name)
        self._waiting(name)
        query.began = self._clock.now()

        def begin() -> None:
            query.running = query.start()

        return fault_of(begin)

    def _failed(self, name: str, query: SupervisedQuery, fault: str) -> None:
        """Plan the next start, unless there were too many failures."""
        self._waiting(name)  # from now on: the start of another query may take most of a minute
        now = self._clock.now()
        query.streak = query.streak.failed(now - query.began)
        query.running, query.again_at = None, now + query.streak.wait
        count = f"{query.streak.failures} of {self._most} failures in a row"
        if query.streak.failures >= self._most:
            query.given_up = True
            self._giving_up(name)
            self._say(f"the {name} query failed, and is given up after {count}: {fault}")
            return
        self._say(f"the {name} query failed ({count}) and starts again in {query.streak.wait:g} s: {fault}")


def stopped_together(queries: Mapping[str, Running]) -> dict[str, str]:
    """Stop queries at the same time. Return why a query did not stop, by name. Raises GoneError if Java has ended."""
    faults: dict[str, str] = {}
    gone: list[str] = []

    def stop(name: str, query: Running) -> None:
        try:
            if (fault := fault_of(query.stop)) is not None:
                faults[name] = fault
        except GoneError as error:
            gone.append(str(error))

    threads = [threading.Thread(target=stop, args=one, name=f"stop-{one[0]}") for one in queries.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if gone:
        raise GoneError(gone[0])
    return faults


def fault_of(act: Callable[[], None]) -> str | None:
    """Call `act` and return its error in one line; None if it succeeds. Raises GoneError if Java has ended."""
    try:
        act()
    except GoneError:
        raise
    except Exception as error:  # noqa: BLE001 - Spark, Java and the disk raise many classes
        return first_line(error)
    return None
