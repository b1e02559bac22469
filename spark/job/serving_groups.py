"""A query over the groups that exist; it restarts when they change.

As `supervisor`, this module imports nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from reconsume.spark.errors import GoneError, first_line
from reconsume.spark.job.groups import Plan
from reconsume.spark.job.supervisor import Running, fault_of

LOOK_SECONDS = 3.0
"""Seconds between two checks which groups exist. All queries check in the same turn of the supervisor, the view first,
so that the first row of a new group does not wait for the stop of the sums."""
DOUBT_SECONDS = 1.0
"""Seconds until the check that confirms that a topic is missing or another one. Meanwhile a batch may hang on it."""
HELD_SECONDS = 30.0
"""Seconds that groups that come wait at most for another query."""


class Query(Running, Protocol):
    """A query that was started for the groups of a plan."""

    def cut_off(self) -> None:
        """Stop the query, within a batch if one is under way. Raises GoneError if Java has ended."""


class NothingToReadError(RuntimeError):
    """None of the groups that were named can be served."""


class Followed:
    """A query that `begin` starts for a plan and restarts for another plan; `look` returns the current plan.

    With an `open_end` (a pattern) it is no failure if no group exists: the query waits for the first one, and calls
    `alive` meanwhile. `starting` is called before and after each start. An error of `look` or `begin` in the
    constructor is raised. Later, an error of `begin` is the query's fault. An error of `look` does not stop the query.
    Groups that come wait until `may_change`, for HELD_SECONDS at most.
    """

    def __init__(
        self,
        look: Callable[[], Plan],
        begin: Callable[[Plan], Query],
        now: Callable[[], float],
        say: Callable[[str], None],
        *,
        open_end: bool,
        alive: Callable[[], None] = lambda: None,
        starting: Callable[[], None] = lambda: None,
        may_change: Callable[[], bool] = lambda: True,
    ) -> None:
        self._look, self._begin, self._now, self._say = look, begin, now, say
        self._open_end, self._alive, self._starting, self._may_change = open_end, alive, starting, may_change
        self._held_since: float | None = None
        self._plan, self._look_at = look(), next_look(now())
        self._doubted: Plan | None = None
        self._blind = False
        self._tell(Plan((), {}))
        self._running = self._started()

    def turn(self) -> str | None:
        """Restart the query if the groups have changed.

        Return why the query has ended or could not start; None while it runs or waits for a group. Raises GoneError if
        Java has ended.
        """
        if self._running is not None and (fault := self._running.turn()) is not None:
            return fault
        return fault_of(self._follow)

    def stop(self) -> None:
        """Stop the query. Raises GoneError if Java has ended."""
        if self._running is not None:
            self._running.stop()

    def _started(self) -> Query | None:
        if self._plan.served:
            self._starting()
            running = self._begin(self._plan)
            self._starting()  # a start may take most of a minute, and the first batch as long again
            return running
        if not self._open_end:
            raise NothingToReadError(f"there is nothing to read: no topic {', '.join(self._plan.lacking.values())}")
        return None

    def _follow(self) -> None:
        if self._now() < self._look_at:
            return
        self._look_at = next_look(self._now())
        if self._running is None:
            self._alive()
        if (plan := self._list_groups()) is None or plan == self._plan:
            self._doubted = self._held_since = None
        elif self._confirms(plan) and not self._is_held(plan):
            self._change(plan)
        else:
            self._look_at = self._now() + DOUBT_SECONDS

    def _list_groups(self) -> Plan | None:
        """List the groups. Return the current plan; None if it is not known, which is logged once."""
        try:
            plan = self._look()
        except GoneError:
            raise
        except Exception as error:  # noqa: BLE001 - the brokers, Java and Py4J raise many classes
            if not self._blind:
                self._say(f"the groups cannot be listed, so the job reads those that it knows: {first_line(error)}")
            self._blind = True
            return None
        self._blind = False
        return plan

    def _confirms(self, plan: Plan) -> bool:
        """Remember a doubted plan. Return whether to believe this one: two checks in a row must find a topic missing.

        A broker may lag, and a wrong answer would make the query read all of a group again.
        """
        sure = self._plan.ids.items() <= plan.ids.items() or plan == self._doubted
        self._doubted = plan
        return sure

    def _is_held(self, plan: Plan) -> bool:
        """Whether new groups wait. Nothing waits where a topic is missing: a batch may hang on it."""
        if self._may_change() or not self._plan.ids.items() <= plan.ids.items():
            return False
        if self._held_since is None:
            self._held_since = self._now()
        return self._now() - self._held_since < HELD_SECONDS

    def _change(self, plan: Plan) -> None:
        before, self._plan, self._doubted, self._held_since = self._plan, plan, None, None
        self._tell(before)
        if (plan.served, plan.ids) != (before.served, before.ids):
            running, self._running = self._running, None
            if running is not None and before.ids.items() <= plan.ids.items():
                running.stop()
            elif running is not None:
                running.cut_off()  # a batch hangs on what is missing
            self._running = self._started()

    def _tell(self, before: Plan) -> None:
        """Log the changes in the groups that are left out."""
        for group, topic in self._plan.lacking.items():
            if before.lacking.get(group) != topic:
                self._say(f"{group} is not served until it has a topic {topic}, which `reconsume topics apply` creates")
        gone = set(before.served) - set(self._plan.served) - self._plan.lacking.keys()
        for group in sorted(gone):
            self._say(f"{group} is no longer read: its topics were deleted")
        for group in self._plan.served:
            if group in before.lacking:
                self._say(f"{group} has its topics now; the job reads it from its first event")


def next_look(now: float) -> float:
    """Return when the groups are listed next: a time that is the same for all queries."""
    return (now // LOOK_SECONDS + 1) * LOOK_SECONDS
