"""The checker finds every planted violation: a checker that cannot fail would prove nothing about the product."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from reconsume.topics import retry_headers as wire
from reconsume.topics.render_headers import render_retry_headers
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import Row
from tests.support.proof.checker import ViolationError, check
from tests.support.proof.evidence import Evidence, Progress, read_progress
from tests.support.proof.invariants import STRANGERS
from tests.support.proof.ledger import FAILED, THROTTLED, TOOK, Delivery

GROUP = GroupTopics("nowhere:1", "g", ("orders",), (1_000, 2_000))
FIRST, SECOND = "g-RETRY-1s", "g-RETRY-2s"
OWN = (("a", b"1"), ("a", None))
OK, FLAKY, POISON, WAITING = (f"orders:0:{offset}" for offset in range(4))
START = 1_000_000


def main_row(offset: int) -> Row:
    return Row(0, offset, START + offset, b"key", b"value-%d" % offset, OWN)


def copy_row(ident: str, topic: str, place: int, times: int, at: int, due: int) -> Row:
    """A copy of `ident` in `topic`, appended `at`."""
    source = main_row(int(ident.rpartition(":")[2]))
    ours = render_retry_headers(
        wire.RetryState(ident, "orders", times, 0, due, source.timestamp, START, "http-500"), GROUP.group, topic
    )
    return Row(0, place, at, source.key, source.value, (*OWN, *ours))


def event_row(ident: str, state: str, times: int, due: int = 0, level: str | None = None) -> Row:
    event = {"id": ident, "redrives": 0, "times": times, "state": state, "due": due, "level": level}
    topic, partition, offset = ident.split(":")
    event |= {"topic": topic, "partition": int(partition), "offset": int(offset)}
    return Row(0, 0, 0, ident.encode(), json.dumps(event).encode(), ())


def delivery(number: int, ident: str, times: int, received: int, means: str) -> Delivery:
    row = main_row(int(ident.rpartition(":")[2]))
    key = f"{GROUP.group}/{ident}/0"
    return Delivery(number, received, ident, times, 0, key, row.key, row.value, (), "", means, received + 5)


def clean() -> Evidence:
    """One record that was taken at once, one after a retry, one dead after two, and one that still waits for its first
    retry; the poison's second retry lasts 3 s and so takes a hop from 2 s to 1 s."""
    deliveries = (
        delivery(0, OK, 0, START, TOOK),
        delivery(1, FLAKY, 0, START, THROTTLED),
        delivery(2, FLAKY, 0, START + 50, FAILED),
        delivery(3, POISON, 0, START, FAILED),
        delivery(4, FLAKY, 1, START + 1_070, TOOK),
        delivery(5, POISON, 1, START + 1_020, FAILED),
        delivery(6, WAITING, 0, START + 3_000, FAILED),
        delivery(7, POISON, 2, START + 4_060, FAILED),
    )
    first = (
        copy_row(FLAKY, FIRST, 0, 1, START + 60, START + 1_057),
        copy_row(POISON, FIRST, 1, 1, START + 10, START + 1_007),
        copy_row(WAITING, FIRST, 2, 1, START + 3_010, START + 4_007),
        copy_row(POISON, FIRST, 3, 2, START + 3_040, START + 4_030),
    )
    second = (copy_row(POISON, SECOND, 0, 2, START + 1_030, START + 4_030),)
    events = (
        event_row(FLAKY, "WAITING_RETRY", 1, START + 1_057, "1s"),
        event_row(POISON, "WAITING_RETRY", 1, START + 1_007, "1s"),
        event_row(WAITING, "WAITING_RETRY", 1, START + 4_007, "1s"),
        event_row(POISON, "WAITING_RETRY", 2, START + 4_030, "2s"),
        event_row(FLAKY, "COMMIT", 1),
        event_row(POISON, "DLQ", 2),
    )
    return Evidence(
        group=GROUP,
        mains={"orders": tuple(main_row(offset) for offset in range(5))},
        retries={FIRST: first, SECOND: second, "g-RETRY": ()},
        dlq=(copy_row(POISON, "g-DLQ", 0, 2, START + 4_070, START + 4_065),),
        events=events,
        progress={("orders", 0): Progress(4), (FIRST, 0): Progress(2, frozenset({3})), (SECOND, 0): Progress(1)},
        deliveries=deliveries,
    )


