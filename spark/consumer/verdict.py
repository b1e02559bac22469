"""The verdicts of a handler on a record that it could not take: `retry(…)` or `dead_letter(…)`, returned or raised.

A handler that returns anything else took the record. Any other exception is a failure, and the ladder decides the wait.
"""

from __future__ import annotations

from reconsume.topics.durations import parse_duration
from reconsume.topics.expiry import Expiry, parse_expiry

DEFAULT_REASON = "retry-asked"
"""The reason of a retry for which the handler gave none."""


class Retry(Exception):  # noqa: N818 - a verdict, not an error: it can be returned or raised
    """The verdict that the record is delivered again. Made by `retry`.

    `delay` is ms, or None. `level` is −1 for the DLQ, 0 for the ladder, n > 0 for level n of the table, or None.
    `reason` is a short class. `expires`: when the record is worth no retry any more; None if the handler did not say.
    """

    text = ""
    """No text for people: what a handler says may hold data of the record."""

    def __init__(self, delay: int | None, level: int | None, reason: str, expires: Expiry | None = None) -> None:
        super().__init__(delay, level, reason, expires)
        self.delay, self.level, self.reason, self.expires = delay, level, reason, expires


class DeadLetter(Exception):  # noqa: N818 - as above
    """The verdict that the record goes to the dead letters for good, for `reason`. Made by `dead_letter`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def retry(
    *, delay: str | None = None, level: int | None = None, reason: str = DEFAULT_REASON, expires: str | None = None
) -> Retry:
    """Return the verdict that the record is delivered again after `delay`, or at `level`, or else by the ladder.

    `delay` is a duration such as `90s`, from 1 s to 10 days. `level` is −1 for the DLQ at once, 0 for the ladder, or n
    > 0 for level n of the table. If both are given, a level of −1 wins, then an allowed delay, then the level. If none
    of them is allowed, the ladder decides. `reason` is a short class such as `out-of-stock`, which is written to the
    header, the events and the view. `expires` is a time such as `2026-11-26T18:00:00Z` or a duration such as `6h`: if
    the next retry would be due after it, the record goes to the dead-letter topic now, as `expired`.

    Raises ValueError if `delay` is not a duration, or `expires` neither a time nor a duration.
    """
    wait = None if delay is None else parse_duration(delay)
    return Retry(wait, level, reason, None if expires is None else parse_expiry(expires))


def dead_letter(reason: str = "rejected") -> DeadLetter:
    """Return the verdict that the record goes to the dead-letter topic at once.

    `reason` is a short class such as `rejected`, which is written to the header, the events and the view.
    """
    return DeadLetter(reason)
