"""A small sound history of one group, made of the wire agreement itself, for checks of checks."""

from __future__ import annotations

from typing import NamedTuple

from reconsume.sidecar.dev.demo.ledger import Delivery, Verdict, digest_of
from reconsume.sidecar.dev.demo.record_histories import Row
from reconsume.topics.dead_letter_headers import dead_letter_headers
from reconsume.topics.events import Event, State, encode_event
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState

START = 1_700_000_000_000
OWN = (("trace", b"1"), ("trace", None), ("trace", b"1"))
GOOD, FLAKY, POISON = "orders:0:0", "orders:0:1", "orders:0:2"


class World(NamedTuple):
    """Everything that the check is given."""

    rows: list[Row]
    deliveries: list[Delivery]


def main_row(offset: int) -> Row:
    return Row("orders", 0, offset, START + offset, b"\x00key", b"value-%d" % offset, OWN)


def delivery(identity: str, times: int, at: float, verdict: Verdict) -> Delivery:
    offset = identity.rpartition(":")[2]
    return Delivery(identity, times, at, verdict, digest_of(b"value-" + offset.encode()))


def life(identity: str, times: int, due: int, reason: str = "http-500") -> RetryState:
    offset = int(identity.rpartition(":")[2])
    return RetryState(identity, "orders", times, 0, due, START + offset, START + 5, reason)


def copy_row(topic: str, offset: int, at: int, life: RetryState) -> Row:
    first = main_row(int(life.id.rpartition(":")[2]))
    headers = (*OWN, *render_retry_headers(life, "billing", topic))
    if topic == "billing-DLQ":
        headers += tuple(dead_letter_headers(life, "billing", life.times + 1))
    return Row(topic, 0, offset, at, first.key, first.value, headers)


def event_row(offset: int, state: State, life: RetryState) -> Row:
    event = Event(
        "billing", life.id, state, life.times, 0, None, life.due_at, START, "http-500", "orders", 0, 0, 0, 0, "i"
    )
    return Row("billing-RETRY-EVENTS", 0, offset, START, life.id.encode(), encode_event(event), ())


def sound() -> World:
    """One order that works, one that works at the first retry, one that ends in the DLQ after a hop and two retries."""
    one, other = life(FLAKY, 1, START + 1010), life(POISON, 1, START + 3010)
    last = life(POISON, 2, START + 6000)
    dead = life(POISON, 2, START + 8020)
    rows = [
        *map(main_row, range(3)),
        copy_row("billing-RETRY-1s", 0, START + 20, one),
        event_row(0, State.WAITING_RETRY, one),
        event_row(1, State.COMMIT, one),
        copy_row("billing-RETRY-2s", 0, START + 20, other),
        copy_row("billing-RETRY-1s", 1, START + 2025, other),  # a hop: not a retry
        event_row(2, State.WAITING_RETRY, other),
        copy_row("billing-RETRY-2s", 1, START + 4010, last),
        event_row(3, State.WAITING_RETRY, last),
        copy_row("billing-DLQ", 0, START + 8025, dead),
        event_row(4, State.DLQ, dead),
    ]
    deliveries = [
        delivery(GOOD, 0, START + 10, "commit"),
        delivery(FLAKY, 0, START + 10, "retry"),
        delivery(FLAKY, 1, START + 1024.5, "commit"),
        delivery(POISON, 0, START + 10, "retry"),
        delivery(POISON, 1, START + 3030, "retry"),
        delivery(POISON, 2, START + 6015, "retry"),
    ]
    return World(rows, deliveries)
