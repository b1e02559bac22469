"""Settlements as the policy topic tells them: the good ones go to the lanes, and their number is bounded."""

from __future__ import annotations

import pytest

from reconsume.sidecar.group_policy.heard_settlements import HeardSettlements
from reconsume.topics.policy_record import MOST_OPEN, SettlementRecord

Told = list[tuple[str, SettlementRecord | None]]


def decided(how: str = "commit", position: str = "") -> SettlementRecord:
    return SettlementRecord(0, 1, how, "x", "ann", 1, "n1", position)


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def heard(told: Told) -> HeardSettlements:
    return HeardSettlements(lambda ident, record: told.append((ident, record)))


def test_a_settlement_and_its_end_are_told(heard: HeardSettlements, told: Told) -> None:
    assert (heard.hear("orders:0:7", decided()), heard.hear("orders:0:7", None)) == ("", "")
    assert told == [("orders:0:7", decided()), ("orders:0:7", None)]


def test_what_is_no_settlement_of_a_waiting_record_is_not_told(heard: HeardSettlements, told: Told) -> None:
    """A dismissed letter, an unknown word, the end of what nobody knows."""
    assert heard.hear("orders:0:7", decided(position="billing-DLQ:0:1")) == ""
    assert "none of" in heard.hear("orders:0:7", decided("explode"))
    assert heard.hear("orders:0:7", None) == ""
    assert told == []


def test_a_dismissal_ends_what_was_settled_before(heard: HeardSettlements, told: Told) -> None:
    heard.hear("orders:0:7", decided())
    heard.hear("orders:0:7", decided(position="billing-DLQ:0:1"))
    assert told[-1] == ("orders:0:7", None)


def test_more_than_may_be_open_are_left_out_until_there_is_room(heard: HeardSettlements, told: Told) -> None:
    for offset in range(MOST_OPEN):
        assert heard.hear(f"orders:0:{offset}", decided()) == ""
    assert "makes room" in heard.hear("orders:0:9999", decided())
    assert heard.hear("orders:0:5", decided("retry-now")) == "", "one that is open may be decided anew"
    heard.hear("orders:0:5", None)
    assert heard.hear("orders:0:9999", decided()) == ""
    assert len(told) == MOST_OPEN + 3


def test_a_topic_that_is_read_from_its_beginning_has_room_again_and_what_it_lacks_is_not_carried_out() -> None:
    told: list[tuple[str, SettlementRecord | None]] = []
    heard = HeardSettlements(lambda ident, one: told.append((ident, one)))
    one = SettlementRecord(0, 1, "commit", "w", "ann", 1, "n1")
    for number in range(MOST_OPEN):
        assert heard.hear(f"orders:0:{number}", one) == ""
    assert heard.hear("orders:0:5000", one) != ""
    told.clear()
    heard.begin()
    assert {one for _, one in told} == {None}
    assert len(told) == MOST_OPEN
    assert heard.hear("orders:0:5000", one) == ""
