"""Keeps queries running: each that ends is started again after its own wait, and the others go on meanwhile.

Knows no Spark: a query is a port, so that restarts are tested on a clock that does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from spark.errors import GoneError, first_line

FIRST_WAIT = 1.0
"""Seconds before the first restart; doubled by each failure that follows."""


LONGEST_WAIT = 60.0


HEALTHY_AFTER = 300.0
"""Seconds of running after which earlier failures no longer count."""


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures in a row."""

    failures: int = 0

    def failed(self, ran: float) -> Streak:
        """One failure more, after `ran` seconds; the first of a new streak when it had been healthy."""
        return Streak(1 if ran >= HEALTHY_AFTER else self.failures + 1)

    @property
    def wait(self) -> float:
        """Seconds until the next start."""
        # The exponent is bounded: 2.0 ** 1024 overflows.
        return min(FIRST_WAIT * 2.0 ** min(self.failures - 1, 10), LONGEST_WAIT)


LOOK_SECONDS = 0.2
"""How often it is looked whether the queries still run."""


class Running(Protocol):
    """A query that was started."""

    @property
    def fault(self) -> str | None:
        """Why it has ended, as one sentence; None while it runs. Raises GoneError."""

    def stop(self) -> None:
        """End it between two batches, or in one when that takes too long. Raises GoneError."""


class Clock(Protocol):
    """Time, and the wish to stop."""

    def now(self) -> float:
        """Seconds that never go back."""

    def pause(self, seconds: float) -> bool:
        """Wait; True, at once, when the job shall stop."""


Start = Callable[[], Running]
"""Starts a query; whatever it raises, but GoneError, is a failure of the query."""


@dataclass(slots=True)
class Slot:
    """One query's place: what runs there, and what happened before."""

    start: Start
    running: Running | None = None
    streak: Streak = field(default_factory=Streak)
    began: float = 0.0
    again_at: float = 0.0
    given_up: bool = False


class Supervisor:
    """Runs until told to stop, or until no query is left: one that has failed `most` times in a row is given up.

    The others go on without it. A query is not begun for the first time before `may_begin` says so.
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
        may_begin: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        self._slots = {name: Slot(start) for name, start in starts.items()}
        self._clock, self._most, self._say, self._restarting = clock, most, say, restarting
        self._giving_up, self._may_begin = giving_up, may_begin

    def run(self) -> bool:
        """True when it was told to stop and all queries have; False when one was given up. Raises GoneError."""
        while (left := self._left()) and not self._clock.pause(LOOK_SECONDS):
            for name, slot in left.items():
                self._look(name, slot)
        for slot in self._slots.values():
            if slot.running is not None:
                slot.running.stop()
        return len(left) == len(self._slots)

    def _left(self) -> dict[str, Slot]:
        return {name: slot for name, slot in self._slots.items() if not slot.given_up}

    def _look(self, name: str, slot: Slot) -> None:
        if slot.running is None:
            if self._clock.now() < slot.again_at or not (slot.streak.failures or self._may_begin(name)):
                return
            fault = self._begin(name, slot)
        else:
            fault = slot.running.fault
        if fault is not None:
            self._failed(name, slot, fault)

    def _begin(self, name: str, slot: Slot) -> str | None:
        if slot.streak.failures:
            self._restarting(name)
        slot.began = self._clock.now()

        def begin() -> None:
            slot.running = slot.start()

        return fault_of(begin)

    def _failed(self, name: str, slot: Slot, fault: str) -> None:
        """Plan the next start, unless there were too many failures."""
        now = self._clock.now()
        slot.streak = slot.streak.failed(now - slot.began)
        slot.running, slot.again_at = None, now + slot.streak.wait
        count = f"{slot.streak.failures} of {self._most} failures in a row"
        if slot.streak.failures >= self._most:
            slot.given_up = True
            self._giving_up(name)
            self._say(f"the {name} query failed, and is given up after {count}: {fault}")
            return
        self._say(f"the {name} query failed ({count}) and starts again in {slot.streak.wait:g} s: {fault}")


def fault_of(act: Callable[[], None]) -> str | None:
    """Act; what went wrong in a line, None if nothing did. Raises GoneError."""
    try:
        act()
    except GoneError:
        raise
    except Exception as error:  # noqa: BLE001 - Spark, Java and the disk all fail in their own classes
        return first_line(error)
    return None
