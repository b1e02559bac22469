"""The rate of an instance: the smaller of its own and its part of the group's, which follows what it owns."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.pace.instance_rate import InstanceRate, Owned, share_of
from reconsume.sidecar.core.record import NEVER
from reconsume.topics.rates import Rate

TEN, THIRTY = Rate(10, 1_000), Rate(30, 1_000)


@pytest.mark.parametrize(
    ("share", "per_second"),
    [
        (Owned(1, 1), 30),
        (Owned(2, 6), 10),
        (Owned(6, 6), 30),
        (Owned(0, 6), 5),  # its retries need not wait for ever
        (Owned(0, 0), 30),  # before Kafka has told anything
        (Owned(3, 0), 30),  # nor more than all, where it was told too few
    ],
)
def test_the_part_of_the_groups_rate_is_in_proportion_to_the_main_partitions(share: Owned, per_second: float) -> None:
    assert share_of(THIRTY, share).per_second == per_second


@pytest.mark.parametrize(
    ("own", "group", "share", "setting", "per_second"),
    [
        (None, None, Owned(1, 1), "", None),
        (TEN, None, Owned(1, 1), "rate", 10),
        (None, THIRTY, Owned(1, 3), "group_rate", 10),
        (TEN, THIRTY, Owned(1, 1), "rate", 10),
        (TEN, THIRTY, Owned(1, 6), "group_rate", 5),
        (TEN, THIRTY, Owned(1, 3), "rate", 10),  # as much: its own is told
    ],
)
def test_the_smaller_of_the_two_rates_binds(
    own: Rate | None, group: Rate | None, share: Owned, setting: str, per_second: float | None
) -> None:
    rate = InstanceRate(own, group, 0)
    rate.owned, rate.stale = lambda: share, True
    rate.room(0)
    rate.check()
    assert rate.setting == setting
    assert (None if rate.bucket is None else rate.bucket.rate.per_second) == per_second
    assert rate.of_group is (group is not None)


def test_what_the_instance_owns_is_asked_once_after_each_change_and_the_tokens_stay() -> None:
    asked = list[int]()
    rate = InstanceRate(None, THIRTY, 0)

    def owned() -> Owned:
        asked.append(1)
        return Owned(1, 3)

    rate.owned = owned
    assert (rate.room(500), asked) == (15, [])
    rate.stale = True
    assert (rate.room(500), rate.room(500), len(asked)) == (10, 10, 1), "no more than a second of the new rate"
    rate.sent(10)
    assert (rate.room(500), rate.next_at(500)) == (0, 600)
    rate.stale = True
    assert rate.room(560) == 0
    assert rate.room(600) == 1, "a look at the same rate takes no part of a token"


@pytest.mark.parametrize("at_receive", [False, True])
def test_a_record_counts_once_where_it_goes_or_where_it_is_received(*, at_receive: bool) -> None:
    rate = InstanceRate(TEN, None, 1_000, at_receive=at_receive)
    assert rate.room(1_000) == 0, "a start gives no burst"
    assert rate.room(1_500) == 5
    rate.sent(3)
    assert rate.room(1_500) == (5 if at_receive else 2)
    rate.received(3, 1_600)
    assert rate.room(1_600) == 3


def test_what_is_offered_keeps_its_tokens_until_it_is_received() -> None:
    rate = InstanceRate(TEN, None, 0, at_receive=True)
    rate.offered = lambda: 4
    assert (rate.room(500), rate.next_at(400)) == (1, 500)
    assert rate.room(300) == 1, "time does not go back"
    rate.offered = lambda: 9
    assert rate.room(500) == 0, "and no fewer than none may go"
    rate.received(12, 60_000)
    assert rate.room(60_000) == 0
    rate.offered = lambda: 0
    assert rate.next_at(60_000) == 60_201, "what was received above the rate is waited for"


def test_without_a_rate_all_may_go_at_any_time() -> None:
    rate = InstanceRate(TEN, None, 0)
    rate.set(None, None, 5_000)
    rate.check()
    rate.sent(1_000)
    rate.received(1_000, 5_000)
    assert (rate.room(5_000), rate.next_at(5_000), rate.setting) == (NEVER, NEVER, "")
    rate.set(TEN, None, 6_000)
    assert (rate.room(6_000), rate.room(6_100)) == (0, 1)
