"""The states of the pace, and a change from one to another."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """The pace as `/status` and the metrics name it."""

    OPEN = "open"
    THROTTLED = "throttled"
    OUTAGE = "outage"
    PROBING = "probing"


AWAY = frozenset({State.OUTAGE, State.PROBING})


class Change(NamedTuple):
    """One change of state. `lasted_ms`: ms since the outage or the throttle began, or since the pace was open again."""

    was: State
    state: State
    reason: str
    lasted_ms: int
