"""The orders that the demo produces, as a producer that does not know Reconsume. Pure, the same on every run.

Null and binary keys and values, repeated and null headers, headers with the names of the sidecar's own: each must come
out unchanged, so all of them are here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum

import msgspec

TOPIC = "orders"
CASE_HEADER = "order-case"
"""Selects the behaviour of the sample service; the sidecar forwards it like any header that is allowed."""


class Case(StrEnum):
    """The behaviour of the service for an order."""

    GOOD = "good"
    SLOW = "slow"
    FLAKY = "flaky"
    LATER = "later"
    STUCK = "stuck"
    REFUSED = "refused"
    POISON = "poison"


SHARES: dict[Case, float] = {
    Case.SLOW: 0.05,
    Case.FLAKY: 0.12,
    Case.LATER: 0.04,
    Case.STUCK: 0.02,
    Case.REFUSED: 0.02,
    Case.POISON: 0.04,
}
"""The share of each case that is not good; at least one order of each, so that every journey can be seen."""

# The lengths 5, 4 (or 8) and 7 share no factor, so every value occurs with every key and every set of headers.
VALUES: tuple[bytes | None, ...] = (
    b'{"sku": "A-17", "count": 2}',
    bytes(range(256)),
    None,
    b"",
    '{"sku": "Ж-9", "note": "größer"}'.encode(),
)
KEYS: tuple[bytes | None, ...] = (None, b"customer-7", b"", b"\x00\xff\xfe")
MANY_KEYS: tuple[bytes | None, ...] = (*KEYS, *(b"customer-%d" % number for number in range(1, 5)))
Headers = tuple[tuple[str, bytes | None], ...]
LOOKS: tuple[Headers, ...] = (
    (),
    (("trace", b"1"), ("trace", b"2"), ("trace", None), ("trace", b"1")),
    (("RECONSUMETIMES", b"99"), ("REAL_TOPIC", b"payments"), ("RETRY_DUE_AT", b"9999999999999")),
    (("ORIGIN_MESSAGE_ID", b"payments:0:1"), ("mine", b"yes"), ("RETRY_REASON", None)),
    (("__dlq.errors.topic", b"elsewhere"), ("__connect.errors.topic", b"kept")),
    (("x-binary", b"\x00\xff\n"), ("empty", b""), ("", b"no name")),
    (("ключ", "値".encode()), ("content-type", b"application/json")),
)


class Order(msgspec.Struct, frozen=True):
    """One record to produce."""

    case: Case
    key: bytes | None
    value: bytes | None
    headers: Headers


def make_orders(count: int, seed: int = 1, keys: Sequence[bytes | None] = KEYS) -> tuple[Order, ...]:
    """Return `count` orders: mostly good, the other cases spread among them. The keys are used in turn."""
    cases = [case for case, share in SHARES.items() for _ in range(max(1, round(count * share)))][:count]
    cases += [Case.GOOD] * (count - len(cases))
    random.Random(seed).shuffle(cases)
    return tuple(_order(number, case, keys[number % len(keys)]) for number, case in enumerate(cases))


def _order(number: int, case: Case, key: bytes | None) -> Order:
    headers = ((CASE_HEADER, case.encode()), *LOOKS[number % len(LOOKS)])
    return Order(case, key, VALUES[number % len(VALUES)], headers)
