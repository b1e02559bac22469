"""The pace slows by the share of answers that ask for time: what one customer's limit costs the others."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, Throttled
from reconsume.sidecar.core.pace.pace import (
    ALL,
    CUT_EVERY_MS,
    FREE,
    LEAST,
    PATIENCE_MS,
    SURE,
    Answers,
    Pace,
    State,
    cut_of,
)
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
    answers, asked = Answers(), 0
    for steady_ms in range(200):
        answers.others = 19
        assert answers.throttled(4 * LEAST, steady_ms) == 0
    cut = 0.0
    while not cut:
        answers.others, asked = 1, asked + 1
        cut = answers.throttled(LEAST, 300 + asked)
    assert 2 * asked <= LEAST + 2


# --- the share itself ------------------------------------------------------------------------------------------------

WIDE = 4 * LEAST
"""A limit whose round is longer than the fewest answers that a share is judged by."""


class Asked(NamedTuple):
    """Answers that ask for time, one after the other, each after `others` that do not."""

    count: int
    others: int = 0
    limit: int = 1
    ms: int = 0


def cuts(*rows: Asked) -> list[tuple[int, float]]:
    """Return the number of each answer that asked and led to a cut, from 1, and the cut."""
    answers, number, cut = Answers(), 0, list[tuple[int, float]]()
    for row in rows:
        for _ in range(row.count):
            answers.others += row.others
            number += 1
            if part := answers.throttled(row.limit, row.ms):
                cut.append((number, part))
            assert answers.others == 0
    return cut


@pytest.mark.parametrize(("answers", "least"), [(7, 3 / 8), (28, 1 / 4), (112, 3 / 16), (448, 5 / 32)])
def test_two_deviations_above_the_free_share_cut_in_proportion(answers: int, least: float) -> None:
    assert cut_of(math.nextafter(least, 0), answers) == 0
    assert cut_of(least, answers) == pytest.approx((least - 1 / 8) * 8 / 7 / 2)
    assert (cut_of(1, answers), cut_of(9 / 16, answers)) == (ALL, ALL / 2)


QUARTER = cut_of(1 / 4, LEAST)
JUDGED: dict[str, tuple[Iterable[Asked], list[tuple[int, float]]]] = {
    "if all ask, the first of them cuts": ([Asked(1)], [(1, ALL)]),
    "and then a round of them": ([Asked(1 + 2 * WIDE, limit=WIDE)], [(1, ALL), (1 + WIDE, ALL), (1 + 2 * WIDE, ALL)]),
    "or the first one a second later": (
        [Asked(1, limit=WIDE), Asked(1, limit=WIDE, ms=CUT_EVERY_MS - 1), Asked(2, limit=WIDE, ms=CUT_EVERY_MS)],
        [(1, ALL), (3, ALL)],
    ),
    "a row is sure, whatever came before": (
        [Asked(1, others=9, limit=WIDE), Asked(SURE - 1, limit=WIDE)],
        [(SURE, ALL)],
    ),
    "a shorter row is not": ([Asked(1, others=9), Asked(SURE - 2), Asked(1, others=1), Asked(SURE - 2)], []),
    "a share is judged after a round": ([Asked(25, others=3, limit=100)], [(25, cut_of(1 / 4, 100))]),
    "and not before": ([Asked(24, others=3, limit=100)], []),
    "but never of fewer answers than the least": ([Asked(LEAST // 4, others=3)], [(LEAST // 4, QUARTER)]),
    "or of fewer than the round that was cut": (
        [Asked(1, limit=WIDE), Asked(WIDE // 4, others=3)],
        [(1, ALL), (1 + WIDE // 4, cut_of(1 / 4, WIDE))],
    ),
    "a round that takes long is judged by the least": (
        [Asked(LEAST // 4, others=3, limit=WIDE, ms=PATIENCE_MS - CUT_EVERY_MS)],
        [(LEAST // 4, QUARTER)],
    ),
    "one that does not is not": ([Asked(LEAST // 4, others=3, limit=WIDE, ms=PATIENCE_MS - CUT_EVERY_MS - 1)], []),
    "nor is one of fewer": ([Asked(21, others=2, limit=WIDE, ms=PATIENCE_MS)], []),
    "a round without any that asked is forgotten": (
        [Asked(1, others=LEAST), Asked(LEAST // 2, others=1)],
        [(1 + LEAST // 2, cut_of((LEAST // 2 + 1) / (LEAST + 1), LEAST + 1))],
    ),
    "a shorter calm is not": ([Asked(1, others=LEAST - 1), Asked(LEAST // 2 - 1, others=1)], []),
    "the calm begins the time of the next": (
        [Asked(1, others=WIDE, limit=WIDE, ms=5_000), Asked(30, others=3, limit=WIDE, ms=4_999 + PATIENCE_MS)],
        [],
    ),
    "after one that did not all ask, one is not enough": (
        [Asked(LEAST // 4, others=3), Asked(SURE - 2)],
        [(LEAST // 4, QUARTER)],
    ),
}


@pytest.mark.parametrize("name", JUDGED)
def test_answers_are_judged_by_rounds_rows_and_time(name: str) -> None:
    rows, expected = JUDGED[name]
    assert cuts(*rows) == expected


def test_the_share_that_costs_nothing_is_never_cut() -> None:
    assert cuts(Asked(50 * LEAST, others=round(1 / FREE) - 1, limit=WIDE, ms=PATIENCE_MS)) == []
