"""What a process knows of the copies that it has written to a queue: as much as whoever parses them, and no more."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sidecar.core.commit_batch import SettledRecord
from sidecar.core.outcome import Failed
from sidecar.core.record import Partition, Record, weight_of
from sidecar.kafka.queues.own_copies import LONGEST_KEY, MOST, OwnCopies
from sidecar.kafka.queues.queue_reading import queue_reading_of
from tests.sim import samples
from tests.sim.samples import WALL
from topics.render_headers import as_read, render_retry_headers
from topics.retry_headers import RetryState, parse_retry_headers
from topics.retry_order import Order
from topics.transition_records import writes_of
from topics.transitions import after_failure, put_behind, tried_now

POLICY = samples.policy(queued=True, retries=1)
PARKING = replace(POLICY, parks=True)
MAIN, QUEUE = Partition("orders", 3), Partition("billing-ORDERED-orders", 3)
FAIL = Failed("http-500", "no")
HEADERS: list[tuple[str, bytes | None]] = [("trace", b"1"), ("REAL_TOPIC", b"another group's"), ("empty", None)]
COUNTS, TIMES = st.integers(0, 10**7), st.integers(0, 10**15)


@pytest.mark.parametrize(("read_to", "others"), [(0, []), (7, []), (8, [QUEUE])])
def test_a_copy_below_what_was_read_shows_that_the_queue_is_another_log(read_to: int, others: list[Partition]) -> None:
    copies, record = OwnCopies(), first()
    decision = after_failure(record, FAIL, POLICY, WALL)
    copies.read_up_to(QUEUE, read_to)
    copies.written([SettledRecord(record, decision, writes_of(record, decision, POLICY, WALL))], {0: (7, WALL)})
    assert copies.others() == others
    copies.forget(QUEUE)
    assert copies.others() == []


class Read:
    """A message as the client hands it over."""

    def __init__(self, offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> None:
        self._offset, self._timestamp, self._key, self._value = offset, timestamp, key, value

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._timestamp

    def key(self) -> bytes | None:
        return self._key

    def __len__(self) -> int:
        return len(self._value or b"")


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
def test_an_own_copy_is_known_as_whoever_parses_it_would_know_it(entry: SettledRecord) -> None:
    copies, copy = OwnCopies(), entry.writes[0]
    copies.written([entry], {0: (52, WALL + 3)})
    state, fault = queue_reading_of(lambda: POLICY)(copy.headers, QUEUE, 52, WALL + 3)
    weight = weight_of(copy.key, copy.value, copy.headers, state)
    message: Any = Read(52, WALL + 3, copy.key, copy.value)
    known = copies.take(message, QUEUE, 4)
    assert known is not None
    assert fault == ""
    assert known.record(QUEUE, 52) == Record(QUEUE, 52, 4, WALL + 3, copy.key, None, None, state, "", weight)
    assert copies.take(message, QUEUE, 4) is None


@pytest.mark.parametrize(
    ("epoch", "message"),
    [
        (5, Read(52, WALL, b"key", b"value")),
        (4, Read(52, WALL + 1, b"key", b"value")),
        (4, Read(52, WALL, b"kez", b"value")),
        (4, Read(52, WALL, None, b"value")),
        (4, Read(52, WALL, b"key", b"values")),
        (4, Read(53, WALL, b"key", b"value")),
    ],
)
def test_a_record_that_is_not_the_one_written_there_is_parsed(epoch: int, message: Any) -> None:
    copies = OwnCopies()
    copies.written([CASES["first"]], {0: (52, WALL)})
    assert copies.take(message, QUEUE, epoch) is None


def test_copies_that_are_never_read_are_bounded_and_the_last_ones_stay() -> None:
    copies = OwnCopies()
    for offset in range(0, 2 * MOST, 1_000):
        copies.written([CASES["first"]] * 1_000, {index: (offset + index, WALL) for index in range(1_000)})
    last: Any = [Read(offset, WALL, b"key", b"value") for offset in range(2 * MOST)]
    assert [message.offset() for message in last if copies.take(message, QUEUE, 4)] == list(range(MOST, 2 * MOST))


@pytest.mark.parametrize("longer", [0, 1, 1_000_000])
def test_copies_that_are_never_read_keep_no_long_keys(longer: int) -> None:
    copies, key = OwnCopies(), bytes(LONGEST_KEY + longer)
    copies.written([settled(replace(first(), key=key), "first")], {0: (52, WALL)})
    message: Any = Read(52, WALL, key, b"value")
    assert (copies.take(message, QUEUE, 4) is None) == (longer > 0)


def test_copies_in_a_queue_that_is_read_no_more_are_forgotten() -> None:
    copies, message = OwnCopies(), cast("Any", Read(52, WALL, b"key", b"value"))
    copies.written([CASES["first"]], {0: (52, WALL)})
    copies.forget(Partition(QUEUE.topic, 4))
    copies.forget(QUEUE)
    assert copies.take(message, QUEUE, 4) is None


@given(COUNTS, COUNTS, TIMES, st.integers(-1, 2**63 - 1), TIMES, st.just(0) | TIMES, COUNTS)
def test_what_is_read_of_a_retry_state_is_foreseen(
    times: int, redrives: int, due_at: int, timestamp: int, failed: int, last: int, most: int
) -> None:
    state = RetryState("orders:3:7", "orders", times, redrives, due_at, timestamp, failed, "why", 0, last, most)
    for one in (state, replace(state, last_failed_at=failed), replace(state, order=Order(9, 1), behind=True)):
        headers = render_retry_headers(one, "billing", QUEUE.topic)
        assert parse_retry_headers(headers, ("orders",), 10**16) == as_read(one)
