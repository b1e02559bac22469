"""Two kinds of lane live the same stories, and each record has the same attempts, copies, events and end in both.

The worlds differ in their lanes alone (`two_worlds.py`). What is compared, and what moments decide, is in
`record_histories.py`. A failure prints the plan: the same plan has the same story. The stories' checks hold in both
worlds too. `make lock-step [EXAMPLES=20000]` runs long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from reconsume.sidecar.core.commit_batch import CommitBatch, SettledRecord
from reconsume.sidecar.core.outcome import Failed, Outcome, Throttled
from reconsume.sidecar.core.ports import Ports, Reply
from reconsume.sidecar.core.record import Now, Record
from reconsume.topics.transition_records import Copy
from tests.sim.checker import check, rested
from tests.sim.hold_model import nothing_held_was_delivered
from tests.sim.ladder_checker import check_ladder, check_order_alone, check_what_is_left
from tests.sim.lane_view import MakeLane, lane_of
from tests.sim.order_checker import check_ordered
from tests.sim.plan import Fault, Plan
from tests.sim.record_histories import Difference, differences, kinds_of
from tests.sim.service_model import Weights
from tests.sim.stories import MAINS, ROLLOUTS, SKEWS, plans, story
from tests.sim.test_group_sim import PODS as MOVED
from tests.sim.test_killer_sim import plans as killers
from tests.sim.test_ladder_changes_sim import LADDERS
from tests.sim.test_ladder_sim import PODS, RENEWALS, WITH, WITHOUT, ladders
from tests.sim.test_ordered_sim import ordered
from tests.sim.test_rates_sim import LIMITED
from tests.sim.two_worlds import run_both
from tests.sim.world import World

OLD = lane_of("old")
NEW = lane_of("next") if find_spec("reconsume.sidecar.core.next") else OLD


MOMENTS_MS = 1_000
"""By how much a story must end later or sooner in one of its worlds to be counted."""


class Known(NamedTuple):
    """A difference that has a name. `covers`: whether one that was found in a plan is this one. `story`: an example."""

    fault_of: str
    """Whose fault it is: `old`, `new`; or `neither`, with the reason in `why`."""
    why: str
    covers: Callable[[Plan, Difference], bool]
    story: Plan


KNOWN: dict[str, Known] = {}
"""By name. A fault of the new lane is mended, and its story stays in the tests of the lane."""


def unnamed(plan: Plan, found: list[Difference]) -> list[Difference]:
    """The differences that have no name."""
    return [one for one in found if not any(known.covers(plan, one) for known in KNOWN.values())]


def check_story(world: World) -> None:
    """What the stories of this kind promise, whatever the kind of lane."""
    plan, kinds = world.plan, kinds_of(world.plan)
    if kinds & {"cutqueue", "renewqueue"}:
        check_what_is_left(world)
    elif "forget" in kinds or any(config.in_place for config in plan.configs):
        check_order_alone(world, kept="forget" not in kinds)
    elif plan.queued:
        check_ladder(world)
    elif plan.order is not None:
        check_ordered(world)
    else:
        check(world)
    if not plan.queued or kinds & {"held"}:
        nothing_held_was_delivered(world)


LADDERS_CHANGE = st.builds(
    lambda plan, configs: plan._replace(configs=tuple(configs), retries=4),
    ladders("rollout", "rollout", "revoke", "crash", "freeze", "outage"),
    st.lists(LADDERS, min_size=2, max_size=3),
)
LADDERS_COME_AND_GO = st.builds(
    lambda plan, configs, tries: plan._replace(configs=configs, tries=tries, deaths=None, failures=None),
    ladders("rollout", "rollout", "revoke", "crash", "outage"),
    st.sampled_from([(WITH, WITHOUT), (WITHOUT, WITH), (WITH, WITHOUT, WITH)]),
    st.sampled_from([None, 3]),
)
LONG_QUEUES = st.builds(
    lambda plan, most, span, made_at: plan._replace(most_waiting=most, hop_span=span, queue_made_at=made_at),
    ladders("outage", "failing", "revoke", "crash", "freeze"),
    st.sampled_from([1, 4, 20_000]),
    st.sampled_from([1, 3, 8, 8_192]),
    st.sampled_from([0, 0, 0, 1_000, 20_000]),
)
BY_HAND = st.builds(
    lambda plan, parks: plan._replace(parks=parks),
    ladders("settle", "settle", "settle", "crash", "lose", "revoke", "join", "outage"),
    st.booleans(),
)
LOST_QUEUES = st.builds(
    lambda plan, renewals: plan._replace(deaths=None, faults=(*plan.faults, *renewals)),
    ladders("revoke", "join", "crash", "freeze", "outage"),
    st.lists(RENEWALS, min_size=1, max_size=2),
)
CUT_QUEUES = ladders("cutqueue", "cutqueue", "revoke", "join", "crash", "freeze", "outage").map(
    lambda plan: plan._replace(deaths=None)
)
KILLERS_IN_QUEUES = st.builds(
    lambda plan, order: plan._replace(order=order, queued=order is not None),
    killers(),
    st.sampled_from([None, "key", "partition"]),
)
STORIES: dict[str, st.SearchStrategy[Plan]] = {
    "calm": st.one_of(plans(), plans("outage", "failing")),
    "released": plans("revoke", "outage", "failing", "step"),
    "crashed and refused": plans(
        *("crash", "lose", "revoke", "outage", "failing", "step", "refuse", "oversize", "late")
    ),
    "refused": plans("refuse", "oversize", "unled", "underreplicated", "hang", "slowness"),
    "calm in order": ordered("outage"),
    "in order": ordered("crash", "lose", "revoke", "outage", "refuse", "oversize"),
    "calm queues": ladders("outage"),
    "queues of pods": ladders("outage", "failing", "hang", "slowness", "hold", "late", *PODS),
    "refused queues": ladders("refuse", "oversize", "unled", "underreplicated", "revoke", "crash"),
    "long and late queues": LONG_QUEUES,
    "settled queues": BY_HAND,
    "lost queues": st.one_of(CUT_QUEUES, LOST_QUEUES),
    "forgotten queues": ladders("forget", "forget", "revoke", "crash", "join").map(
        lambda plan: plan._replace(deaths=None)
    ),
    "changed queues": st.one_of(LADDERS_CHANGE, LADDERS_COME_AND_GO, ladders("grow", "grow", *MOVED)),
    "held": plans("held", "held", "crash", "lose", "revoke", "refuse", "oversize", "late", "failing"),
    "held in order": st.one_of(
        ordered("held", "held", "revoke", "outage"), ladders("held", "held", "outage", "revoke")
    ),
    "limited": plans("revoke", "outage", "failing", "step", **LIMITED),
    "killed": st.one_of(killers(), killers("crash", "lose", "revoke", "outage", "refuse", "oversize")),
    "killed in order": KILLERS_IN_QUEUES,
    "rolled out": st.one_of(
        plans("rollout", "rollout", *MOVED, configs=ROLLOUTS), plans("rollout", "revoke", "crash", configs=MAINS)
    ),
    "broken logs": plans("cut", "truncate", "recreate", "unled", "unreach", "grow", *MOVED),
    "skewed": plans("revoke", "join", "crash", "outage", "outside", skews=SKEWS),
    "held back": plans("hold", "hold", "slowness", "recreate", "outside", *MOVED, forgetful=st.booleans()),
}


@pytest.mark.parametrize("kind", STORIES)
def test_both_lanes_do_the_same_to_each_record(kind: str) -> None:
    """Neither is late more often than the other: in one story moments decide, but not in all."""
    rests = Counter[str]()

    @story
    @given(plan=STORIES[kind])
    def tell(plan: Plan) -> None:
        old, new = run_both(plan, OLD, NEW)
        for world, whose in ((old, "old"), (new, "new")):
            try:
                check_story(world)
            except AssertionError as failure:
                failure.add_note(f"in the world of the {whose} lane")
                raise
        assert unnamed(plan, differences(old, new)) == []
        later_ms = rested(new) - rested(old)
        rests["later"] += later_ms > MOMENTS_MS
        rests["sooner"] += later_ms < -MOMENTS_MS

    tell()
    assert rests["later"] <= 2 * rests["sooner"] + 10, rests


def test_each_known_difference_is_still_there() -> None:
    """One that is gone leaves the table."""
    for name, known in KNOWN.items():
        assert any(known.covers(known.story, one) for one in differences(*run_both(known.story, OLD, NEW))), name


# --- what the comparison finds, and what it does not take for a difference --------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", STORIES)
@story
@given(data=st.data())
def test_the_same_lane_at_other_moments_does_the_same_to_each_record(kind: str, data: st.DataObject) -> None:
    """Every delay, and whatever else two kinds of lane may do at another time, is another one in the second world."""
    plan = data.draw(STORIES[kind])
    assert differences(*run_both(plan, OLD, OLD, moments=1)) == []


def test_two_worlds_of_one_lane_are_the_same_in_every_moment() -> None:
    faults = (Fault("crash", 900, 700, 0), Fault("failing", 300, 700, 0), Fault("refuse", 1_500, 700, 1))
    one, other = run_both(BUSY._replace(faults=faults, fates=(2, 1, 1)), OLD, OLD)
    assert one.service.ledger == other.service.ledger
    assert one.kafka.committed == other.kafka.committed


LEVELS = ("billing-RETRY", "billing-RETRY-1s", "billing-RETRY-5s", "billing-RETRY-10s")
BUSY = Plan(3, records=60, retries=1, weights=Weights(ok=2, fail=4, ask=4, throttle=2, reject=1), deaths=None)


def committing(change: Callable[[SettledRecord], SettledRecord]) -> MakeLane:
    """A lane that commits something else than it has decided."""

    def made(batch: CommitBatch) -> CommitBatch:
        return replace(batch, entries=tuple(map(change, batch.entries)))

    return with_ports(lambda ports: ports._replace(commit=lambda batch: ports.commit(made(batch))))


def hearing(change: Callable[[Outcome], Outcome]) -> MakeLane:
    """A lane that decides by another outcome than the service's."""

    def deliver_by(ports: Ports) -> Callable[[Record, Reply], None]:
        def deliver(record: Record, reply: Reply) -> None:
            def answered(record: Record, outcome: Outcome, now: Now) -> None:
                reply(record, change(outcome), now)

            ports.deliver(record, answered)

        return deliver

    return with_ports(lambda ports: ports._replace(deliver=deliver_by(ports)))


