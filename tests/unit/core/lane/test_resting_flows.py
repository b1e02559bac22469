"""Topics whose own limit keeps them waiting fill no lane: each lets go of what is above its share of the room."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.lane.in_place_queues import OrderBy
from reconsume.sidecar.core.pace.rates import TopicTerms
from reconsume.sidecar.core.record import Partition
from reconsume.topics.rates import Rate
from reconsume.topics.retry_headers import RetryState
from tests.sim.rig import Rig
from tests.sim.samples import WALL, policy, record
from tests.unit.core.lane.test_room_shares import ROOM, RUN, WEIGHT, Fetcher

SLOW = tuple(Partition(f"slow{number}", 0) for number in range(4))
FAST = Partition("fast", 0)
ONE_AN_HOUR = TopicTerms(rate=Rate(1, 3_600_000))
FIVE_A_SECOND = TopicTerms(rate=Rate(5, 1_000))
DELAYS = tuple(range(1_000, 7_000, 1_000))


def backlogs(term: TopicTerms, order: OrderBy | None = None) -> Fetcher:
    """A lane in which one topic after the other had a backlog, none of which went."""
    lane = Fetcher(*SLOW, FAST, order=order, concurrency=8, terms={one.topic: term for one in SLOW})
    for one in SLOW:
        lane.run(1, one)
    return lane


@pytest.mark.parametrize("order", [None, "key", "partition"])
@pytest.mark.parametrize("term", [ONE_AN_HOUR, TopicTerms(concurrency=1)])
def test_backlogs_of_topics_that_wait_for_their_limits_leave_room_for_another(
    term: TopicTerms, order: OrderBy | None
) -> None:
    lane = backlogs(term, order)
    lane.run(1, *SLOW, FAST)
    assert {sent.record.source for sent in lane.rig.history} >= {FAST}
    assert not lane.rig.lane.memory.full
    share = lane.rig.lane.memory.share_of(lane.rig.part(SLOW[0])) / ROOM
    assert max(map(lane.load, SLOW)) <= share + RUN * WEIGHT / ROOM


def test_what_rests_is_not_read_again_and_again() -> None:
    lane = backlogs(ONE_AN_HOUR)
    lane.run(2, *SLOW)
    read = lane.read
    lane.run(60, *SLOW)
    assert lane.read <= read + RUN


@pytest.mark.parametrize("order", [None, "key", "partition"])
def test_what_was_let_go_comes_again_and_each_record_goes_once_in_its_turn(order: OrderBy | None) -> None:
    lane = backlogs(FIVE_A_SECOND, order)
    for _ in range(120):
        lane.fetch(*SLOW)
        lane.rig.answer_all()
        lane.rig.run(250)
        while lane.rig.batches:
            lane.rig.conclude()
    for one in SLOW:
        begun = [sent.record.offset for sent in lane.rig.history if sent.record.source == one]
        assert begun == list(range(len(begun)))
        assert len(begun) > 130, "five a second, for half a minute"


def test_a_record_that_is_larger_than_the_share_stays_and_goes_when_its_limit_allows() -> None:
    lane = Fetcher(*SLOW, terms={one.topic: ONE_AN_HOUR for one in SLOW})
    for one in SLOW:
        lane.rig.take(record(0, source=one, value=b"x" * (ROOM // 3)))
    lane.rig.run(10_000)
    assert not [one for one in SLOW if lane.rig.part(one).tracker.dropped]
    lane.rig.run(3_600_000)
    assert len(lane.rig.sent) == 4


def test_retries_of_a_topic_that_waits_for_its_rate_leave_room_in_the_levels() -> None:
    terms = {"slow": ONE_AN_HOUR}
    rig = Rig(policy=policy(topics=("slow", "fast"), table=DELAYS), retry=True, room=ROOM, terms=terms)
    levels = [Partition(f"billing-RETRY-{delay // 1_000}s", 0) for delay in DELAYS]
    rig.assign(*levels)
    past = WALL - 60_000
    for level in levels:
        at = 0
        while not (rig.lane.memory.full or rig.part(level).paused):
            state = RetryState(f"slow:0:{at}", "slow", 1, past)
            rig.take(record(at, source=level, timestamp=past, life=state))
            at += 1
            rig.run(100)
    rig.run(1_000)
    assert not rig.lane.memory.full
