"""A copy that is appended below what was read of a queue tells that the queue is another log."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.queues.own_appends import OwnAppends
from reconsume.topics.transition_records import writes_of
from reconsume.topics.transitions import after_failure
from tests.sim import samples
from tests.sim.samples import WALL

POLICY = samples.policy(queued=True, retries=1)
QUEUE = Partition("billing-ORDERED-orders", 3)


def copy_for_the_queue() -> SettledRecord:
    record = samples.record(7, source=Partition("orders", 3), key=b"key")
    decision = after_failure(record, Failed("http-500", "no"), POLICY, WALL)
    return SettledRecord(record, decision, writes_of(record, decision, POLICY, WALL))


@pytest.mark.parametrize(("read_to", "others"), [(0, []), (7, []), (8, [QUEUE])])
@pytest.mark.parametrize("located", [{0: (7, WALL)}, {0: (9, WALL), 1: (7, WALL)}, {1: (7, WALL), 0: (9, WALL)}])
def test_the_lowest_of_a_transaction_decides(
    located: dict[int, tuple[int, int]], read_to: int, others: list[Partition]
) -> None:
    appends = OwnAppends()
    appends.read_up_to(QUEUE, read_to)
    appends.appended([copy_for_the_queue()] * 2, located)
    assert appends.others() == others
    assert appends.end_of_own(QUEUE) == 1 + max(offset for offset, _ in located.values())


def test_what_the_lane_knows_without_a_read_of_it_counts_although_the_reader_is_behind() -> None:
    appends = OwnAppends()
    appends.read_up_to(QUEUE, 8)
    appends.read_up_to(QUEUE, 2)
    appends.appended([copy_for_the_queue()], {0: (7, WALL)})
    assert appends.others() == [QUEUE]


def test_a_queue_that_is_read_no_more_is_forgotten_and_no_other_one() -> None:
    appends = OwnAppends()
    appends.read_up_to(QUEUE, 8)
    appends.appended([copy_for_the_queue()], {0: (7, WALL)})
    appends.forget(Partition(QUEUE.topic, 4))
    assert appends.others() == [QUEUE]
    appends.forget(QUEUE)
    assert (appends.others(), appends.end_of_own(QUEUE)) == ([], 0)
    appends.appended([copy_for_the_queue()], {0: (7, WALL)})
    assert appends.others() == []
