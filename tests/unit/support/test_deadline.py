"""Waits of tests ask often what is quickly answered, and seldom what is not."""

from __future__ import annotations

import time
from itertools import count

import pytest

from tests.support.deadline import RARER, NotInTimeError, until

SLOW = 0.02
"""Seconds that an answer takes."""


def test_what_takes_long_to_answer_is_asked_seldom() -> None:
    asked = count(1)

    def third() -> bool:
        time.sleep(SLOW)
        return next(asked) == 3

    begun = time.monotonic()
    until(third, 10, "it is asked the third time")
    assert time.monotonic() - begun >= 3 * SLOW + 2 * RARER * SLOW


def test_a_wait_has_an_end_that_says_what_it_was_for() -> None:
    with pytest.raises(NotInTimeError, match="the moon is blue"):
        until(lambda: False, 0.01, "the moon is blue")
