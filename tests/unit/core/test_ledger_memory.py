"""What a record that waits costs in memory: thousands of them may stand behind one head."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.key_lines import packed
from reconsume.sidecar.core.ledger import FIRST_ATTEMPT, KeyLedger, QueuedCopy
from reconsume.sidecar.core.partition import AWAY, AssignedPartition, FetchedRecords
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.topics.attempt import Attempt
from reconsume.topics.retry_order import LARGEST_OFFSET, Order
from tests.sim.ladder_rig import LadderRig, behind, waiting

RECORDS = 2_000
FIRST, WALL = 70_000, 1_763_690_000_000
MOST = 206
"""Bytes of a record behind the head of its key: its entry, its identity and offset, and its part of the tables."""


def copy_of(number: int, now: int) -> QueuedCopy:
    """A copy as it is read: no object of it is any other's, but for the time at which all of them may go."""
    offset = FIRST + number
    identity = (int(str(offset)), WALL + number)
    return QueuedCopy(
        3 * offset, identity, bytes(bytearray(b"hot")), Order(int(str(offset))), Attempt(0, 0, 0), now, WALL, 900
    )


def test_a_record_behind_a_head_shares_what_it_has_in_common_with_the_others() -> None:
    ledger, now = KeyLedger(), FIRST
    tracemalloc.start()
    try:
        for number in range(RECORDS):
            copy = copy_of(number, now)
            if number % 2:  # this owner has written it
                main = copy_of(number, now)
                ledger.writing(main.identity, main.key, main.order, FIRST_ATTEMPT)
                ledger.written(main.identity)
            ledger.read(copy)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    ledger.check()
    assert taken / RECORDS < MOST


def test_the_copies_of_a_line_keep_their_order_when_newer_ones_come_in_their_place() -> None:
    ledger = KeyLedger()
    for number in (0, 2, 1, 3, 1, 0):
        ledger.read(
            replace(copy_of(number, 0), attempt=Attempt(0, 0, 1), offset=100 + len(list(ledger.entries())) + number * 7)
        )
        ledger.check()
    assert [entry.order.offset for entry in ledger.lines.largest(1)[0].entries] == [
        FIRST,
        FIRST + 1,
        FIRST + 2,
        FIRST + 3,
    ]


@pytest.mark.parametrize("offset", [0, 1, 7, LARGEST_OFFSET])
@pytest.mark.parametrize("timestamp", [0, 1, WALL, LARGEST_OFFSET])
def test_an_identity_in_one_number_is_the_same_and_sorts_as_it_does(offset: int, timestamp: int) -> None:
    ledger, one, other = KeyLedger(), (offset, timestamp), (7, WALL)
    ledger.read(replace(copy_of(0, 0), identity=one, order=Order(offset)))
    assert [entry.identity for entry in ledger.entries()] == [one]
    assert ledger.entry(one) is not None
    assert (packed(one) < packed(other)) == (one < other)


# --- in a lane -------------------------------------------------------------------------------------------------------

WAITING = 20_000
"""Records in a queue partition: as many as may wait there, twice over."""
MOST_OF = {"one key in ten thousand": 236, "a key of its own": 600}
"""Bytes of a record that is away in Kafka, in the map of its partition and in the ledger together.

Of the first, its slot in the map takes 30, where all share one entry; its entry in the ledger 88, the number of its
identity 36, and its slot 30; its offset 32, its places in the order of the map and in its line 8 each. A key of its own
adds the line (125), a place among the heads that wait for their time (100), the attempt (72), the key and the due time
(70).
"""


def copies(queue: Partition, keys: str, start: int, count: int) -> list[Record]:
    """Copies as a reader hands them over, no object of which is any other's."""
    found = []
    for number in range(start, start + count):
        offset = int(str(FIRST + number))
        is_own = keys == "a key of its own"
        head = is_own or number < 2
        key = b"key-%d" % (number if is_own else number % 2)
        state = waiting(offset, 1, 3_600_000) if head else behind(offset)
        state = replace(state, id=f"orders:{queue.number}:{offset}", timestamp=WALL + int(str(number)))
        found.append(Record(queue, FIRST + number, 1, WALL + number, key, b"v", [], state, "", 900))
    return found


@pytest.mark.parametrize("keys", MOST_OF)
@pytest.mark.parametrize("partitions", [1, pytest.param(12, marks=pytest.mark.long)])
def test_a_record_that_is_away_in_kafka_costs_a_few_hundred_bytes(partitions: int, keys: str) -> None:
    """Given full queues, when their lane has read them, then they take as little memory as is written here."""
    rig = LadderRig(room=1 << 30)
    rig.whole = False  # a check looks at all of it, each time
    mains = [Partition("orders", number) for number in range(partitions)]
    queues = [Partition("billing-ORDERED-orders", number) for number in range(partitions)]
    rig.lane.assigned([AssignedPartition(main, 1, Progress(FIRST + WAITING)) for main in mains], rig.now)
    for queue in queues:
        rig.queues.opened(AssignedPartition(queue, 1, Progress(FIRST)), rig.now)
    gc.collect()
    tracemalloc.start()
    try:
        for queue in queues:
            for start in range(0, WAITING, 500):
                end = FIRST + WAITING if start + 500 == WAITING else None
                run = FetchedRecords(queue, 1, 0, copies(queue, keys, start, 500), end)
                rig.queues.read(run, rig.now, caught_up=end is not None)
        del run
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {rig.part(queue).offsets.counts[AWAY] for queue in queues} == {WAITING}
    assert taken / (WAITING * partitions) < MOST_OF[keys]
