"""The pace slows by the share of answers that ask for time: what one customer's limit costs the others."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import pytest

from sidecar.core.outcome import COMMITTED, Throttled
from sidecar.core.pace.pace import Pace, State
from sidecar.core.pace.throttle_share import LEAST, ThrottleShare
from tests.sim.samples import record
from tests.support.sidecar.paces import at

RECORD = record(0)
RETRY_AFTER = 5_000
SECONDS = 120
Busy = Callable[[int], bool]
"""Whether a record that is sent beside so many others is answered 429."""


class Spent(NamedTuple):
    """What two minutes were spent on."""

    done: int
    asked: int
    changes: int


def served(full: int, latency: int, busy: Busy, *, start: int | None = None, step: int = 20) -> Spent:
    """Deliver for two minutes of virtual time, as many as the pace allows; an answer takes `latency` ms."""
    pace = Pace(full, start=start)
    out: deque[tuple[int, bool]] = deque()
    done = asked = 0
    for now in range(0, SECONDS * 1_000, step):
        pace.look(at(now))
        pace.tick(at(now), len(out))
        while out and out[0][0] <= now:
            refused = out.popleft()[1]
            done, asked = done + (not refused), asked + refused
            pace.note(RECORD, Throttled(RETRY_AFTER) if refused else COMMITTED, at(now))
        while len(out) < pace.limit:
            out.append((now + latency, busy(len(out))))
    return Spent(done, asked, pace.changes.total())


def share(part: float) -> Busy:
    dice = random.Random(7)
    return lambda _: dice.random() < part


def places(count: int) -> Busy:
    return lambda others: others >= count


def never(_: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("full", "latency", "start"),
    [(8, 40, None), (64, 50, 1), (256, 200, None), (256, 200, 1), (256, 2_000, None), (1_024, 500, None)],
)
def test_a_tenth_of_records_that_must_wait_leaves_the_others_more_than_half_of_the_speed(
    full: int, latency: int, start: int | None
) -> None:
    """Given one customer in ten whose records are answered 429, then the others go on, and nothing flickers."""
    best = served(full, latency, never, start=start)
    found = served(full, latency, share(0.1), start=start)
    assert found.done >= 0.9 * best.done * 0.55
    assert found.changes <= SECONDS / 4


@pytest.mark.parametrize(("full", "latency"), [(8, 40), (256, 40), (1_024, 200)])
def test_if_all_records_must_wait_one_goes_in_a_pause(full: int, latency: int) -> None:
    """Given a service that is wholly busy, then it is asked as often as a pause allows, once it is slowed down."""
    found = served(full, latency, share(1.0))
    assert found.done == 0
    assert found.asked <= 3 * full + SECONDS / 5 + 40


@pytest.mark.parametrize("count", [10, 100])
def test_a_service_with_few_places_is_filled_and_not_flooded(count: int) -> None:
    """Given a service that refuses what it has no place for, then its places are used, and few requests are in vain."""
    best, found = served(count, 100, never), served(256, 100, places(count))
    assert found.done >= 0.75 * best.done
    assert found.asked <= 0.45 * (found.asked + found.done)


def test_after_a_long_calm_a_busy_service_is_noticed_within_two_rounds() -> None:
    """Given a million good answers before, then they do not hide that now all answers ask for time."""
    pace = Pace(64)
    for _ in range(1_000_000):
        pace.note(RECORD, COMMITTED, at(0))
    for _ in range(2 * 64):
        pace.note(RECORD, Throttled(RETRY_AFTER), at(1))
    assert pace.state is State.THROTTLED
    assert pace.limit <= 32


def test_rounds_that_cut_nothing_make_no_later_round_longer() -> None:
    """An outage may have left a smaller limit meanwhile: a round is as long as that limit, not as the former one."""
    share, asked = ThrottleShare(), 0
    for steady_ms in range(200):
        share.others = 19
        assert share.throttled(4 * LEAST, steady_ms) == 0
    cut = 0.0
    while not cut:
        share.others, asked = 1, asked + 1
        cut = share.throttled(LEAST, 300 + asked)
    assert 2 * asked <= LEAST + 2
