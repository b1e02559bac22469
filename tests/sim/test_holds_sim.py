"""Stories in which an operator holds records and lets them go, at any time, while other things go wrong."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tests.sim.checker import check
from tests.sim.hold_model import nothing_held_was_delivered
from tests.sim.ladder_checker import check_ladder
from tests.sim.order_checker import check_ordered
from tests.sim.plan import Config, Plan
from tests.sim.stories import plans, story
from tests.sim.test_ladder_sim import ladders
from tests.sim.test_ordered_sim import ordered
from tests.sim.world import World

TWO = st.just((Config(("orders", "refunds")),))


def told(plan: Plan, check: Callable[[World], None] = check) -> World:
    world = World(plan).run()
    check(world)
    nothing_held_was_delivered(world)
    return world


@story
@given(plans("held", "held", "outage", "revoke", "failing", configs=TWO))
def test_what_is_held_waits_uncounted_and_nothing_waits_once_it_is_let_go(plan: Plan) -> None:
    told(plan)


@story
@given(plans("held", "held", "crash", "lose", "revoke", "refuse", "oversize", "late"))
def test_holds_lose_nothing_whatever_else_goes_wrong(plan: Plan) -> None:
    told(plan)


@story
@given(ordered("held", "held", "revoke", "outage"))
def test_order_lives_through_holds(plan: Plan) -> None:
    told(plan, check_ordered)


@story
@given(ladders("held", "held", "outage", "revoke"))
def test_order_over_long_waits_lives_through_holds(plan: Plan) -> None:
    told(plan, check_ladder)
