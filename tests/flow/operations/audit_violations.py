"""One made-up life for each way to break the promise, and the kinds of findings that an audit must name it by."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from reconsume.topics.events import State
from tests.flow.operations.audit_plants import Planter
from tests.support.deadline import until
from tests.support.kafka.topic_io import Row

LATE = 600_000
"""ms after a plant's beginning: no level is longer, and no machine that slow."""

Plant = Callable[[Planter, Row], None]


def good(by: Planter, row: Row) -> None:
    life = by.life(row)
    by.copy(row, life)
    by.waits(life)
    by.event(life, State.COMMIT, LATE)


def dead_at_once(by: Planter, row: Row) -> None:
    life = by.life(row, 0)
    by.dead(row, life)
    by.event(life, State.DLQ, LATE)


def redriven(by: Planter, row: Row) -> None:
    dead_at_once(by, row)
    life = by.life(row, 0, 0, redrives=1)
    by.copy(row, life, 0)
    by.event(life, State.REDRIVEN, 0)
    by.event(life, State.COMMIT, LATE)


def lost(by: Planter, row: Row) -> None:
    life = by.life(row)
    by.copy(row, life)
    by.waits(life)


def no_copy(by: Planter, row: Row) -> None:
    by.waits(by.life(row))


def dead_no_copy(by: Planter, row: Row) -> None:
    by.event(by.life(row, 0), State.DLQ, LATE)


def commit_of_nothing(by: Planter, row: Row) -> None:
    by.event(by.life(row), State.COMMIT, LATE)


def no_event(by: Planter, row: Row) -> None:
    life = by.life(row)
    by.copy(row, life)
    by.event(life, State.COMMIT, LATE)


def dead_no_event(by: Planter, row: Row) -> None:
    by.dead(row, by.life(row, 0))


def counted_twice(by: Planter, row: Row) -> None:
    good(by, row)
    by.copy(row, by.life(row))


def counted_twice_in_another_level(by: Planter, row: Row) -> None:
    """Another due time: no hop of the first one."""
    good(by, row)
    by.copy(row, by.life(row, delay=2_000), 2_000)


def told_twice(by: Planter, row: Row) -> None:
    good(by, row)
    by.waits(by.life(row))


def gap(by: Planter, row: Row) -> None:
    life = by.life(row, 2, 2_000)
    by.copy(row, life, 2_000)
    by.waits(life, "2s")
    by.event(life, State.COMMIT, LATE)


def dead_gap(by: Planter, row: Row) -> None:
    life = by.life(row, 3)
    by.dead(row, life)
    by.event(life, State.DLQ, LATE)


def dead_twice(by: Planter, row: Row) -> None:
    dead_at_once(by, row)
    by.dead(row, by.life(row, 0))


def ended_twice(by: Planter, row: Row) -> None:
    good(by, row)
    by.event(by.life(row), State.COMMIT, LATE + 1)


def goes_on_after_its_end(by: Planter, row: Row) -> None:
    dead_at_once(by, row)
    good(by, row)


def early(by: Planter, row: Row) -> None:
    life = by.life(row)
    by.copy(row, life)
    by.waits(life)
    by.event(life, State.COMMIT, 100)


def hasty(by: Planter, row: Row) -> None:
    """Due at once, on a level of 1 s."""
    life = by.life(row, delay=0)
    by.copy(row, life)
    by.waits(life)
    by.event(life, State.COMMIT, LATE)


def hopped_early(by: Planter, row: Row) -> None:
    life = by.life(row, delay=3_000)
    assert by.copy(row, life, 2_000).place
    clock = time.time_ns() // 1_000_000
    until(lambda: time.time_ns() // 1_000_000 > clock + 1, 5, "the copies have two append times")
    by.copy(row, life, 1_000)
    by.waits(life, "2s")
    by.event(life, State.COMMIT, LATE)


def mistold(by: Planter, row: Row) -> None:
    life = by.life(row)
    by.copy(row, life)
    by.waits(replace(life, due_at=life.due_at + 5))
    by.event(life, State.COMMIT, LATE)


def altered(by: Planter, row: Row) -> None:
    good(by, row._replace(value=b"another"))


def another_timestamp(by: Planter, row: Row) -> None:
    life = replace(by.life(row), timestamp=1)
    by.copy(row, life)
    by.waits(life)
    by.event(life, State.COMMIT, LATE)


def no_record(by: Planter, row: Row) -> None:
    good(by, row._replace(offset=987_654))


PLANTS: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "good": (good, ()),
    "dead at once": (dead_at_once, ()),
    "redriven": (redriven, ()),
    "lost": (lost, ("lost",)),
    "no copy": (no_copy, ("no-copy",)),
    "dead, no copy": (dead_no_copy, ("no-copy",)),
    "commit of nothing": (commit_of_nothing, ("no-copy",)),
    "no event": (no_event, ("no-event",)),
    "dead, no event": (dead_no_event, ("no-event",)),
    "counted twice": (counted_twice, ("counted-twice",)),
    "counted twice elsewhere": (counted_twice_in_another_level, ("counted-twice",)),
    "told twice": (told_twice, ("counted-twice",)),
    "gap": (gap, ("gap",)),
    "dead gap": (dead_gap, ("gap",)),
    "dead twice": (dead_twice, ("dead-twice",)),
    "ended twice": (ended_twice, ("ended-twice",)),
    "goes on after its end": (goes_on_after_its_end, ("ended-twice", "ended-twice", "gap")),
    "early": (early, ("early",)),
    "hasty": (hasty, ("early",)),
    "hopped early": (hopped_early, ("early",)),
    "mistold": (mistold, ("mistold",)),
    "altered": (altered, ("altered",)),
    "another timestamp": (another_timestamp, ("altered",)),
    "no record": (no_record, ("no-record",)),
}
