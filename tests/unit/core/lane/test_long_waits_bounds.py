"""What bounds a queue: how much of it may wait, lie open and be in memory, and what hops to its end for that."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitBatch
from reconsume.sidecar.core.lane.partition import AssignedPartition, Because, FetchedRecords
from reconsume.sidecar.core.lane.queue_hops import ROUND_MS, Spans
from reconsume.sidecar.core.lane.read_aside import MOST_HOPS, MOST_OUT
from reconsume.sidecar.core.progress import SPAN, Progress
from reconsume.sidecar.core.record import Partition
from reconsume.topics.retry_headers import RetryState
from tests.sim.ladder_rig import LadderRig, rules, states_of, waiting
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


def because(rig: LadderRig) -> Because | None:
    pause = rig.part(ORDERS).paused
    return None if pause is None else pause.because


# --- how much may wait ---------------------------------------------------------------------------------------------


def test_a_main_partition_is_paused_where_as_much_waits_as_may_and_others_go_out_until_then() -> None:
    rig = rig_of(*(waiting(number, due_in=LATE) for number in range(3)), most=4)
    rig.arrive(b"k0", b"free")
    assert because(rig) is None
    assert rig.out() == [101]
    rig.arrive(b"more")
    assert because(rig) is Because.BEHIND_KEYS
    assert rig.fetches[-1] == ("pause", ORDERS)
    assert rig.out() == [101]


def test_a_main_partition_that_was_paused_goes_on_when_less_than_three_quarters_of_that_wait() -> None:
    rig = rig_of(*(waiting(number, due_in=1_000 if number < 2 else LATE) for number in range(4)), most=4)
    rig.arrive(b"free")
    rig.flow(5_000)
    for number in (0, 1):
        assert because(rig) is Because.BEHIND_KEYS
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
    assert because(rig) is Because.BEHIND_KEYS


def test_a_queue_may_hold_one_record_however_few_may_wait() -> None:
    rig = rig_of(most=1)
    rig.arrive(b"a")
    rig.fail(100)
    rig.flow()
    rig.arrive(b"b")
    assert (because(rig), len(rig.log)) == (Because.BEHIND_KEYS, 1)


def test_a_main_partition_is_paused_where_progress_of_its_queue_could_not_name_more() -> None:
    rig = far_apart(0, SPAN - 1, hop_span=2 * SPAN)
    rig.arrive(b"free")
    assert because(rig) is Because.BEHIND_KEYS
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
