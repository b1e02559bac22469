"""The limit in flight follows the service: services of many kinds, on virtual time, behind the real dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import Throttled
from reconsume.sidecar.core.pace.topic_turns import RESERVE
from tests.sim.concurrency_model import MAIN, OTHER, Run, Service
from tests.sim.stories import SEEDS, story

SECOND, MINUTE = 1_000, 60_000


def always(ms: int) -> Callable[[int, Random], int]:
    """A service that works on each request for so long."""
    return lambda now_ms, random: ms


def best_ms(threads: int, ms: int, records: int) -> int:
    """How long the records take with the best fixed number."""
    return Run(Service(threads, always(ms)), records, number=threads).until(done=records).now_ms


@pytest.mark.parametrize(
    ("threads", "ms", "records", "timeout_ms"),
    [
        (16, 1_000, 603, 5_000),
        (16, 100, 603, 500),
        (16, 300, 603, 30_000),
        (16, 5_000, 603, 30_000),
        (1, 1_000, 100, 5_000),
        (1, 300, 100, 30_000),
        (1, 5_000, 100, 30_000),
        (64, 10, 20_000, 5_000),
        (200, 50, 20_000, 500),
    ],
)
def test_a_backlog_takes_at_most_15_percent_longer_than_with_the_best_number_and_nothing_is_executed_twice(
    threads: int, ms: int, records: int, timeout_ms: int
) -> None:
    run = Run(Service(threads, always(ms)), records, timeout_ms=timeout_ms).until(done=records)
    assert run.timeouts == 0
    assert run.executions <= records + run.in_flight
    assert run.now_ms <= 1.15 * best_ms(threads, ms, records)


def test_the_first_request_goes_alone_then_four_then_twice_as_many_in_each_response_time() -> None:
    run = Run(Service(256, always(500)), 20_000).until(5 * SECOND)
    growth = [(500, 4), (1_000, 8), (1_500, 16), (2_000, 32), (2_500, 64), (3_000, 128), (3_500, 256)]
    assert [(at, limit) for at, limit, _ in run.limits[1:]] == growth
    assert run.rate(4_000, 5_000) == 512


def test_256_requests_are_in_flight_within_five_seconds_where_responses_take_up_to_half_a_second() -> None:
    run = Run(Service(256, lambda now_ms, random: random.randint(450, 500)), 20_000).until(5 * SECOND)
    assert run.in_flight == 256


@pytest.mark.parametrize("longest", [500, 2_000])
@pytest.mark.parametrize("seed", range(5))
def test_a_service_whose_responses_differ_widely_is_used_in_full(longest: int, seed: int) -> None:
    run = Run(Service(16, lambda now_ms, random: random.randint(10, longest)), 3_000, seed=seed).until(done=3_000)
    assert run.now_ms <= 1.2 * 3_000 * (10 + longest) / 2 / 16


def test_a_queue_in_the_service_does_not_grow_over_an_hour() -> None:
    run = Run(Service(16, always(1_000)), 60_000).until(60 * MINUTE)
    assert max(took_ms for _, took_ms in run.responses) <= 3 * SECOND
    assert run.rate(0, 60 * MINUTE) > 0.98 * 16


def test_a_service_that_is_slow_for_a_minute_is_used_in_full_before_amid_and_after() -> None:
    service = Service(16, lambda now_ms, random: 1_000 if MINUTE <= now_ms < 2 * MINUTE else 100)
    run = Run(service, 60_000, timeout_ms=5_000).until(4 * MINUTE)
    assert run.rate(50_000, 60_000) == pytest.approx(160, rel=0.05)
    assert run.rate(70_000, 115_000) == pytest.approx(16, rel=0.1)
    assert run.rate(125_000, 240_000) == pytest.approx(160, rel=0.05)
    assert run.timeouts == 0


def test_a_service_that_is_too_slow_for_a_minute_gets_few_requests_and_is_used_in_full_afterwards() -> None:
    service = Service(16, lambda now_ms, random: 8_000 if MINUTE <= now_ms < 2 * MINUTE else 100)
    run = Run(service, 60_000, timeout_ms=5_000).until(4 * MINUTE)
    assert run.limit_at(110_000) <= 8
    assert run.timeouts < 160
    assert run.rate(130_000, 240_000) == pytest.approx(160, rel=0.05)


def test_a_proxy_that_has_a_queue_of_its_own_and_refuses_the_rest_is_used_in_full() -> None:
    service = Service(16, always(300), longest_queue=40)
    run = Run(service, 3_000).until(done=3_000)
    assert run.now_ms <= 1.15 * best_ms(16, 300, 3_000)
    assert run.refusals <= 40


def test_requests_that_hang_stop_nothing_for_long_even_if_they_are_the_first_ones() -> None:
    service = Service(100, always(100), hangs=lambda record: record.offset < 4)
    run = Run(service, 600).until(done=596)
    assert run.now_ms < 15 * SECOND


def test_a_fifth_of_the_records_that_hang_leave_most_of_the_throughput() -> None:
    """256 in flight, of which a fifth hang for 5 s and the others take 0.1 s, do 190 records a second."""
    service = Service(256, always(100), hangs=lambda record: record.offset % 5 == 0)
    run = Run(service, 60_000, timeout_ms=5_000).until(MINUTE)
    assert run.rate(10_000, 60_000) > 0.75 * 190


def test_timeouts_halve_the_limit_once_for_those_that_were_sent_together() -> None:
    service = Service(64, lambda now_ms, random: 100 if now_ms < 10_000 else 60_000)
    run = Run(service, 60_000, timeout_ms=5_000).until(14 * SECOND)
    limits = run.until(18 * SECOND).limits
    halved = [(before, after) for (_, before, _), (_, after, why) in pairwise(limits) if why == "timeouts"]
    assert [after for _, after in halved] == [before // 2 for before, _ in halved[:1]]


def test_timeouts_begin_no_outage_before_fewer_in_flight_were_tried() -> None:
    service = Service(64, lambda now_ms, random: 100 if now_ms < 10_000 else 10 * MINUTE)
    run = Run(service, 60_000, timeout_ms=1_000).until(10_900)
    assert run.limit_at(run.now_ms) > 32
    outage_ms = run.until_outage(2 * MINUTE)
    assert run.limit_at(outage_ms) <= 4
    assert outage_ms < 60 * SECOND


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    run = Run(Service(64, always(100)), 0)
    for ms in range(0, 60_000, 50):
        run.at(ms, lambda: run.come(1))
    run.until(MINUTE)
    assert run.limit_at(MINUTE) <= 8


def test_a_topic_that_alone_has_records_uses_all_of_the_limit() -> None:
    run = Run(Service(256, always(500)), 20_000).until(6 * SECOND)
    assert run.in_flight == run.limit_at(run.now_ms) == 256


def test_two_topics_that_have_records_share_the_limit() -> None:
    run = Run(Service(256, always(500)), 20_000)
    run.come(20_000, OTHER)
    run.until(10 * SECOND)
    assert run.of(MAIN) == run.of(OTHER) == (256 - 256 // RESERVE) // 2


@story
@given(SEEDS, st.sampled_from([1, 2, 4, 8, 16, 64]), st.sampled_from([20, 200]))
def test_a_topic_whose_requests_all_hang_stops_no_other(seed: int, threads: int, count: int) -> None:
    """Contract 8.8: where the limit shrinks below what hangs, it takes some seconds until others go on (8.4)."""
    service = Service(threads, always(50), hangs=lambda record: record.source == MAIN and record.offset >= 500)
    run = Run(service, 500 + count, seed=seed, timeout_ms=10 * MINUTE).until(done=500)
    run.until(run.now_ms + 30 * SECOND)
    assert all(record.source == MAIN for record in run.hanging)
    run.come(50, OTHER)
    begun_ms = run.now_ms
    run.until(done=550)
    assert run.now_ms - begun_ms <= 50 * 50 + 10 * SECOND


def test_the_smaller_of_limit_and_pace_applies() -> None:
    run = Run(Service(64, always(100)), 60_000).until(5 * SECOND)
    full = run.limit_at(run.now_ms)
    for _ in range(2 * full):
        run.answer_next(Throttled(100))
    assert run.gate.pace.limit < full
    run.until(run.now_ms + 500)
    assert run.in_flight <= run.gate.pace.limit
    run.until(run.now_ms + MINUTE)
    assert run.rate(run.now_ms - 10_000, run.now_ms) == pytest.approx(640, rel=0.05)


def test_a_number_is_fixed_from_one_request_to_the_next() -> None:
    run = Run(Service(64, always(100)), 60_000).until(5 * SECOND)
    run.gate.set_concurrency(8)
    run.until(run.now_ms + SECOND)
    assert (run.in_flight, run.gate.concurrency[:2]) == (8 - 8 // RESERVE, (8, "fixed"))
    run.gate.set_concurrency(None)
    run.until(run.now_ms + 5 * SECOND)
    assert run.gate.concurrency.limit > 32
