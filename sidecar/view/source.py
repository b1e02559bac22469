"""What the view is made from: rows that a Spark job wrote, or the events themselves."""

from __future__ import annotations

from enum import StrEnum


class Source(StrEnum):
    """What the local copy is made from (`view.source`)."""

    EVENTS = "events"
    SPARK = "spark"
