"""Rates and limits of topics in whole groups on virtual time: nothing waits for ever, and no limit is passed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.pace.rates import TopicTerms
from reconsume.topics.rates import Rate
from tests.sim.checker import check
from tests.sim.plan import Config, Plan
from tests.sim.stories import plans, story
from tests.sim.world import World

RATES = st.builds(Rate, st.sampled_from([1, 5, 20]), st.just(1_000))
TERMS = st.builds(TopicTerms, st.sampled_from([None, 1, 2]), st.one_of(st.none(), RATES))
BOTH = (Config(("orders", "refunds")),)
LIMITED = {
    "configs": st.just(BOTH),
    "rate": st.one_of(st.none(), RATES),
    "terms": TERMS.map(lambda terms: (("orders", terms),)),
}


def went(world: World, topic: str | None = None) -> list[int]:
    """When the records of a main topic, or of all, were delivered."""
    return [one.at for one in world.service.ledger if topic is None or one.record.main_topic == topic]


@story
@given(plans("revoke", "outage", "failing", "step", sidecars=st.just(1), **LIMITED))
def test_one_instance_keeps_each_rate_and_gets_all_done(plan: Plan) -> None:
    world = World(plan).run()
    check(world)
    for rate, times in ((plan.rate, went(world)), (plan.terms[0][1].rate, went(world, "orders"))):
        if rate is not None and times:
            assert len(times) <= (max(times) - min(times)) * rate.count // 1_000 + rate.count + 1


@story
@given(plans("crash", "lose", "revoke", "outage", "failing", "refuse", "late", **LIMITED))
def test_whatever_goes_wrong_nothing_waits_for_ever(plan: Plan) -> None:
    check(World(plan).run())
