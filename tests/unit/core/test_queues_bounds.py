"""The bounds of a queue: how many records wait, how far apart they lie; queues that take nothing, or are not there."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.copy_reads import MOST_HOPS, MOST_OUT, ROUND_MS, Spans
from reconsume.sidecar.core.outbox import LAST_TRY_MS, MOST_REFUSED, UNANSWERED_MS
from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.progress import SPAN, Progress
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import Partition
from reconsume.topics.retry_headers import RetryState
from tests.sim.ladder_rig import QUEUE, WAITS, LadderRig, behind, rules, states_of, waiting
from tests.sim.samples import ORDERS

LATE = 3_600_000
MAIN = Progress(100)
"""Where the main partition goes on: every head of the queue stands before."""


def rig_of(*states: RetryState, most: int = 20_000, main: Progress = MAIN, **more: object) -> LadderRig:
    """A lane that has taken over a partition in whose queue these records wait, each of a key of its own."""
    rig = LadderRig(policy=replace(rules(), max_waiting=most), **more)  # type: ignore[arg-type]
    rig.begin(main)
    for number, state in enumerate(states):
        rig.put(state, key=b"k%d" % number)
    rig.open()
    rig.look()
    rig.settle()
    return rig


def far_apart(*offsets: int, due_in: int = LATE, hop_span: int = SPAN // 2, span: int = SPAN) -> LadderRig:
    """A lane in whose queue records wait at these offsets; what lay between is done."""
    rig = LadderRig()
    rig.queues.within(Spans(span, hop_span))
    rig.begin(MAIN)
    for number, offset in enumerate(offsets):
        rig.put(waiting(number, due_in=due_in), key=b"k%d" % number, at=offset)
    rig.open()
    rig.look()
    return rig


def because(rig: LadderRig) -> NotFetched | None:
    pause = rig.part(ORDERS).paused
    return None if pause is None else pause.because


# --- how much may wait ---------------------------------------------------------------------------------------------


def test_a_main_partition_is_paused_where_as_much_waits_as_may_and_others_go_out_until_then() -> None:
    rig = rig_of(*(waiting(number, due_in=LATE) for number in range(3)), most=4)
    rig.arrive(b"k0", b"free")
    assert because(rig) is None
    assert rig.out() == [101]
    rig.arrive(b"more")
    assert because(rig) is NotFetched.BEHIND_KEYS
    assert rig.fetches[-1] == ("pause", ORDERS)
    assert rig.out() == [101]


def test_a_main_partition_that_was_paused_goes_on_when_less_than_three_quarters_of_that_wait() -> None:
    rig = rig_of(*(waiting(number, due_in=1_000 if number < 2 else LATE) for number in range(4)), most=4)
    rig.arrive(b"free")
    rig.flow(5_000)
    for number in (0, 1):
        assert because(rig) is NotFetched.BEHIND_KEYS
        rig.take_it(number)
        rig.flow()
    assert rig.fetches[-1] == ("resume", ORDERS, 100, 2)


def test_a_main_partition_is_read_on_while_a_head_waits_for_it() -> None:
    """The head could never go, and neither could what waits behind it."""
    rig = rig_of(waiting(105), waiting(1, due_in=LATE), most=1)
    rig.arrive(b"free")
    assert because(rig) is None
    rig.arrive(*[b"free"] * 4)
    assert because(rig) is None
    rig.arrive(b"free")
    assert because(rig) is NotFetched.BEHIND_KEYS


def test_a_queue_may_hold_one_record_however_few_may_wait() -> None:
    rig = rig_of(most=1)
    rig.arrive(b"a")
    rig.fail(100)
    rig.flow()
    rig.arrive(b"b")
    assert (because(rig), len(rig.log)) == (NotFetched.BEHIND_KEYS, 1)


def test_a_main_partition_is_paused_where_progress_of_its_queue_could_not_name_more() -> None:
    rig = far_apart(0, SPAN - 1, hop_span=2 * SPAN)
    rig.arrive(b"free")
    assert because(rig) is NotFetched.BEHIND_KEYS
    rig = far_apart(0, SPAN - 2, hop_span=2 * SPAN)
    rig.arrive(b"free")
    assert because(rig) is None


def test_a_main_partition_whose_log_ends_is_not_paused() -> None:
    rig = rig_of(waiting(0, due_in=LATE), most=1)
    rig.lane.received([FetchedRecords(ORDERS, 1, rig.part().seek_count, [], 105)], rig.now)
    assert because(rig) is None
    rig.settle()
    assert rig.kafka[ORDERS] == Progress(105)


# --- how much is in memory -----------------------------------------------------------------------------------------


def test_so_many_records_of_a_queue_are_asked_for_at_a_time() -> None:
    rig = rig_of(*(waiting(number) for number in range(MOST_OUT + 3)), concurrency=1_000)
    assert len(rig.reader.wanted) == MOST_OUT
    rig.bring()
    assert len(rig.reader.wanted) == MOST_OUT - 1, "what is in memory counts"
    rig.take_it(0)
    rig.run(20)
    rig.conclude()
    assert len(rig.reader.wanted) == MOST_OUT


def test_a_queue_whose_records_take_its_share_of_the_room_asks_for_no_more_until_one_is_done() -> None:
    rig = LadderRig(room=4 * 10_000)
    rig.begin(MAIN)
    for number in range(3):
        rig.put(waiting(number, due_in=number), key=b"k%d" % number, value=bytes(20_000))
    rig.open()
    rig.look()
    rig.bring()
    rig.run(10)
    assert (rig.out(), rig.reader.wanted) == ([0], [])
    rig.take_it(0)
    rig.flow()
    assert rig.out() != []


def test_two_queues_share_the_room_for_the_records_of_all() -> None:
    rig = LadderRig(room=8 * 10_000)
    rig.begin(MAIN)
    rig.lane.assigned([AssignedPartition(Partition("orders", 1), 1, Progress(0))], rig.now)
    for number in range(3):
        rig.put(waiting(number, due_in=number), key=b"k%d" % number, value=bytes(15_000))
    rig.open()
    rig.look()
    rig.bring()
    rig.run(10)
    assert rig.reader.wanted == [], "it has its half of the quarter"


# --- hops ----------------------------------------------------------------------------------------------------------


def hopped(rig: LadderRig) -> CommitBatch:
    """The batch of what was read to be written again."""
    while rig.reader.wanted:
        rig.bring()
    rig.run(20)
    return rig.batches[0]


def test_the_first_record_of_a_long_queue_is_written_again_at_its_end_as_it_is() -> None:
    rig = far_apart(0, 20, hop_span=8)
    assert rig.reader.wanted == [0, 20]
    batch = hopped(rig)
    assert [len(entry.writes) for entry in batch.entries] == [1], "a hop has no event"
    assert states_of(batch, rig.policy) == [rig.log[0].retry_state]
    rig.flow(5_000)
    assert rig.queue() == Progress(21)
    assert rig.sent == []
    rig.flow(LATE)
    assert sorted(rig.out()) == [0, 1]


@pytest.mark.parametrize(("offsets", "hop_span"), [((0, 20), 22), (range(10), 8), ((0, 1, 3, 4, 5, 6), 4)])
def test_a_queue_that_is_short_or_of_which_most_waits_does_not_hop(offsets: tuple[int, ...], hop_span: int) -> None:
    rig = far_apart(*offsets, hop_span=hop_span)
    rig.flow(ROUND_MS)
    assert rig.end == offsets[-1] + 1


@pytest.mark.parametrize(
    ("count", "length", "hops"),
    [(7, 13, False), (6, 13, True), (11, 13, False), (12, 14, True), (13, 14, False), (14, 16, True), (15, 16, False)],
)
def test_a_queue_hops_if_half_of_it_is_done_or_an_eighth_where_it_is_nearly_as_long_as_may_be(
    count: int, length: int, hops: bool
) -> None:
    rig = far_apart(*range(count - 1), length - 1, hop_span=8, span=16)
    assert bool(rig.reader.wanted) is hops


def test_records_that_are_gone_when_they_are_to_hop_make_way_for_others() -> None:
    rig = far_apart(*range(MOST_HOPS + 1), 1_000, hop_span=900)
    for offset in range(MOST_HOPS):
        del rig.log[offset]
    for _ in range(MOST_HOPS):
        rig.bring()
    assert rig.reader.wanted == [MOST_HOPS, 1_000]


def test_the_lowest_records_hop_and_so_many_at_a_time() -> None:
    rig = far_apart(*range(MOST_HOPS + 4), 1_000, hop_span=900)
    assert rig.reader.wanted == list(range(MOST_HOPS))
    rig.bring()
    rig.run(20)
    assert len(rig.reader.wanted) == MOST_HOPS - 1, "what is on its way counts"
    hopped(rig)
    rig.conclude()
    assert rig.reader.wanted == [MOST_HOPS], "as many go on as have ended"


def test_a_record_hops_once_a_round() -> None:
    rig = far_apart(0, 20, hop_span=8)
    first = rig.now.steady_ms
    rig.flow()
    assert rig.end == 23
    rig.put(waiting(7, due_in=LATE), key=b"k7", at=50)
    rig.look()
    rig.run(first + ROUND_MS - rig.now.steady_ms - 1)
    assert rig.reader.wanted == []
    rig.run(1)
    assert rig.reader.wanted == [21, 22, 50]


def test_a_record_whose_key_is_out_does_not_hop() -> None:
    rig = far_apart(0, 5, due_in=0)
    rig.flow()
    assert rig.out() == [0, 1]
    rig.put(waiting(7, due_in=LATE), key=b"k1", at=6)
    rig.put(waiting(8, due_in=LATE), key=b"k8", at=50)
    rig.queues.within(Spans(SPAN, 8))
    rig.look()
    assert rig.reader.wanted == [50]


def test_a_record_that_is_written_again_goes_out_when_it_is_due() -> None:
    rig = far_apart(0, 20, due_in=5_000, hop_span=8)
    rig.flow()
    rig.flow(5_000)
    assert [(sent.record.offset, sent.record.times) for sent in rig.sent] == [(21, 1), (22, 1)]


# --- A record of a queue goes out within the span of the first open one: whatever lies between, it comes -------------


def test_what_lies_further_than_progress_can_name_is_not_delivered() -> None:
    rig = far_apart(0, 15, 16, due_in=0, hop_span=100, span=16)
    assert rig.reader.wanted == [0, 15]
    rig.bring()
    rig.bring()
    rig.take_it(0)
    rig.flow()
    assert rig.out() == [1, 2]


def test_records_that_are_not_due_hop_until_a_head_far_behind_them_can_go_out() -> None:
    rig = far_apart(0, 1, 2, hop_span=100, span=16)
    rig.put(waiting(9), key=b"k9", at=17)
    rig.look()
    assert rig.reader.wanted == [0, 1], "no more of them than keep it from going out"
    rig.flow()
    assert [(sent.record.offset, sent.record.times) for sent in rig.sent] == [(17, 1)]
    rig.take_it(9)
    rig.settle()
    assert rig.queue().covers(17)


def test_a_head_behind_a_queue_of_which_all_is_open_goes_out() -> None:
    """Its retry is written at the end, too far from the first of those that wait behind it."""
    rig = LadderRig()
    rig.queues.within(Spans(16, 8))
    rig.begin(MAIN)
    rig.put(waiting(0, 2), key=b"a", at=20)
    for number in range(1, 20):
        rig.put(behind(number), key=b"a", at=number)
    rig.open()
    rig.look()
    for number in range(20):
        rig.flow()
        rig.take_it(number)
    rig.settle()
    assert rig.queue().next >= rig.end - 1
    assert len(rig.history) == 20


def test_heads_within_reach_go_out_before_anything_hops_for_one_that_lies_further() -> None:
    """The one out of reach is due first: the others would be written again at the end in turn, and none go out."""
    rig = LadderRig()
    rig.queues.within(Spans(16, 100))
    rig.begin(MAIN)
    for number, due_in in ((1, 1_000), (2, 1_000), (40, 900)):
        rig.put(waiting(number, due_in=due_in), key=b"k%d" % number, at=number)
    rig.open()
    rig.look()
    rig.clock.steady_ms += 1_000  # as after a freeze: all are due at once
    rig.look()
    rig.flow()
    assert [sent.record.offset for sent in rig.sent] == [1, 2], "the one at 40 was due before them"
    rig.take_it(1)
    rig.take_it(2)
    rig.flow()
    assert rig.out() == [40]


def test_a_head_out_of_reach_is_looked_at_by_events_and_not_all_the_time() -> None:
    """What hops may wait for Kafka as long as that is away."""
    rig = far_apart(0, due_in=LATE, hop_span=100, span=16)
    rig.put(waiting(9), key=b"k9", at=17)
    rig.look()
    assert rig.reader.wanted == [0]
    rig.settle()
    rig.run(UNANSWERED_MS)
    assert rig.wake_at > rig.now.steady_ms + 60_000


# --- kafka refuses what is to wait in a queue: no attempt is lost, and what can go on does ---------------------------


def handed(*keys: bytes) -> LadderRig:
    """A lane that was handed records with these keys. Two may be out."""
    rig = LadderRig(concurrency=2)
    rig.take_over()
    rig.settle()
    rig.arrive(*keys)
    return rig


def refused(rig: LadderRig, about: str) -> None:
    """Fail the record at 0 of three that are in memory, of which one is out; Kafka refuses its copy."""
    for offset in (0, 1, 2):
        rig.fail(offset)
    rig.flow()
    rig.flow(WAITS[0])
    assert rig.out() == [0], "each flow leaves a place for others"
    rig.fail(0)
    rig.run(20)
    rig.conclude(refused=[(rig.batches[0].entries[0], about)])


def test_a_queue_topic_that_takes_no_copies_is_not_delivered_from_until_it_does() -> None:
    """What waits in memory is let go, and read again: over weeks it would take the room of others."""
    rig = handed(b"a", b"b", b"c")
    refused(rig, "topic")
    assert (rig.part(QUEUE).blocked, rig.out(), rig.reader.wanted) == ("t: refused", [1], [])
    rig.take_it(1)
    rig.run(20)
    rig.arrive(b"a", b"d")
    assert rig.out() == [4], "the main partition goes on"
    rig.flow(500)
    assert (rig.part(QUEUE).blocked, rig.out()) == ("", [4, 2])
    rig.take_it(2)
    rig.flow(WAITS[1])
    assert rig.take_it(0).times == 2


@pytest.mark.parametrize("first", [True, False], ids=["while-it-is-refused", "once-it-is-taken"])
def test_what_was_let_go_is_read_again_whenever_something_else_ends(first: bool) -> None:
    """A head stood for ever, with its key, where nothing had its queue looked at before it went on."""
    rig = handed(b"a", b"b", b"c")
    refused(rig, "topic")
    if first:
        rig.take_it(1)
    rig.flow(500)
    if not first:
        rig.take_it(1)
        rig.flow()
    assert (rig.part(QUEUE).blocked, rig.out()) == ("", [2])
    rig.take_it(2)
    rig.flow(WAITS[1])
    rig.take_it(0)
    rig.flow()
    assert rig.queue().next == rig.end


def test_a_copy_that_is_too_large_holds_its_key_alone() -> None:
    rig = handed(b"a", b"b", b"c")
    refused(rig, "record")
    rig.arrive(b"a")
    assert (rig.part(QUEUE).blocked, rig.out()) == ("", [1])
    rig.take_it(1)
    assert rig.out() == [2]
    rig.take_it(2)
    rig.flow(500)
    rig.flow(WAITS[1])
    assert rig.take_it(0).times == 2


# --- A queue topic that does not exist: only the keys that fail wait, in memory, until it is made --------------------


def without_a_queue() -> LadderRig:
    """A lane that has taken over a partition whose queue does not exist."""
    rig = LadderRig()
    rig.begin()
    rig.queues.absent(QUEUE, 1, rig.now)
    return rig


def refuse(rig: LadderRig, where: str = QUEUE.topic) -> None:
    """Refuse all that the next batch writes, because this topic is missing."""
    rig.run(LAST_TRY_MS)
    entries = [entry for entry in rig.batches[0].entries if entry.writes]
    rig.conclude(refused=[(entry, "topic") for entry in entries], where=where)


def waits(rig: LadderRig) -> NotFetched | None:
    pause = rig.part(ORDERS).paused
    return None if pause is None else pause.because


def test_the_key_of_a_copy_without_a_queue_waits_and_all_others_go_on() -> None:
    rig = without_a_queue()
    rig.arrive(b"a", b"b", b"a")
    assert rig.out() == [0, 1]
    rig.fail(0)
    rig.take_it(1)
    refuse(rig)
    rig.arrive(b"a", b"b", b"c")
    assert rig.out() == [4, 5]
    assert not rig.part(ORDERS).blocked
    assert waits(rig) is None
    assert rig.lane.shown.facts(rig.now).partitions[ORDERS].counts.refused == 1


def test_what_waited_in_memory_goes_to_the_queue_once_it_is_made_and_the_next_start_goes_on_from_there() -> None:
    rig = without_a_queue()
    rig.arrive(b"a", b"a")
    rig.fail(0)
    refuse(rig)
    rig.run(LAST_TRY_MS)
    rig.settle()
    rig.open()
    assert QUEUE not in rig.lane.partitions, "a lane that went on without a queue opens none"
    rig.take_over(main=rig.kafka[ORDERS], epoch=2)
    rig.flow(10_000)
    for offset in (0, 1):
        assert rig.out() == [offset]
        rig.take_it(offset)
        rig.flow()
    rig.arrive(b"a")
    assert rig.out() == [2]


@pytest.mark.parametrize(("where", "stops"), [(QUEUE.topic, False), ("billing-DLQ", True), ("billing-ORDERED-x", True)])
def test_only_the_own_queue_is_needed_by_no_other_key(where: str, stops: bool) -> None:
    rig = without_a_queue()
    rig.arrive(b"a")
    rig.fail(0)
    refuse(rig, where)
    assert bool(rig.part(ORDERS).blocked) is stops


def test_what_waits_in_memory_is_bounded_and_its_partition_goes_on_once_there_is_room() -> None:
    rig = without_a_queue()
    failing = MOST_REFUSED + 1
    rig.arrive(*(b"k%d" % number for number in range(failing)))
    for _ in range(failing):
        rig.fail(rig.out()[0])
    while rig.lane.shown.facts(rig.now).partitions[ORDERS].counts.refused < failing:
        refuse(rig)
    assert rig.part(ORDERS).blocked == "too many of its copies are refused"
    rig.flow(LAST_TRY_MS)
    assert not rig.part(ORDERS).blocked
