"""Whatever stands on a policy topic, under every kind of key: nothing changes but what that kind may change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconsume.sidecar.clock import wall
from reconsume.sidecar.group_policy.state import MOST_KEPT, OF_INSTANCE, ControlState, control_record
from reconsume.sidecar.settings.group_policy import KEYS
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.table import written
from reconsume.topics.decision_record import COMMIT, MOST_DECISIONS, WAYS, DecisionHeard
from reconsume.topics.hold_record import CLOCKS_DIFFER_MS, LONGEST_HOLD_MS, MOST_HOLDS, HoldHeard
from reconsume.topics.policy_record import (
    LONGEST_WHY,
    BadRecord,
    NewerRecord,
    PolicyHeard,
    SettlementHeard,
    parse_record,
)
from tests.support.hostile_policy import UNSHOWABLE, forged, hostile
from tests.support.sidecar.policy_desk import SETS, Seen, run
from tests.support.sidecar.settings import good

COUNT = 1_500
LONGEST_SENTENCE = 600
MAY = {b"hold/": HoldHeard, b"settle/": SettlementHeard, b"decision/": DecisionHeard, b"policy": PolicyHeard}
SEEDS = [1, 2, 3]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_record_says_only_what_its_key_may_or_one_sentence_that_can_be_shown(seed: int) -> None:
    heard = [(key, parse_record(key, value)) for key, value in hostile(seed, COUNT)]
    for key, told in heard:
        (may,) = [kind for prefix, kind in MAY.items() if key.startswith(prefix)]
        assert isinstance(told, (may, BadRecord, NewerRecord)), key
        if isinstance(told, BadRecord):
            assert told.text.isprintable(), told.text
            assert 0 < len(told.text) <= LONGEST_SENTENCE
    kinds = {type(told) for _, told in heard}
    assert kinds == {*MAY.values(), BadRecord, NewerRecord}, "each comes to pass in this test"


@pytest.mark.parametrize("seed", SEEDS)
def test_holds_have_an_end_within_a_week_and_decisions_a_way_and_both_are_bounded(seed: int) -> None:
    state, now = ControlState(), wall()
    for offset, (key, value) in enumerate(hostile(seed, COUNT)):
        assert state.apply(control_record(key, value, offset, now), now).isprintable()
    assert all(one.how == COMMIT and len(one.why) <= LONGEST_WHY for one in state.dismissals.values())
    force = state.holds.in_force(now)
    assert 0 < len(force.records) <= MOST_HOLDS
    assert all(now < one.until <= now + LONGEST_HOLD_MS + CLOCKS_DIFFER_MS for one in force.records.values())
    assert all(text.isprintable() for one in force.records.values() for text in (one.what, one.who, one.why))
    assert all(why.isprintable() for why in force.ignored)
    assert all(decision.how in WAYS for decision in state.decisions.values())
    assert len(state.decisions) <= MOST_DECISIONS


def test_a_flood_of_good_ones_is_bounded_too() -> None:
    state, now = ControlState(OF_INSTANCE), wall()
    hold, decision = (msgspec.json.encode(forged(kind)) for kind in (b"hold/", b"decision/"))
    for number in range(3 * MOST_DECISIONS):
        for key, value in ((b"hold/h%d" % number, hold), (b"decision/d%d" % number, decision)):
            state.apply(control_record(key, value, number, now), now)
    assert (len(state.holds.in_force(now).records), len(state.decisions)) == (MOST_HOLDS, MOST_DECISIONS)
    assert (len(state.holds.live), len(state.holds.history)) == (MOST_KEPT, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_running_instance_keeps_all_settings_that_no_policy_may_change(seed: int, tmp_path: Path) -> None:
    settings = good(tmp_path, *SETS)

    def others(of: Settings) -> dict[str, Any]:
        tree = written(of)
        for section, field in KEYS.values():
            tree[section].pop(field)
        return tree

    async def work(seen: Seen) -> None:
        await seen.begin()
        await seen.tell(*(parse_record(key, value) for key, value in hostile(seed, COUNT)))
        assert others(seen.desk.settings) == others(settings)
        assert seen.desk.settings.retry.max_deaths in (3, 7), "as a good policy says, whoever wrote it"
        assert seen.desk.bad_records > COUNT // 4

    run(settings, work)


def test_the_texts_that_must_not_be_shown_are_in_the_generator() -> None:
    assert all(not text.isprintable() for text in UNSHOWABLE)
