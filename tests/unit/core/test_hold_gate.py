"""What an operator holds gets no turn, is no attempt, waits without its payload; the rest goes on (contract 10.4)."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core import hold_gate
from reconsume.sidecar.core.ages import Wait
from reconsume.sidecar.core.hold_gate import LOOK_AGAIN_MS
from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.outcome import COMMITTED, WITHDRAWN, Failed
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.reasons import NotDelivered, NotFetched
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.core.why import Waiting
from reconsume.topics.retry_headers import RetryState
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, record

REFUNDS = Partition("refunds", 0)
TWO = samples.policy(topics=("orders", "refunds"))
LEVEL = Partition("billing-RETRY-10s", 0)
READY = Partition("billing-RETRY", 0)


def hold(rig: Rig, *holds: Hold) -> None:
    rig.lane.hold(Holds(holds), rig.now)
    rig.check()


def kept_back(rig: Rig) -> dict[int, str]:
    """Which records of the main topic are kept back, and by which hold."""
    return {entry.offset: entry.hold for entry in rig.part().offsets.entries.values() if entry.hold}


def give(rig: Rig, offsets: Collection[int], source: Partition = ORDERS, key: bytes = b"k") -> None:
    rig.take(*(record(offset, source=source, key=key) for offset in offsets))


@pytest.mark.parametrize(
    ("held", "level", "topic", "key", "expected"),
    [
        (Hold("h"), "main", "orders", b"k", True),
        (Hold("h", topic="orders"), "10s", "orders", None, True),
        (Hold("h", topic="orders"), "main", "refunds", b"k", False),
        (Hold("h", level="10s"), "10s", "refunds", b"k", True),
        (Hold("h", level="10s"), "main", "refunds", b"k", False),
        (Hold("h", key=b"k"), "main", "refunds", b"k", True),
        (Hold("h", key=b""), "main", "refunds", None, False),
        (Hold("h", key=b""), "main", "refunds", b"", True),
        (Hold("h", topic="orders", key=b"k"), "ready", "orders", b"k", True),
        (Hold("h", topic="orders", key=b"k"), "ready", "refunds", b"k", False),
    ],
)
def test_all_that_a_hold_names_must_fit(held: Hold, level: str, topic: str, key: bytes | None, expected: bool) -> None:
    state = None if level == "main" else RetryState(id="a:0:1", topic=topic)
    one = record(key=key, source=Partition(topic, 0), life=state)
    assert (Holds([held]).of(one, level) is not None) is expected


def test_a_held_topic_is_paused_and_gives_the_only_place_to_the_other() -> None:
    rig = Rig(policy=TWO, concurrency=1)
    rig.assign(ORDERS, REFUNDS)
    hold(rig, Hold("h", topic="orders"))
    give(rig, range(500))
    assert (rig.wait().not_fetched, rig.lane.room.load) == ("held", 0)
    give(rig, range(3), REFUNDS)
    for offset in range(3):
        assert rig.answer().offset == offset
    hold(rig)
    assert rig.fetches[-1] == ("resume", ORDERS, 0, 1)
    give(rig, range(2))
    assert [rig.answer().source for _ in range(2)] == [ORDERS, ORDERS]


def test_a_held_key_waits_as_offsets_alone_and_is_fetched_again() -> None:
    rig = Rig(concurrency=8)
    rig.assign(ORDERS)
    hold(rig, Hold("h", key=b"bad"))
    rig.take(*(record(offset, key=b"bad" if offset % 2 else b"good") for offset in range(10)))
    assert rig.out_offsets() == [0, 2, 4, 6, 8]
    rig.answer_all()
    rig.settle()
    assert rig.lane.room.load == 0
    assert rig.kafka[ORDERS].next == 1, "nothing is passed over"
    (facts,) = rig.facts.partitions.values()
    assert (facts.counts.on_hold, facts.waits.kept) == (5, Waiting(1, NotDelivered.HELD))
    hold(rig)
    assert rig.fetches[-1] == ("resume", ORDERS, 1, 1)
    rig.take(*(record(offset, key=b"bad" if offset % 2 else b"good") for offset in range(1, 12)))
    assert rig.out_offsets() == [1, 3, 5, 7, 9, 10, 11]
    assert {sent.record.times for sent in rig.sent} == {0}
    rig.answer_all()
    rig.settle()
    assert rig.kafka[ORDERS].next == 12


def test_of_two_holds_each_keeps_its_own() -> None:
    rig = Rig()
    rig.assign(ORDERS)
    a, b = Hold("a", key=b"a"), Hold("b", key=b"b")
    hold(rig, a, b)
    rig.take(record(0, key=b"a"), record(1, key=b"b"))
    hold(rig, b)
    assert kept_back(rig) == {1: "b"}
    rig.take(record(0, key=b"a"))
    assert rig.out_offsets() == [0]


def test_what_is_out_ends_as_it_does_and_its_retry_is_held() -> None:
    rig = Rig(retry=True)
    rig.assign(READY)
    rig.take(record(0, source=READY, life=life()))
    hold(rig, Hold("h", topic="orders"))
    rig.answer(Failed("http-500"))
    assert len(rig.settle()) == 1
    rig.take(record(1, source=READY, life=life(2)))
    assert not rig.sent
    rig.run(600_000)
    assert rig.wait() == Wait(0, NotDelivered.HELD, None, 1, is_sent=False), "it waits deliberately"


def test_a_record_that_is_tried_in_place_waits_in_memory_and_keeps_its_count() -> None:
    rig = Rig(policy=replace(samples.policy(), in_place=InPlace(10)), order="key")
    rig.assign(ORDERS)
    give(rig, range(3))
    rig.answer(Failed("http-500"))
    hold(rig, Hold("h", key=b"k"))
    rig.run(1_000)
    assert not rig.sent
    assert len(kept_back(rig)) == 1
    hold(rig)
    assert (rig.answer().times, rig.out_offsets()) == (1, [1])


def test_what_a_batch_or_a_receive_has_not_taken_comes_back_and_is_held() -> None:
    rig = Rig()
    rig.assign(ORDERS)
    give(rig, range(2))
    hold(rig, Hold("h"))
    rig.answer_all(WITHDRAWN)
    assert kept_back(rig) == {0: "h", 1: "h"}
    assert rig.gate.in_flight == 0
    hold(rig)
    give(rig, range(2))
    assert rig.out_offsets() == [0, 1]


def test_a_relay_writes_nothing_that_is_held_to_the_ready_topic() -> None:
    rig = Rig(policy=replace(TWO, relay=True), retry=True)
    rig.assign(LEVEL)
    past = WALL - 20_000
    lives = [RetryState(f"{topic}:0:{n}", topic, 1, past) for n, topic in enumerate(["orders", "refunds"] * 2)]
    records = [record(n, source=LEVEL, timestamp=past, life=one) for n, one in enumerate(lives)]
    hold(rig, Hold("h", topic="orders"))
    rig.take(*records)
    (batch,) = rig.settle()
    assert [entry.record.offset for entry in batch.entries] == [1, 3]
    hold(rig)
    rig.take(*records)
    (batch,) = rig.settle()
    assert [entry.record.offset for entry in batch.entries] == [0, 2]


def test_a_partition_that_is_given_up_forgets_what_is_held() -> None:
    rig = Rig()
    rig.assign(ORDERS)
    hold(rig, Hold("h", key=b"k"))
    give(rig, range(2))
    given_up = rig.release(ORDERS)
    rig.settle()
    assert given_up == ["given up"]
    assert rig.kafka[ORDERS].next == 0
    hold(rig)
    assert rig.lane.room.load == 0


def test_a_hold_of_a_level_pauses_it_and_no_other() -> None:
    rig = Rig(retry=True)
    rig.assign(LEVEL, READY)
    hold(rig, Hold("h", level="10s"))
    past = WALL - 20_000
    rig.take(record(0, source=LEVEL, timestamp=past, life=life(1, past)))
    assert rig.wait().not_fetched is None  # of the ready topic, which is the first by name
    assert rig.facts.partitions[LEVEL].waits.not_fetched is NotFetched.HELD
    assert rig.part(LEVEL).paused is not None
    rig.take(record(0, source=READY, life=life()))
    assert [sent.record.source for sent in rig.sent] == [READY]
    assert rig.answer(COMMITTED).source == READY


def test_what_is_kept_back_as_offsets_is_bounded_over_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given two partitions and room for six offsets, then the one that has most of them pauses; both go on in the
    end."""
    monkeypatch.setattr(hold_gate, "MOST_HELD", 6)
    rig = Rig(policy=TWO, concurrency=20)
    rig.assign(ORDERS, REFUNDS)
    hold(rig, Hold("h", key=b"k"))
    give(rig, range(5))
    give(rig, range(2), REFUNDS)
    give(rig, range(5, 6))
    give(rig, range(2, 3), REFUNDS)
    paused = {source for source, partition in rig.facts.partitions.items() if partition.pause is not None}
    assert paused == {ORDERS}
    hold(rig)
    assert {call[1] for call in rig.fetches if call[0] == "resume"} == {ORDERS, REFUNDS}


