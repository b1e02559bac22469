"""Order by key or by partition: one record of a key is out at a time, also through retries in place (5.1 to 5.3)."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.order import LONGEST_NAME, KeyQueues, OrderBy, line_of
from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent, Rejected, Throttled
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import RECORD_COST, Partition, Record
from reconsume.topics.events import Event, State, decode_event
from reconsume.topics.in_place_told import BLOCKED_MS, InPlaceTold
from reconsume.topics.transitions import DeadLetter
from tests.sim import samples
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, record

FAIL = Failed("http-500", "no")
INTERVAL = 700
READY = Partition("billing-RETRY", 0)
INVOICES = Partition("invoices", 0)


def rig_of(*keys: bytes | None, by: OrderBy = "key", max_times: int | None = None, **more: object) -> Rig:
    """An ordered lane that was handed records of one partition with these keys, offsets 0, 1, …"""
    policy = replace(samples.policy(), in_place=InPlace(INTERVAL, max_times))
    rig = Rig(policy=policy, order=by, **more)  # type: ignore[arg-type]
    rig.assign(ORDERS)
    if keys:
        rig.take(*(record(offset, key=key) for offset, key in enumerate(keys)))
    return rig


def place_of(rig: Rig, offset: int) -> int:
    return rig.out_offsets().index(offset)


def times_out(rig: Rig) -> list[tuple[int, int]]:
    return [(sent.record.offset, sent.record.times) for sent in rig.sent]


def test_only_the_first_of_each_key_is_out() -> None:
    rig = rig_of(b"a", b"a", b"b", b"", b"", None, None, concurrency=9)
    assert rig.out_offsets() == [0, 2, 3, 5, 6]


def test_in_partition_order_one_record_of_the_partition_is_out_whatever_its_key() -> None:
    rig = rig_of(b"a", b"b", None, by="partition")
    assert rig.out_offsets() == [0]
    rig.answer()
    assert rig.out_offsets() == [1]


def test_the_next_of_a_key_goes_when_the_one_before_is_taken() -> None:
    rig = rig_of(b"a", b"a", b"a")
    rig.answer()
    assert rig.out_offsets() == [1]
    rig.answer()
    assert rig.out_offsets() == [2]


def test_a_failure_is_tried_again_in_place_after_the_interval_and_holds_back_only_its_key() -> None:
    rig = rig_of(b"a", b"a", b"b")
    rig.answer(FAIL)
    rig.answer()  # the one of b
    rig.run(INTERVAL - 1)
    assert rig.out_offsets() == []
    rig.run(1)
    assert times_out(rig) == [(0, 1)]
    rig.answer(FAIL)
    rig.run(INTERVAL)
    assert times_out(rig) == [(0, 2)]
    rig.answer()
    assert times_out(rig) == [(1, 0)]


def test_a_retry_in_place_writes_nothing_and_a_success_after_it_tells_nothing() -> None:
    rig = rig_of(b"a")
    rig.answer(FAIL)
    rig.run(INTERVAL)
    rig.answer()
    assert [batch.entries for batch in rig.settle()] == [()]


@pytest.mark.parametrize(
    ("failure", "wait"),
    [
        (Failed("retry-asked", asked=True, delay=1), 10),
        (Failed("retry-asked", asked=True, delay=10), 10),
        (Failed("retry-asked", asked=True, delay=500), 500),
        (Failed("retry-asked", asked=True, delay=30_000), 30_000),
        (Failed("retry-asked", asked=True, delay=3_600_000), 30_000),
        (Failed("retry-asked", asked=True, level=2), 5_000),
        (Failed("retry-asked", asked=True, level=18), 30_000),
        (Failed("retry-asked", asked=True, level=0), INTERVAL),
        (Failed("retry-asked", asked=True, level=99), 30_000),
    ],
)
def test_a_wait_that_the_service_asks_for_is_brought_within_bounds(failure: Failed, wait: int) -> None:
    rig = rig_of(b"a")
    rig.answer(failure)
    rig.run(wait - 1)
    assert rig.out_offsets() == []
    rig.run(1)
    assert times_out(rig) == [(0, 1)]


@pytest.mark.parametrize(("delay", "odd"), [(9, 1), (10, 0), (30_000, 0), (30_001, 1), (None, 0)])
def test_a_wait_out_of_bounds_is_counted(delay: int | None, odd: int) -> None:
    rig = rig_of(b"a")
    rig.answer(Failed("retry-asked", asked=True, delay=delay))
    assert rig.lane.counters.odd_requests == odd


def test_the_failure_after_the_last_retry_is_a_dead_letter_and_only_then_the_key_goes_on() -> None:
    rig = rig_of(b"a", b"a", max_times=2)
    for _ in range(2):
        rig.answer(FAIL)
        rig.run(INTERVAL)
    failed_last = rig.now.wall_ms
    rig.answer(FAIL)
    assert rig.out_offsets() == [], "the dead letter is not in Kafka yet"
    rig.run(20)
    (entry,) = rig.conclude().entries
    assert times_out(rig) == [(1, 0)]
    assert isinstance(entry.decision, DeadLetter)
    assert (entry.decision.retry_state.times, entry.decision.deliveries) == (2, 3)
    assert (entry.decision.retry_state.first_failed_at, entry.decision.retry_state.due_at) == (WALL, failed_last)
    event = decode_event(entry.writes[1].value)
    assert isinstance(event, Event)
    assert (event.state, event.times, event.first_failed_at) == (State.DLQ, 2, WALL)


@pytest.mark.parametrize("outcome", [Rejected("bad-sku"), Failed("retry-asked", level=-1, asked=True)])
def test_a_record_that_is_refused_for_good_is_a_dead_letter_before_its_key_goes_on(outcome: Rejected | Failed) -> None:
    rig = rig_of(b"a", b"a")
    rig.answer(outcome)
    assert rig.out_offsets() == []
    rig.run(20)
    (entry,) = rig.conclude().entries
    assert isinstance(entry.decision, DeadLetter)
    assert rig.out_offsets() == [1]


def test_a_dead_letter_that_kafka_refuses_keeps_its_key_waiting() -> None:
    rig = rig_of(b"a", b"a", b"b")
    rig.answer(Rejected("bad-sku"))
    rig.run(20)
    (entry,) = rig.batches[0].entries
    rig.conclude(refused=[(entry, "record")])
    rig.answer()
    assert rig.out_offsets() == []
    rig.run(500)
    rig.conclude()
    assert rig.out_offsets() == [1]


def test_a_record_that_was_throttled_or_not_sent_keeps_its_place() -> None:
    rig = rig_of(b"a", b"a")
    rig.answer(Throttled(300))
    rig.run(300)
    assert times_out(rig) == [(0, 0)]
    rig.answer(NotSent("refused"))
    rig.run(10_000)
    assert times_out(rig) == [(0, 0)]
    rig.answer()
    assert times_out(rig) == [(1, 0)]


def test_a_failed_probe_keeps_its_place_and_is_counted() -> None:
    rig = rig_of(b"a", b"a")
    rig.answer(NotSent("refused"))
    rig.run(10_000)
    rig.answer(FAIL)
    rig.run(10_000)
    assert times_out(rig) == [(0, 1)]


def test_a_revoked_partition_does_not_wait_for_a_record_that_fails_for_ever() -> None:
    rig = rig_of(b"a", b"a", b"b")
    rig.answer(FAIL)
    rig.answer()
    given_up = rig.release(ORDERS)
    rig.settle()
    assert given_up
    assert rig.kafka[ORDERS] == Progress(0, frozenset({2}), clean=True)
    rig.run(60_000)
    assert rig.out_offsets() == []


def test_the_next_owner_begins_with_the_record_that_failed() -> None:
    rig = rig_of(b"a", b"a", b"b")
    rig.answer(FAIL)
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.assign(ORDERS, epoch=2)
    rig.take(*(record(offset, key=key, epoch=2) for offset, key in enumerate((b"a", b"a"))))
    rig.run(60_000)
    assert times_out(rig) == [(2, 0), (0, 0)]  # 2 was out before
    rig.answer(COMMITTED, place_of(rig, 0))
    assert times_out(rig) == [(2, 0), (1, 0)]


def test_a_late_answer_for_an_older_assignment_frees_nobody() -> None:
    rig = rig_of(b"a", b"a")
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.assign(ORDERS, epoch=2)
    rig.take(*(record(offset, key=b"a", epoch=2) for offset in range(2)))
    rig.answer()
    assert [(sent.record.offset, sent.record.epoch) for sent in rig.sent] == [(0, 2)]


def test_redriven_records_of_one_key_go_one_by_one() -> None:
    rig = rig_of(retry=True)
    rig.assign(READY)
    lives = [life(0, redrives=1), replace(life(0, redrives=1), id="orders:0:8")]
    rig.take(*(record(offset, source=READY, key=b"a", life=one) for offset, one in enumerate(lives)))
    assert rig.out_offsets() == [0]
    rig.answer(FAIL)
    rig.run(INTERVAL)
    assert times_out(rig) == [(0, 1)]
    rig.answer()
    rig.run(20)
    rig.conclude()
    assert rig.out_offsets() == [1]


def burst(rig: Rig, source: Partition, start: int, count: int, key: bytes | None = b"a") -> None:
    """Hand over as a consumer does that goes on from the lane's word; nothing while the partition is parked."""
    part = rig.part(source)
    if part.paused is None:
        rig.take(*(record(start + number, source=source, key=key) for number in range(count)))


