"""Bound the classes of reasons that one instance writes: a service may give each record a class of its own."""

from __future__ import annotations

import re
from typing import TypeVar

from msgspec.structs import replace

from reconsume.sidecar.core.outcome import Failed, Rejected

MOST = 64
"""Classes that are kept by name in a day, and as many statuses. Each is a row of the sums for every minute, topic and
level that it has."""
DAY = 86_400_000
OTHER = "other"
"""The class of all further ones. What the service said goes before the text, so that a person still finds it."""
STATUS = re.compile(r"http-[0-9]{3}")
"""Classes that the sidecar makes of a status. What a service says otherwise takes none of their names, and they none of
its. A status beyond the bound is counted as its class: `http-4xx`."""

T = TypeVar("T", bound=Failed | Rejected)


class ReasonClasses:
    """The classes of this day, by UTC. Used on the event loop."""

    def __init__(self) -> None:
        self._kept: set[str] = set()
        self._statuses = 0
        """How many of the kept ones are statuses."""
        self._day = 0

    def bounded(self, outcome: T, wall_ms: int) -> T:
        """Return the outcome with its class, or with the class `other` if there were too many today (epoch ms)."""
        return outcome if outcome.reason in self._kept else self._new(outcome, wall_ms)

    def _new(self, outcome: T, wall_ms: int) -> T:
        reason = outcome.reason
        # Contract 13.4: a metric's series live as long as the process, and a service may make reasons of its ids.
        if wall_ms // DAY != self._day:
            self._day, self._statuses = wall_ms // DAY, 0
            self._kept.clear()
        status = STATUS.fullmatch(reason) is not None
        if (self._statuses if status else len(self._kept) - self._statuses) < MOST:
            self._kept.add(reason)
            self._statuses += status
            return outcome
        text = f"{reason}: {outcome.text}" if outcome.text else reason
        # `http-4xx` still says whose fault it is; the class itself goes on in the text.
        return replace(outcome, reason=f"{reason[:6]}xx" if status else OTHER, text=text)
