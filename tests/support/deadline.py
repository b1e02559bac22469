"""Waiting for what happens elsewhere: always with an end, and the end is a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
STEP = 0.02
PATIENCE = 4
"""How much slower than an idle one a machine may be that runs the tests: a wait that fails costs time, a flake more."""


class NotInTimeError(AssertionError):
    """What a test waited for did not happen."""


def until(predicate: Callable[[], T], seconds: float, what: str, step: float = STEP) -> T:
    """The first truthy value of `predicate`, asked each `step` seconds; else NotInTimeError naming `what`.

    `seconds`: how long it may take on an idle machine.
    """
    end = time.monotonic() + PATIENCE * seconds
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > end:
            raise NotInTimeError(f"not within {PATIENCE * seconds:g} s: {what} (last: {value!r})")
        time.sleep(step)
