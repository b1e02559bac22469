"""Random lives of records as events, the records that hold them, and the truth about them by a plain fold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

import msgspec

from reconsume.topics.events import FAILURES, Event, State, encode_event, latest

GROUP = "billing"
TOPIC = f"{GROUP}-RETRY-EVENTS"
BASE = 1_763_690_000_000
"""A time in the past, in ms: what happened then is on no machine ahead of the clock."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVENT = Event(
    group=GROUP,
    id="orders:3:1024",
    state=State.WAITING_RETRY,
    times=1,
    redrives=0,
    level="10s",
    due=BASE + 10_000,
    at=BASE,
    reason="http-500",
    topic="orders",
    partition=3,
    offset=1024,
    timestamp=BASE - 1000,
    first_failed_at=BASE,
    instance="billing-7c9f-x2x",
)
GROUPS = ("billing", "pay.roll-5")
LEVELS = ("10s", "1m", "2h")


class Record(NamedTuple):
    """A record of an event topic; `timestamp` in epoch ms."""

    value: bytes | None
    offset: int = 0
    partition: int = 0
    timestamp: int = BASE
    topic: str = TOPIC
    appended: bool = False
    """Whether the timestamp is the broker's."""

    def row(self) -> tuple[Any, ...]:
        written = EPOCH + timedelta(milliseconds=self.timestamp)
        return None, self.value, self.topic, self.partition, self.offset, written, int(self.appended)


def changed(**fields: Any) -> Event:
    """EVENT with other fields."""
    return msgspec.structs.replace(EVENT, **fields)


def written(events: Iterable[Event]) -> list[Record]:
    """The events as records, one after another, each written when it happened."""
    return [
        Record(encode_event(event), number, timestamp=event.at, topic=f"{event.group}-RETRY-EVENTS")
        for number, event in enumerate(events)
    ]


def as_told(row: dict[str, Any]) -> dict[str, Any]:
    """The row as JSON has it: without a cycle of 0."""
    return {name: value for name, value in row.items() if name != "cycle" or value != 0}


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
        failures = [each.at for each in told if each.state in FAILURES] + [at] * (state in FAILURES)
        most = {"retries": max(times, *(each.times for each in told), 0)} if failures else {}
        last = {"last_failed_at": failures[-1]} if most else {}
        told.append(changed(**fields, **event, **most, **last, first_failed_at=first))

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
    """The view by definition: each record's latest event, with what it lacks taken from what it has."""
    lives: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        lives[event.group, event.id].append(event)
    found = {}
    for key, life in lives.items():
        now = latest(life)
        assert now is not None
        failed = now.at if now.state in FAILURES else now.first_failed_at
        told = {name: value for name, value in msgspec.to_builtins(now).items() if value is not None or name == "level"}
        row = {"last_failed_at": failed, "retries": now.times} | told | {"updated_at": now.at}
        found[key] = {name: value for name, value in row.items() if name != "v"}
    return found


def disturbed(random: Random, events: list[Event]) -> list[Event]:
    """The same events in any order, a third of them twice."""
    more = events + random.sample(events, len(events) // 3)
    random.shuffle(more)
    return more
