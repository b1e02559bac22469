"""Two lanes, one pace: an outage uses up nothing, and a new policy holds from the next decision on (1.7, 1.8)."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.outcome import CANCELLED, Failed, NotSent, Throttled
from reconsume.sidecar.core.pace.pace import (
    FIRST_PROBE_MS,
    IDLE_AFTER_MS,
    NOTHING_OPEN,
    PROBE_HANGS_MS,
    PROBE_INTERVAL_MS,
    Cause,
    Pace,
    State,
)
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Now, Partition
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL, life, policy, record, waits

LEVEL = Partition("billing-RETRY-10s", 0)
FAILS = Failed("http-500")


def begun(*offsets: int, **options: int) -> Rig:
    rig = Rig(**options)  # type: ignore[arg-type]
    rig.assign(ORDERS)
    rig.take_offsets(offsets)
    return rig


def test_a_refused_connection_is_not_an_attempt_and_keeps_the_record_first_in_line() -> None:
    rig = begun(0, 1, 2, concurrency=1)
    rig.answer(NotSent("refused"))
    assert not rig.sent
    rig.run(FIRST_PROBE_MS)
    assert rig.out_offsets() == [0]
    assert rig.sent[0].record.times == 0
    assert not rig.batches


def test_an_outage_lets_one_probe_out_then_starts_slowly() -> None:
    rig = begun(*range(40), concurrency=8)
    rig.answer_all(NotSent("refused"))
    assert rig.gate.pace.state is State.OUTAGE
    rig.run(FIRST_PROBE_MS - 1)
    assert not rig.sent
    rig.run(1)
    assert len(rig.sent) == 1
    rig.answer()
    assert len(rig.sent) == 2
    rig.answer()
    rig.answer()
    assert len(rig.sent) == 4
    rig.answer_all()
    rig.settle()
    assert {sent.record.offset for sent in rig.history} == set(range(40))
    assert rig.part().offsets.snapshot() == Progress(40)


def test_an_outage_of_hours_spends_no_retry_and_loses_nothing() -> None:
    rig = begun(*range(6), concurrency=8)
    rig.answer_all(NotSent("refused"))
    for _ in range(2_000):
        rig.run(5_000)
        rig.answer_all(NotSent("refused"))
    assert not rig.batches
    rig.run(5_000)
    rig.answer_all()
    assert all(not batch.entries for batch in rig.settle())
    assert rig.part().offsets.snapshot() == Progress(6)


def passes(rig: Rig, ms: int) -> None:
    """Let time pass in which Kafka takes every commit."""
    for _ in range(ms // 100):
        rig.run(100)
        while rig.batches:
            rig.conclude()


def all_failed() -> tuple[Rig, Rig]:
    """A main and a retry lane, after three records have failed, and their copies are in the level."""
    rig = begun(0, 1, 2, failures=3)
    retries = Rig(retry=True, beside=rig)
    retries.assign(LEVEL)
    rig.answer_all(FAILS)
    passes(rig, PROBE_INTERVAL_MS)
    assert rig.gate.pace.cause is Cause.FAILING
    return rig, retries


def test_an_outage_of_a_service_that_failed_all_ends_once_nothing_is_open() -> None:
    """G6: six bad records, then a quiet topic: no alarm until the next morning, which nobody can end."""
    rig, _retries = all_failed()
    passes(rig, IDLE_AFTER_MS - PROBE_INTERVAL_MS)
    assert rig.gate.pace.cause is Cause.FAILING, "a copy that was just written may not be read yet"
    passes(rig, PROBE_INTERVAL_MS)
    assert (rig.gate.pace.state, rig.gate.pace.reason) == (State.OPEN, NOTHING_OPEN)
    rig.run(3_600_000)
    rig.take_offsets([3, 4])
    assert rig.out_offsets()[0] == 3, "at once"


def test_it_does_not_end_while_a_retry_waits() -> None:
    rig, retries = all_failed()
    now = rig.now.wall_ms
    waiting = record(0, source=LEVEL, timestamp=now, life=life(due_at=now + 10_000))
    retries.take(waiting)
    passes(rig, 9_000)
    assert rig.gate.pace.cause is Cause.FAILING
    retries.take(waiting)  # its level was not read on while it was not due
    passes(rig, 2_000)
    assert len(retries.sent) == 1, "it is the next probe"
    retries.answer()
    assert rig.gate.pace.state is State.OPEN


def test_an_outage_of_a_service_that_is_away_lasts_although_nothing_is_open() -> None:
    rig = begun(0)
    rig.answer(NotSent("refused"))
    rig.lane.lost([ORDERS])
    rig.run(60_000)
    assert rig.gate.pace.cause is Cause.UNREACHABLE


def test_a_throttled_record_is_delivered_later_without_a_retry() -> None:
    rig = begun(0)
    rig.answer(Throttled(2_500))
    rig.run(2_499)
    assert not rig.sent
    rig.run(1)
    assert (rig.out_offsets(), rig.sent[0].record.times) == ([0], 0)
    assert not rig.batches


def test_a_cancelled_delivery_is_neither_done_nor_delivered_again_by_us() -> None:
    rig = begun(0, 1)
    rig.answer(CANCELLED)
    rig.answer()
    rig.settle()
    assert rig.part().offsets.snapshot() == Progress(0, frozenset({1}))
    assert len(rig.history) == 2


def test_when_the_service_fails_everything_one_record_a_second_spends_an_attempt() -> None:
    rig = begun(*range(100), concurrency=4, failures=20)
    while rig.gate.pace.state is State.OPEN:
        rig.answer(FAILS)
    rig.answer_all(FAILS)  # what was out when the outage began
    assert sum(len(batch.entries) for batch in rig.settle()) == 20 + 3
    rig.answer_all(FAILS)
    probed = []
    for _ in range(60):
        rig.run(PROBE_INTERVAL_MS // 2)
        assert len(rig.sent) <= 1
        probed += rig.out_offsets()
        rig.answer_all(FAILS)
    assert 28 <= len(probed) <= 30 + 3  # the first come after 100, 200 and 400 ms
    assert len(set(probed)) == len(probed)
    rig.run(PROBE_INTERVAL_MS)
    rig.answer_all()
    rig.settle()
    assert rig.part().offsets.snapshot() == Progress(100)


def test_a_probe_that_hangs_does_not_stop_the_others() -> None:
    rig = begun(0, 1, concurrency=2)
    rig.answer(NotSent("refused"))
    rig.run(FIRST_PROBE_MS)
    assert rig.out_offsets() == [1, 0]
    rig.run(PROBE_HANGS_MS)
    rig.take_offsets([2])
    assert rig.out_offsets() == [1, 0, 2]
    rig.answer(place=2)
    assert rig.gate.pace.state is State.OPEN


def test_a_probe_that_goes_out_from_the_answer_to_something_else_may_hang_too() -> None:
    """Given nothing ready when the probe is due, then what comes back next is it, and nobody else sets an alarm."""
    rig = begun(0, concurrency=2)
    other = Partition("orders", 1)
    rig.assign(other)
    rig.take_offsets([0], other)
    rig.settle()
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.answer(NotSent("refused"))
    rig.run(FIRST_PROBE_MS)
    rig.answer(NotSent("refused"))
    assert [sent.record.source for sent in rig.sent] == [other]
    rig.run(PROBE_HANGS_MS)
    rig.take_offsets([1], other)
    assert rig.out_offsets() == [0, 1]


def test_throttled_records_that_fall_due_together_are_no_herd() -> None:
    rig = begun(*range(64), concurrency=32)
    while rig.sent:
        rig.answer(Throttled(1_000))
    rig.run(999)
    assert not rig.sent  # one at a time was too many: a pause for as long as it asked for
    rig.run(1)
    rounds = []
    while rig.sent:
        rounds.append(len(rig.sent))
        for _ in range(rounds[-1]):
            rig.answer()
    assert rounds[:5] == [1, 2, 3, 4, 5]
    rig.settle()
    assert rig.part().offsets.snapshot() == Progress(64)


# --- two lanes -------------------------------------------------------------------------------------------------------


def test_both_lanes_get_their_turn() -> None:
    main = begun(*range(50), concurrency=1)
    retry = Rig(beside=main, retry=True)
    source = Partition("billing-RETRY", 0)
    retry.assign(source)
    retry.take(*(record(offset, source=source, timestamp=WALL) for offset in range(50)))
    for _ in range(40):
        (main if main.sent else retry).answer()
    assert abs(len(main.history) - len(retry.history)) <= 1


def test_an_outage_noticed_by_one_lane_ends_for_both() -> None:
    main = begun(*range(5), concurrency=1)
    retry = Rig(beside=main, retry=True)
    source = Partition("billing-RETRY", 0)
    retry.assign(source)
    main.answer(NotSent("refused"))
    retry.take(record(0, source=source))
    for _ in range(10):
        main.run(1_000)
        main.answer_all()
        retry.answer_all()
    assert (len(main.history), len(retry.history)) == (6, 1)


def test_the_probe_is_asked_for_even_when_the_refused_record_is_nobodys_any_more() -> None:
    rig = begun(0, concurrency=1)
    other = Partition("orders", 1)
    rig.assign(other)
    rig.take_offsets([0, 1], other)
    rig.settle()
    rig.lane.ownership.lose_partitions([ORDERS])
    rig.answer(NotSent("refused"))
    rig.run(FIRST_PROBE_MS)
    assert [sent.record.source for sent in rig.sent] == [other]


# --- another policy while records are out and waiting: it holds for what is decided then, and for --------------------


FAILURE = Failed("http-500")
TEN, NEW_LEVEL = Partition("billing-RETRY-10s", 0), Partition("billing-RETRY-3s", 0)


def at(steady: int) -> Now:
    return Now(WALL + steady, steady)


def topics(rig: Rig) -> list[str]:
    """Where the copies of the batch that is out go, in order."""
    writes = [write.topic for entry in rig.conclude().entries for write in entry.writes]
    return [topic for topic in writes if not topic.endswith("EVENTS")]


def test_a_failure_is_judged_by_the_policy_at_its_time() -> None:
    rig = Rig()
    rig.assign(Partition("orders", 0))
    rig.take_offsets([0, 1])
    rig.answer(FAILURE)
    rig.lane.apply_policy(policy(ladder=(3_000,)), {})
    rig.answer(FAILURE)
    rig.run(1_000)
    assert topics(rig) == ["billing-RETRY-10s"]
    rig.run(1_000)
    assert topics(rig) == ["billing-RETRY-3s"]
    rig.take_offsets([2])
    rig.lane.apply_policy(policy(retries=0), {})
    rig.answer(FAILURE)
    rig.run(1_000)
    assert topics(rig) == ["billing-DLQ"]


def test_what_waits_keeps_its_time_and_a_removed_levels_records_are_still_delivered() -> None:
    rig = Rig(retry=True)
    rig.assign(TEN)
    rig.take(record(0, source=TEN, timestamp=WALL - 9_500, life=life(due_at=WALL + 500)))
    other = policy(ladder=(3_000,), table=(3_000,))
    rig.lane.apply_policy(other, waits(other))
    rig.run(499)
    assert not rig.sent
    rig.run(1)
    assert rig.out_offsets() == [0]


def test_a_partition_of_a_new_level_waits_as_its_name_says() -> None:
    rig = Rig(retry=True)
    other = policy(ladder=(3_000,))
    rig.lane.apply_policy(other, waits(other))
    rig.assign(NEW_LEVEL)
    assert rig.lane.partitions[NEW_LEVEL].kind.delay_ms == 3_000
    assert rig.lane.partitions[NEW_LEVEL].kind.level == "3s"


@pytest.mark.parametrize("full", [2, 9])
def test_an_open_pace_is_as_wide_as_it_is_told(full: int) -> None:
    pace = Pace(4)
    pace.resize(full)
    assert (pace.full, pace.limit) == (full, full)


def test_a_throttled_pace_does_not_widen_by_being_told() -> None:
    pace = Pace(8)
    pace.note(record(0), Throttled(1_000), at(0))
    assert (pace.state, pace.limit) == (State.THROTTLED, 4)
    pace.resize(100)
    assert pace.limit == 4
    pace.resize(2)
    assert (pace.full, pace.limit) == (2, 2)


def test_an_outage_stays_an_outage() -> None:
    pace = Pace(8)
    pace.note(record(0), NotSent("refused"), at(0))
    pace.resize(3)
    assert (pace.state, pace.limit, pace.full) == (State.OUTAGE, 0, 3)