def without(evidence: Evidence, topic: str, *places: int) -> Evidence:
    """Copies vanish from a retry topic."""
    kept = tuple(row for row in evidence.retries[topic] if row.offset not in places)
    return replace(evidence, retries={**evidence.retries, topic: kept})


def altered(evidence: Evidence, topic: str, place: int, **changes: object) -> Evidence:
    """A copy is not what it was."""
    rows = tuple(
        row._replace(**changes) if row.offset == place else row  # type: ignore[arg-type]
        for row in evidence.retries[topic]
    )
    return replace(evidence, retries={**evidence.retries, topic: rows})


def with_header(evidence: Evidence, topic: str, place: int, key: str, value: bytes) -> Evidence:
    """A header of a copy has another value."""
    row = next(row for row in evidence.retries[topic] if row.offset == place)
    headers = tuple((name, value if name == key else old) for name, old in row.headers)
    return altered(evidence, topic, place, headers=headers)


def delivered(evidence: Evidence, number: int, **changes: object) -> Evidence:
    """A delivery went otherwise."""
    changed = tuple(
        each._replace(**changes) if each.number == number else each  # type: ignore[arg-type]
        for each in evidence.deliveries
    )
    return replace(evidence, deliveries=changed)


def more(evidence: Evidence, topic: str, *rows: Row) -> Evidence:
    """A retry topic holds more."""
    return replace(evidence, retries={**evidence.retries, topic: (*evidence.retries[topic], *rows)})


def progressed(evidence: Evidence, topic: str, progress: Progress) -> Evidence:
    return replace(evidence, progress={**evidence.progress, (topic, 0): progress})


def events_without(evidence: Evidence, index: int) -> Evidence:
    return replace(evidence, events=(*evidence.events[:index], *evidence.events[index + 1 :]))


TWIN = copy_row(FLAKY, FIRST, 4, 1, START + 62, START + 1_057)
AGAIN = copy_row(FLAKY, FIRST, 4, 1, START + 90, START + 1_087)
GHOST = copy_row("orders:0:9", FIRST, 4, 1, START, START + 1_000)
FOREIGN = Row(0, 2, START, b"", b"", ((wire.RECONSUMETIMES, b"-1"),))