def test_what_stands_behind_a_failing_key_does_not_fill_the_lanes_room() -> None:
    room = 400 * (RECORD_COST + 2)
    rig = rig_of(b"a", room=room)
    rig.assign(INVOICES)
    rig.answer(FAIL)
    for start in range(1, 1_001, 100):
        burst(rig, ORDERS, start, 100)
    assert rig.lane.room.taken <= room // 4 + 2 * RECORD_COST
    assert rig.part().paused is not None
    assert rig.part().paused.because is NotFetched.MEMORY  # type: ignore[union-attr]
    rig.run(INTERVAL)
    rig.take(record(0, source=INVOICES, key=b"a"))
    assert (0, INVOICES) in [(sent.record.offset, sent.record.source) for sent in rig.sent]


def test_a_partition_held_behind_a_retry_goes_on_where_it_was_when_the_key_does() -> None:
    rig = rig_of(b"a", room=400 * (RECORD_COST + 2))
    rig.answer(FAIL)
    burst(rig, ORDERS, 1, 1_000)
    parked = rig.part().paused
    assert parked is not None
    rig.run(INTERVAL)
    taken: list[Record] = []
    while rig.part().paused is not None:
        taken.append(rig.answer())
    assert len(taken) < 50
    assert rig.fetches == [("pause", ORDERS), ("resume", ORDERS, parked.offset, 1)]


