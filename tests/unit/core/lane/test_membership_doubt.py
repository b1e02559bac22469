"""A lane that keeps an order sends nothing while it may have lost its partitions without knowing it (contract 9.1)."""

from __future__ import annotations

from typing import Literal

import pytest

from reconsume.sidecar.core.lane.membership_doubt import UNANSWERED_MS
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record


def rig_of(order: Literal["key", "partition"] | None) -> Rig:
    """A lane of which one record is answered, and the transaction with its progress is in flight."""
    rig = Rig(order=order)
    rig.assign(ORDERS)
    rig.take(record(0, key=b"a"))
    rig.answer()
    rig.run(1_100)
    assert rig.lane.commits.in_flight is not None
    return rig


def sent_of(rig: Rig) -> list[int]:
    return [delivery.record.offset for delivery in rig.sent]


@pytest.mark.parametrize("order", ["key", "partition", None])
def test_while_kafka_refuses_its_transaction_as_of_no_member_an_ordered_lane_sends_nothing(
    order: Literal["key", "partition"] | None,
) -> None:
    rig = rig_of(order)
    rig.lane.member_refused()
    rig.lane.member_refused()  # it is tried again and again
    rig.take(record(1, key=b"b"))
    rig.run(3_000)
    assert sent_of(rig) == ([] if order else [1])
    rig.conclude()
    rig.run(10)
    assert sent_of(rig) == [1]


@pytest.mark.parametrize("order", ["key", None])
def test_a_transaction_that_does_not_end_raises_the_doubt_after_the_session_timeout(
    order: Literal["key", "partition"] | None,
) -> None:
    rig = rig_of(order)
    taken_ms = rig.lane.commits.taken_ms
    rig.run(taken_ms + UNANSWERED_MS - 2 - rig.now.steady_ms)
    rig.take(record(1, key=b"b"))
    assert sent_of(rig) == [1]
    rig.run(10)
    rig.take(record(2, key=b"c"))
    rig.run(60_000)
    assert sent_of(rig) == ([1] if order else [1, 2])
    rig.conclude()
    rig.run(10)
    assert sent_of(rig) == [1, 2]


def test_a_word_that_comes_after_the_result_is_about_nothing() -> None:
    rig = rig_of("key")
    rig.conclude()
    rig.lane.member_refused()
    rig.take(record(1, key=b"b"))
    assert sent_of(rig) == [1]
