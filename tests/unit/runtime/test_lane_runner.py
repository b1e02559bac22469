"""How a lane reads main topics: headers of systems that are named, and drained topics as their main one."""

from __future__ import annotations

import pytest

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.messages import main_reading_of
from reconsume.topics.retry_headers import Headers, RetryState

SOURCE = Partition("orders-retry-0", 3)
SPRING: Headers = [("a", None), ("retry_topic-attempts", b"\x00\x00\x00\x03")]


def test_without_a_system_named_headers_of_a_main_topic_are_not_even_looked_at() -> None:
    assert main_reading_of((), {}) is None


def test_a_record_that_another_system_retried_begins_with_its_count_at_its_own_place() -> None:
    reading = main_reading_of(("pulsar", "spring"), {})
    assert reading is not None
    life = RetryState("orders-retry-0:3:9", "orders-retry-0", times=2, timestamp=7, reason="retried-by-spring")
    assert reading(SPRING, SOURCE, 9, 7) == (life, "")


def test_a_time_said_to_lie_ahead_of_the_clock_is_not_believed() -> None:
    reading = main_reading_of(("smallrye",), {})
    assert reading is not None
    ahead = b"%d" % (now().wall_ms + 3_600_000)
    headers: Headers = [
        ("delayed-retry-count", b"1"),
        ("delayed-retry-original-timestamp", ahead),
        ("delayed-retry-first-processing-timestamp", ahead),
    ]
    life, fault = reading(headers, SOURCE, 9, 7)
    assert life is not None
    assert (life.times, life.timestamp, life.first_failed_at, fault) == (2, 7, 0, "")


@pytest.mark.parametrize(
    "headers", [[], [("RECONSUMETIMES", b"15")], [("retry_topic-attempts", b"3 "), ("retry_topic-attempts", None)]]
)
def test_every_other_record_has_no_life_and_no_fault(headers: Headers) -> None:
    reading = main_reading_of(("spring",), {})
    assert reading is not None
    assert reading(headers, SOURCE, 9, 7) == (None, "")


@pytest.mark.parametrize(("headers", "times"), [([], 0), (SPRING, 2)])
def test_a_record_of_a_drained_topic_is_one_of_its_main_topic_with_an_id_that_says_where_it_is(
    headers: Headers, times: int
) -> None:
    reading = main_reading_of(("spring",), {SOURCE.topic: "orders"})
    assert reading is not None
    state, fault = reading(headers, SOURCE, 9, 7)
    assert state is not None
    assert (state.id, state.topic, state.times, state.timestamp, fault) == (
        "orders-retry-0:3:9",
        "orders",
        times,
        7,
        "",
    )
    assert reading([], Partition("orders", 3), 9, 7) == (None, "")


@pytest.mark.parametrize(("topic", "foreign"), [(SOURCE.topic, []), (SOURCE.topic, SPRING), ("orders", SPRING)])
def test_a_main_record_with_a_retry_state_keeps_what_it_has_under_our_names_as_originals(
    topic: str, foreign: Headers
) -> None:
    """Contract 3.6: of a drained topic, and of a main topic where another system has retried it."""
    reading = main_reading_of(("spring",), {SOURCE.topic: "orders"})
    assert reading is not None
    headers: Headers = [("RECONSUMETIMES", b"4"), ("REAL_TOPIC", b"elsewhere"), ("shop", b"7"), *foreign]
    state, fault = reading(headers, Partition(topic, 3), 9, 7)
    assert (state is not None, fault) == (True, "")
    assert sorted(headers) == sorted(
        [("ORIGINAL_RECONSUMETIMES", b"4"), ("ORIGINAL_REAL_TOPIC", b"elsewhere"), ("shop", b"7"), *foreign]
    )


def test_a_plain_main_record_keeps_all_its_names() -> None:
    reading, headers = main_reading_of(("spring",), {SOURCE.topic: "orders"}), [("RECONSUMETIMES", b"4")]
    assert reading is not None
    assert reading(headers, Partition("orders", 3), 9, 7) == (None, "")
    assert headers == [("RECONSUMETIMES", b"4")]
