"""Waiting for what happens elsewhere: always with an end, and the end is a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
STEP = 0.02
RARER = 5
"""So many times as long as an answer takes, the next question waits: to read a topic takes the broker 40 ms of CPU."""
RAREST = 0.5
"""Seconds between two questions at most, unless the test asks for more."""
PATIENCE = 4
"""How much slower than an idle one a machine may be that runs the tests: a wait that fails costs time, a flake more."""
STALLED = 60.0
"""Seconds after which what does not move is taken to have stopped."""
SOON = 30.0
"""Seconds in which what ends at once, or at a limit of its own of some seconds, has ended even where a machine stands
still meanwhile. What it must not wait for takes a minute or more."""
_moves = [0]


class NotInTimeError(AssertionError):
    """What a test waited for did not happen."""


def move() -> None:
    """Say that something goes on: a service has got a request."""
    _moves[0] += 1


def until(
    predicate: Callable[[], T], seconds: float, what: str, step: float = STEP, moves: Callable[[], object] = bool
) -> T:
    """The first truthy value of `predicate`, asked each `step` seconds, and more seldom if asking takes long; else
    NotInTimeError naming `what`.

    `seconds`: how long it may take on an idle machine. `moves`: what else changes as long as somebody works at it, such
    as the length of a log. While something moves the wait goes on, until nothing has for a minute; but not for ever.
    """
    begun = last = time.monotonic()
    seen, limit = (_moves[0], moves()), PATIENCE * seconds
    while True:
        asked = time.monotonic()
        if value := predicate():
            return value
        now, sees = time.monotonic(), (_moves[0], moves())
        if sees != seen:
            seen, last = sees, now
        if now - begun > limit and (now - last > STALLED or now - begun > PATIENCE * limit):
            still = f"for {now - last:.0f} s nothing has moved" if now - last > STALLED else "things still move"
            raise NotInTimeError(f"not within {now - begun:.0f} s: {what} (last: {value!r}; {still})")
        time.sleep(max(step, min(RARER * (now - asked), RAREST)))
