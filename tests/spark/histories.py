"""Random lives of records as events, and the truth about them by a plain fold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.spark.frames import BASE, changed
from topics.events import Event, State, latest

randoms = st.randoms(use_true_random=True)
"""A seed: drawing thousands of choices one by one would cost more than Spark does."""
few = settings(
    derandomize=True,
    # Each example is a batch of Spark, or many; what shrinks is not worth a minute for each step.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

GROUPS = ("billing", "pay.roll-5")
LEVELS = ("10s", "1m", "2h")


def history(random: Random, group: str, number: int) -> list[Event]:
    """The life of one record: failures, at times an end, at times a redrive and another life, seen by skewed clocks."""
    identity = {"group": group, "id": f"orders:3:{number}", "offset": number, "timestamp": random.choice([-1, BASE])}
    first = BASE + random.randrange(60_000)
    told: list[Event] = []

    def tell(state: State, times: int, redrives: int, level: str | None = None) -> None:
        at = first + random.randrange(3_600_000)  # any clock: the counts order a record's life, not its times
        reason = random.choice(["http-500", "timeout", "é|😀"])
        fields = {"due": at + 10_000 if level else 0, "instance": f"i{random.randrange(3)}"} | identity
        event = {"state": state, "times": times, "redrives": redrives, "level": level, "at": at, "reason": reason}
        told.append(changed(**fields, **event, first_failed_at=first))

    for life in range(random.randint(1, 3)):
        retries = random.randint(0, 4)
        if life > 0:
            tell(State.REDRIVEN, 0, life)
        for times in range(1, retries + 1):
            tell(State.WAITING_RETRY, times, life, random.choice(LEVELS))
        ends = [State.DLQ, State.COMMIT] if random.random() < 0.05 else [random.choice([State.DLQ, State.COMMIT])]
        for end in ends if random.random() < 0.7 else []:
            tell(end, retries, life)
    return told


def histories(random: Random, records: int) -> list[Event]:
    """Events of `records` records of each group, one life after another; the groups' ids are the same."""
    return [event for group in GROUPS for number in range(records) for event in history(random, group, number)]


def truth(events: Iterable[Event]) -> dict[tuple[str, str], dict[str, Any]]:
    """The view by definition: each record's latest event, and what is summed over all of them."""
    lives: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        lives[event.group, event.id].append(event)
    found = {}
    for key, life in lives.items():
        now = latest(life)
        first = min(event.first_failed_at for event in life)
        failures = [event.at for event in life if event.state in (State.WAITING_RETRY, State.DLQ)]
        sums = {"last_failed_at": max([first, *failures]), "retries": max(event.times for event in life)}
        row = msgspec.to_builtins(now) | sums | {"first_failed_at": first, "updated_at": max(e.at for e in life)}
        found[key] = {name: value for name, value in row.items() if name != "v"}
    return found


def disturbed(random: Random, events: list[Event]) -> list[Event]:
    """The same events in any order, a third of them twice."""
    more = events + random.sample(events, len(events) // 3)
    random.shuffle(more)
    return more
