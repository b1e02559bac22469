"""What is seen of the queue of a partition: its counts, when it is named, and what `/status` makes of them."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.lane.facts import LaneFacts, PartitionFacts
from reconsume.sidecar.core.lane.key_ledger import KeyLedger
from reconsume.sidecar.core.lane.ledger_entry import QueuedCopy
from reconsume.sidecar.core.lane.owned_queue import OwnedQueue
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.queue_facts import QueueFacts, begins_to_fill, fill_of, named, queue_facts_of
from reconsume.sidecar.core.overdue import Standing
from reconsume.sidecar.core.progress import Progress, ProgressTracker
from reconsume.sidecar.core.record import NEVER, Now, Partition
from reconsume.sidecar.core.status import keys_status, statuses
from reconsume.topics.attempt import Attempt
from reconsume.topics.retry_order import Order
from tests.sim.samples import ORDERS, WALL

MOST = 100


def queue(*keys: bytes) -> OwnedQueue:
    """A queue in which one record of each key waits, in the order of their offsets."""
    owned = OwnedQueue(Partition("billing-ORDERED-orders", 0), ORDERS, 1)
    for offset, key in enumerate(keys):
        wait(owned.ledger, offset, key)
    return owned


def wait(ledger: KeyLedger, offset: int, key: bytes) -> None:
    ledger.read(QueuedCopy(1_000 + offset, (offset, WALL - offset), key, Order(offset), Attempt(0, 0, 0), 0))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((), QueueFacts(0, 0, 0.5)),
        ((b"a",), QueueFacts(1, 0, 0.5, due_ms=0)),
        ((b"a", b"b", b"a", b"a"), QueueFacts(2, 2, 0.5, due_ms=0)),
        ((b"",) * 4, QueueFacts(1, 3, 0.5, due_ms=0)),
    ],
)
def test_each_key_that_waits_is_blocked_and_what_is_not_its_first_is_behind(
    keys: tuple[bytes, ...], expected: QueueFacts
) -> None:
    assert queue_facts_of(queue(*keys), 0.5) == expected


@pytest.mark.parametrize(
    ("waiting", "end", "expected"),
    [(0, 0, 0), (25, 40, 0.25), (25, 200, 0.5), (50, 100, 0.5), (1, 400, 1.0), (150, 200, 1.5)],
)
def test_of_the_records_and_the_offsets_that_they_lie_between_the_fuller_bound_counts(
    waiting: int, end: int, expected: float
) -> None:
    # A transaction for each copy leaves a marker behind it: half of the offsets are no records.
    partition = LanePartition(ORDERS, 1, ProgressTracker(Progress(0)), None, "main")
    for offset in (0, end - 1) if end else ():
        partition.tracker.begin(offset)
    assert fill_of(queue(*[b"a"] * waiting), partition, MOST, 400) == expected
    assert fill_of(queue(*[b"a"] * waiting), None, MOST, 400) == 0


def test_a_key_that_waits_for_a_person_is_told_beside_the_blocked_ones() -> None:
    owned = queue(b"a", b"b", b"b")
    owned.ledger.read(QueuedCopy(2_000, (9, WALL), b"c", Order(9), Attempt(0, 0, 0), NEVER))
    assert queue_facts_of(owned, 0.5) == QueueFacts(3, 1, 0.5, parked_keys=1, due_ms=0)


def test_a_queue_is_named_at_three_quarters_and_again_only_after_it_was_half_full() -> None:
    owned = queue()
    named_at = []
    for waiting in (*range(101), *range(100, 49, -1), *range(50, 100), *range(99, 48, -1), *range(50, 101)):
        while len(owned.ledger) < waiting:
            wait(owned.ledger, len(owned.ledger), b"a")
        while len(owned.ledger) > waiting:
            owned.ledger.done((len(owned.ledger) - 1, WALL - len(owned.ledger) + 1))
        if begins_to_fill(owned, waiting / MOST):
            named_at.append(waiting)
    assert named_at == [75, 75]


def test_the_largest_keys_are_named_by_the_ids_of_their_first_records_and_never_by_themselves() -> None:
    owned = queue(b"ada@example.com", b"b", b"ada@example.com", b"ada@example.com", b"b", b"c")
    assert named(owned, owned.ledger.lines.largest(2)) == {"orders:0:0": 3, "orders:0:1": 2}


def test_the_oldest_is_the_first_record_of_a_key_with_the_lowest_timestamp() -> None:
    assert queue().ledger.lines.oldest_at() is None
    assert queue(b"a", b"b", b"a").ledger.lines.oldest_at() == WALL - 1


def facts(source: Partition) -> PartitionFacts:
    return PartitionFacts(source, "main", None, 0, 0, 0, 0, 0, None, "", closing=False, suspect=False)


def test_status_shows_what_waits_of_the_partitions_that_have_queues() -> None:
    other, plain = Partition("orders", 1), Partition("billing-ORDERED-orders", 0)
    lane = LaneFacts(
        {source: facts(source) for source in (ORDERS, other, plain)},
        {},
        0,
        {},
        {ORDERS: QueueFacts(2, 3, 0.5, 1), other: QueueFacts(0, 0, 0.5)},
    )
    shown = statuses(lane, Standing(), Now(WALL, 0), {ORDERS: WALL - 700})
    fields = [(one.blocked_keys, one.behind_records, one.parked_keys, one.oldest_for) for one in shown]
    assert fields == [(2, 3, 1, 700), (0, 0, 0, None), (None, None, None, None)]
    assert keys_status(shown) == {"blocked": 2, "behind": 3, "parked": 1, "oldest_for": 700}
    assert keys_status(shown[1:]) == {"blocked": 0, "behind": 0, "parked": 0, "oldest_for": None}
    assert keys_status(shown[2:]) is None, "a group without queues"
