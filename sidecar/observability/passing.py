"""Keep from an operator what passes by itself: a coordinator that Kafka is loading or moving, and a late answer.

A broker that starts, or a group that is new, has no coordinator for a moment, and a busy broker answers late.
librdkafka and this process ask again, and each question that comes too early is a warning of its own. So it is written
at `debug`, until it has lasted.
"""

from __future__ import annotations

import logging
import re

LASTS = 30.0
"""Seconds from the first such line on which a warning is one. Kafka loads a coordinator in less than a second, on a
busy machine in ten; a broker that restarts hands it over in five."""
QUIET = 60.0
"""Seconds without such a line after which the next one is the first again."""
KAFKA = "reconsume.kafka"
EVENT = "offset-held-back"
LATE = "REQTMOUT"
"""The name of librdkafka's lines about requests that were not answered in time."""
TEXT = re.compile(
    r"coordinator[ _](load|not[ _]available)|not[ _](the[ _]correct[ _])?coordinator|waiting for coordinator",
    re.IGNORECASE,
)


class Passing:
    """Since when a coordinator or answers are missing, by kind of line. Not safe for threads."""

    def __init__(self) -> None:
        self._spells: dict[str, tuple[float, float]] = {}
        """The times of the first and the last line of each kind: there are as many as names of librdkafka's lines."""

    def passes(self, record: logging.LogRecord, now: float) -> bool:
        """Note a line, and return whether it tells of a coordinator or answers that have not been missing for long.

        `now`: monotonic seconds.
        """
        kind = getattr(record, "event", "")
        if record.levelno != logging.WARNING or (record.name != KAFKA and kind != EVENT):
            return False
        if record.name == KAFKA and isinstance(record.args, tuple) and record.args:
            kind = str(record.args[0])
        if kind != LATE and TEXT.search(record.getMessage()) is None:
            return False
        first, last = self._spells.get(kind, (now, now))
        first = first if now - last < QUIET else now
        self._spells[kind] = first, now
        return now - first < LASTS