PLANTED: dict[str, tuple[str, Callable[[Evidence], Evidence]]] = {
    "a taken record was never delivered": ("I1 lost", lambda e: replace(e, deliveries=e.deliveries[1:])),
    "progress passes over a record": ("I1 lost", lambda e: progressed(e, "orders", Progress(5))),
    "the done set passes over a record": (
        "I1 lost",
        lambda e: progressed(e, "orders", Progress(4, frozenset({4}))),
    ),
    "a waiting copy is passed over": ("I1 lost", lambda e: progressed(e, FIRST, Progress(4))),
    "a copy vanishes": ("I1 lost", lambda e: without(e, FIRST, 2)),
    "the dead letter vanishes": ("I1 lost", lambda e: replace(e, dlq=())),
    "a foreign record is dropped": (
        "I1 lost",
        lambda e: progressed(more(e, SECOND, FOREIGN), SECOND, Progress(3)),
    ),
    "a copy is written twice": ("I2 twice", lambda e: progressed(more(e, FIRST, TWIN), FIRST, Progress(5))),
    "an attempt is counted twice": ("I2 twice", lambda e: progressed(more(e, FIRST, AGAIN), FIRST, Progress(5))),
    "a hop is not committed": ("I2 twice", lambda e: progressed(e, SECOND, Progress(0))),
    "a count is skipped": ("I2 gap", lambda e: with_header(e, FIRST, 0, wire.RECONSUMETIMES, b"2")),
    "a dead letter skips a count": ("I2 gap", lambda e: without(without(e, FIRST, 3), SECOND, 0)),
    "two dead letters": ("I2 dead twice", lambda e: replace(e, dlq=e.dlq * 2)),
    "a count without an attempt": ("I2 no attempt", lambda e: delivered(e, 6, means=THROTTLED)),
    "a death without an attempt": ("I2 no attempt", lambda e: delivered(e, 7, means=THROTTLED)),
    "a copy whose source is not committed": ("I2 torn", lambda e: progressed(e, "orders", Progress(3))),
    "a dead letter whose source is not committed": (
        "I2 torn",
        lambda e: progressed(e, FIRST, Progress(2)),
    ),
    "a copy of a record that never was": ("I2 unknown", lambda e: more(e, FIRST, GHOST)),
    "delivered before it is due": ("I4 early", lambda e: delivered(e, 4, received=START + 1_056)),
    "delivered before its level is over": (
        "I4 early",
        lambda e: delivered(altered(e, FIRST, 0, timestamp=START + 75), 4, received=START + 1_070),
    ),
    "due too soon after the failure": (
        "I4 early",
        lambda e: with_header(e, FIRST, 0, wire.RETRY_DUE_AT, b"%d" % (START + 940)),
    ),
    "a delivery that no copy explains": ("I4 unknown", lambda e: delivered(e, 0, times=1)),
    "null becomes empty": ("I5 altered", lambda e: altered(e, FIRST, 2, value=b"")),
    "a key is lost": ("I5 altered", lambda e: altered(e, FIRST, 2, key=None)),
    "a duplicate header is lost": (
        "I5 altered",
        lambda e: altered(e, FIRST, 2, headers=e.retries[FIRST][2].headers[1:]),
    ),
    "the order of headers changes": (
        "I5 altered",
        lambda e: altered(e, FIRST, 2, headers=(OWN[1], OWN[0], *e.retries[FIRST][2].headers[2:])),
    ),
    "another first timestamp": ("I5 header", lambda e: with_header(e, FIRST, 2, wire.RETRY_REAL_TIMESTAMP, b"7")),
    "another retry topic": ("I5 header", lambda e: with_header(e, FIRST, 2, wire.RETRY_TOPIC, b"orders")),
    "another group": ("I5 group", lambda e: with_header(e, FIRST, 2, wire.RETRY_GROUP, b"h")),
    "another value delivered": ("I5 altered", lambda e: delivered(e, 0, value=b"other")),
    "another idempotency key": ("I5 idempotency", lambda e: delivered(e, 0, idempotency_key="x")),
    "a change that is not told": ("event", lambda e: events_without(e, 4)),
    "a change told twice": ("event", lambda e: replace(e, events=e.events + e.events[:1])),
    "an event with another due time": (
        "event",
        lambda e: replace(e, events=(event_row(FLAKY, "WAITING_RETRY", 1, 5, "1s"), *e.events[1:])),
    ),
    "an event under another key": (
        "event",
        lambda e: replace(e, events=(e.events[0]._replace(key=b"orders:0:7"), *e.events[1:])),
    ),
}


def test_a_clean_run_passes_and_is_counted() -> None:
    report = check(clean(), STRANGERS)
    assert (report.deliveries, report.duplicates) == (8, 0)
    assert (report.committed, report.dead_lettered, report.waiting) == (2, 1, 2)
    assert (report.retries, report.lateness) == (4, (10, 10, 20))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    kind, plant = PLANTED[name]
    with pytest.raises(ViolationError) as caught:
        check(plant(clean()))
    assert any(found.startswith(kind) for found in caught.value.found), caught.value.found


def test_a_second_delivery_of_an_attempt_is_a_duplicate_and_no_violation() -> None:
    evidence = clean()
    again = replace(evidence, deliveries=(*evidence.deliveries, delivery(8, OK, 0, START + 9, TOOK)))
    assert check(again, STRANGERS).duplicates == 1


def test_a_foreign_record_under_its_own_place_in_the_dlq_is_no_loss() -> None:
    evidence = more(clean(), SECOND, FOREIGN)
    place = f"{SECOND}:0:2"
    life = wire.RetryState(place, SECOND, 0, 0, START, START, START, "bad-header: RECONSUMETIMES is -1")
    dead = Row(0, 1, START, b"", b"", tuple(render_retry_headers(life, GROUP.group, "g-DLQ")))
    told = (*evidence.events, event_row(place, "DLQ", 0))
    whole = progressed(replace(evidence, dlq=(*evidence.dlq, dead), events=told), SECOND, Progress(3))
    assert check(whole, STRANGERS).dead_lettered == 2


def test_progress_is_read_as_it_is_written() -> None:
    from reconsume.sidecar.core.progress import Progress as Written
    from reconsume.sidecar.core.progress_codec import encode
    from reconsume.sidecar.core.record import Partition

    done, here = frozenset({101, 105, 4_000, 40_000}), Partition("orders", 0)
    assert read_progress(100, encode(here, Written(100, done))) == Progress(100, done)
    assert read_progress(7, encode(here, Written(7))) == Progress(7)
    assert read_progress(7, "foreign") == Progress(7)
