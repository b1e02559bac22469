"""Records that wait for a person: what they carry, what settles them, and which forms of it are refused."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.policy import InPlace
from reconsume.topics import transitions
from reconsume.topics.events import Event, State, author_of, decode_event, order
from reconsume.topics.partition import Partition
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import BadHeader, RetryState, parse_retry_headers
from reconsume.topics.retry_order import Order
from reconsume.topics.transition_records import writes_of
from reconsume.topics.transitions import BY_OPERATOR, Commit, DeadLetter, Hop, Requeue, Retry, Written, after_failure
from tests.sim.samples import WALL, life, policy, record

QUEUE = Partition("billing-ORDERED-orders", 0)
PARKS = replace(policy(ladder=(10_000,), queued=True, retries=2), parks=True)
WAITING = life(times=2, order=Order(7), due_at=WALL, last_failed_at=WALL + 900)


def waits(state: RetryState) -> transitions.ReadRecord:
    return record(41, source=QUEUE, life=state)


def event_in(state: RetryState, decision: Written | Commit) -> Event:
    event = decode_event(writes_of(waits(state), decision, PARKS, WALL)[-1].value)
    assert isinstance(event, Event)
    return event


def test_a_record_whose_retries_are_used_up_is_parked_with_its_count_and_no_due_time() -> None:
    step = after_failure(waits(WAITING), Failed("http-500", "no"), PARKS, WALL)
    assert isinstance(step, Requeue)
    assert (step.retry_state.parked, step.retry_state.times, step.retry_state.due_at, step.retry_state.order) == (
        True,
        2,
        0,
        Order(7),
    )
    copy, _ = writes_of(waits(WAITING), step, PARKS, WALL)
    assert (copy.topic, copy.exact) == (QUEUE.topic, True)
    assert parse_retry_headers(copy.headers, PARKS.topics, PARKS.latest_due(WALL)) == step.retry_state
    assert PARKS.queue_fault(QUEUE, step.retry_state) == ""


@pytest.mark.parametrize(
    ("rules", "failure"),
    [
        (replace(PARKS, parks=False), Failed("no")),
        (replace(PARKS, queued=False, drained=True, in_place=InPlace()), Failed("no")),
        (PARKS, Failed("no", level=-1)),
    ],
    ids=["a group that parks nothing", "one without the ladder", "the service asks for the DLQ"],
)
def test_otherwise_it_is_a_dead_letter(rules: object, failure: Failed) -> None:
    step = after_failure(waits(WAITING), failure, rules, WALL)  # type: ignore[arg-type]
    assert isinstance(step, DeadLetter)
    assert (step.retry_state.parked, step.retry_state.settled) == (False, "")


def test_its_event_is_the_later_one_whatever_the_clock_says_and_so_is_each_further_step() -> None:
    """Parked, tried by hand, parked again: one count, and times that rise though the clock stands."""
    parked = after_failure(waits(WAITING), Failed("no"), PARKS, WALL)
    assert isinstance(parked, Requeue)
    tried = transitions.tried_now(waits(parked.retry_state), "mended", "n1", WALL)
    assert isinstance(tried, Requeue)
    again = after_failure(waits(tried.retry_state), Failed("no"), PARKS, WALL)
    assert isinstance(again, Requeue)
    told = [event_in(WAITING, step) for step in (parked, tried, again)]
    assert [event.parked is True for event in told] == [True, False, True]
    assert {(event.state, event.times) for event in told} == {(State.WAITING_RETRY, 2)}
    assert told[0].at > WALL + 900
    assert all(order(before) < order(after) for before, after in itertools.pairwise(told))
    assert (tried.retry_state.settled, again.retry_state.settled, told[1].reason, told[1].text) == (
        "n1",
        "n1",
        BY_OPERATOR,
        "mended",
    )


def test_a_further_retry_forgets_what_was_decided_about_the_one_before() -> None:
    tried = replace(WAITING, times=1, settled="n1")
    step = after_failure(waits(tried), Failed("no"), PARKS, WALL)
    assert isinstance(step, Retry)
    assert (step.retry_state.times, step.retry_state.settled, step.retry_state.parked) == (2, "", False)


@pytest.mark.parametrize(
    "state",
    [WAITING, replace(WAITING, parked=True, due_at=0), life(times=0, order=Order(7), behind=True)],
    ids=["waiting", "parked", "behind"],
)
def test_whatever_waits_can_be_ended_by_hand_and_an_event_tells_of_it(state: RetryState) -> None:
    dead = transitions.dead_by_hand(waits(state), "no such customer", WALL)
    assert (dead.reason, dead.retry_state.times, dead.retry_state.last_failed_at) == (
        BY_OPERATOR,
        state.times,
        state.last_failed_at,
    )
    assert (dead.retry_state.parked, dead.retry_state.behind, dead.retry_state.order) == (False, False, None)
    assert (event_in(state, dead).state, event_in(state, dead).text) == (State.DLQ, "no such customer")
    done = event_in(state, transitions.done_by_hand(waits(state), "it was paid"))
    assert (done.state, done.reason, done.text) == (State.COMMIT, BY_OPERATOR, "it was paid")


def test_what_waits_behind_another_is_not_tried_first_and_has_no_event_when_it_succeeds() -> None:
    step = transitions.tried_now(waits(life(times=0, order=Order(7), behind=True)), "x", "n1", WALL)
    assert isinstance(step, Hop)
    assert (step.retry_state.behind, step.retry_state.settled) == (True, "n1")
    assert transitions.after_success(waits(step.retry_state)).retry_state is None


def test_a_parked_record_that_was_never_retried_has_an_event_when_it_succeeds() -> None:
    """`max_reconsume_times: 0`: its parked event must have an end."""
    tried = transitions.tried_now(waits(life(times=0, order=Order(7), parked=True, due_at=0)), "x", "n1", WALL)
    assert transitions.after_success(waits(tried.retry_state)).retry_state == tried.retry_state


def test_the_event_of_a_decision_names_who_made_it_and_every_other_event_names_nobody() -> None:
    state = replace(WAITING, parked=True, due_at=0)
    told = [
        transitions.dead_by_hand(waits(state), "seen", WALL, "ann@laptop"),
        transitions.done_by_hand(waits(state), "paid", "ann@laptop"),
        transitions.tried_now(waits(state), "unlocked", "n1", WALL, "ann@laptop"),
    ]
    assert [author_of(event_in(state, decision)) for decision in told] == ["ann@laptop"] * 3
    assert author_of(event_in(WAITING, after_failure(waits(WAITING), Failed("no"), PARKS, WALL))) == ""


@pytest.mark.parametrize(
    "header",
    [
        *(("RETRY_PARKED", value) for value in (b"", b"yes")),
        *(("RETRY_SETTLED", value) for value in (b"", b"a b", b"n" * 65, b"\xff")),
    ],
)
def test_any_other_form_of_a_header_is_refused(header: tuple[str, bytes]) -> None:
    headers = render_retry_headers(life(), "billing", QUEUE.topic)
    assert isinstance(parse_retry_headers([header, *headers], PARKS.topics, 10**16), BadHeader)


@pytest.mark.parametrize("more", [{"due_at": 5}, {"due_at": 0, "behind": True}])
def test_a_parked_copy_that_is_due_or_behind_is_not_believed(more: dict[str, object]) -> None:
    assert "RETRY_PARKED" in PARKS.queue_fault(QUEUE, life(times=0, order=Order(7), parked=True, **more))