def test_without_a_failure_a_partition_may_fill_the_lanes_room() -> None:
    rig = rig_of(b"a", room=400 * (RECORD_COST + 2))
    burst(rig, ORDERS, 1, 399)
    assert rig.part().paused is None


def test_a_partition_that_is_stopped_lets_go_what_waits_in_its_lines_and_fetches_it_again() -> None:
    rig = rig_of(b"a", b"a", b"b", b"b", b"c", concurrency=2)
    rig.answer(Rejected("no"))
    rig.run(25)
    rig.conclude(refused=[(entry, "topic") for entry in rig.batches[0].entries])
    rig.answer_all()
    assert [sent.record.offset for sent in rig.history] == [0, 2, 4], "what was out before the stop"
    rig.run(500)
    rig.conclude()
    assert rig.fetches[-1] == ("resume", ORDERS, 1, 1)
    rig.take(*(record(offset, key=key) for offset, key in enumerate((b"a", b"b", b"b", b"c"), 1)))
    rig.answer_all()
    assert [sent.record.offset for sent in rig.history] == [0, 2, 4, 1, 3], "no other is delivered a second time"
    rig.settle()
    assert rig.part(ORDERS).offsets.snapshot() == Progress(5)
    assert rig.lane.room.taken == 0


def blocking(rig: Rig) -> list[InPlaceTold]:
    return [one.shown() for one in rig.lane.shown.blocking_records(rig.now.wall_ms)]


