"""Dismissals of dead letters: which of them are forgotten, and which letters they are about."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.dlq.dismissals import LetterKey, Settlements, gone_of
from reconsume.sidecar.dlq.redrive_history import CLOCKS_DIFFER, RedriveHistory
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.policy_record import SettlementRecord
from tests.unit.dlq.test_redrive_history import WALL, letters

DLQ = Partition("billing-DLQ", 0)


class Span(NamedTuple):
    begin: int
    end: int


def settled(place: str) -> Settlements:
    return Settlements(
        {LetterKey("orders:0:7", Attempt(0, 0, 16)): SettlementRecord(0, 16, "commit", "seen", "ann", WALL, "n", place)}
    )


CASES = {
    "it is there": ("billing-DLQ:0:5", {DLQ: Span(5, 9)}, []),
    "retention has deleted it": ("billing-DLQ:0:4", {DLQ: Span(5, 9)}, ["orders:0:7"]),
    "its partition has no leader now": ("billing-DLQ:1:4", {DLQ: Span(5, 9)}, []),
    "its topic is another configuration's": ("orders-billing-DLQ:0:4", {DLQ: Span(5, 9)}, []),
    "nothing is known": ("billing-DLQ:0:4", {}, []),
    "a place that is none": ("billing-DLQ", {DLQ: Span(5, 9)}, []),
}


@pytest.mark.parametrize(("place", "layout", "gone"), CASES.values(), ids=CASES)
def test_a_dismissal_is_forgotten_only_when_its_letter_is_known_to_be_gone(
    place: str, layout: dict[Partition, Span], gone: list[str]
) -> None:
    assert gone_of(settled(place), layout) == gone


@pytest.mark.parametrize(("later", "dismissed"), [(0, True), (CLOCKS_DIFFER, True), (CLOCKS_DIFFER + 1, False)])
def test_a_letter_of_the_same_name_that_died_later_is_another_death(later: int, dismissed: bool) -> None:
    """A main topic that was deleted and created again gives the same ids once more."""
    (letter,) = letters([(0, 0, "a", "orders", 0)])
    assert letter.retry_state is not None
    at = letter.record.timestamp - later
    state = letter.retry_state
    past = RedriveHistory("t", 0, dismissed={LetterKey(state.id, attempt_of(state)): at})
    assert past.dismisses(letter) is dismissed
