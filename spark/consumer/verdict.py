"""What a handler says about a record that it could not take, and what of it is surely a mistake. Pure.

`retry(…)` and `dead_letter(…)` are the verdicts. A handler returns or raises them. They are values: two compare equal
if they ask for the same, they are hashable, any process can read them from another one, and they print as they were
written. So a test of a handler compares what it returns with what it should return.

Neither function raises. A call that is wrong, such as `retry(delay=["90s"])`, would else raise within the handler, and
an `except` there, or the handling of its failure, would take it for the record's fault. The verdict carries its
`Mistake` instead. Whoever handles it makes it a failure `verdict-error`, by the ladder, with a text that names the
argument. Such a verdict equals nothing but itself: a test that repeats the mistake must not pass.

`mistake_in` finds the same in what a handler returns that is no verdict but is surely meant as one, and `misuse_in` in
what it raises. All else that a handler returns means that it took the record.
"""

from __future__ import annotations

import json
import numbers
from collections.abc import Coroutine, Generator
from datetime import timedelta
from typing import NamedTuple, TypeAlias

from reconsume.topics.durations import parse_duration
from reconsume.topics.expiry import Expiry, parse_expiry

VERDICT_ERROR = "verdict-error"
"""The reason of a failure that is a mistake of the handler's answer, whatever the record is."""
USUAL_RETRY, USUAL_DEAD_LETTER = "retry-asked", "rejected"
"""The reasons of verdicts for which the handler gave none."""
NOT_ALLOWED = -1
"""ms. The wait of a number that no duration can have, such as infinity. The ladder replaces it."""
LONGEST_SHOWN = 80
"""Characters of a value in a text about a mistake."""

Delay: TypeAlias = str | float | timedelta
"""A duration such as `90s`, or seconds, or a timedelta."""

ANSWER = "a handler refuses a record by calling retry() or dead_letter()"
RAISED = "a handler raises an exception, or a verdict by calling retry() or dead_letter()"
NOT_RUN = "a handler is an ordinary function that returns when it is done"
DELAY = "delay must be seconds, a timedelta, or a text such as 500ms, 90s or 1h30m"
LEVEL = "level must be a whole number"
REASON = "reason must be a text"
EXPIRES = "expires must be a time such as 2026-11-26T18:00:00Z, or a duration such as 6h"


class Mistake(NamedTuple):
    """A mistake of a handler's answer. `rule` says what is right, and `instead` what was there, if that says more.

    `instead` may hold data of the record.
    """

    rule: str
    instead: str = ""

    def __str__(self) -> str:
        return f"{self.rule}, not {self.instead}" if self.instead else self.rule


class Verdict(Exception):  # noqa: N818 - not an error: it can be returned or raised
    """A verdict of a handler, as a value; see `retry` and `dead_letter`."""

    def __init__(self, written: str, values: tuple[object, ...], *mistakes: Mistake | None) -> None:
        super().__init__()  # without arguments: what is pickled is `__dict__`
        self.mistake = next(filter(None, mistakes), None)
        """What is wrong with the call; None if nothing is."""
        # Of a wrong argument only the beginning of its text is kept: it may be anything, and need not be picklable.
        self._written, self._values = (written[: 2 * LONGEST_SHOWN], ()) if self.mistake else (written, values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Verdict) or self.mistake or other.mistake:
            return self is other
        return (type(self), self._values) == (type(other), other._values)

    def __hash__(self) -> int:
        return id(self) if self.mistake else hash((type(self), self._values))

    def __repr__(self) -> str:
        return f"<{self._written}: {self.mistake}>" if self.mistake else self._written

    __str__ = __repr__


class Retry(Verdict):
    """The verdict that the record is delivered again. Made by `retry`, whose arguments are its fields.

    `wait` is the delay in ms, and `expiry` what `expires` says. Of arguments that are a mistake, nothing is kept.
    """

    def __init__(
        self,
        delay: Delay | None = None,
        *,
        level: int | None = None,
        reason: str = USUAL_RETRY,
        expires: str | None = None,
    ) -> None:
        wait, level_number, text, expiry = _wait(delay), _level(level), _reason(reason), _expiry(expires)
        mistakes = [read if isinstance(read, Mistake) else None for read in (wait, level_number, text, expiry)]
        named = {"delay": delay, "level": level, "reason": reason, "expires": expires}
        usual = {"reason": USUAL_RETRY}
        shown = [f"{name}={_shown(value)}" for name, value in named.items() if value is not usual.get(name)]
        super().__init__(f"retry({', '.join(shown)})", (wait, level_number, text, expires), *mistakes)
        if self.mistake:
            delay, level, reason, expires = None, None, VERDICT_ERROR, None
        self.delay, self.level, self.reason, self.expires = delay, level, reason, expires
        self.wait = wait if isinstance(wait, int) else None
        self.expiry = expiry if isinstance(expiry, Expiry) else None


