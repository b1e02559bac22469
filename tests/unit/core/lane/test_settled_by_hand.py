"""A person's decision about a record that waits: on which copy it acts, and what it says (contract 5.7)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.lane.settled_by_hand import decided_by_hand, meant_for, unparked
from reconsume.sidecar.core.record import Now
from reconsume.topics.policy_record import COMMIT, DEAD_LETTER, RETRY_NOW, SettlementRecord
from reconsume.topics.transitions import Commit, DeadLetter, Hop, Requeue
from tests.sim.samples import WALL, life, policy, record

NOW = Now(WALL + 50, 0)
OPEN = SettlementRecord(0, 2, COMMIT, "seen", "ann", WALL, "n1")
COPY = life(2)


@pytest.mark.parametrize(
    ("ident", "redrives", "times", "settled", "meant"),
    [
        ("orders:0:7", 0, 2, "", True),
        ("orders:0:7", 0, 2, "n0", True),  # another decision was carried out on it before
        ("orders:0:7", 0, 2, "n1", False),
        ("orders:0:7", 0, 3, "", False),
        ("orders:0:7", 1, 2, "", False),
        ("orders:0:8", 0, 2, "", False),
    ],
)
def test_a_decision_acts_once_on_the_copy_that_it_names(
    ident: str, redrives: int, times: int, settled: str, meant: bool
) -> None:
    state = replace(COPY, id=ident, redrives=redrives, times=times, settled=settled)
    assert meant_for({"orders:0:7": OPEN}, state) == (OPEN if meant else None)
    assert meant_for({}, state) is None


def test_each_decision_ends_the_wait_and_gives_its_reason() -> None:
    waits = record(7, life=COPY)
    dead, done, tried = (
        decided_by_hand(waits, replace(OPEN, how=how), NOW) for how in (DEAD_LETTER, COMMIT, RETRY_NOW)
    )
    assert isinstance(dead, DeadLetter)
    assert (dead.retry_state.reason, dead.retry_state.due_at) == ("by-operator: seen", NOW.wall_ms)
    assert isinstance(done, Commit)
    assert done.retry_state is not None
    assert done.retry_state.reason == "by-operator: seen"
    assert isinstance(tried, Requeue)
    assert (tried.retry_state.reason, tried.retry_state.settled, tried.retry_state.due_at) == (
        "by-operator: seen",
        "n1",
        NOW.wall_ms,
    )


def test_one_that_waits_behind_another_notes_the_decision_alone() -> None:
    tried = decided_by_hand(record(7, life=life(2, behind=True)), replace(OPEN, how=RETRY_NOW), NOW)
    assert isinstance(tried, Hop)
    assert tried.retry_state.settled == "n1"


@pytest.mark.parametrize(
    ("parked", "queued", "parks", "dead"),
    [(True, True, False, True), (False, True, False, False), (True, False, False, False), (True, True, True, False)],
)
def test_a_parked_record_is_dead_where_the_group_parks_no_longer(
    parked: bool, queued: bool, parks: bool, dead: bool
) -> None:
    group = replace(policy(), queued=queued, parks=parks)
    letter = unparked(record(7, life=life(2, parked=parked)), group, NOW)
    assert (letter is not None) is dead
    if isinstance(letter, DeadLetter):
        assert (letter.retry_state.reason, letter.retry_state.due_at) == (COPY.reason, NOW.wall_ms)
