"""What a record counts for while it is held: near what it takes, or a lane of 16 MiB is ten times as large."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import RECORD_COST, Partition, Record, weight_of
from reconsume.sidecar.kafka.messages import reading_of, to_record
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers
from tests.sim.samples import WALL, life, policy

COUNT = 500
SOURCE = Partition("billing-RETRY-10s", 0)
POLICY: Policy = policy()
OURS = render_retry_headers(life(), "billing", SOURCE.topic)
LEAST, MOST = 0.8, 3.0
"""What is accounted, as a share of what is taken: seldom less, and more for small records alone."""


class Arrived:
    """A message as the client gives it: all that it returns is made anew."""

    def __init__(self, key: bytes, value: bytes, headers: Headers) -> None:
        self._parts = key, value, headers

    def headers(self) -> Headers:
        return [((name + "_")[:-1], data and bytes(bytearray(data))) for name, data in self._parts[2]]

    def key(self) -> bytes:
        return bytes(bytearray(self._parts[0]))

    def value(self) -> bytes:
        return bytes(bytearray(self._parts[1]))

    def offset(self) -> int:
        return 100_000

    def timestamp(self) -> tuple[int, int]:
        return 1, WALL


SHAPES: dict[str, Callable[[], Arrived]] = {
    "a small record": lambda: Arrived(b"key-1", b"v" * 50, []),
    "a long key": lambda: Arrived(b"k" * 20_000, b"", []),
    "a large value": lambda: Arrived(b"key-1", b"v" * 20_000, []),
    "many small headers": lambda: Arrived(b"key-1", b"v", [(f"header-{n}", b"%d" % n) for n in range(100)]),
    "long header values": lambda: Arrived(b"key-1", b"v", [("trace", b"t" * 9_000)] * 3),
    "long header names": lambda: Arrived(b"key-1", b"v", [("n" * 9_000, None)] * 3),
    "a retry": lambda: Arrived(b"key-1", b"v" * 50, OURS),
    "a retry with headers": lambda: Arrived(b"key-1", b"v", [("h" * 9, b"d" * 99)] * 50 + OURS),
    "a retry with a long reason": lambda: Arrived(
        b"key-1", b"v", render_retry_headers(life(reason="x" * 1_000), "billing", SOURCE.topic)
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_accounted_is_near_what_is_taken(shape: str) -> None:
    message, reading = SHAPES[shape](), reading_of(POLICY)
    made: list[Record] = [to_record(message, SOURCE, 1, reading)]  # type: ignore[arg-type]  # the caches are warm
    tracemalloc.start()
    try:
        made += [to_record(message, SOURCE, 1, reading) for _ in range(COUNT)]  # type: ignore[arg-type]
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    accounted = sum(record.weight for record in made[1:])
    assert LEAST * taken <= accounted <= MOST * taken, (accounted / COUNT, taken / COUNT)


def test_a_record_without_anything_counts_for_itself() -> None:
    assert weight_of(None, None, None, None) == weight_of(b"", b"", [], None) == RECORD_COST


def test_what_waits_in_place_of_our_headers_is_weighed_as_well() -> None:
    """A stranger may write few of ours, and large ones of its own."""
    headers: Headers = [*OURS[:4], ("own", b"x" * 9_000)]
    assert weight_of(b"", b"", headers, life()) > RECORD_COST + 9_000


@pytest.mark.parametrize("stamp", [-1, -62_135_596_800_000])
def test_a_record_of_no_time_or_before_1970_has_the_time_that_its_copy_can_carry(stamp: int) -> None:
    class Old(Arrived):
        def timestamp(self) -> tuple[int, int]:
            return 1, stamp

    assert to_record(Old(b"key-1", b"v", []), SOURCE, 0, None).timestamp == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [[], [("RETRY_LAST_FAILED_AT", b"5")], [("own", b"behind ours")]])
def test_a_copy_that_was_brought_to_another_topic_is_not_read(more: Headers) -> None:
    """Given a mirror that renames topics, then what waited on the other cluster is a dead letter, with the reason."""
    read = reading_of(POLICY)
    for headers in ([*more, *OURS], [*OURS, *more]):
        assert read(headers, SOURCE, 7, WALL)[1] == ""
        assert read(headers, Partition("dc1.billing-RETRY-10s", 0), 7, WALL) == (
            None,
            "bad-header: RETRY_TOPIC is 'billing-RETRY-10s', and the copy lies in dc1.billing-RETRY-10s",
        )
