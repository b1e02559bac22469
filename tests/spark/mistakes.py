"""Handlers that make a mistake, with what the text of their failure says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reconsume.spark.consumer import Record, dead_letter, retry


def raising(thrown: Any) -> Callable[[Record], object]:
    def handler(_one: Record) -> object:
        raise thrown

    return handler


async def handle_later(_one: Record) -> None:
    raise AssertionError("it never runs")


def numpys_false(_one: Record) -> object:
    import numpy

    return numpy.array([False])[0]


WRONG: Any = retry
"""`retry`, called as its types forbid."""
MISTAKES: dict[str, tuple[Callable[[Record], object], str]] = {
    "False": (lambda _: False, "by returning False"),
    "numpy's False": (numpys_false, "by returning False"),
    "the text retry": (lambda _: "retry", 'by returning the text "retry"'),
    "the text dead_letter": (lambda _: "dead_letter", 'by returning the text "dead_letter"'),
    "the text dead-letter": (lambda _: "dead-letter", 'by returning the text "dead-letter"'),
    "retry without its call": (lambda _: retry, "by returning retry itself"),
    "dead_letter without its call": (lambda _: dead_letter, "by returning dead_letter itself"),
    "retry raised without its call": (raising(retry), "raises an exception, or a verdict by calling retry()"),
    "the text retry raised": (raising("retry"), "raises an exception, or a verdict by calling retry()"),
    "a coroutine": (handle_later, "an ordinary function that returns when it is done, not a coroutine"),
    "a reason that is a list": (lambda _: dead_letter(["a", "list"]), "reason must be a text, not a list"),  # type: ignore[arg-type]
    "a delay that is a list": (lambda _: WRONG(delay=["90s"]), "or 1h30m, not a list"),
    "a delay that is True": (lambda _: WRONG(delay=True), "not a bool"),
    "a delay that is no duration": (lambda _: retry(delay="20 sec"), 'not "20 sec"'),
    "a delay without a unit": (lambda _: retry(delay="90"), "delay must be seconds, a timedelta, or a text"),
    "a level that is a text": (lambda _: WRONG(level="3"), "level must be a whole number, not a str"),
    "a reason that is a number": (lambda _: WRONG(reason=409), "reason must be a text, not an int"),
    "an expiry that is no time": (lambda _: retry(expires="tomorrow"), "expires must be a time such as"),
    "an expiry that is a number": (lambda _: WRONG(expires=3), "or a duration such as 6h, not an int"),
    "an argument that does not exist": (lambda _: WRONG(dealy=90), "retry() got an unexpected keyword argument"),
    "a mistake that is raised": (raising(WRONG(delay=["90s"])), "or 1h30m, not a list"),
}
