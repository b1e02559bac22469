"""The longest delay, on a virtual clock: ten days are made of level topics, copy by copy, and end on time."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition, Record
from reconsume.topics.levels import LONGEST, TABLE
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Hop, Retry
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, record

HOP = 20
"""ms from a decision to the copy in Kafka, in these tests."""


def first_copy(policy: Policy, delay: int) -> Copy:
    """The copy that a failure at WALL leaves which asks for `delay` ms."""
    rig = Rig(policy=policy)
    rig.assign(ORDERS)
    rig.take(record())
    rig.answer(Failed("retry-asked", asked=True, delay=delay))
    rig.run(HOP)
    (entry,) = rig.conclude().entries
    assert isinstance(entry.decision, Retry)
    return entry.writes[0]


def as_read(policy: Policy, copy: Copy, offset: int, appended: int) -> Record:
    """A copy as the retry lane reads it back, its headers understood anew."""
    life, fault = samples.read(copy.headers, policy, appended)
    assert life is not None, fault
    place = Partition(copy.topic, 0)
    return record(offset, source=place, timestamp=appended, headers=copy.headers, life=life)


def next_entry(rig: Rig, waiting: Record) -> SettledRecord | None:
    """Let the retry lane hold a record until it writes it on; None when it delivers it instead."""
    part = rig.part(waiting.source)
    while not rig.sent:
        if part.paused is None and part.tracker.next <= waiting.offset:
            rig.take(waiting)  # at first, and when the lane resumes the partition that it had parked
        while rig.batches:
            if entries := rig.conclude().entries:
                return entries[0]
        rig.run(max(1, rig.wake_at - rig.clock.steady_ms))
    return None


def travel(policy: Policy, delay: int) -> tuple[list[str], int]:
    """Follow a delay from level to level: the levels that it waited in, and when it was delivered, ms after."""
    rig, copy = Rig(policy=policy, retry=True), first_copy(policy, delay)
    offsets = dict.fromkeys(samples.waits(policy), 0)
    rig.assign(*(Partition(topic, 0) for topic in offsets))
    levels = []
    while True:
        levels.append(copy.topic.rpartition("-")[2])
        entry = next_entry(rig, as_read(policy, copy, offsets[copy.topic], rig.now.wall_ms))
        if entry is None:
            return levels, rig.sent[0].at
        assert isinstance(entry.decision, Hop)
        assert (entry.decision.retry_state.times, entry.decision.retry_state.due_at) == (1, WALL + delay)
        offsets[copy.topic] += 1
        (copy,) = entry.writes  # no event
        rig.run(HOP)


@pytest.mark.parametrize(
    ("delay", "levels"),
    [
        (7_000, ["5s", "1s", "1s"]),
        (90_000, ["1m", "30s"]),
        (7_261_000, ["2h", "1m", "1s"]),
    ],
)
def test_a_delay_is_made_of_the_longest_levels_that_still_fit(delay: int, levels: list[str]) -> None:
    found, at = travel(samples.policy(), delay)
    assert found == levels
    assert delay <= at < delay + 200  # the last level may be a ninth longer than what is left


def test_ten_days_are_made_of_hops_and_end_on_time() -> None:
    """Each hop costs a moment, which the rest of the way makes up for: never early, and not late by the sum either."""
    found, at = travel(samples.policy(), LONGEST)
    assert found[:119] == ["2h"] * 119
    rest = [samples.waits(samples.policy())[f"billing-RETRY-{level}"] for level in found[119:]]
    assert rest == sorted(rest, reverse=True)
    assert 7_190_000 <= sum(rest) <= max(TABLE)
    assert LONGEST <= at < LONGEST + 50
