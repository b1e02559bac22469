"""Random stories of ordered groups with a ladder, while configuration and topics change under waiting keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.sim.checker import Found
from tests.sim.ladder_checker import check_ladder
from tests.sim.plan import Config, Fault, Plan
from tests.sim.service_model import Weights
from tests.sim.stories import story
from tests.sim.test_ladder_sim import ladders
from tests.sim.world import World

LADDERS = st.builds(
    Config,
    topics=st.just(("orders",)),
    table=st.sampled_from([(1_000,), (1_000, 5_000, 10_000), (2_000, 20_000)]),
    ladder=st.sampled_from(["rocketmq", "pulsar"]),
    in_place=st.just(False),
    retries=st.integers(0, 4),
    parks=st.booleans(),
)


@story
@given(ladders("rollout", "rollout", "revoke", "crash", "freeze", "outage"), st.lists(LADDERS, min_size=2, max_size=3))
def test_a_rollout_of_another_ladder_limit_or_end_keeps_order_and_counts(plan: Plan, configs: list[Config]) -> None:
    """Waits become longer and shorter, limits lower than the counts of heads that wait, parked keys are given up and
    others parked again, with both configurations alive at once."""
    check_ladder(World(plan._replace(configs=tuple(configs), retries=4)).run())


@story
@given(ladders("grow", "grow", "revoke", "crash", "freeze", "outage"))
def test_partitions_that_are_added_to_a_queue_first_or_late_keep_order_and_counts(plan: Plan) -> None:
    """What fails in a partition that its queue lacks waits in memory until the queue has it."""
    check_ladder(World(plan).run())


def test_a_story_with_added_partitions_has_records_that_wait_in_them() -> None:
    """The check above means nothing if nothing ever waits there."""
    grows = tuple(Fault("grow", at, lasts, whom) for at, lasts in ((300, 0), (600, 3_000)) for whom in range(7))
    weights = Weights(ok=2, fail=3)
    world = World(Plan(7, records=60, order="key", queued=True, weights=weights, deaths=None, faults=grows)).run()
    check_ladder(world)
    assert any(int(origin.split(":")[1]) >= world.plan.partitions for origin in Found(world).copies)
