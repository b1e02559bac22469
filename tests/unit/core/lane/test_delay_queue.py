"""Records that wait: released in time's order, never before it."""

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.lane.delay_queue import HOLD_WITHIN_MS, DelayQueue
from reconsume.sidecar.core.record import NEVER, Partition
from tests.sim.samples import ORDERS, record

OTHER = Partition("orders", 1)


@given(st.lists(st.integers(0, 50), max_size=40), st.lists(st.integers(0, 60), max_size=10))
def test_a_record_is_released_at_its_time_never_before(times: list[int], looks: list[int]) -> None:
    hold = DelayQueue()
    for offset, until in enumerate(times):
        hold.put(record(offset), until)
    left = sorted((until, offset) for offset, until in enumerate(times))
    for steady in sorted(looks):
        due = [offset for until, offset in left if until <= steady]
        assert [found.offset for found in hold.due(steady)] == due
        left = left[len(due) :]
        assert hold.next_at() == (left[0][0] if left else NEVER)
        assert len(hold) == len(left)


def test_partitions_that_are_given_up_take_their_records_along() -> None:
    hold = DelayQueue()
    for offset in range(6):
        hold.put(record(offset, source=ORDERS if offset % 2 else OTHER), 10 - offset)
    assert hold.count_by_topic() == {"orders": 6}
    hold.drop({ORDERS})
    assert [found.offset for found in hold.due(99)] == [4, 2, 0]


def test_while_a_quarter_of_the_room_waits_no_record_joins_for_long() -> None:
    weight = record(0).weight
    hold = DelayQueue(8 * weight)
    assert hold.patience_ms == NEVER
    hold.put(record(0), 5)
    assert hold.patience_ms == NEVER
    hold.put(record(1), 9)
    assert hold.patience_ms == HOLD_WITHIN_MS
    hold.due(5)
    assert hold.patience_ms == NEVER
    hold.put(record(2), 9)
    assert hold.patience_ms == HOLD_WITHIN_MS
    hold.due(9)
    assert hold.patience_ms == NEVER


def test_what_is_over_and_what_comes_later_part_at_the_time_itself() -> None:
    hold = DelayQueue()
    for offset, until in enumerate((4, 5, 6)):
        hold.put(record(offset), until)
    assert [found.offset for found in hold.over(5)] == [0, 1]
    assert [found.offset for found in hold.later(5)] == [2]


def test_what_is_taken_of_one_partition_leaves_the_others_and_what_is_retried_in_place() -> None:
    hold = DelayQueue()
    for offset in range(4):
        hold.put(record(offset, source=ORDERS if offset % 2 else OTHER), offset)
    hold.put(record(5).tried(0), 5)
    assert [found.offset for found in hold.take(ORDERS)] == [1, 3]
    assert [found.offset for found in hold.due(99)] == [0, 2, 5]
