"""The states of the pace, the causes of an outage, and a change from one to another."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """The pace. A probe is a part of its outage, so operators hear of `outage` where it is PROBING (`shown`)."""

    OPEN = "open"
    THROTTLED = "throttled"
    OUTAGE = "outage"
    PROBING = "probing"

    @property
    def shown(self) -> State:
        """The state as `/status`, heartbeats, log lines and the metrics name it."""
        return State.OUTAGE if self in AWAY else self


class Cause(StrEnum):
    """Why there is an outage, as `/status`, the metrics and the dashboard name it."""

    UNREACHABLE = "unreachable"
    """No request was sent."""
    FAILING = "failing"
    """All that was sent failed, in whatever way. Each delivery is an attempt."""
    UNWELL = "unwell"
    """The health URL says so, or was not asked yet. Nothing is sent."""


class FailureEnd(StrEnum):
    """What becomes of a record that fails again and again, by the settings in force; in words for an outage."""

    DEAD_LETTER = "each failure uses up a retry, and a record becomes a dead letter when its retries are used up"
    PARKED = "each failure uses up a retry, and a record is parked with its key when its retries are used up"
    NEVER = "each record is retried in place until it succeeds, and no retries are used up"
    UNTOLD = "a failed record is not retried"
    """Of a broadcast."""


AWAY = frozenset({State.OUTAGE, State.PROBING})
OUTAGE_NOW = {
    Cause.UNREACHABLE: "the service is unreachable: one record at a time probes it, and no retries are used up",
    Cause.FAILING: "one record a second is delivered, and all fail: ",
    Cause.UNWELL: "the health URL does not say that the service is well: nothing is sent, and no retries are used up",
}
"""What is so in an outage now, by its cause; where all fails, a `FailureEnd` follows.

The cause may be newer than the outage, so its duration comes before."""


def outage_now(cause: str | None, end: FailureEnd, *, is_idle: bool) -> str:
    """Return what is so in an outage now, for people. `is_idle`: no record is there to try the service with."""
    if is_idle:
        return "no record is ready for delivery: the next one shows whether the service is back"
    if cause not in set(Cause):
        return "only probes are delivered"
    return OUTAGE_NOW[Cause(cause)] + (end if cause == Cause.FAILING else "")


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
