"""The policy answers every question, or is not built."""

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.topics.levels import LONGEST, SHORTEST_ASKED, TABLE, build_ladder
from reconsume.topics.names import Names
from tests.sim.samples import WALL, life, policy

SECOND, DAY = 1_000, 86_400_000


@pytest.mark.parametrize(
    ("retry", "delay", "level", "wait"),
    [
        (1, None, None, 10 * SECOND),
        (16, None, None, 7_200 * SECOND),
        (17, None, None, 7_200 * SECOND),
        (999, None, 0, 7_200 * SECOND),
        (1, None, 0, 10 * SECOND),
        (1, None, 1, SECOND),
        (5, None, 18, 7_200 * SECOND),
        (1, None, 19, 7_200 * SECOND),
        (1, None, -2, 10 * SECOND),
        (1, SECOND, None, SECOND),
        (1, 10 * DAY, None, 10 * DAY),
        (2, SECOND - 1, None, 30 * SECOND),
        (2, 10 * DAY + 1, None, 30 * SECOND),
        (2, 0, None, 30 * SECOND),
        (2, -5, None, 30 * SECOND),
        (1, 77_777, 3, 77_777),
    ],
)
def test_what_is_asked_for_wins_where_it_is_allowed_else_the_ladder(
    retry: int, delay: int | None, level: int | None, wait: int
) -> None:
    assert policy().wait_of(retry, delay, level) == wait


@pytest.mark.parametrize(
    ("delay", "level", "understood"),
    [
        (None, None, True),
        (None, -1, True),
        (None, 0, True),
        (None, 18, True),
        (None, 19, True),
        (None, -2, False),
        (SHORTEST_ASKED, None, True),
        (SHORTEST_ASKED - 1, None, False),
        (LONGEST, None, True),
        (LONGEST + 1, None, False),
    ],
)
def test_what_is_out_of_bounds_is_known_to_be(delay: int | None, level: int | None, understood: bool) -> None:
    assert policy().understands(delay, level) is understood


def test_a_wait_starts_in_the_longest_level_that_fits() -> None:
    found = policy()
    assert [found.level_for(ms) for ms in (899, 900, 4_499, 9_000, 10**9)] == [None, 1_000, 1_000, 10_000, 7_200_000]


def test_a_wait_below_every_level_is_for_the_ready_topic() -> None:
    assert policy().retry_topic(None, life()) == "billing-RETRY"
    assert policy().retry_topic(10_000, life()) == "billing-RETRY-10s"


def test_each_topic_has_its_own_levels_and_dlq_where_the_template_says_so() -> None:
    found = policy(topics=("orders", "refunds"), template="{topic}-{group}")
    assert found.retry_topic(10_000, life()) == "orders-billing-RETRY-10s"
    assert found.dlq_of("refunds") == "refunds-billing-DLQ"
    assert found.dlq_of("refunds-billing-RETRY-10s") == "refunds-billing-DLQ"
    assert found.dlq_of("billing-RETRY") == "orders-billing-DLQ"


def test_a_custom_ladder_has_its_own_level_topics() -> None:
    found = policy(ladder=(7_000, 3_000))
    assert {3_000, 7_000} < set(found.delays)
    assert [found.wait_of(retry, None, None) for retry in (1, 2, 3)] == [7_000, 3_000, 3_000]


def test_a_due_time_may_lie_ten_days_and_a_clocks_error_ahead() -> None:
    assert policy().latest_due(WALL) - WALL == LONGEST + 3_600_000


def build(delays: tuple[int, ...], topics: tuple[str, ...] = ("orders",), retries: int = 16) -> Policy:
    return Policy(Names("billing"), topics, build_ladder("rocketmq"), TABLE, delays, retries)


@pytest.mark.parametrize(
    ("delays", "topics", "retries"),
    [
        (TABLE, (), 16),
        ((), ("orders",), 16),
        (TABLE[:2] * 2, ("orders",), 16),
        (TABLE[::-1], ("orders",), 16),
        (TABLE, ("orders",), -1),
    ],
)
def test_a_policy_that_could_not_answer_is_not_built(
    delays: tuple[int, ...], topics: tuple[str, ...], retries: int
) -> None:
    with pytest.raises(ValueError, match=r"policy|levels must rise|negative"):
        build(delays, topics, retries)


def test_only_a_group_that_retries_in_place_may_have_no_level() -> None:
    without = replace(policy(), delays=(), in_place=InPlace())
    assert without.level_for(LONGEST) is None
    assert without.passing_level("billing-RETRY") is None
