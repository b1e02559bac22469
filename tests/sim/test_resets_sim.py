"""Stories in which an operator resets positions, at any time, while other things go wrong."""

from hypothesis import given
from hypothesis import strategies as st

from tests.sim.plan import Fault, Plan
from tests.sim.reset_checker import by_reset, check_ordered_resets, check_resets
from tests.sim.service_model import Weights
from tests.sim.stories import plans, story
from tests.sim.test_ladder_sim import ladders
from tests.sim.world import World

FAILING = st.just(Weights(ok=3, fail=4, timeout=0, throttle=1, ask=1, reject=1))


def told(plan: Plan) -> World:
    world = World(plan).run()
    check_resets(world)
    return world


def test_a_story_with_a_reset_delivers_its_range_again_in_a_new_cycle() -> None:
    """The checks mean nothing if nothing ever happens."""
    faults = (Fault("reset", 9_000, 0, 0), Fault("reset", 15_000, 0, 0))
    world = told(Plan(3, records=60, partitions=1, weights=Weights(ok=2, fail=4), retries=2, faults=faults))
    assert [move.made.cycle for move in world.resetting.moved if move.made] == [1, 2]
    again = [delivery for delivery in world.service.ledger if delivery.record.cycle]
    assert len(again) > 20


@story
@given(plans("reset", "reset", "outage", "revoke", "failing", weights=FAILING))
def test_every_record_of_a_range_is_delivered_in_its_new_cycle_and_no_other(plan: Plan) -> None:
    told(plan)


@story
@given(plans("reset", "reset", "crash", "crash", "revoke", "join", "refuse", weights=FAILING))
def test_resets_take_effect_once_whoever_is_killed_meanwhile(plan: Plan) -> None:
    told(plan)


@story
@given(plans("reset", "skip", "crash", "revoke", "join", weights=FAILING))
def test_a_reset_forwards_skips_what_it_names_and_nothing_else(plan: Plan) -> None:
    told(plan)


@story
@given(ladders("reset", "reset", "outage", "revoke", "crash", "join"))
def test_order_over_long_waits_lives_through_resets(plan: Plan) -> None:
    world = World(plan).run()
    check_ordered_resets(world)


def test_a_story_with_a_ladder_has_copies_in_it_that_a_reset_supersedes() -> None:
    faults = (Fault("reset", 6_000, 0, 0), Fault("reset", 9_000, 0, 0))
    weights = Weights(ok=1, fail=3)
    plan = Plan(11, records=40, partitions=1, order="key", queued=True, retries=4, weights=weights, faults=faults)
    world = World(plan).run()
    check_ordered_resets(world)
    assert by_reset(world) > 5