def test_the_third_failure_of_a_record_blocks_its_key_until_it_is_done() -> None:
    rig = rig_of(b"a")
    began_ms = rig.now.wall_ms
    for failures in (1, 2, 3):
        assert blocking(rig) == []
        rig.answer(FAIL)
        if failures < 3:
            rig.run(INTERVAL)
    (shown,) = blocking(rig)
    assert (shown.id, shown.times, shown.reason, shown.since) == ("orders:0:0", 3, FAIL.reason, began_ms)
    assert shown.due == rig.now.wall_ms + INTERVAL
    rig.run(INTERVAL)
    rig.answer_all()
    rig.settle()
    assert blocking(rig) == []


def test_a_record_that_failed_ten_seconds_ago_blocks_its_key_and_says_that_it_is_held() -> None:
    rig = rig_of(b"a")
    rig.answer(FAIL)
    rig.lane.hold(Holds([Hold("h", key=b"a")]), rig.now)
    rig.run(BLOCKED_MS - 1)
    assert blocking(rig) == []
    rig.run(1)
    assert [(one.id, one.times, one.held) for one in blocking(rig)] == [("orders:0:0", 1, True)]


def test_a_partition_knows_how_many_of_its_records_are_being_retried_in_place() -> None:
    rig = rig_of(b"a", b"b", b"c")
    for outcome in (FAIL, FAIL, COMMITTED):
        rig.answer(outcome)
    assert rig.part().offsets.tried == 2
    rig.run(INTERVAL)
    rig.answer(FAIL)
    rig.answer()
    assert rig.part().offsets.tried == 1
    rig.run(INTERVAL)
    rig.answer()
    assert rig.part().offsets.tried == 0


# --- the lines of ordered mode by themselves: whatever joins, leaves and goes, each key's records go one -------------


PLACES = (Partition("orders", 0), Partition("orders", 1), Partition("bills", 0))
KEYS = (None, b"", b"a", b"b")
JOIN = st.tuples(st.just("join"), st.sampled_from(PLACES), st.sampled_from(KEYS))
LEAVE = st.tuples(st.just("leave"), st.integers(0, 30), st.none())
DROP = st.tuples(st.just("drop"), st.sampled_from(PLACES), st.none())
Step = tuple[str, object, object]


class Model:
    """Plays steps on lines, and keeps for each line who has joined, who is free, and in which order they came free."""

    def __init__(self, by: OrderBy) -> None:
        self.by = by
        self.lines = KeyQueues(by)
        self.offset = 0
        self.joined: dict[object, list[int]] = defaultdict(list)
        self.freed: dict[object, list[int]] = defaultdict(list)
        self.free: list[Record] = []

    def line(self, record: Record) -> object:
        return (record.source, record.key if self.by == "key" else None)

    def play(self, step: Step) -> None:
        what, one, other = step
        getattr(self, what)(one, other)

    def join(self, place: Partition, key: bytes | None) -> None:
        self.offset += 1
        new = record(self.offset, source=place, key=key)
        if self.by == "key" and key is None:
            assert self.lines.enqueue(new), "a record without a key waits for nobody"
            assert self.lines.finish(new) is None
            return
        self.joined[self.line(new)].append(new.offset)
        if self.lines.enqueue(new):
            self.frees(new)

    def frees(self, record: Record) -> None:
        assert self.lines.enqueue(record), "the first of a line may ask as often as it likes"
        self.freed[self.line(record)].append(record.offset)
        self.free.append(record)

    def leave(self, which: int, _: object) -> None:
        if self.free:
            first = self.free.pop(which % len(self.free))
            following = self.lines.finish(first)
            assert self.lines.finish(first) is None, "who has left cannot leave again"
            if following is not None:
                self.frees(following)

    def drop(self, place: Partition, _: object) -> None:
        self.lines.drop([place])
        self.free = [record for record in self.free if record.source != place]
        for line in [line for line in self.joined if line[0] == place]:  # type: ignore[index]
            self.joined[line], self.freed[line] = [], []


