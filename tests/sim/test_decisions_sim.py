"""Stories in which an operator decides about waiting records, many at once, while other things go wrong."""

from hypothesis import example, given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import COMMITTED
from reconsume.sidecar.core.progress import Bounds
from reconsume.topics.events import State
from tests.sim.checker import Found, all_is_done, nothing_is_early, nothing_waits_for_ever, the_record_is_as_it_was
from tests.sim.decision_model import (
    by_operator,
    each_decision_acts_once,
    each_decision_ends,
    nothing_decided_was_delivered,
)
from tests.sim.ladder_checker import check_ladder
from tests.sim.plan import Config, Fault, Plan
from tests.sim.service_model import Weights
from tests.sim.stories import plans, story
from tests.sim.test_ladder_sim import ladders
from tests.sim.world import World

SLOW = st.just((Config(table=(1_000, 30_000)),))
"""Levels in which records wait long enough to be decided about."""


TURN_COMES_MEANWHILE = Plan(
    seed=8673,
    records=14,
    sidecars=2,
    partitions=2,
    concurrency=4,
    room=1_048_576,
    retries=1,
    deaths=None,
    killers=(),
    put_off=0,
    failures=None,
    spread=0,
    weights=Weights(ok=2, fail=5, timeout=1, throttle=0, ask=2, reject=0),
    fates=(1, 0, 0),
    faults=(
        Fault("decide", 3_999, 0, 9),
        Fault("decide", 166, 20_000, 4),
        Fault("decide", 500, 3_000, 0),
        Fault("decide", 5_543, 700, 6),
        Fault("decide", 295, 700, 2),
        Fault("decide", 95, 3_000, 5),
        Fault("decide", 20_132, 0, 2),
        Fault("decide", 887, 30, 1),
    ),
    bounds=Bounds(span=2, window=8, far_bytes=40, skip=1),
    stall=2_500,
    lock=20_000,
    configs=(Config(table=(1_000, 30_000)),),
)
"""Records that are settled early come to their turn before they are in Kafka."""


def told(plan: Plan) -> World:
    world = World(plan).run()
    found = Found(world)
    each_decision_acts_once(found)
    nothing_decided_was_delivered(world)
    for origin in world.sent.keys() - found.excused:
        nothing_is_lost_or_counted_twice(found, origin)
        nothing_is_early(found, origin)
        the_record_is_as_it_was(found, origin)
    each_decision_ends(world)
    all_is_done(world)
    nothing_waits_for_ever(world)
    return world


def nothing_is_lost_or_counted_twice(found: Found, origin: str) -> None:
    """The record was taken, is dead, or was called done, once; its retries count 1..k."""
    events = found.events[origin]
    taken = any(delivery.outcome is COMMITTED for delivery in found.deliveries[origin])
    called_done = any(event.state is State.COMMIT and by_operator(event) for event in events)
    assert taken or found.dead[origin] or called_done, f"{origin} is lost"
    ends = [event.state for event in events if event.state in (State.COMMIT, State.DLQ)]
    # A record that a person had tried before it ever failed has no copy that was counted.
    assert len(ends) == (1 if found.copies[origin] or found.dead[origin] else 0), (origin, ends)
    assert len(found.dead[origin]) <= 1, f"{origin} has died twice"
    retried = [event.times for event in events if event.state is State.WAITING_RETRY and not by_operator(event)]
    assert sorted(retried) == list(range(1, len(retried) + 1)), (origin, retried)
    dues = {
        (one.retry_state.times, one.retry_state.due_at) for one in found.copies[origin] if not one.retry_state.settled
    }
    assert sorted(times for times, _ in dues) == list(range(1, len(retried) + 1)), (origin, dues)
    tried = [event.text for event in events if event.state is State.WAITING_RETRY and by_operator(event)]
    copies = {one.retry_state.settled for one in found.copies[origin]} - {""}
    assert set(tried) == copies, (origin, tried, copies)
    for dead in found.dead[origin]:
        assert dead.retry_state.times == len(retried), origin


@story
@example(TURN_COMES_MEANWHILE)
@given(plans("decide", "decide", configs=SLOW))
def test_what_is_decided_is_carried_out_once_and_nothing_else_is_delivered_meanwhile(plan: Plan) -> None:
    told(plan)


@story
@given(plans("decide", "decide", "crash", "lose", "revoke", configs=SLOW, deaths=st.just(None)))
def test_decisions_live_through_kills_between_any_two_steps(plan: Plan) -> None:
    told(plan)


@story
@given(plans("decide", "decide", "crash", "freeze", "join", "late", "held", "outage", configs=SLOW))
def test_decisions_live_through_whatever_else_goes_wrong(plan: Plan) -> None:
    told(plan)


@story
@given(ladders("decide", "decide", "decide", "crash", "lose", "revoke", "join", "outage"), st.booleans())
def test_what_is_decided_about_queues_ends_so_and_keys_go_on(plan: Plan, parks: bool) -> None:
    world = World(plan._replace(parks=parks)).run()
    check_ladder(world)
    each_decision_acts_once(Found(world))
    each_decision_ends(world)


def test_a_story_has_decisions_of_each_kind_in_it() -> None:
    """The checks above mean nothing if nothing is ever settled."""
    faults = tuple(Fault("decide", 2_000 + 3_000 * n, 0, n) for n in range(6))
    weights = Weights(ok=1, fail=8)
    world = told(
        Plan(11, records=60, retries=3, weights=weights, faults=faults, configs=(Config(table=(1_000, 30_000)),))
    )
    found = Found(world)
    states = {event.state for events in found.events.values() for event in events if by_operator(event)}
    assert states == {State.COMMIT, State.DLQ, State.WAITING_RETRY}
    early = [key for key, _ in world.kafka.committed.items()]
    assert early
