"""Stories in which some records kill whoever delivers them: the group gets through everything else.

A death takes service and sidecar at once, as one pod that runs out of memory does, so nobody is left to count it.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.progress import Bounds
from tests.sim import stories
from tests.sim.checker import Found, check, quarantined
from tests.sim.order_checker import check_ordered
from tests.sim.plan import Fault, Plan
from tests.sim.service_model import Weights
from tests.sim.stories import story
from tests.sim.world import World

RETRIES = 2
KILLERS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, RETRIES)), max_size=3).map(tuple)
WEIGHTS = st.builds(lambda ok, fail, throttle: Weights(ok, fail, 0, throttle), *map(st.integers, (1, 0, 0), (8, 4, 2)))


def plans(*kinds: str) -> st.SearchStrategy[Plan]:
    return stories.plans(
        *kinds,
        records=st.integers(1, 40),
        concurrency=st.sampled_from([1, 4, 16]),
        room=st.sampled_from([4_000, 1 << 20]),
        retries=st.just(RETRIES),
        weights=WEIGHTS,
        deaths=st.integers(1, 4),
        killers=KILLERS,
        failures=st.none(),
    )


def convicted(world: World) -> set[str]:
    found = Found(world)
    return {origin for origin in world.sent if quarantined(found, origin)}


READ_LATE = Plan(
    *(130, 30, 3, 2, 4, 4_000, RETRIES, 1),
    killers=((23, 0),),
    spread=0,
    stall=2_500,
    weights=Weights(ok=7, fail=1, throttle=2),
    bounds=Bounds(3, 2, 4, skip=2),
)
"""What goes before the killer fills the little that its partition may have, so it is read 12 s after the crash."""


@story
@example(READ_LATE)
@given(plans())
def test_killers_and_nobody_else_are_quarantined_after_a_few_deaths(plan: Plan) -> None:
    world = World(plan).run()
    check(world)
    assert convicted(world) == world.deaths.keys()
    assert plan.deaths is not None
    # One more for each other killer: what took the process with it may have hidden that this one was out.
    most = plan.deaths + len(world.deaths)
    assert all(deaths <= most for deaths in world.deaths.values()), world.deaths


@story
@given(plans(), st.integers(1, 2))
def test_a_killer_that_the_service_puts_off_first_is_found_all_the_same(plan: Plan, times: int) -> None:
    """A service that has just started says 429 to the first requests; after each death anew."""
    world = World(plan._replace(put_off=times)).run()
    check(world)
    assert convicted(world) == world.deaths.keys()


@story
@given(plans(), st.sampled_from(["key", "partition"]))
def test_an_ordered_killer_that_fails_in_place_first_is_found_all_the_same(plan: Plan, order: OrderBy) -> None:
    """Retries in place are counted in memory, so it fails first after each death anew."""
    world = World(plan._replace(order=order)).run()
    check_ordered(world)
    assert convicted(world) == world.deaths.keys()


def in_no_order(world: World) -> set[str]:
    """Records of topics of which a partition was once given up while its commits failed: its mark stayed in Kafka."""
    topics, found = {place.topic for place in world.given_up}, Found(world)
    return {
        origin
        for origin in world.sent
        if topics & {origin.split(":")[0], *(delivery.record.source.topic for delivery in found.deliveries[origin])}
    }


@story
@given(plans("revoke", "outage", "step"))
def test_a_rebalance_or_an_outage_lays_no_death_to_the_innocent(plan: Plan) -> None:
    world = World(plan).run()
    check(world)
    assert convicted(world) >= world.deaths.keys()
    assert convicted(world) - world.deaths.keys() <= in_no_order(world)


@story
@given(plans("crash", "lose", "revoke", "outage", "step", "refuse", "oversize"))
def test_a_killer_among_other_crashes_is_found_all_the_same(plan: Plan) -> None:
    world = World(plan).run()
    check(world)
    assert convicted(world) >= world.deaths.keys()


@pytest.mark.parametrize("times", range(RETRIES + 1))
def test_one_killer_costs_exactly_so_many_deaths_as_are_allowed(times: int) -> None:
    world = World(Plan(4, records=60, retries=RETRIES, killers=((20, times),))).run()
    check(world)
    assert list(world.deaths.values()) == [3]
    assert len(convicted(world)) == 1


@pytest.mark.parametrize("seed", range(8))
def test_two_crashes_in_a_row_convict_nobody(seed: int) -> None:
    """A node that is lost twice must not cost a record."""
    crashes = (Fault("crash", 500, 0, 0), Fault("crash", 700, 0, 0))
    world = World(Plan(seed, records=60, spread=0, faults=crashes)).run()
    check(world)
    assert not convicted(world)