def twice(ports: Ports) -> Ports:
    """Ports that deliver each record twice."""

    def deliver(record: Record, reply: Reply) -> None:
        ports.deliver(record, reply)
        ports.deliver(record, lambda record, outcome, now: None)

    return ports._replace(deliver=deliver)


def with_ports(change: Callable[[Ports], Ports]) -> MakeLane:
    return lambda policy, waits, ports, *rest: OLD(policy, waits, change(ports), *rest)


def with_copy(change: Callable[[Copy], Copy]) -> Callable[[SettledRecord], SettledRecord]:
    """What changes the copy of each record that is retried."""

    def of(entry: SettledRecord) -> SettledRecord:
        copies = [change(copy) if copy.topic in LEVELS else copy for copy in entry.writes[:1]]
        return entry._replace(writes=(*copies, *entry.writes[1:]))

    return of


def later_by(ms: int) -> Callable[[Copy], Copy]:
    def of(copy: Copy) -> Copy:
        headers = [
            (name, b"%d" % (int(value) + ms) if name == "RETRY_DUE_AT" and value is not None else value)
            for name, value in copy.headers
        ]
        return changed(copy, headers=headers)

    return of


BROKEN: dict[str, tuple[MakeLane, set[str]]] = {
    "decides by another limit": (
        lambda policy, *rest: OLD(changed(policy, max_reconsume_times=2), *rest),
        {"attempts", "copies", "events"},
    ),
    "takes a wait for a failure": (
        hearing(lambda one: Failed("throttled") if isinstance(one, Throttled) else one),
        {"attempts", "copies", "events"},
    ),
    "loses what was asked": (
        hearing(lambda one: Failed("retry-asked") if isinstance(one, Failed) else one),
        {"copies", "events"},
    ),
    "delivers twice": (with_ports(twice), {"attempts"}),
    "drops a copy": (
        committing(lambda entry: entry._replace(writes=entry.writes[1:]) if len(entry.writes) > 1 else entry),
        {"copies", "end"},
    ),
    "drops an event": (committing(lambda entry: entry._replace(writes=entry.writes[:1])), {"events"}),
    "is due a millisecond late": (committing(with_copy(later_by(1))), {"copies"}),
    "writes to another level": (
        committing(with_copy(lambda copy: changed(copy, topic="billing-RETRY-10s"))),
        {"copies"},
    ),
}
"""Lanes that break a promise, and the parts in which that shows at least."""


@pytest.mark.parametrize("what", BROKEN)
def test_a_lane_that_breaks_a_promise_is_found_by_the_comparison_alone(what: str) -> None:
    broken, parts = BROKEN[what]
    assert parts <= {one.part for one in differences(*run_both(BUSY, OLD, broken))}
