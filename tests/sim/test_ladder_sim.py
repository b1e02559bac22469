"""Random stories of groups whose order survives long waits: what fails waits in the queue, what follows behind it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.progress import Bounds
from tests.sim.checker import Found, quarantined
from tests.sim.ladder_checker import check_ladder, check_order_alone, check_what_is_left, taken, waits
from tests.sim.plan import Config, Fault, Plan
from tests.sim.service_model import Weights
from tests.sim.stories import LASTS, plans, story
from tests.sim.world import World

PODS = ("crash", "crash", "lose", "revoke", "join", "freeze", "outside")


def ladders(*kinds: str) -> st.SearchStrategy[Plan]:
    """Plans as for every group, ordered, with a queue."""

    def of(plan: Plan, order: OrderBy, failures: int | None) -> Plan:
        return plan._replace(order=order, queued=True, failures=failures)

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


CLEARED_AND_IN_THE_WAY = Plan(
    seed=26436301,
    records=24,
    partitions=1,
    room=4_000,
    retries=0,
    deaths=1,
    weights=Weights(ok=1, fail=0, timeout=1, throttle=4, ask=1),
    faults=(
        Fault("refuse", 9_195, 0, 0),
        Fault("crash", 820, 3_000, 0),
        Fault("unled", 11_821, 20_000, 0),
        Fault("refuse", 16_002, 30, 0),
    ),
    order="key",
    queued=True,
)
"""After a crash a record is throttled until it is cleared, and fills the share of its partition: the suspect that is
awaited could not be read again, and the partition stood for ever."""


@story
@example(CLEARED_AND_IN_THE_WAY)
@given(ladders("refuse", "oversize", "unled", "underreplicated", "revoke", "crash"))
def test_order_is_kept_while_kafka_refuses_copies(plan: Plan) -> None:
    check_ladder(World(plan).run())


FAILS = Weights(ok=1, fail=2)
OVERTAKEN = Plan(1112, sidecars=2, partitions=1, concurrency=1, spread=15_000, weights=FAILS, fates=(1, 2, 2))
"""Records of its queue are read before the one that kills, and were not with the service when it died."""


TWO_KILLERS = Plan(
    8_256_553,
    sidecars=1,
    partitions=2,
    concurrency=1,
    deaths=1,
    spread=0,
    weights=Weights(ok=8, fail=5, timeout=1, throttle=4),
    order="key",
    queued=True,
    configs=(Config(table=(1_000, 5_000, 10_000)),),
    lock=20_000,
    stall=2_500,
)
"""Each of two was read before the other after the crash of that one, and hid it: they cost eleven processes."""


@story
@example(OVERTAKEN._replace(order="key", queued=True), 3, [(22, 1)])
@example(TWO_KILLERS, 1, [(1, 1), (16, 1)])
@given(ladders(), st.integers(1, 4), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=2))
def test_a_record_that_kills_when_it_comes_from_the_queue_is_found(
    plan: Plan, deaths: int, killers: list[tuple[int, int]]
) -> None:
    """It fails a few times, waits in the queue, and then kills each process that delivers it until it is dead."""
    weights = plan.weights._replace(timeout=0, ask=0, reject=0)
    plan = plan._replace(deaths=deaths, killers=tuple(killers), retries=3, records=40, weights=weights, failures=None)
    world = World(plan._replace(bounds=Bounds())).run()
    check_ladder(world)
    found = Found(world)
    assert {origin for origin in world.sent if quarantined(found, origin)} == world.deaths.keys()
    # Each other killer may hide this one twice: where it lies in the main topic, and in the queue. Alone, it may cost
    # one more where what goes before it was throttled until time had cleared them all.
    assert all(count <= deaths + 2 * len(world.deaths) for count in world.deaths.values()), world.deaths


MUCH_IS_DUE_FAR_APART = Plan(
    seed=1142,
    records=30,
    sidecars=3,
    partitions=1,
    concurrency=1,
    retries=2,
    deaths=None,
    weights=Weights(ok=2, fail=7, timeout=2, throttle=0, ask=4),
    faults=(Fault("freeze", 91, 0, 0),),
    bounds=Bounds(span=2, window=8, far_bytes=40, skip=1),
    order="key",
    queued=True,
    stall=2_500,
    lock=3_000,
    configs=(Config(topics=("orders",), table=(1_000, 5_000, 10_000), ladder="pulsar"),),
)
"""All is due, and one that lies out of reach was the first: what could have gone out hopped in turn, for ever."""


@story
@example(MUCH_IS_DUE_FAR_APART, 4, 1)
@given(
    ladders("outage", "failing", "revoke", "crash", "freeze"),
    st.sampled_from([1, 4, 20_000]),
    st.sampled_from([1, 3, 8, 8_192]),
)
def test_a_queue_that_is_full_or_long_goes_on(plan: Plan, most_waiting: int, hop_span: int) -> None:
    """As much waits as may, so main partitions pause; what lies first in a long queue is written again at its end."""
    check_ladder(World(plan._replace(most_waiting=most_waiting, hop_span=hop_span)).run())


@story
@given(ladders("settle", "settle", "settle", "crash", "lose", "revoke", "join", "outage"), st.booleans())
def test_what_a_person_settles_ends_so_and_its_key_goes_on(plan: Plan, parks: bool) -> None:
    """Records are settled wherever they wait, under kills and rebalances; in the end each that is parked."""
    check_ladder(World(plan._replace(parks=parks)).run())


@story
@given(ladders("revoke", "join", "crash", "freeze", "outage"), st.sampled_from([1_000, 5_300, 20_000, 60_000]))
def test_while_a_queue_is_missing_only_the_keys_that_fail_wait(plan: Plan, made_at: int) -> None:
    """The others are done before it is made; then all is as if it had ever been there."""
    check_ladder(World(plan._replace(queue_made_at=made_at)).run())


@story
@given(ladders("forget", "forget", "revoke", "crash", "join"))
def test_order_is_kept_where_the_progress_beside_a_queue_is_lost(plan: Plan) -> None:
    """What was done is delivered again, and what waits is not delivered from the main topic."""
    check_order_alone(World(plan._replace(deaths=None)).run(), kept=False)


BEHIND_WHAT_IS_GONE = Plan(
    *(145526945, 20, 3, 1, 4),
    room=4_000,
    deaths=None,
    spread=0,
    weights=Weights(ok=4, fail=6, ask=3),
    fates=(8, 1, 1),
    faults=(
        Fault("join", 83, 3_000, 8),
        Fault("join", 181, 3_000, 9),
        Fault("crash", 487, 3_000, 9),
        Fault("cutqueue", 702, 3_000, 5),
    ),
    order="key",
    queued=True,
    configs=(Config(table=(1_000, 5_000, 10_000)),),
)
"""Nothing else happens any more once the loss of a copy is sure, behind which others wait."""


@story
@example(BEHIND_WHAT_IS_GONE)
@given(ladders("cutqueue", "cutqueue", "revoke", "join", "crash", "freeze", "outage"))
def test_of_a_queue_that_is_cut_only_what_is_gone_is_lost(plan: Plan) -> None:
    check_what_is_left(World(plan._replace(deaths=None)).run())


RENEWALS = st.builds(Fault, st.just("renewqueue"), st.integers(500, 20_000), LASTS, st.integers(0, 9))
KEPT_AS_DONE = Plan(
    *(955258589, 17, 2, 2, 1),
    retries=2,
    deaths=None,
    weights=Weights(ok=6, fail=5),
    faults=(Fault("renewqueue", 4_462, 0, 1), Fault("renewqueue", 7_837, 700, 4)),
    lock=20_000,
    order="key",
    queued=True,
)
"""The last owner of a former log says what was done in it, and the present log is empty when its next owner begins."""


BEFORE_IT_IS_READ = Plan(
    *(85938, 26, 1, 2, 4),
    retries=2,
    deaths=None,
    spread=15_000,
    weights=Weights(ok=4, fail=0, ask=1),
    faults=(
        Fault("crash", 0, 20_000, 4),
        Fault("freeze", 0, 0, 6),
        Fault("crash", 12_703, 700, 7),
        Fault("crash", 88, 30, 9),
        Fault("revoke", 650, 30, 5),
        Fault("revoke", 155, 700, 8),
        Fault("outage", 62, 30, 9),
        Fault("outage", 322, 30, 5),
    ),
    bounds=Bounds(3, 2, 4, skip=2),
    order="key",
    queued=True,
    lock=20_000,
)
"""The first copy of the former log is known and not read when the next one is the first of the present log."""


@story
@example(KEPT_AS_DONE, [])
@example(BEFORE_IT_IS_READ, [Fault("renewqueue", 500, 3_000, 7)])
@given(ladders("revoke", "join", "crash", "freeze", "outage"), st.lists(RENEWALS, min_size=1, max_size=3))
def test_of_a_queue_that_is_made_anew_only_what_waited_in_the_former_one_is_lost(
    plan: Plan, renewals: list[Fault]
) -> None:
    """With as many partitions, more or fewer; while it is owned or not; before what was written is read."""
    check_what_is_left(World(plan._replace(deaths=None, faults=(*plan.faults, *renewals))).run())


def test_a_story_of_a_queue_that_is_made_anew_loses_what_waited_in_it_and_ends_processes() -> None:
    """The check above means nothing if nothing is ever lost."""
    world = World(KEPT_AS_DONE).run()
    check_what_is_left(world)
    found = Found(world)
    assert any(not taken(found, origin) and not found.dead[origin] for origin in world.sent)
    assert {process.name for process in world.processes}.isdisjoint({"billing-0", "billing-1"})


def test_a_story_of_a_queue_that_is_cut_loses_what_waited_in_it() -> None:
    """The check above means nothing if nothing is ever lost."""
    faults = (Fault("cutqueue", 3_000, 0, 0), Fault("cutqueue", 6_000, 0, 1))
    plan = Plan(2, records=30, sidecars=2, order="key", queued=True, deaths=None, faults=faults)
    world = World(plan).run()
    check_what_is_left(world)
    found = Found(world)
    assert any(not taken(found, origin) and not found.dead[origin] for origin in world.sent)


WITH, WITHOUT = Config(), Config(in_place=True)


@story
@given(
    ladders("rollout", "rollout", "revoke", "crash", "outage"),
    st.sampled_from([(WITH, WITHOUT), (WITHOUT, WITH), (WITH, WITHOUT, WITH)]),
    st.sampled_from([None, 3]),
)
def test_a_rollout_that_ends_or_begins_the_ladder_keeps_the_order(
    plan: Plan, configs: tuple[Config, ...], tries: int | None
) -> None:
    check_order_alone(World(plan._replace(configs=configs, tries=tries, deaths=None, failures=None)).run())


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
    parked = World(plan._replace(parks=True, retries=1)).run()
    check_ladder(parked)
    assert len(parked.deciding.made) > 5
    assert found["failed"] > 20
