"""What a handler says about a record it could not take: `retry(…)` or `dead_letter(…)`, returned or raised.

A handler that returns anything else took the record; any other exception is a failure, and the ladder decides.
"""

from __future__ import annotations

from topics.durations import parse_duration


class Retry(Exception):  # noqa: N818 - a verdict, not an error: it is returned as often as it is raised
    """Deliver the record again. `delay` is ms; `level` −1 the DLQ, 0 the ladder, n > 0 that level of the table."""

    def __init__(self, delay: int | None, level: int | None, reason: str) -> None:
        super().__init__(delay, level, reason)
        self.delay, self.level, self.reason = delay, level, reason


class DeadLetter(Exception):  # noqa: N818 - as above
    """The record is refused for good."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def retry(*, delay: str | None = None, level: int | None = None, reason: str = "retry-asked") -> Retry:
    """Ask for another delivery after `delay` (`90s`), or at a level, else by the ladder; ValueError for no duration.

    `reason` is a short class such as `out-of-stock`: it stands in the header, the events and the view.
    """
    return Retry(None if delay is None else parse_duration(delay), level, reason)


def dead_letter(reason: str = "rejected") -> DeadLetter:
    """Send the record to the dead-letter topic at once."""
    return DeadLetter(reason)