@given(st.sampled_from(["key", "partition"]), st.lists(JOIN | JOIN | LEAVE | DROP, max_size=60))
def test_each_line_is_freed_one_by_one_in_the_order_in_which_it_was_joined(by: OrderBy, steps: list[Step]) -> None:
    model = Model(by)
    for step in steps:
        model.play(step)
        assert len({model.line(record) for record in model.free}) == len(model.free), "two of one line are free"
        for line, freed in model.freed.items():
            assert freed == model.joined[line][: len(freed)]
    while model.free:
        model.leave(0, None)
    assert model.freed == model.joined, "somebody waits for ever"


def test_what_waits_behind_the_first_of_a_line_can_be_let_go_and_the_first_stays() -> None:
    here, there = PLACES[:2]
    first, *behind = (record(offset, source=here, key=b"a") for offset in range(3))
    alone, other = record(3, source=here, key=b"b"), record(0, source=there, key=b"a")
    lines = KeyQueues("key")
    assert [lines.enqueue(one) for one in (first, *behind, alone, other)] == [True, False, False, True, True]
    assert lines.shed(here, {3}) == behind
    assert lines.finish(alone) is None, "its line is gone with it"
    assert not lines.enqueue(behind[0]), "the first is still out"
    assert lines.finish(first) is behind[0]
    assert lines.finish(other) is None


# --- the names of lines, and the queues that go by them: what must go one after the other has one name ---------------


OTHER = Partition("bills", 0)
LONG = b"x" * LONGEST_NAME


def queues(*keys: bytes | None, by: OrderBy = "key") -> KeyQueues:
    """Named queues of the records of one partition with these keys, offsets 0, 1, …"""
    lines = KeyQueues(by, named=True)
    for offset, key in enumerate(keys):
        lines.enqueue(record(offset, key=key))
    return lines


def offsets(records: list[Record]) -> list[int]:
    return [one.offset for one in records]


@pytest.mark.parametrize("key", [b"", b"a", b"\xff\x00", LONG])
def test_a_key_is_the_name_of_its_line(key: bytes) -> None:
    assert line_of(record(key=key), "key") == key


def test_a_long_key_is_known_by_its_digest() -> None:
    names = {line_of(record(key=LONG + more), "key") for more in (b"1", b"2", b"1" * 10_000)}
    assert len(names) == 3
    assert all(len(name) == 17 for name in names), "a ledger has place for it"
    assert line_of(record(1, key=LONG + b"1"), "key") in names


def test_a_record_without_a_key_has_a_line_of_its_own_and_its_copy_has_the_same() -> None:
    first, second = record(7, key=None), record(8, key=None)
    copy = record(99, source=Partition("billing-ORDERED-orders", 0), key=None, life=life())
    assert line_of(first, "key") != line_of(second, "key")
    assert line_of(copy, "key") == line_of(first, "key")
    assert line_of(record(7, key=first.id.encode()), "key") != line_of(first, "key")


@pytest.mark.parametrize("key", [None, b"a", LONG + b"1"])
def test_by_partition_all_records_have_one_line(key: bytes | None) -> None:
    assert line_of(record(key=key), "partition") == b""


@pytest.mark.parametrize(("by", "line"), [("key", b"a"), ("partition", b"")])
def test_a_line_is_held_while_a_record_of_it_is_first(by: OrderBy, line: bytes) -> None:
    lines = queues(b"a", b"a", by=by)
    assert lines.holds(ORDERS, line)
    assert not lines.holds(OTHER, line)
    lines.finish(record(0, key=b"a"))
    assert lines.holds(ORDERS, line)
    lines.finish(record(1, key=b"a"))
    assert not lines.holds(ORDERS, line)


def test_a_line_of_a_long_key_is_held_by_its_name() -> None:
    lines = queues(LONG + b"1")
    assert lines.holds(ORDERS, line_of(record(key=LONG + b"1"), "key"))
    assert not lines.holds(ORDERS, LONG + b"1")


@pytest.mark.parametrize(("by", "taken"), [("key", [0, 2]), ("partition", [0, 1, 2])])
def test_a_line_is_taken_whole_and_others_stay(by: OrderBy, taken: list[int]) -> None:
    lines = queues(b"a", b"b", b"a", by=by)
    assert offsets(lines.take_line(record(0, key=b"a"))) == taken
    assert lines.take_line(record(0, key=b"a")) == []
    assert lines.holds(ORDERS, b"b") is (by == "key")
    lines.check()
