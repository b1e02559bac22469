"""Random stories of ordered groups: failures, crashes, rebalances and outages, and no record ever overtakes another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.order import OrderBy
from tests.sim.order_checker import check_ordered, overtakers, tries
from tests.sim.plan import Fault, Plan
from tests.sim.service_model import Weights
from tests.sim.stories import plans, story
from tests.sim.world import World


def ordered(*kinds: str) -> st.SearchStrategy[Plan]:
    """Plans as for every group, ordered."""

    def of(plan: Plan, order: OrderBy, tries: int | None) -> Plan:
        return plan._replace(order=order, tries=tries, failures=None)

    orders: st.SearchStrategy[OrderBy] = st.sampled_from(["key", "partition"])
    return st.builds(of, plans(*kinds), orders, st.sampled_from([None, 0, 1, 3]))


@story
@given(ordered("outage"))
def test_records_of_a_line_go_one_by_one(plan: Plan) -> None:
    check_ordered(World(plan).run())


@story
@given(ordered("revoke", "outage"))
def test_order_is_kept_over_rebalances(plan: Plan) -> None:
    check_ordered(World(plan).run())


@story
@given(ordered("crash", "lose", "revoke", "outage", "refuse", "oversize"))
def test_order_is_kept_whatever_goes_wrong(plan: Plan) -> None:
    check_ordered(World(plan).run())


@pytest.mark.parametrize("order", ["key", "partition"])
def test_an_ordered_story_has_retries_and_dead_letters_in_it(order: OrderBy) -> None:
    """The checks above mean nothing if nothing ever happens."""
    faults = (Fault("crash", 4_000, 700, 0), Fault("revoke", 9_000, 700, 1))
    weights = Weights(ok=2, fail=3)
    plan = Plan(3, records=60, sidecars=2, order=order, tries=3, weights=weights, faults=faults, deaths=None)
    world = World(plan).run()
    check_ordered(world)
    found = tries(world)
    assert found[1] > 20
    assert found[3] > 5
    assert overtakers(world) > 5 if order == "key" else overtakers(world) == 0


class WithoutLines(World):
    """A world whose lanes keep no order, although its plan and so its checks do."""

    order = None


def test_without_lines_the_same_story_is_out_of_order() -> None:
    """What takes the protection away must be seen by the checks."""
    world = WithoutLines(Plan(3, records=60, order="key", weights=Weights(ok=2, fail=3)))
    with pytest.raises(AssertionError, match=r"overtook|out together"):
        check_ordered(world.run())