def test_what_one_hold_keeps_back_stays_when_another_one_ends() -> None:
    rig = Rig(policy=replace(samples.policy(), in_place=InPlace(10)), order="key")
    rig.assign(ORDERS)
    main = Hold("a", level="main")
    give(rig, [0])
    rig.answer(Failed("http-500"))
    hold(rig, main, Hold("b", topic="refunds"))
    rig.run(1_000)
    assert (rig.out_offsets(), len(kept_back(rig))) == ([], 1)
    hold(rig, main)
    assert (rig.out_offsets(), len(kept_back(rig))) == ([], 1)
    hold(rig)
    assert rig.out_offsets() == [0]


def test_a_level_that_has_one_topic_alone_is_paused_with_that_topic() -> None:
    rig = Rig(policy=samples.policy(template="{topic}-{group}", topics=("orders", "refunds")), retry=True)
    source = Partition(rig.policy.names.level(10_000, "orders"), 0)
    rig.assign(source)
    hold(rig, Hold("h", topic="orders"))
    rig.run(600_000)  # what it holds is due
    rig.take(record(0, source=source, life=life()))
    assert (rig.wait().not_fetched, rig.lane.room.load) == ("held", 0)


def test_a_partition_alone_keeps_back_as_many_offsets_as_the_lane_may_and_then_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hold_gate, "MOST_HELD", 6)
    rig = Rig()
    rig.assign(ORDERS)
    hold(rig, Hold("h", key=b"k"))
    give(rig, range(6))
    give(rig, range(6, 8))
    assert (rig.wait().not_fetched, set(kept_back(rig))) == ("held", set(range(6)))
    rig.fetches.clear()
    rig.run(LOOK_AGAIN_MS - 1)
    assert rig.fetches == []
    rig.run(1)
    assert rig.fetches[0][:3] == ("resume", ORDERS, 6), "others may have let go of theirs"


def test_a_partition_that_is_held_as_a_whole_is_not_fetched_before_its_hold_ends() -> None:
    rig = Rig()
    rig.assign(ORDERS)
    hold(rig, Hold("h", topic="orders"))
    give(rig, range(2))
    rig.fetches.clear()
    rig.run(100 * LOOK_AGAIN_MS)
    assert rig.fetches == []
    hold(rig)
    assert [what[:3] for what in rig.fetches] == [("resume", ORDERS, 0)]


def test_of_what_is_out_that_is_withdrawn_which_a_hold_names() -> None:
    rig = Rig(policy=TWO, retry=True)
    rig.assign(ORDERS, REFUNDS, READY)
    give(rig, [0])
    give(rig, [0], REFUNDS)
    rig.take(record(0, source=READY, life=life()))
    hold(rig)
    assert rig.withdrawn == []
    hold(rig, Hold("h", topic="orders", level="main"))
    assert [one.source for one in rig.withdrawn] == [ORDERS]
