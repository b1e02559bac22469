"""What a control log says: the last record of each key counts, and everything is bounded."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.participation import Others
from reconsume.sidecar.group_policy.state import (
    MOST_BYTES,
    MOST_INSTANCES,
    OF_INSTANCE,
    Bounds,
    ControlState,
    Peers,
)
from reconsume.topics.action_record import ActionHeard, ActionRecord
from reconsume.topics.agreement import SILENT_AFTER
from reconsume.topics.policy_record import (
    BadRecord,
    Heard,
    InstanceHeard,
    NewerRecord,
    PolicyHeard,
    PolicyRecord,
    SettlementHeard,
    SettlementRecord,
    SubscriptionRecord,
)
from reconsume.topics.reset_record import (
    MOST_RESETS,
    MOST_TARGETS,
    MOST_TARGETS_KEPT,
    ResetHeard,
    ResetRequest,
    ResetTarget,
)
from tests.support.control_log import said, state_of

GOOD = PolicyRecord({"max_deaths": 7}, "ann", 5)
LARGE = 64 * 1024


def applied(state: ControlState, *heard: Heard, at: int = 0, size: int = 100) -> str:
    """Apply records, and return what the last one came to."""
    fault = ""
    for one in said(*heard, at=at, begin=state.next_offset, size=size):
        fault = state.apply(one, at)
    return fault


# --- policies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "size"), [(5_000, 0), (100, LARGE)])
@pytest.mark.parametrize("bounds", [Bounds(), OF_INSTANCE])
def test_of_policies_the_newest_are_kept_and_the_one_that_is_in_force(count: int, size: int, bounds: Bounds) -> None:
    """Given a good policy below a flood of broken ones, large or many, then it is still the one in force."""
    state = ControlState(bounds)
    applied(state, PolicyHeard(GOOD), *[BadRecord("broken")] * count, size=size)
    entries = state.policies.entries
    assert state.policies.in_force == GOOD
    assert (entries[0].record, entries[-1].offset) == (GOOD, count)
    assert len(entries) <= (bounds.policies if size == 0 else MOST_BYTES // size) + 1


def test_a_newer_versions_policy_is_named_until_one_that_can_be_read_follows() -> None:
    state = state_of(PolicyHeard(GOOD), NewerRecord(2))
    assert state.policies.in_force == GOOD, "as instances have it that were there before"
    assert state.policies.unread is not None
    assert "v 2" in state.policies.unread.fault
    applied(state, BadRecord("rubbish"))
    assert state.policies.unread is not None, "rubbish behind it does not replace it"
    applied(state, PolicyHeard(None))
    assert (state.policies.in_force, state.policies.unread) == (None, None), "it was withdrawn"


# --- heartbeats ------------------------------------------------------------------------------------------------------


def beat(name: str, tags: str = "A", well: bool | None = None) -> InstanceHeard:
    """A heartbeat; `well` is None in one of a version without it."""
    return InstanceHeard(name, SubscriptionRecord({"orders": tags}, 0, well=well))


def test_the_number_of_instances_and_their_bytes_are_bounded_and_the_oldest_go() -> None:
    many, large = ControlState(), ControlState()
    for number in range(MOST_INSTANCES + 10):
        applied(many, beat(f"x{number}"))
    for number in range(200):
        applied(large, beat(f"x{number % 100}"), size=LARGE)
    assert len(many.beats.known()) == MOST_INSTANCES
    assert len(large.beats.known()) == MOST_BYTES // LARGE
    assert "x0" not in many.beats.known()


@pytest.mark.parametrize("well", [True, None])
def test_another_is_well_since_we_are_not_only_if_its_heartbeat_is_behind_ours(well: bool | None) -> None:
    state, peers = ControlState(), Peers("me")

    def others(*beats: InstanceHeard, live: bool = True) -> Others:
        for one in beats:
            peers.hear(one.instance, one.record, state.next_offset, live=live)
            applied(state, one)
        return peers.others(state.beats, 0)

    before = others(beat("me", well=False), beat("other", well=well), live=False)
    assert not before.well_behind_ours, "a process before this one said it"
    assert others(beat("me", well=False)) == Others(any_well=True, well_behind_ours=False)
    assert others(beat("other", well=well)) == Others(any_well=True, well_behind_ours=True)
    assert others(beat("me", well=False)).well_behind_ours, "the next minute's"
    assert peers.others(state.beats, SILENT_AFTER) == Others(), "it is silent"
    assert not others(beat("me", well=True), beat("other", well=well)).well_behind_ours
    assert others(beat("other", well=False)) == Others()


# --- dismissals and actions -------------------------------------------------------------------------------------------


def dismissed(number: int = 7, how: str = "commit", position: str = "billing-DLQ:0:1") -> SettlementHeard:
    return SettlementHeard(f"orders:0:{number}", SettlementRecord(0, 1, how, "x", "ann", 1, "n1", position))


def test_a_dead_letter_is_dismissed_until_that_is_deleted() -> None:
    state = state_of(dismissed())
    assert list(state.dismissals) == ["orders:0:7"]
    applied(state, SettlementHeard("orders:0:7", None))
    assert not state.dismissals


@pytest.mark.parametrize("other", [dismissed(position=""), dismissed(how="retry-now"), dismissed(how="explode")])
def test_a_settlement_of_a_record_that_waits_says_nothing(other: SettlementHeard) -> None:
    """Former versions wrote such records, and none has carried them out since."""
    state = state_of(other)
    assert not state.dismissals


def test_dismissals_are_bounded_and_an_instance_keeps_none() -> None:
    few, instance = ControlState(Bounds(dismissals=2)), ControlState(OF_INSTANCE)
    for state in (few, instance):
        applied(state, *map(dismissed, range(5)))
    assert (len(few.dismissals), len(instance.dismissals)) == (2, 0)


def test_the_actions_that_were_written_last_are_kept() -> None:
    state = ControlState(Bounds(actions=2))
    told = [ActionHeard(ident, ActionRecord("redrive", ident, 1)) for ident in ("a", "b", "a", "c")]
    applied(state, *told)
    assert list(state.actions) == ["a", "c"]
    applied(state, ActionHeard("c", None))
    assert list(state.actions) == ["a"]


# --- resets ----------------------------------------------------------------------------------------------------------


def reset(partitions: int = 1) -> ResetRequest:
    targets = tuple(ResetTarget(number, 0) for number in range(partitions))
    return ResetRequest("orders", "00000000", targets, "ann", "a bug", at=1)


def test_a_reset_counts_from_the_time_of_the_log_until_it_is_deleted() -> None:
    state = ControlState()
    applied(state, ResetHeard("a", reset()), at=7_000)
    assert state.resets["a"].at == 7_000, "whatever the clock of the command"
    applied(state, ResetHeard("a", None))
    assert not state.resets


@pytest.mark.parametrize(("partitions", "kept"), [(1, MOST_RESETS), (MOST_TARGETS, MOST_TARGETS_KEPT // MOST_TARGETS)])
def test_the_newest_resets_are_kept_however_large(partitions: int, kept: int) -> None:
    state = ControlState()
    applied(state, *(ResetHeard(f"r{number}", reset(partitions)) for number in range(MOST_RESETS + 10)))
    assert list(state.resets) == [f"r{number}" for number in range(MOST_RESETS + 10 - kept, MOST_RESETS + 10)]
