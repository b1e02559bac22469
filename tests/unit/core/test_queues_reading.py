"""How copies of a queue are read: by their offsets, not where they are known already, and again before they are old."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.copy_reads import AHEAD_SHARE, KEEP_MS, MOST_AHEAD, MOST_HOPS, MOST_OUT
from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.outcome import COMMITTED, Outcome, Postponed, Throttled
from reconsume.sidecar.core.partition import FetchedRecords
from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.queues import AT_HAND_SHARE, ROOM_SHARE, SOON_MS
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order
from tests.sim import samples
from tests.sim.ladder_rig import FAIL, QUEUE, WAITS, LadderRig, behind, waiting
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, WALL


def test_what_the_group_has_done_in_a_queue_is_not_delivered_again() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    for offset in range(4):
        rig.put(waiting(offset), key=b"k%d" % offset)
    rig.open(Progress(1, {2}))
    rig.look()
    rig.flow()
    assert rig.out() == [1, 3]


def test_records_of_a_key_go_out_by_their_order_wherever_their_copies_lie() -> None:
    """A redrive stands where the main partition ended when it was written, with a number."""
    rig = LadderRig()
    rig.begin(main=Progress(9))
    for state in (waiting(7), waiting(2, redrives=1, sequence=2), behind(4), waiting(1, redrives=1, sequence=1)):
        rig.put(state)
    rig.open()
    rig.look()
    orders = []
    for _ in range(4):
        rig.flow()
        (sent,) = rig.sent
        assert sent.record.retry_state is not None
        orders.append(sent.record.retry_state.order)
        rig.answer()
    assert orders == [Order(1, 1), Order(2, 2), Order(4), Order(7)]


def test_a_head_goes_out_only_when_main_was_read_up_to_it_and_the_main_records_before_it_are_done() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(0))
    rig.put(waiting(2))
    rig.open()
    rig.look()
    rig.flow()
    assert rig.out() == []
    rig.arrive(b"a", b"b")
    rig.flow()
    assert rig.out() == [0, 1], "what stands before the head is not blocked by it"
    rig.take_it(0)
    rig.flow()
    assert rig.out() == [1, 2]


def test_a_main_record_before_a_head_that_is_out_waits_behind_it() -> None:
    """Main went back, as it does where a part of its progress is lost, and the head had gone out."""
    rig = LadderRig()
    rig.begin(main=Progress(5))
    rig.put(waiting(4))
    rig.open()
    rig.look()
    rig.flow()
    assert rig.out() == [4]
    rig.arrive(b"a")
    rig.flow()
    assert rig.out() == [4]
    rig.take_it(4)
    rig.flow()
    assert rig.out() == [5]


def test_a_main_record_whose_copy_waits_is_done() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(0))
    rig.put(waiting(1, due_in=60_000))
    rig.open()
    rig.look()
    rig.arrive(b"b", b"a", b"a")
    assert rig.out() == [0]
    rig.take_it(0)
    rig.flow(1_000)
    assert rig.kafka[ORDERS] == Progress(3)
    assert len(rig.log) == 2, "the third one is written behind it"


def test_a_main_record_without_a_timestamp_is_known_by_its_copy() -> None:
    rig = LadderRig()
    rig.begin()
    rig.put(waiting(0, due_in=60_000, timestamp=0))
    rig.open()
    rig.look()
    rig.take(samples.record(0, key=b"a", timestamp=-1))
    rig.flow(1_000)
    assert (len(rig.log), rig.kafka[ORDERS]) == (1, Progress(1))


def test_a_record_at_the_offset_of_one_of_a_former_log_is_another_one() -> None:
    rig = LadderRig()
    rig.begin()
    rig.put(waiting(0, due_in=60_000, timestamp=WALL - 1))
    rig.open()
    rig.look()
    rig.arrive(b"b", b"a")
    rig.take_it(0)
    rig.flow()
    assert [record.retry_state.id for record in rig.log.values() if record.retry_state] == ["orders:0:0", "orders:0:1"]


def test_a_wait_that_is_over_by_the_wall_clock_is_over() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    rig.put(waiting(0, due_in=-60_000), key=b"a")
    rig.put(waiting(1, due_in=700), key=b"b")
    rig.open()
    rig.look()
    rig.flow()
    assert rig.out() == [0]
    rig.run(700 - rig.now.steady_ms - 1)
    assert rig.reader.wanted == []
    rig.flow(1)
    assert rig.out() == [0, 1]


def test_of_two_copies_of_a_record_the_one_with_more_retries_stands_and_the_other_is_done() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    for times in (2, 1, 3):
        rig.put(waiting(0, times))
    rig.open()
    rig.look()
    rig.flow()
    assert [(sent.record.offset, sent.record.times) for sent in rig.sent] == [(2, 3)]
    rig.take_it(0)
    rig.flow(1_000)
    assert rig.queue() == Progress(3)


@pytest.mark.parametrize("fault", ["bad-header: RETRY_ORDER is missing", "headers-unreadable"])
def test_a_copy_that_cannot_be_read_is_a_dead_letter_and_no_key_waits_for_it(fault: str) -> None:
    rig = LadderRig()
    rig.begin(main=Progress(0))
    rig.log[0] = samples.record(0, source=QUEUE, key=b"a", fault=fault, headers=[])
    rig.open()
    rig.look()
    rig.arrive(b"a")
    assert rig.out() == [0]
    rig.run(20)
    (entry,) = rig.conclude().entries
    assert (entry.record.source, entry.writes[0].topic) == (QUEUE, rig.policy.names.dlq("orders"))
    rig.flow(1_000)
    assert rig.queue() == Progress(1)
    assert rig.lane.room.load == rig.sent[0].record.weight


def test_the_dead_letter_of_an_unreadable_copy_ends_no_record_of_the_same_offset_in_main() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    rig.log[0] = samples.record(0, source=QUEUE, fault="headers-unreadable", headers=None)
    rig.put(waiting(0, due_in=60_000))
    rig.open()
    rig.look()
    rig.flow()
    rig.arrive(b"a")
    assert rig.out() == []


def test_a_copy_without_a_place_is_a_dead_letter() -> None:
    rig = LadderRig()
    rig.begin()
    rig.put(waiting(0, order=None))
    rig.open()
    rig.look()
    rig.run(20)
    assert [copy.topic for copy in rig.conclude().entries[0].writes][:1] == [rig.policy.names.dlq("orders")]


def test_an_unreadable_copy_that_is_done_already_is_no_second_dead_letter() -> None:
    rig = LadderRig()
    rig.begin()
    rig.log[0] = samples.record(0, source=QUEUE, fault="headers-unreadable", headers=None)
    rig.open(Progress(0, {0}))
    rig.look()
    rig.run(20)
    assert not any(batch.entries for batch in rig.batches)


def test_a_copy_that_is_gone_when_it_is_read_is_counted_and_its_key_is_free() -> None:
    rig = LadderRig()
    rig.begin(main=Progress(9))
    for state in (waiting(0), behind(1), behind(2)):
        rig.put(state)
    rig.open()
    rig.look()
    del rig.log[0], rig.log[1]
    rig.flow()
    assert rig.lane.ownership.records_lost == {"orders": 2}
    assert rig.out() == [2]
    rig.take_it(2)
    rig.flow(1_000)
    assert rig.queue() == Progress(3)


def test_another_record_at_the_offset_of_a_head_is_not_delivered_in_its_place() -> None:
    """The queue was made anew, and its reader has not found that out yet."""
    rig = LadderRig()
    rig.begin(main=Progress(9))
    rig.put(waiting(0))
    rig.open()
    rig.look()
    rig.put(behind(5), at=7)
    rig.log[0] = replace(rig.log.pop(7), offset=0)
    rig.flow()
    assert rig.out() == []
    assert rig.lane.ownership.records_lost == {"orders": 1}


# --- its progress -------------------------------------------------------------------------------------------------


def test_a_queue_has_progress_as_soon_as_it_is_opened() -> None:
    rig = LadderRig()
    rig.begin()
    rig.open(Progress(4))
    rig.run(1_000)
    batch = rig.conclude()
    assert (batch.commits[QUEUE].progress, batch.commits[QUEUE].under) == (Progress(4), ORDERS)


def test_the_progress_of_a_queue_goes_behind_the_markers_at_its_end() -> None:
    rig = LadderRig()
    rig.take_over()
    rig.settle()
    rig.queues.read(FetchedRecords(QUEUE, 1, 0, [], 3), rig.now, caught_up=True)
    rig.settle()
    assert rig.queue() == Progress(3)
    assert rig.batches == []


def test_the_progress_of_an_idle_queue_is_committed_again_before_kafka_forgets_it() -> None:
    rig = LadderRig()
    rig.take_over()
    rig.settle()
    for _ in range(2):
        rig.run(KEEP_MS)
        (batch,) = rig.batches
        assert batch.commits.keys() == {QUEUE}
        rig.conclude()


# --- copies that the lane has committed itself: they go out when they are due without being read back ----------------


def failed(*keys: bytes, queue: Progress | None = None, room: int = 1 << 20) -> LadderRig:
    """A lane whose first records have failed; what is written for them is on its way. `queue`: the progress there."""
    rig = LadderRig(room=room)
    rig.take_over(queue)
    rig.arrive(*keys)
    for offset in range(len(keys)):
        rig.fail(offset)
    rig.run(20)
    return rig


def commit(rig: LadderRig) -> None:
    """Commit all that is settled, and tell the lane where the copies lie."""
    for _ in range(4):
        if rig.batches:
            rig.conclude_located()
        rig.run(20)


def test_a_copy_whose_place_is_told_goes_out_though_nothing_is_read_back() -> None:
    rig = failed(b"a", b"b")
    commit(rig)
    assert (rig.reader.known_to, rig.read_to) == (2, 0)
    rig.run(WAITS[0])
    assert sorted(rig.reader.wanted) == [0, 1]
    rig.conclude()
    rig.bring()
    assert rig.out() == [0]


def test_what_is_due_soon_is_at_hand_as_it_would_be_read_and_what_is_due_late_is_not() -> None:
    rig = failed(b"a")
    assert WAITS[0] < SOON_MS < WAITS[1]
    rig.conclude_located()
    assert rig.reader.at_hand == [rig.log[0]]
    rig.run(WAITS[0])
    rig.conclude()
    rig.bring()
    rig.fail(0)
    commit(rig)
    assert (rig.end, len(rig.reader.at_hand)) == (2, 1)


def test_no_more_is_at_hand_than_there_is_room_for_and_those_that_are_first_are() -> None:
    """Given so many copies in one transaction that the last ones would push out the first, then only the first are."""
    rig = failed(*(b"k%d" % number for number in range(5)), room=AT_HAND_SHARE * 4_000)
    commit(rig)
    assert rig.log[0].weight < 4_000 < 2 * rig.log[0].weight
    assert rig.reader.at_hand == [rig.log[offset] for offset in (0, 1, 2)], "one was committed alone, then four"
    assert rig.reader.known_to == rig.end


def test_a_record_of_others_before_a_copy_is_read_first_and_both_go_out() -> None:
    rig = LadderRig()
    rig.take_over()
    rig.arrive(b"a", b"b")
    rig.take_it(1)
    rig.fail(0)
    rig.run(20)
    rig.put(waiting(1, redrives=1), key=b"b")
    rig.conclude_located()
    assert rig.reader.known_to == 0
    rig.run(WAITS[0])
    assert rig.reader.wanted == [], "nobody knows yet what lies before it"
    rig.conclude()
    rig.look()
    rig.bring()
    rig.bring()
    assert sorted(rig.out()) == [0, 1]


def test_a_copy_that_is_read_back_all_the_same_changes_nothing() -> None:
    rig = failed(b"a", b"b")
    commit(rig)
    rig.look()
    rig.flow(WAITS[0])
    assert sorted(rig.out()) == [0, 1]
    rig.answer_all()
    rig.flow()
    assert rig.part(QUEUE).offsets.entries == {}


def test_a_copy_that_is_read_before_its_commit_is_known_is_taken_once() -> None:
    rig = failed(b"a")
    rig.reach_kafka()
    rig.look()
    Rig.conclude(rig, located={0: (0, rig.log[0].timestamp)})
    rig.flow(WAITS[0])
    assert rig.out() == [0]


def test_progress_of_a_queue_names_its_log_before_anything_of_it_is_read() -> None:
    """Progress of a former log is not believed by the next owner, so this one must be known for what it is."""
    log = LogId("cluster", "queue")
    rig = failed(b"a", queue=Progress(0, log=log))
    commit(rig)
    rig.run(WAITS[0])
    rig.bring()
    commit(rig)
    rig.take_it(0)
    rig.run(1_000)
    progress = rig.batches[0].commits[QUEUE].progress
    assert (progress.next, progress.log, rig.read_to) == (1, log, 0)


# --- copies are written again before Kafka may delete them, also those of a key whose head waits in ------------------


HOUR = 3_600_000
STEP = 900_000
LASTS = 30
"""Hours, more than the shortest retention that a queue may have."""
Spell = Callable[[LadderRig], None]


@pytest.fixture
def rig() -> LadderRig:
    """A key whose head is out, and two records behind it."""
    rig = LadderRig()
    for state in (waiting(0), behind(1), behind(2)):
        rig.put(state)
    rig.take_over(main=Progress(3))
    rig.flow(10)
    assert rig.out() == [0]
    return rig


def ages(rig: LadderRig) -> list[int]:
    """How old each copy is that waits, in hours."""
    return [(rig.now.wall_ms - rig.log[offset].timestamp) // HOUR for offset in rig.part(QUEUE).offsets.entries]


def answers(outcome: Outcome) -> Spell:
    """The service says the same all the time."""

    def spell(rig: LadderRig) -> None:
        if rig.sent:
            rig.answer(outcome)

    return spell


def in_place(max_times: int | None) -> Spell:
    """The ladder has ended, and the head fails."""

    def spell(rig: LadderRig) -> None:
        rules = replace(rig.policy, queued=False, drained=True, in_place=InPlace(30_000, max_times))
        rig.lane.apply_policy(rules, {})
        answers(FAIL)(rig)

    return spell


def nothing_is_sent(rig: LadderRig) -> None:
    """As in an outage."""
    answers(Postponed(1_000))(rig)
    rig.gate.doubts = 1


def held(rig: LadderRig) -> None:
    """An operator holds what the service has postponed."""
    answers(Postponed(1_000))(rig)
    rig.lane.hold(Holds([Hold("h")]), rig.now)


SPELLS = (answers(Throttled(600_000)), in_place(None), nothing_is_sent, held)


@pytest.mark.parametrize("spell", SPELLS, ids=["throttled", "in place", "an outage", "held"])
def test_no_copy_is_older_than_half_a_day_and_all_go_in_their_order_in_the_end(rig: LadderRig, spell: Spell) -> None:
    oldest = 0
    for _ in range(LASTS * HOUR // STEP):
        spell(rig)
        rig.flow(STEP)
        oldest = max(oldest, *ages(rig))
        assert set(rig.out()) <= {0}
    assert oldest <= 12
    rig.gate.doubts = 0
    rig.lane.hold(Holds(), rig.now)
    for offset in (0, 1, 2):
        rig.flow(HOUR)
        assert rig.out() == [offset]
        rig.answer(COMMITTED)


def test_what_was_throttled_or_postponed_is_not_early_by_it(rig: LadderRig) -> None:
    rig.run(4 * HOUR - 10)
    rig.answer(Postponed(8 * HOUR))
    rig.flow(7 * HOUR)
    assert (rig.out(), max(ages(rig)) < 4) == ([], True)
    rig.flow(HOUR - 1_000)
    assert rig.out() == []
    rig.flow(2_000)
    assert rig.out() == [0]


def test_tries_in_place_that_are_bounded_are_counted_on(rig: LadderRig) -> None:
    """They end by themselves; to count anew with each copy they would not."""
    for _ in range(LASTS * HOUR // STEP):
        in_place(100)(rig)
        if rig.sent and rig.sent[0].record.offset != 0:
            break
        rig.flow(STEP)
    assert rig.out() == [1], "the first one is a dead letter"


# --- aside: read, and not delivered ----------------------------------------------------------------------------------


def test_of_parked_copies_that_are_given_up_no_more_are_read_at_once_than_may_be_out() -> None:
    """Given a group that parks no longer, then all that is parked becomes dead letters, a bounded number at a time."""
    rig = LadderRig()
    for offset in range(100):
        rig.put(waiting(offset, parked=True), key=b"%d" % offset)
    rig.take_over(main=Progress(100))
    rig.run(20)
    assert len(rig.reader.wanted) == MOST_OUT
    rig.flow()
    assert (rig.lane.shown.parked_keys(), rig.queue(), rig.history) == (0, Progress(100), [])


def test_old_copies_are_written_again_a_few_at_a_time_until_all_are_new() -> None:
    rig = LadderRig()
    for offset in range(100):
        rig.put(waiting(offset, due_in=48 * HOUR), key=b"%d" % offset)
    rig.take_over(main=Progress(100))
    most = 0
    for _ in range(2 * 12):
        rig.run(HOUR // 2)
        most = max(most, len(rig.reader.wanted))
        rig.flow()
    assert (most, rig.history) == (MOST_HOPS, [])
    assert max(ages(rig)) < 12


# --- ahead: what goes next is read while what goes before is out ------------------------------------------------------


def line_of(count: int, head: RetryState, **more: int) -> LadderRig:
    """A queue that was taken over with a head and `count` records behind it."""
    rig = LadderRig(**more)
    rig.put(head)
    for offset in range(1, count + 1):
        rig.put(behind(offset))
    rig.take_over(main=Progress(count + 1))
    return rig


def drain_one(rig: LadderRig) -> None:
    """Have the record that is asked for delivered, and accepted."""
    rig.bring()
    rig.answer()


def test_the_records_of_a_key_that_drains_are_read_ahead_so_that_none_waits_for_a_read() -> None:
    rig = line_of(2 * MOST_AHEAD, behind(0), room=1 << 24)
    for offset in range(2 * MOST_AHEAD + 1):
        assert rig.reader.wanted == [offset]
        assert offset == 0 or offset in rig.reader.ahead, "it was read before it was asked for"
        assert max(rig.reader.ahead) <= offset + MOST_AHEAD
        drain_one(rig)
    assert len(rig.reader.ahead) < 5 * MOST_AHEAD, "half of them had gone each time"


def test_nothing_is_read_ahead_behind_a_head_that_fails() -> None:
    rig = line_of(3, waiting(0))
    for _ in range(3):
        rig.flow(WAITS[1])
        rig.fail(0)
    assert rig.reader.ahead == []
    rig.flow(WAITS[1])
    rig.take_it(0)
    rig.flow()
    assert (rig.out(), rig.reader.ahead) == ([1], [2, 3])


def test_what_could_not_go_yet_is_not_read_ahead() -> None:
    rig = LadderRig()
    for state in (behind(0), behind(1), waiting(2, due_in=WAITS[0]), behind(3)):
        rig.put(state)
    rig.take_over(main=Progress(4))
    assert (rig.reader.wanted, rig.reader.ahead) == ([0], [1])


def test_what_is_read_ahead_takes_no_more_room_than_its_share() -> None:
    """The copies are of one size, which the ledger rounds up to 256 bytes."""
    rig = line_of(MOST_AHEAD, behind(0), room=AHEAD_SHARE * ROOM_SHARE * 10_240)
    assert len(rig.reader.ahead) == 10_240 // (-(-rig.log[1].weight // 256) * 256)


def test_where_more_keys_may_go_than_there_is_room_for_the_next_of_these_are_read_ahead() -> None:
    rig = LadderRig(room=1 << 24)
    for number in range(2 * MOST_OUT):
        rig.put(waiting(number), key=b"%d" % number)
    rig.put(behind(2 * MOST_OUT), key=b"0")
    rig.take_over(main=Progress(2 * MOST_OUT + 1))
    assert (rig.reader.wanted, rig.reader.ahead) == ([*range(MOST_OUT)], [*range(MOST_OUT, 2 * MOST_OUT)])
