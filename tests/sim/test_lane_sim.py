"""Random stories of whole groups on virtual time, each checked from its logs and its ledger alone.

A failure prints the plan, seed included: the same plan tells the same story (`stories.py`).
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.pace.pace import State
from reconsume.sidecar.core.progress import Bounds
from tests.sim.checker import Found, check, repeats
from tests.sim.plan import Config, Fault, Plan
from tests.sim.service_model import Weights
from tests.sim.stories import plans, story
from tests.sim.world import World


@story
@given(plans(fates=st.just((1, 0, 0))))
def test_without_a_fault_each_attempt_is_delivered_exactly_once(plan: Plan) -> None:
    world = World(plan).run()
    check(world)
    found = Found(world)
    assert not any(repeats(found, origin) for origin in world.sent)
    attempts = sum(1 + len(found.copies[origin]) for origin in world.sent)
    hops = sum(host.lane.counters.hops for process in world.processes for host in process.hosts.values())
    assert len(world.service.ledger) - world.throttled == attempts - hops


@story
@given(plans("outage", "failing"))
def test_a_service_that_is_away_or_fails_everything_costs_no_second_attempt(plan: Plan) -> None:
    world = World(plan).run()
    check(world)
    found = Found(world)
    assert not any(repeats(found, origin) for origin in world.sent)


@story
@given(plans("revoke", "outage", "failing", "step"))
def test_partitions_that_are_given_up_in_order_repeat_nothing_and_lose_nothing(plan: Plan) -> None:
    check(World(plan).run())


@story
@given(plans("crash", "lose", "revoke"))
def test_crashes_and_lost_partitions_lose_nothing_and_count_nothing_twice(plan: Plan) -> None:
    check(World(plan).run())


@story
@given(plans("refuse", "oversize", "revoke"))
def test_what_kafka_refuses_for_a_while_is_written_once_in_the_end(plan: Plan) -> None:
    check(World(plan).run())


@story
@given(plans("crash", "lose", "revoke", "outage", "failing", "step", "refuse", "oversize", "late"))
def test_all_of_it_at_once(plan: Plan) -> None:
    check(World(plan).run())


def test_a_record_that_is_kept_for_suspects_gives_way_where_it_leaves_no_room_to_read_them() -> None:
    """After a crash one record goes at a time, and is asked to wait three times; those behind it were let go."""
    faults = (
        Fault("refuse", 2_087, 20_000, 4),
        Fault("crash", 285, 20_000, 2),
        Fault("outage", 13_231, 30, 6),
        Fault("refuse", 954, 30, 6),
        Fault("oversize", 14_457, 20_000, 5),
    )
    weights = Weights(ok=7, fail=3, timeout=1, throttle=2, ask=1)
    levels = (Config(("orders",), (1_000, 5_000, 10_000), "pulsar"),)
    story = Plan(
        117, 17, 3, 1, concurrency=4, room=1, retries=0, deaths=1, weights=weights, fates=(1, 0, 0), faults=faults,
        stall=30, lock=20_000, configs=levels, spread=0,
    )  # fmt: skip
    check(World(story).run())


def test_a_record_that_is_kept_for_suspects_gives_way_where_its_share_of_the_room_is_too_small_for_them() -> None:
    """The same with room in the lane: the record is most of what its partition may have while others have records."""
    joins = (Fault("join", at, lasts, whom) for at, lasts, whom in ((675, 700, 5), (2, 30, 9), (675, 700, 5)))
    faults = (Fault("crash", 8_751, 3_000, 5), Fault("recreate", 14_543, 3_000, 6), *joins)
    weights = Weights(ok=3, fail=4, timeout=1, throttle=1, ask=1, reject=0)
    levels = (Config(("orders",), (1_000, 5_000, 10_000), "pulsar"),)
    story = Plan(
        2**32 - 1, 24, 1, 2, concurrency=16, room=4_000, retries=0, deaths=1, weights=weights, fates=(2, 1, 1),
        faults=faults, stall=2_500, lock=20_000, configs=levels, spread=0,
    )  # fmt: skip
    check(World(story).run())


def test_the_same_plan_tells_the_same_story() -> None:
    plan = Plan(7, weights=Weights(throttle=1), fates=(2, 1, 1), faults=(Fault("crash", 900, 700, 0),))
    first, second = World(plan).run(), World(plan).run()
    assert first.service.ledger == second.service.ledger
    assert first.kafka.committed == second.kafka.committed


def test_a_story_has_retries_dead_letters_and_hops_in_it() -> None:
    """The checks above mean nothing if nothing ever happens."""
    world = World(Plan(3, records=60, retries=1, weights=Weights(ok=2, fail=4, ask=4))).run()
    check(world)
    found = Found(world)
    assert sum(map(len, found.copies.values())) > 20
    assert sum(map(len, found.dead.values())) > 5
    assert sum(host.lane.counters.hops for process in world.processes for host in process.hosts.values()) > 2


@pytest.mark.parametrize("seed", range(3))
def test_with_a_free_service_a_due_record_is_delivered_within_moments(seed: int) -> None:
    world = World(Plan(seed, records=40, concurrency=200, weights=Weights(ok=2, fail=3))).run()
    late = [
        d.wall - max(d.record.retry_state.due_at, 0) for d in world.service.ledger if d.record.retry_state is not None
    ]
    assert late
    assert max(late) < 250  # ms: a commit, a fetch and a hand-over of this model, never a second of parking


def test_a_story_has_outages_by_failures_in_it() -> None:
    """Given a service that fails everything for 20 s, then what is out when it is noticed costs a retry, and then one
    record a second does."""
    faults = (Fault("failing", 500, 20_000, 0),)
    plan = Plan(5, records=200, retries=4, failures=8, weights=Weights(fail=0), faults=faults, deaths=None)
    world = World(plan).run()
    check(world)
    found = Found(world)
    (process,) = world.processes
    assert process.gate.pace.changes[State.PROBING] > 5  # each probe that fails
    assert process.gate.pace.state is State.OPEN
    assert 20 <= sum(map(len, found.copies.values())) <= 8 + 3 + 20 + 4
    assert not any(found.dead.values())


@pytest.mark.parametrize("bounds", [Bounds(), Bounds(3, 2, 4, skip=2)])
@pytest.mark.parametrize("seed", [9234, 9237])
def test_records_that_were_let_go_come_again_although_copies_that_wait_for_them_fill_the_lane(
    seed: int, bounds: Bounds
) -> None:
    """Given room for one record, then a lower record that was let go for another flow fits in again."""
    weights = Weights(ok=5, fail=3, timeout=1, throttle=1, ask=0, reject=1)
    ends = {"retries": 4, "deaths": 3, "failures": 3, "killers": (), "put_off": 0}
    plan = Plan(seed, 26, 1, 2, concurrency=1, room=1, spread=3_000, weights=weights, **ends, lock=3_000)
    check(World(plan._replace(bounds=bounds, stall=2_500)).run())
