"""Suspects whose topic waits for a limit of its own keep nobody waiting, and go alone when they may (1.10, 8.10)."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.lane.suspicion import HUNG_MS, IDLE_MS
from reconsume.sidecar.core.pace.rates import TopicTerms
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.topics.rates import Rate
from reconsume.topics.retry_headers import RetryState
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, policy, record
from tests.sim.suspect_rigs import READY, died
from tests.unit.core.lane.test_crashing_record_hung import pass_time

OTHERS = Partition("refunds", 0)
SUSPECTS = 3
ONE_A_MINUTE = TopicTerms(rate=Rate(1, 60_000))


def rig_of(term: TopicTerms) -> Rig:
    """An instance with suspects of a topic that has a limit, and with records of another topic."""
    rig = Rig(policy=policy(deaths=3, topics=("orders", "refunds")), terms={"orders": term})
    rig.assign(ORDERS, resume=died(2))
    rig.assign(OTHERS, resume=Progress(0, clean=True))
    rig.take_offsets(range(SUSPECTS))
    rig.take_offsets(range(20), OTHERS)
    return rig


def out(rig: Rig) -> list[tuple[str, int]]:
    """Topic and offset of what is out."""
    return [(sent.record.source.topic, sent.record.offset) for sent in rig.sent]


def test_others_go_at_once_while_a_suspect_waits_for_its_topics_rate() -> None:
    rig = rig_of(ONE_A_MINUTE)
    pass_time(rig, IDLE_MS // 2)
    assert out(rig) == [("refunds", offset) for offset in range(3)]


def test_a_suspect_that_has_waited_for_its_rate_is_marked_and_goes_alone() -> None:
    rig = rig_of(ONE_A_MINUTE)
    pass_time(rig, 61_000)
    assert ("orders", 0) not in out(rig), "what was out comes back first"
    rig.answer_all()
    pass_time(rig, 500)
    assert out(rig) == [("orders", 0)]
    assert rig.kafka[ORDERS].mark == 0
    rig.answer()
    pass_time(rig, 500)
    assert {topic for topic, _ in out(rig)} == {"refunds"}, "the next one waits for its rate"


@pytest.mark.parametrize("term", [ONE_A_MINUTE, TopicTerms(rate=Rate(2, 1_000)), TopicTerms(concurrency=1)])
def test_each_suspect_goes_alone_and_then_the_suspicion_ends(term: TopicTerms) -> None:
    rig, alone = rig_of(term), list[int]()
    for _ in range(SUSPECTS * 250):
        pass_time(rig, 250)
        suspects = [offset for topic, offset in out(rig) if topic == "orders"]
        assert not suspects or len(rig.sent) == 1
        alone += suspects
        rig.answer_all()
    assert alone == list(range(SUSPECTS))
    assert rig.part(OTHERS).tracker.first == 20
    pass_time(rig, 20_000)
    assert rig.part().suspicion is None
    assert rig.kafka[ORDERS].next == SUSPECTS


def test_others_go_while_a_hung_suspect_has_its_topics_only_place_and_the_next_one_goes_alone_after_it() -> None:
    rig = rig_of(TopicTerms(concurrency=1))
    pass_time(rig, HUNG_MS - 2_000)
    assert out(rig) == [("orders", 0)]
    pass_time(rig, 4_000)
    assert out(rig) == [("orders", 0), *(("refunds", offset) for offset in range(3))]
    rig.answer_all()
    pass_time(rig, 500)
    assert out(rig) == [("orders", 1)]


def test_retries_of_a_topic_that_waits_for_its_rate_keep_nobody_waiting_either() -> None:
    main = Rig(policy=policy(deaths=3, topics=("orders", "refunds")), terms={"orders": ONE_A_MINUTE})
    retry = Rig(policy=main.policy, retry=True, beside=main)
    main.assign(OTHERS, resume=Progress(0, clean=True))
    retry.assign(READY, resume=died(2))
    retry.take(record(0, source=READY, life=RetryState("orders:0:7", "orders", 1, WALL, due_at=WALL)))
    main.take_offsets(range(2), OTHERS)
    for _ in range(4):
        pass_time(main, 250)
        pass_time(retry, 250)
    assert (out(main), out(retry)) == ([("refunds", 0), ("refunds", 1)], [])
    main.answer_all()
    for _ in range(250):
        pass_time(main, 250)
        pass_time(retry, 250)
    assert out(retry) == [(READY.topic, 0)]