class DeadLetter(Verdict):
    """The verdict that the record is dead-lettered at once, for `reason`. Made by `dead_letter`."""

    def __init__(self, reason: str = USUAL_DEAD_LETTER) -> None:
        text = _reason(reason)
        mistake = text if isinstance(text, Mistake) else None
        super().__init__(f"dead_letter({_shown(reason)})", (text,), mistake)
        self.reason = VERDICT_ERROR if mistake else reason


def retry(
    delay: Delay | None = None, *, level: int | None = None, reason: str = USUAL_RETRY, expires: str | None = None
) -> Retry:
    """Return the verdict that the record is delivered again after `delay`, or at `level`, or else by the ladder.

    - `delay` is in seconds (90 or 1.5), a text such as `90s` or `1h30m`, or a timedelta; from 1 s to 10 days.
    - `level` is −1 for the DLQ at once, 0 for the ladder, or n > 0 for level n of the table.
    - `reason` is a short class such as `out-of-stock`, or `class: text`, for the header, the events and the view.
    - `expires` is a time such as `2026-11-26T18:00:00Z` or a duration such as `6h`: if the next retry would be due
      after it, the record goes to the dead-letter topic now, as `expired`.

    If both are given, a level of −1 wins, then an allowed delay, then the level. If none of them is allowed, the ladder
    decides, and the verdict is counted as odd. Never raises: an argument of another type, or a text that cannot be
    read, is a failure `verdict-error` of the handler.
    """
    return Retry(delay, level=level, reason=reason, expires=expires)


def dead_letter(reason: str = USUAL_DEAD_LETTER) -> DeadLetter:
    """Return the verdict that the record goes to the dead-letter topic at once.

    `reason` is a short class such as `bad-sku`, or `class: text`, for the header, the events and the view. Never
    raises: a reason that is no text is a failure `verdict-error` of the handler.
    """
    return DeadLetter(reason)


FUNCTIONS = {"retry": (retry, Retry), "dead_letter": (dead_letter, DeadLetter)}
"""What makes a verdict when it is called, by its name."""


def mistake_in(answer: object) -> Mistake | None:
    """Return the mistake of an answer that is surely meant as a verdict and is not one; None for all others."""
    if answer is False or _is_numpys_false(answer):
        return Mistake(ANSWER, "by returning False")
    if isinstance(answer, str) and answer.replace("-", "_") in FUNCTIONS:
        return Mistake(ANSWER, f"by returning the text {_shown(answer)}")
    for name, makers in FUNCTIONS.items():
        if any(answer is maker for maker in makers):
            return Mistake(ANSWER, f"by returning {name} itself")
    if isinstance(answer, Coroutine | Generator):
        answer.close()  # else Python warns that it never ran
        return Mistake(NOT_RUN, kind_of(answer))
    return None


def misuse_in(error: BaseException) -> Mistake | None:
    """Return the mistake of a handler whose call of a verdict, or whose `raise`, Python itself refuses; else None."""
    if type(error) is not TypeError:
        return None
    text = str(error)
    if text == "exceptions must derive from BaseException":  # raise retry; raise "retry"
        return Mistake(RAISED)
    return Mistake(text[:LONGEST_SHOWN]) if text.startswith(tuple(f"{name}() " for name in FUNCTIONS)) else None


def kind_of(value: object) -> str:
    """Return how a text names a value's type: `a list`, `an int`."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _wait(delay: object) -> int | Mistake | None:
    """Return a delay in ms."""
    if delay is None:
        return None
    if isinstance(delay, str):
        try:
            return parse_duration(delay)
        except ValueError:
            return Mistake(DELAY, _shown(delay[:LONGEST_SHOWN]))
    if isinstance(delay, timedelta):
        return delay // timedelta(milliseconds=1)
    if isinstance(delay, bool) or not isinstance(delay, numbers.Real):
        return Mistake(DELAY, kind_of(delay))
    try:
        return int(delay) * 1000 if isinstance(delay, numbers.Integral) else round(float(delay) * 1000)
    except (ValueError, OverflowError):
        return NOT_ALLOWED


def _level(level: object) -> int | Mistake | None:
    if level is None:
        return None
    if isinstance(level, bool) or not isinstance(level, numbers.Integral):
        return Mistake(LEVEL, kind_of(level))
    return int(level)


def _reason(reason: object) -> str | Mistake:
    # Not by the type's own `__str__`: an enumeration of texts has another.
    return str.__str__(reason) if isinstance(reason, str) else Mistake(REASON, kind_of(reason))


def _expiry(expires: object) -> Expiry | Mistake | None:
    if expires is None:
        return None
    if not isinstance(expires, str):
        return Mistake(EXPIRES, kind_of(expires))
    try:
        return parse_expiry(expires)
    except ValueError:
        return Mistake(EXPIRES, _shown(expires[:LONGEST_SHOWN]))


def _shown(value: object) -> str:
    """Return a value as it is written in code; one of another type than an argument may have, in a bounded form."""
    if isinstance(value, str):
        return json.dumps(str.__str__(value), ensure_ascii=not value.isprintable())
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value that cannot be shown must not fail the record
        return kind_of(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _is_numpys_false(answer: object) -> bool:
    """Whether an answer is NumPy's False, as a column of truth values holds it."""
    kind = type(answer)
    return kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_") and not answer
