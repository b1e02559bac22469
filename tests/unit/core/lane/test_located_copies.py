"""What a lane takes in of the copies that it has committed itself: each once, and none before what lies before it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import SettledRecord
from reconsume.sidecar.core.lane.ledger_entry import QueuedCopy, identity_of
from reconsume.sidecar.core.lane.located_copies import LocatedCopies, as_read_back, located_copy
from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record, weight_of
from reconsume.sidecar.kafka.queues.queue_reading import queue_reading_of
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.render_headers import as_read, render_retry_headers
from reconsume.topics.retry_headers import RetryState, parse_retry_headers
from reconsume.topics.retry_order import Order
from reconsume.topics.transition_records import writes_of
from reconsume.topics.transitions import after_failure, put_behind, tried_now
from tests.sim import samples
from tests.sim.samples import WALL

POLICY = samples.policy(queued=True, retries=1)
PARKING = replace(POLICY, parks=True)
MAIN, QUEUE = Partition("orders", 3), Partition("billing-ORDERED-orders", 3)
FAIL = Failed("http-500", "no")
HEADERS: list[tuple[str, bytes | None]] = [("trace", b"1"), ("REAL_TOPIC", b"another group's"), ("empty", None)]
COUNTS, TIMES = st.integers(0, 10**7), st.integers(0, 10**15)


def first(value: bytes | None = b"value", offset: int = 7) -> Record:
    """A record of the main topic."""
    return Record(MAIN, offset, 4, WALL - 9, b"key", value, HEADERS, None, "", 1_300)


def again(state: RetryState) -> Record:
    """A copy of it, as it is read in its queue."""
    headers = render_retry_headers(state, "billing", QUEUE.topic)
    return Record(QUEUE, 40, 4, WALL, b"key", b"value", headers, as_read(state), "", 1_300)


def settled(record: Record, way: str) -> SettledRecord:
    """A record with a decision after which it waits in its queue."""
    rules = PARKING if way == "parked" else POLICY
    match way:
        case "behind":
            decision: Any = put_behind(record, rules)
        case "by hand":
            decision = tried_now(record, "because", "nonce", WALL)
        case _:
            decision = after_failure(record, FAIL, rules, WALL)
    return SettledRecord(record, decision, writes_of(record, decision, rules, WALL))


WAITS = RetryState("orders:3:7", "orders", 0, 0, WALL, WALL - 9, WALL - 5, "why", order=Order(7))
CASES = {
    "first": settled(first(), "first"),
    "a null value": settled(first(None), "first"),
    "behind": settled(first(), "behind"),
    "redriven": settled(again(replace(WAITS, redrives=1, order=Order(12, 2), last_failed_at=WALL - 1)), "again"),
    "parked": settled(again(replace(WAITS, times=1)), "parked"),
    "by hand": settled(again(replace(WAITS, times=1, due_at=0, parked=True)), "by hand"),
}


@pytest.mark.parametrize("entry", CASES.values(), ids=CASES)
def test_an_own_copy_is_known_as_whoever_reads_it_would_know_it(entry: SettledRecord) -> None:
    copy, decision = entry.writes[0], entry.decision
    state, fault = queue_reading_of(lambda: POLICY)(copy.headers, QUEUE, 52, WALL + 3)
    weight = weight_of(copy.key, copy.value, copy.headers, state)
    read = Record(QUEUE, 52, 4, WALL + 3, copy.key, copy.value, copy.headers, state, fault, weight)
    assert (copy.topic, copy.spread, fault) == (*QUEUE, "")
    assert as_read_back(entry, decision.retry_state, QUEUE, (52, WALL + 3)) == read  # type: ignore[union-attr]


@pytest.mark.parametrize("entry", CASES.values(), ids=CASES)
def test_a_ledger_gets_of_it_what_it_would_get_of_the_record(entry: SettledRecord) -> None:
    state: Any = entry.decision.retry_state  # type: ignore[union-attr]
    identity = identity_of(entry.record)
    copy = located_copy(entry, state, identity, b"key", (52, WALL + 3), Now(WALL - 1_000, 77))
    read = as_read_back(entry, state, QUEUE, (52, WALL + 3))
    assert identity == identity_of(read)
    assert (copy.offset, copy.order, copy.attempt) == (52, state.order, attempt_of(state))
    assert copy.due_ms == (NEVER if state.parked else 77 + max(0, state.due_at - (WALL - 1_000)))
    assert copy.written_ms == read.timestamp
    assert copy.weight > 0


class Queue(NamedTuple):
    """The log of a queue: its records by offset, and what each transaction of the lane tells of its own."""

    records: list[int]
    told: list[list[int]]


def queue_of(transactions: list[str]) -> Queue:
    """A log by letters: `o` a copy of ours, `u` one of which the broker tells no offset, `f` one of others; `x` begins
    a transaction of ours whose records are aborted, and `?` one whose end the lane does not hear of. Others' records
    stand without a marker, so that they are hardest to tell from one."""
    records, told, end = list[int](), list[list[int]](), 0
    for letters in transactions:
        mine = list[int]()
        for letter in letters.lstrip("x?"):
            if letter == "f" or not letters.startswith("x"):
                records.append(end)
            if letter == "o":
                mine.append(end)
            end += 1
        if set(letters) - {"f"}:
            end += 1  # the marker
            told.append([] if letters[0] in "x?" else mine)
    return Queue(records, told)


TRANSACTIONS = st.lists(
    st.tuples(st.sampled_from(("", "", "x", "?")), st.text("oofu", min_size=1, max_size=4)).map("".join), max_size=8
)


@pytest.mark.parametrize("at_once", [True, False])
@example(["ofo"], [])
@example(["f", "o"], [])
@example(["o", "xo", "o"], [])
@example(["o", "?o", "o", "f", "oo"], [-1, -1, 1])
@given(TRANSACTIONS, st.lists(st.integers(-1, 4)))
def test_each_copy_is_taken_once_and_after_all_before_it_however_the_reader_and_the_commits_come(
    at_once: bool, transactions: list[str], steps: list[int]
) -> None:
    """A step is the next commit that the lane hears of (−1), or so many records that the reader hands over. `at_once`:
    what comes next does not wait for the others of its transaction."""
    queue, located = queue_of(transactions), LocatedCopies()
    taken, unread, told, known_to = list[int](), list(queue.records), enumerate(queue.told, 1), 0

    def take(offset: int) -> None:
        nonlocal known_to
        taken.append(offset)
        known_to = offset + 1
        assert taken == queue.records[: len(taken)]

    def drain() -> None:
        while (copy := located.take(known_to)) is not None:
            take(copy.offset)
        located.check()

    for step in [*steps, *[-1] * len(queue.told), len(queue.records)]:
        if step < 0:
            number, offsets = next(told, (0, []))
            for offset in offsets:
                if at_once and located.comes_next((0, number), offset, known_to):
                    take(offset)
                else:
                    located.add((0, number), QueuedCopy(offset, (offset, 0), b"k", Order(offset), Attempt(0, 0, 0), 0))
        for offset in unread[: max(0, step)]:
            if offset >= known_to:
                take(offset)
        del unread[: max(0, step)]
        drain()
    assert taken == queue.records


def test_nothing_is_read_back_while_only_this_lane_writes() -> None:
    located, known_to = LocatedCopies(), 5
    for number, offsets in enumerate(([5, 6], [8], [10, 11, 12])):
        for offset in offsets:
            located.add((0, number), QueuedCopy(offset, (offset, 0), b"k", Order(offset), Attempt(0, 0, 0), 0))
        taken = []
        while (copy := located.take(known_to)) is not None:
            taken.append(copy.offset)
            known_to = copy.offset + 1
        assert taken == offsets


@pytest.mark.parametrize("known_to", [7, 99])
def test_a_copy_below_another_is_in_another_log_and_left_to_the_reader(known_to: int) -> None:
    located = LocatedCopies()
    for transaction, offset in (((0, 1), 7), ((0, 2), 3), ((0, 3), 4)):
        located.add(transaction, QueuedCopy(offset, (offset, 0), b"k", Order(offset), Attempt(0, 0, 0), 0))
        located.check()
        located.take(known_to)
        located.check()
    assert located.take(0) is None


@pytest.mark.parametrize(("second", "taken"), [((4, 2), True), ((5, 2), False)])
def test_the_offset_behind_the_transaction_of_another_producer_is_read(second: tuple[int, int], taken: bool) -> None:
    """Its marker may come behind the records of this one, and the offset between be anybody's."""
    located = LocatedCopies()
    for transaction, offset in (((4, 1), 7), (second, 9)):
        located.add(transaction, QueuedCopy(offset, (offset, 0), b"k", Order(offset), Attempt(0, 0, 0), 0))
    assert located.take(7) is not None
    assert (located.take(8) is not None) == taken


@given(COUNTS, COUNTS, TIMES, st.integers(-1, 2**63 - 1), TIMES, st.just(0) | TIMES, COUNTS)
def test_what_is_read_of_a_retry_state_is_foreseen(
    times: int, redrives: int, due_at: int, timestamp: int, failed: int, last: int, most: int
) -> None:
    state = RetryState("orders:3:7", "orders", times, redrives, due_at, timestamp, failed, "why", 0, last, most)
    for one in (state, replace(state, last_failed_at=failed), replace(state, order=Order(9, 1), behind=True)):
        headers = render_retry_headers(one, "billing", QUEUE.topic)
        assert parse_retry_headers(headers, ("orders",), 10**16) == as_read(one)
