"""Stories in which requests of transactions are sent twice, and the first copies come late, in the midst of later ones.

The guard is the product's: what has perhaps been sent twice is the last that its producer does. `test_late_conformance`
compares the model of the broker; whether the product notices what was sent twice is shown on a real one.
"""

from collections.abc import Iterator
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.checker import check
from tests.sim.plan import Fault, Plan
from tests.sim.service_model import Weights
from tests.sim.stories import plans, story
from tests.sim.world import World

MOVES = ("crash", "revoke", "lose", "join")
STORIES = 20
LOSSES = (Fault("late", 0, 20_000, 0),)
CHANGES = (Fault("crash", 6_000, 700, 0), Fault("revoke", 9_000, 700, 1), Fault("crash", 14_000, 700, 0))


@story
@given(plans("late", "late", *MOVES, forgetful=st.booleans()))
def test_late_requests_lose_nothing_and_count_nothing_twice(plan: Plan) -> None:
    check(World(plan).run())


def wrong(
    guard: Literal["", "epoch", "id"], *, forgetful: bool = False, faults: tuple[Fault, ...] = ()
) -> Iterator[str]:
    """What the checks say of the stories that go wrong."""
    weights = Weights(ok=2, fail=3)
    plan = Plan(0, records=30, sidecars=2, spread=15_000, retries=2, deaths=None, weights=weights, fates=(2, 1, 1))
    for seed in range(STORIES):
        try:
            check(World(plan._replace(seed=seed, faults=LOSSES + faults, guard=guard, forgetful=forgetful)).run())
        except AssertionError as failure:
            yield str(failure)


def test_without_the_guard_stories_lose_records_and_count_some_twice() -> None:
    """The checks above mean nothing if a late request did no harm."""
    found = list(wrong(""))
    assert len(found) >= STORIES // 4
    assert any("is lost" in said for said in found)
    assert any("State.COMMIT" in said or "State.DLQ" in said for said in found), "some end twice"


@pytest.mark.parametrize("guard", ["epoch", "id"])
def test_with_it_the_same_stories_are_sound(guard: Literal["epoch", "id"]) -> None:
    assert list(wrong(guard)) == []
    assert list(wrong(guard, faults=CHANGES)) == []


@pytest.mark.long
def test_on_kafka_3_9_a_new_epoch_does_not_keep_the_offsets_of_the_transaction_that_is_open() -> None:
    """It takes a crash before the next commit: until then the offset that was forgotten is only late."""
    assert list(wrong("epoch", forgetful=True, faults=CHANGES))
    assert list(wrong("id", forgetful=True, faults=CHANGES)) == []
