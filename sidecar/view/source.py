"""Where the view comes from: rows that a Spark job wrote, or the events themselves; and which is followed. Pure.

With `auto` it is the job's view while the job keeps up, and else the events. Between the two limits nothing changes, so
that a job at their edge does not make every instance read everything again and again.
"""

from __future__ import annotations

from enum import StrEnum


class Source(StrEnum):
    """What the local copy is made from. AUTO is only a wish: a copy is of one of the other two."""

    AUTO = "auto"
    EVENTS = "events"
    SPARK = "spark"


NEAR = 60_000
"""ms. A job whose positions are less behind the end of the events keeps up: its view is followed."""
FAR = 600_000
"""ms. A job that is more behind is taken to be gone, and the events are read instead."""


def limit_of(now: Source) -> int:
    """Return how many ms the job may be behind for its view to be followed, while `now` is followed."""
    return FAR if now is Source.SPARK else NEAR


def wanted_source(configured: Source, now: Source, keeps_up: bool | None) -> Source:
    """Return what should be followed.

    `keeps_up`: whether the job is less behind than `limit_of(now)`; None if that is not known, and then nothing
    changes.
    """
    if configured is not Source.AUTO:
        return configured
    if keeps_up is None:
        return now
    return Source.SPARK if keeps_up else Source.EVENTS
