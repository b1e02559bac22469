"""A slow start, at each start of a sidecar; and the health URL's word on a row of failures."""

import pytest

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Failed, Outcome, Rejected
from reconsume.sidecar.core.pace.pace import START_HANGS_MS, WELL_FOR_MS, Pace, State
from reconsume.sidecar.core.record import NEVER
from tests.sim.samples import record
from tests.support.sidecar.paces import AWAY, BAD, BUSY, RECORD, at, guarded, row

LOST = Failed("connection-lost", label="broken_answer")


def answered(pace: Pace, outcome: Outcome, rounds: int) -> list[int]:
    """The limit in each of so many rounds, in which all that may be out is answered so."""
    limits = []
    for _ in range(rounds):
        limits.append(pace.limit)
        for _ in range(pace.limit):
            pace.note(RECORD, outcome, at(0))
    return limits


@pytest.mark.parametrize("outcome", [COMMITTED, BAD, Rejected("x"), Failed("asked", asked=True)])
def test_a_start_doubles_with_each_round_of_answers_whatever_they_say(outcome: Outcome) -> None:
    """Failures too, without a limit of failures: a service that answers is there."""
    assert answered(Pace(16, start=1), outcome, 6) == [1, 2, 4, 8, 16, 16]


@pytest.mark.parametrize("outcome", [Failed("timeout", label="timeout"), LOST, CANCELLED])
def test_what_is_not_answered_does_not_speed_up_a_start(outcome: Outcome) -> None:
    assert answered(Pace(16, start=1), outcome, 3) == [1, 1, 1]


def test_a_start_in_batches_begins_with_one_batch() -> None:
    assert answered(Pace(256, start=32), COMMITTED, 4) == [32, 64, 128, 256]


def test_after_a_throttle_a_start_goes_on_by_successes_alone() -> None:
    pace = Pace(16, start=4)
    pace.note(RECORD, BUSY, at(0))
    assert answered(pace, BAD, 3) == [2, 2, 2]
    assert answered(pace, COMMITTED, 3) == [2, 3, 4]


def test_a_start_ends_in_an_outage_when_the_connection_is_refused() -> None:
    pace = Pace(16, start=1)
    pace.note(RECORD, AWAY, at(0))
    assert pace.state is State.OUTAGE


def test_what_hangs_at_a_start_lets_one_request_more_out_each_second() -> None:
    """One record that takes a quarter of an hour must not hold up all others for so long."""
    pace, seen = Pace(12, start=4), []
    for turn in range(4):
        pace.look(at(turn * START_HANGS_MS))
        pace.tick(at(pace.probe_at_ms), pace.limit)
        seen.append(pace.limit)
    assert seen == [8, 12, 12, 12]


def test_while_places_are_free_time_alone_lets_no_more_out() -> None:
    pace = Pace(8, start=2)
    pace.look(at(0))
    assert pace.probe_at_ms == START_HANGS_MS
    pace.tick(at(START_HANGS_MS), 1)
    assert (pace.limit, pace.probe_at_ms) == (2, NEVER)


@pytest.mark.parametrize("full", [1, 8])
def test_a_full_row_asks_the_health_url_and_waits_for_its_word(full: int) -> None:
    pace, asked = guarded(full), []
    pace.health.ask = lambda: asked.append(pace.limit)
    row(pace, WELL_FOR_MS)
    row(pace, WELL_FOR_MS)
    assert asked == [0]
    assert (pace.state, pace.limit, pace.unsure) == (State.OPEN, 0, True)


def test_a_service_that_says_it_is_well_goes_on_at_the_pace_that_was() -> None:
    pace = guarded(8)
    row(pace, WELL_FOR_MS)
    pace.healthy(at(WELL_FOR_MS + 5))
    assert (pace.state, pace.limit, pace.unsure, pace.slowed) == (State.OPEN, 8, False, False)
    pace.note(record(8), BAD, at(WELL_FOR_MS + 6))
    pace.note(record(9), BAD, at(WELL_FOR_MS + 7))
    assert pace.limit == 8, "the row counts anew"


def test_the_word_of_the_health_url_holds_for_a_while() -> None:
    pace, asked = guarded(8), []
    pace.health.ask = lambda: asked.append(True)
    for steady in range(0, WELL_FOR_MS, 100):
        row(pace, steady)
    assert (asked, pace.limit) == ([], 8)


def test_a_health_url_that_fails_makes_a_full_row_an_outage() -> None:
    pace = guarded(8)
    row(pace, WELL_FOR_MS)
    pace.unhealthy("http-503", at(WELL_FOR_MS + 5))
    assert (pace.state, pace.limit, pace.reason, pace.slowed) == (State.OUTAGE, 0, "http-503", True)
    assert pace.probe_at_ms == NEVER


@pytest.mark.parametrize("late", [COMMITTED, BAD, AWAY, BUSY, CANCELLED, LOST])
def test_late_answers_do_not_disturb_the_question(late: Outcome) -> None:
    pace = guarded(8)
    row(pace, WELL_FOR_MS)
    pace.note(record(7), late, at(WELL_FOR_MS + 1))
    assert pace.limit == 0
    pace.healthy(at(WELL_FOR_MS + 5))
    assert pace.limit == 8


def test_the_rest_of_a_failed_batch_does_not_disturb_the_question() -> None:
    """The records of one answer come with one and the same time, so they are one failure of the row."""
    pace, once = guarded(8), at(WELL_FOR_MS + 1)
    pace.note(record(1), BAD, at(WELL_FOR_MS))
    pace.note(record(2), BAD, at(WELL_FOR_MS))
    for offset in range(3, 35):
        pace.note(record(offset), BAD, once)
        pace.check()
    assert (pace.state, pace.limit, pace.unsure) == (State.OPEN, 0, True)


@pytest.mark.parametrize(("full", "then"), [(2, 2), (100, 8)])
def test_a_new_full_number_while_the_health_url_is_asked_holds_afterwards(full: int, then: int) -> None:
    pace = guarded(8)
    row(pace, WELL_FOR_MS)
    pace.resize(full)
    pace.healthy(at(WELL_FOR_MS + 5))
    assert pace.limit == then
