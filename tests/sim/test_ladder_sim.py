"""Random stories of groups whose order survives long waits: what fails waits in the queue, what follows behind it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.lane.key_queues import OrderBy
from tests.sim.ladder_checker import check_ladder, waits
from tests.sim.plan import Fault, Plan
from tests.sim.service_model import Weights
from tests.sim.stories import plans, story
from tests.sim.world import World

PODS = ("crash", "crash", "lose", "revoke", "join", "freeze", "outside")


def ladders(*kinds: str) -> st.SearchStrategy[Plan]:
    """Plans as for every group, ordered, with a queue."""

    def of(plan: Plan, order: OrderBy, failures: int | None) -> Plan:
        return plan._replace(order=order, queued=True, deaths=None, failures=failures)

    orders: st.SearchStrategy[OrderBy] = st.sampled_from(["key", "key", "partition"])
    return st.builds(of, plans(*kinds), orders, st.sampled_from([None, 8]))


@story
@given(ladders("outage"))
def test_what_follows_a_failing_record_waits_behind_it(plan: Plan) -> None:
    check_ladder(World(plan).run())


@story
@given(ladders("revoke", "join", "outage", "hang"))
def test_a_new_owner_knows_what_waits(plan: Plan) -> None:
    check_ladder(World(plan).run())


@story
@given(ladders("outage", "failing", "hang", "slowness", "hold", "late", *PODS))
def test_order_is_kept_over_whatever_happens_to_pods(plan: Plan) -> None:
    check_ladder(World(plan).run())


@story
@given(ladders("refuse", "oversize", "unled", "underreplicated", "revoke", "crash"))
def test_order_is_kept_while_kafka_refuses_copies(plan: Plan) -> None:
    check_ladder(World(plan).run())


@pytest.mark.parametrize("order", ["key", "partition"])
def test_a_story_with_a_ladder_has_records_behind_others_in_it(order: OrderBy) -> None:
    """The checks above mean nothing if nothing ever happens."""
    faults = (Fault("crash", 4_000, 700, 0), Fault("revoke", 9_000, 700, 1))
    weights = Weights(ok=2, fail=3)
    plan = Plan(3, records=60, sidecars=2, order=order, queued=True, weights=weights, faults=faults, deaths=None)
    world = World(plan).run()
    check_ladder(world)
    found = waits(world)
    assert found["behind"] > 10
    assert found["failed"] > 20
