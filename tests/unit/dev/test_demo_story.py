"""What the demo shows of a moment: every order stands in exactly one place."""

from __future__ import annotations

from reconsume.sidecar.dev.demo.ledger import Answered, Began, Closed, Opened, Verdict
from reconsume.sidecar.dev.demo.tracking import Counts, OrderTracker
from reconsume.topics.events import Event, State

ID = "orders:0:7"


def began(number: int, times: int, at: float, case: str = "flaky", identity: str = ID) -> Began:
    return Began(at, number, identity, times, case, "")


def answered(number: int, verdict: Verdict, status: int = 500) -> Answered:
    return Answered(0, number, status, verdict)


def event(state: State, times: int, due: int = 0) -> Event:
    return Event("billing", ID, state, times, 0, "1s", due, 0, "http-500", "orders", 0, 7, 0, 0, "i")


def test_an_order_that_nobody_has_seen_is_ready() -> None:
    assert OrderTracker().counts(3, now=0) == Counts(3, 0, {}, 0, 0)


def test_an_order_passes_through_every_state() -> None:
    story = OrderTracker()
    story.take_lines([began(0, 0, 10)])
    assert story.counts(1, now=10) == Counts(0, 1, {}, 0, 0)
    story.take_lines([answered(0, "retry")])
    story.take_events([event(State.WAITING_RETRY, 1, due=1010)])
    assert story.counts(1, now=20) == Counts(0, 0, {"1s": 1}, 0, 0)
    assert story.counts(1, now=1010) == Counts(1, 0, {}, 0, 0), "due, and not delivered yet"
    story.take_lines([began(1, 1, 1012)])
    assert story.counts(1, now=1013) == Counts(0, 1, {}, 0, 0)
    story.take_lines([answered(1, "commit", 200)])
    assert story.counts(1, now=1014) == Counts(0, 0, {}, 1, 0)


def test_a_dead_letter_is_told_by_its_event() -> None:
    story = OrderTracker()
    story.take_lines([began(0, 0, 10, "refused"), answered(0, "dead-letter", 422)])
    story.take_events([event(State.DLQ, 0)])
    assert story.counts(1, now=20) == Counts(0, 0, {}, 0, 1)


def test_events_that_come_before_the_ledger_or_late_change_nothing() -> None:
    story = OrderTracker()
    waiting = event(State.WAITING_RETRY, 1, due=1010)
    story.take_events([event(State.WAITING_RETRY, 2, due=3010), waiting])
    story.take_lines([began(0, 0, 10), answered(0, "retry"), began(1, 1, 1012), answered(1, "retry")])
    story.take_events([waiting])
    assert story.counts(1, now=1020) == Counts(0, 0, {"1s": 1}, 0, 0)


def test_a_journey_holds_due_and_actual_times_and_the_answers() -> None:
    story = OrderTracker()
    story.take_lines([began(0, 0, 10), answered(0, "retry"), began(1, 0, 11, identity="orders:0:8")])
    story.take_events([event(State.WAITING_RETRY, 1, due=1010)])
    story.take_lines([began(2, 1, 1013.5), answered(2, "commit", 200)])
    (track,) = story.journeys()
    assert track.id == ID
    steps = [(step.due, step.came, step.answer) for _, step in sorted(track.steps.items())]
    assert steps == [(None, 10, "500"), (1010, 1013.5, "200")]


def test_an_attempt_that_was_counted_without_an_answer_says_so() -> None:
    story = OrderTracker()
    story.take_lines([began(0, 0, 10, "stuck")])
    story.take_events([event(State.WAITING_RETRY, 1, due=1010)])
    assert story.journeys()[0].steps[0].answer == ""


def test_the_service_is_down_between_its_words() -> None:
    story = OrderTracker()
    story.take_lines([Opened(1, 80), Closed(2)])
    assert story.down_since == 2
    story.take_lines([Opened(3, 80)])
    assert story.down_since is None


def test_an_answer_that_is_no_status_is_shown_by_its_word() -> None:
    story = OrderTracker()
    story.take_lines([began(0, 0, 10), answered(0, "dead-letter", 0)])
    assert story.journeys()[0].steps[0].answer == "dead-letter"


def test_an_order_that_is_retried_in_place_waits_there_between_its_attempts() -> None:
    story = OrderTracker(in_place="in place")
    story.take_lines([began(0, 0, 10), answered(0, "retry")])
    assert story.counts(1, now=20) == Counts(0, 0, {"in place": 1}, 0, 0)
    story.take_lines([began(1, 1, 310)])
    assert story.counts(1, now=320) == Counts(0, 1, {}, 0, 0)
    story.take_lines([answered(1, "commit", 200)])
    assert story.counts(1, now=330) == Counts(0, 0, {}, 1, 0)


def test_an_attempt_that_is_followed_by_another_has_had_its_answer_or_none() -> None:
    story = OrderTracker(in_place="in place")
    story.take_lines([began(0, 0, 10), began(1, 1, 2310)])
    assert story.journeys()[0].steps[0].answer == ""
