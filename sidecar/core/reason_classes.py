"""Bound the classes of reasons that one instance writes: a service may give each record a class of its own."""

from __future__ import annotations

import re
from typing import TypeVar

from msgspec.structs import replace

from sidecar.core.outcome import Failed, Rejected

MOST = 64
"""Classes that are kept by name in a day. Each is a row of the sums for every minute, topic and level that it has."""
DAY = 86_400_000
OTHER = "other"
"""The class of all further ones. What the service said goes before the text, so that a person still finds it."""
STATUS = re.compile(r"http-[0-9]{3}")
"""Classes that the sidecar makes itself, of which there are few."""

T = TypeVar("T", bound=Failed | Rejected)


class ReasonClasses:
    """The classes of this day, by UTC. Used on the event loop."""

    def __init__(self) -> None:
        self._kept: set[str] = set()
        self._day = 0

    def bounded(self, outcome: T, wall: int) -> T:
        """Return the outcome with its class, or with the class `other` if there were too many today (epoch ms)."""
        return outcome if outcome.reason in self._kept else self._new(outcome, wall)

    def _new(self, outcome: T, wall: int) -> T:
        reason = outcome.reason
        if STATUS.fullmatch(reason) is not None:
            return outcome
        if wall // DAY != self._day:
            self._day = wall // DAY
            self._kept.clear()
        if len(self._kept) < MOST:
            self._kept.add(reason)
            return outcome
        return replace(outcome, reason=OTHER, text=f"{reason}: {outcome.text}" if outcome.text else reason)
