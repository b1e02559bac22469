"""Records that wait: released in time's order, never before it."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.lane.delay_queue import DelayQueue
from sidecar.core.record import NEVER, Partition
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
