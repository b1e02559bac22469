"""RETRY_ORDER and the queue topic: one strict form, and no copy is believed that belongs elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.sidecar.core.outcome import Failed
from reconsume.topics.partition import Partition
from reconsume.topics.reasons import reason_class
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import BadHeader, RetryState, parse_retry_headers
from reconsume.topics.retry_order import Order, parse_order, render_order
from reconsume.topics.transition_records import Copy, writes_of
from reconsume.topics.transitions import (
    AT_ONCE,
    DeadLetter,
    Retry,
    after_failure,
    after_success,
    after_wait,
    into_queue,
    put_behind,
)
from tests.sim.samples import WALL, life, policy, record

QUEUED = policy(ladder=(10_000,), queued=True, retries=1)
QUEUE = "billing-ORDERED-orders"
ORDERS = st.builds(Order, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))


def copy_of(state: RetryState) -> RetryState | BadHeader:
    headers = render_retry_headers(state, "billing", QUEUE)
    return parse_retry_headers(headers, QUEUED.topics, QUEUED.latest_due(WALL))


@given(ORDERS)
def test_a_place_is_read_as_it_was_written(order: Order) -> None:
    assert parse_order(render_order(order)) == order


@given(ORDERS, ORDERS)
def test_places_are_compared_by_offset_then_by_sequence_and_the_record_itself_is_last(one: Order, other: Order) -> None:
    if one.offset != other.offset or (one.sequence and other.sequence):
        assert (one.rank < other.rank) == ((one.offset, one.sequence) < (other.offset, other.sequence))
    assert Order(one.offset, 1).rank < Order(one.offset).rank < Order(one.offset + 1, 1).rank


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"-1",
        b"01",
        b"1.0",
        b"1.",
        b".1",
        b"1.01",
        b"1.1.1",
        b" 1",
        b"1_0",
        "\u0661".encode(),
        b"9" * 19,
        b"9" * 40,
        b"1." + b"9" * 19,
    ],
)
def test_any_other_form_is_no_place(value: bytes) -> None:
    assert parse_order(value) is None
    headers = render_retry_headers(life(), "billing", QUEUE)
    assert isinstance(parse_retry_headers([("RETRY_ORDER", value), *headers], QUEUED.topics, 10**16), BadHeader)


@pytest.mark.parametrize("value", [b"", b"0", b"true", b"11"])
def test_behind_has_one_value(value: bytes) -> None:
    headers = render_retry_headers(life(), "billing", QUEUE)
    assert isinstance(parse_retry_headers([("RETRY_BEHIND", value), *headers], QUEUED.topics, 10**16), BadHeader)


def test_a_failure_goes_to_the_queue_partition_of_its_own_number_with_its_offset_as_its_place() -> None:
    failed = record(41, source=Partition("orders", 3))
    decision = after_failure(failed, Failed("http-500"), QUEUED, WALL)
    assert isinstance(decision, Retry)
    assert (decision.retry_state.order, decision.retry_state.due_at, decision.retry_state.behind) == (
        Order(41),
        WALL + 10_000,
        False,
    )
    copy, _event = writes_of(failed, decision, QUEUED, WALL)
    assert (copy.topic, copy.spread, copy.exact) == (QUEUE, 3, True)
    assert copy_of(decision.retry_state) == replace(decision.retry_state, last_failed_at=0)


def test_what_waits_behind_has_no_count_and_no_event_also_when_it_succeeds() -> None:
    waiting = record(42, source=Partition("orders", 3))
    decision = put_behind(waiting, QUEUED)
    (copy,) = writes_of(waiting, decision, QUEUED, WALL)
    assert (copy.topic, copy.spread, decision.retry_state.behind, decision.retry_state.times) == (QUEUE, 3, True, 0)
    read = record(7, source=Partition(QUEUE, 3), life=decision.retry_state)
    assert after_success(read).retry_state is None


def test_each_further_failure_keeps_the_place_and_a_dead_letter_has_none() -> None:
    behind = record(
        7, source=Partition(QUEUE, 3), life=put_behind(record(42, source=Partition("orders", 3)), QUEUED).retry_state
    )
    first = after_failure(behind, Failed("http-500"), QUEUED, WALL)
    assert isinstance(first, Retry)
    assert (first.retry_state.order, first.retry_state.behind, first.retry_state.times) == (Order(42), False, 1)
    last = after_failure(
        record(8, source=Partition(QUEUE, 3), life=first.retry_state), Failed("http-500"), QUEUED, WALL
    )
    assert isinstance(last, DeadLetter)
    assert (last.retry_state.order, last.retry_state.behind) == (None, False)


def test_a_retry_of_another_topic_comes_into_the_queue_at_the_place_of_its_first_copy() -> None:
    decision = into_queue(life(times=3), QUEUED)
    assert (decision.retry_state.order, decision.retry_state.times) == (Order(7), 3)


@pytest.mark.parametrize(
    ("state", "source"),
    [
        (life(order=Order(7)), Partition(QUEUE, 1)),
        (life(order=Order(7)), Partition("billing-ORDERED-others", 0)),
        (life(), Partition(QUEUE, 0)),
        (life(order=Order(8)), Partition(QUEUE, 0)),
        (life(order=Order(7, 1)), Partition(QUEUE, 0)),
        (life(redrives=1, order=Order(6)), Partition(QUEUE, 0)),
        (life(times=2, order=Order(7), behind=True), Partition(QUEUE, 0)),
    ],
)
def test_a_forged_copy_is_not_believed(state: RetryState, source: Partition) -> None:
    fault = QUEUED.queue_fault(source, state)
    assert fault
    assert reason_class(f"bad-header: {fault}") == "bad-header"


@pytest.mark.parametrize(
    "state", [life(order=Order(7)), life(times=0, order=Order(7), behind=True), life(redrives=1, order=Order(90, 2))]
)
def test_a_sound_copy_is_believed(state: RetryState) -> None:
    assert QUEUED.queue_fault(Partition(QUEUE, 0), state) == ""


def test_a_group_that_only_drains_its_queues_writes_nothing_else_there() -> None:
    drained = replace(policy(), drained=True)
    assert drained.retry_topic(10_000, life()) == "billing-RETRY-10s"
    assert drained.retry_topic(None, life()) == "billing-RETRY"
    (copy,) = writes_of(record(3), put_behind(record(3), drained), drained, WALL)
    assert (copy.topic, copy.exact) == (QUEUE, True)
    waits = after_wait(record(3, source=Partition("billing-RETRY", 0), life=life(due_at=WALL)), drained, WALL)
    assert waits == AT_ONCE


def test_a_copy_for_any_other_topic_goes_wherever_it_did() -> None:
    copies = list(writes_of(record(), after_failure(record(), Failed("http-500"), policy(), WALL), policy(), WALL))
    assert all(isinstance(copy, Copy) and not copy.exact and copy.topic != QUEUE for copy in copies)
