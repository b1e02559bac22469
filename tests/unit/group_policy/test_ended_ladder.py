"""An instance that starts after a ladder was ended live knows that records may wait in queues (contract 5.5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.topics.policy_record import PolicyHeard, PolicyRecord
from tests.support.sidecar.policy_desk import SETS, Seen, policy, run
from tests.support.sidecar.settings import good


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (policy(ordered_ladder=None), True),
        (PolicyHeard(PolicyRecord({}, "ann", 5, was={"ordered_ladder": ["1s"]})), True),
        (policy(max_reconsume_times=5), False),
        (PolicyHeard(None), False),
    ],
    ids=["set to null", "taken out", "another key", "withdrawn"],
)
def test_a_policy_that_names_the_ladder_has_one_answer_be_no_proof_that_a_queue_is_missing(
    tmp_path: Path, heard: PolicyHeard, expected: bool
) -> None:
    """The lanes hear of it before they begin."""

    async def work(seen: Seen) -> None:
        await seen.look()
        await seen.tell(heard, caught_up=False, live=False)
        assert (seen.expects_queues, seen.applied) == (expected, [])

    run(good(tmp_path, *SETS), work)
