"""How the soak judges whether a pod grows."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.soak.growth import LOOK, MOST, WARM_UP, WINDOW, Look, Vitals, grown

LONG = 600


def life(seconds: float, vitals: Callable[[float], Vitals]) -> list[Look]:
    ages = [number * LOOK for number in range(int(seconds / LOOK) + 1)]
    return [Look(age, vitals(age)) for age in ages]


def noisy(age: float) -> Vitals:
    """A process that works in waves and warms up for half a minute."""
    chance = random.Random(age)
    wave = 40 if age % 40 < 15 else 0
    warm = min(1.0, age / WARM_UP)
    return Vitals(30 + 50 * warm + wave + chance.uniform(-5, 5), int(30 * warm) + wave // 2, int(50 * warm) + 2 * wave)


@pytest.mark.parametrize("seconds", [WARM_UP + 2 * WINDOW, 130, 210, LONG])
def test_waves_and_a_warm_up_are_no_growth(seconds: float) -> None:
    assert grown("pod-0-0", life(seconds, noisy)) == []


@pytest.mark.parametrize(("place", "each", "words"), [(0, 12.0, "MiB"), (1, 8, "threads"), (2, 18, "descriptors")])
def test_what_each_fault_leaves_behind_is_found(place: int, each: float, words: str) -> None:
    """A fault every minute leaves a fifth of what may be had more."""

    def leaky(age: float) -> Vitals:
        vitals = noisy(age)
        left = int(age / 60) * each
        return Vitals(*(value + left * (number == place) for number, value in enumerate(vitals)))

    (found,) = grown("pod-0-0", life(LONG, leaky))
    assert found.startswith("growth: pod-0-0 has ")
    assert words in found


def test_what_was_held_in_between_and_let_go_is_no_growth() -> None:
    def outage(age: float) -> Vitals:
        vitals = noisy(age)
        return (
            Vitals(*(value + 5 * most for value, most in zip(vitals, MOST, strict=True))) if 300 < age < 500 else vitals
        )

    assert grown("pod-0-0", life(LONG, outage)) == []


def test_a_process_that_did_not_live_long_is_not_judged() -> None:
    assert grown("pod-0-0", life(WARM_UP + 2 * WINDOW - LOOK, lambda age: Vitals(age * 100, 0, 0))) == []
