"""What a record counts for in memory: every byte that a stranger can make large."""

from __future__ import annotations

from reconsume.sidecar.core.record import HEADER_COST, OUR_HEADERS, RECORD_COST, weight_of
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers
from tests.sim.samples import life

OWN: Headers = [("name", b"12345"), ("n", None)]
OWN_COST = 2 * HEADER_COST + 4 + 5 + 1


def test_key_value_and_headers_are_weighed() -> None:
    assert weight_of(None, None, None, None) == RECORD_COST
    assert weight_of(b"123", b"1234567", [], None) == RECORD_COST + 10
    assert weight_of(b"123", None, OWN, None) == RECORD_COST + 3 + OWN_COST


def test_our_headers_are_weighed_by_what_is_long_in_them() -> None:
    told = life(2)
    ours, long = render_retry_headers(told, "billing", "billing-RETRY-10s"), 2 * len(told.id) + len(told.reason)
    assert weight_of(None, b"v", ours, told) == RECORD_COST + 1 + OUR_HEADERS + long
    assert weight_of(None, b"v", OWN + ours, told) == RECORD_COST + 1 + OWN_COST + OUR_HEADERS + long


def test_headers_of_another_order_are_weighed_one_by_one() -> None:
    told = life(2)
    ours = render_retry_headers(told, "billing", "billing-RETRY-10s")[::-1]
    each = sum(HEADER_COST + len(name) + len(data or b"") for name, data in ours)
    assert weight_of(None, None, ours, told) == RECORD_COST + each
