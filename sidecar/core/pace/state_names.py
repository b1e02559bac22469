"""The states of the pace, the causes of an outage, and a change from one to another."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """The pace as `/status` and the metrics name it."""

    OPEN = "open"
    THROTTLED = "throttled"
    OUTAGE = "outage"
    PROBING = "probing"


class Cause(StrEnum):
    """Why there is an outage, as `/status`, the metrics and the dashboard name it."""

    UNREACHABLE = "unreachable"
    """No request was sent."""
    FAILING = "failing"
    """All that was sent failed, in whatever way. Each delivery is an attempt."""
    UNWELL = "unwell"
    """The health URL says so, or was not asked yet. Nothing is sent."""


AWAY = frozenset({State.OUTAGE, State.PROBING})


class Change(NamedTuple):
    """One change of state, or of the cause of an outage: then the state is as it was.

    `lasted_ms`: ms since the outage or the throttle began, or since the pace was open again. `cause`: None outside an
    outage.
    """

    was: State
    state: State
    reason: str
    lasted_ms: int
    cause: Cause | None = None
