"""An outage: one probe at a time, then a slow start."""

import pytest

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Failed, NotSent, Outcome, Rejected
from reconsume.sidecar.core.pace.pace import (
    FIRST_PROBE_MS,
    LAST_PROBE_MS,
    PROBE_HANGS_MS,
    PROBE_INTERVAL_MS,
    Pace,
    State,
)
from reconsume.sidecar.core.record import NEVER
from tests.sim.samples import record
from tests.support.sidecar.paces import AWAY, BAD, BUSY, OTHER, RECORD, at, failing, paced, probe, probing


def test_failures_and_refusals_do_not_slow_it_down() -> None:
    story: list[Outcome] = [BAD, Rejected("x"), CANCELLED]
    assert paced(8, *story * 50).limit == 8


def test_one_refused_connection_is_an_outage() -> None:
    pace = paced(8, AWAY)
    assert (pace.state, pace.limit, pace.probe_at_ms) == (State.OUTAGE, 0, FIRST_PROBE_MS)


def test_nothing_goes_before_the_probe_is_due_and_then_one() -> None:
    pace = paced(8, AWAY)
    pace.tick(at(FIRST_PROBE_MS - 1), 0)
    assert (pace.state, pace.limit) == (State.OUTAGE, 0)
    pace.tick(at(FIRST_PROBE_MS), 0)
    assert (pace.state, pace.limit, pace.probe_at_ms) == (State.PROBING, 1, NEVER)


def test_a_probe_that_hangs_is_joined_by_another() -> None:
    """A record may take a quarter of an hour: one slow probe must not stop the group for so long."""
    pace = probing(8)
    assert pace.probe_at_ms == FIRST_PROBE_MS + PROBE_HANGS_MS
    pace.tick(at(pace.probe_at_ms), 1)
    assert (pace.state, pace.limit) == (State.PROBING, 2)
    pace.sent(OTHER, at(FIRST_PROBE_MS + PROBE_HANGS_MS))
    pace.note(OTHER, COMMITTED, at(FIRST_PROBE_MS + PROBE_HANGS_MS))
    assert pace.state is State.OPEN


def test_a_probe_that_hung_does_not_end_the_outage_when_it_fails_at_last() -> None:
    pace = probing(8)
    pace.tick(at(pace.probe_at_ms), 1)
    pace.sent(OTHER, at(0))
    for one in (OTHER, RECORD):
        pace.note(one, Failed("timeout", label="timeout"), at(9_000))
    assert pace.state is State.OUTAGE


def test_what_was_out_when_the_outage_began_does_not_put_off_the_probe() -> None:
    pace = paced(8, AWAY)
    for steady in range(1, 9):
        pace.note(RECORD, AWAY, at(steady))
    assert pace.probe_at_ms == FIRST_PROBE_MS


def test_deliveries_that_hang_do_not_put_off_the_probe() -> None:
    """Given three that are still out, then the probe goes beside them: they may hang for a quarter of an hour."""
    pace = Pace(8)
    pace.note(RECORD, NotSent("connection-refused"), at(0))
    pace.tick(at(FIRST_PROBE_MS), 3)
    assert (pace.state, pace.limit) == (State.PROBING, 4)


def test_probes_come_less_often_up_to_a_limit() -> None:
    pace, steady, gaps = paced(8, AWAY), 0, []
    for _ in range(10):
        gaps.append(pace.probe_at_ms - steady)
        steady = probe(pace).steady_ms
        pace.note(RECORD, AWAY, at(steady))
    assert gaps == [100, 200, 400, 800, 1_600, 3_200, LAST_PROBE_MS, LAST_PROBE_MS, LAST_PROBE_MS, LAST_PROBE_MS]


def test_after_an_outage_the_pace_doubles_with_each_round() -> None:
    pace, rounds = probing(16), []
    for _ in range(5):
        rounds.append(pace.limit)
        for _ in range(pace.limit):
            pace.note(RECORD, COMMITTED, at(200))
    assert rounds == [1, 2, 4, 8, 16]
    assert pace.state is State.OPEN


def test_after_a_row_of_failures_a_probe_that_fails_lets_the_outage_go_on() -> None:
    pace = failing(16)
    probe(pace)
    pace.note(RECORD, BAD, at(200))
    assert (pace.state, pace.probe_at_ms) == (State.OUTAGE, 200 + 2 * FIRST_PROBE_MS)


@pytest.mark.parametrize("longest", [PROBE_INTERVAL_MS, 300])
def test_a_service_that_answers_is_probed_as_often_as_it_was_set(longest: int) -> None:
    pace, steady, gaps = failing(16, interval=longest), 0, []
    for _ in range(7):
        gaps.append(pace.probe_at_ms - steady)
        steady = probe(pace).steady_ms
        pace.note(RECORD, BAD, at(steady))
    assert gaps == [min(gap, longest) for gap in (100, 200, 400, 800, 1_600, 3_200, 6_400)]


def test_a_service_that_failed_and_then_goes_away_is_probed_as_seldom_as_one_that_is_away() -> None:
    pace, steady, gaps = failing(16), 0, []
    for _ in range(7):
        gaps.append(pace.probe_at_ms - steady)
        steady = probe(pace).steady_ms
        pace.note(RECORD, AWAY, at(steady))
    assert gaps == [100, 200, 400, 800, 1_600, 3_200, LAST_PROBE_MS]
    probe(pace)
    pace.note(RECORD, BAD, at(steady + LAST_PROBE_MS))
    assert pace.state is State.OPEN  # it is back, whatever it says


def test_only_answered_failures_slow_partitions_down_until_it_is_open_again() -> None:
    assert not probing(4).slowed
    pace = failing(4)
    probe(pace)
    seen = [pace.slowed]
    for _ in range(1 + 2 + 2):
        pace.note(RECORD, COMMITTED, at(200))
        seen.append(pace.slowed)
    assert seen == [True, True, True, False, False, False]
    assert pace.limit == 4


def test_a_service_that_could_not_be_reached_is_back_with_its_first_answer_whatever_it_says() -> None:
    """Else the due retries of a short restart, which mostly fail, would prolong the outage by probes that double."""
    pace = probing(16)
    pace.note(RECORD, BAD, at(200))
    assert (pace.state, pace.limit) == (State.OPEN, 2)


def test_no_answer_at_all_does_not_say_that_it_is_back() -> None:
    pace = probing(16)
    pace.note(RECORD, Failed("connection-lost", label="broken_answer"), at(200))
    assert pace.state is State.OUTAGE


@pytest.mark.parametrize("late", [COMMITTED, Rejected("x"), BUSY, BAD])
def test_what_ends_well_while_the_service_goes_away_does_not_end_the_outage(late: Outcome) -> None:
    """A service that shuts down in order answers what it has, and refuses connections meanwhile."""
    pace = paced(16, AWAY)
    pace.note(record(1), late, at(1))
    assert (pace.state, pace.limit, pace.probe_at_ms) == (State.OUTAGE, 0, FIRST_PROBE_MS)


def test_a_place_that_comes_free_beside_the_probe_is_not_taken() -> None:
    """Given two that hang, when one of them ends while the probe is out, then nothing takes its place."""
    pace = paced(16, AWAY)
    probe(pace, RECORD, in_flight=2)
    assert pace.limit == 3
    pace.note(record(1), COMMITTED, at(150))
    assert pace.limit == 2


def test_what_hangs_does_not_hold_up_the_slow_start() -> None:
    pace = paced(16, AWAY)
    probe(pace, RECORD, in_flight=5)
    pace.note(RECORD, COMMITTED, at(150))
    assert (pace.state, pace.limit) == (State.OPEN, 7)


def test_a_refused_connection_that_was_begun_before_the_probe_says_nothing_about_it() -> None:
    pace = probing(16)
    pace.note(record(1), AWAY, at(150))
    assert (pace.state, pace.limit) == (State.PROBING, 0)


def test_a_probe_that_was_cancelled_is_followed_by_another() -> None:
    pace = probing(16)
    pace.note(RECORD, CANCELLED, at(200))
    assert (pace.state, pace.probe_at_ms) == (State.OUTAGE, 200 + 2 * FIRST_PROBE_MS)


@pytest.mark.parametrize("answer", [Rejected("x"), Failed("retry-asked", asked=True)])
def test_a_verdict_of_any_kind_shows_that_the_service_is_there(answer: Outcome) -> None:
    pace = probing(16)
    pace.note(RECORD, answer, at(200))
    assert (pace.state, pace.limit) == (State.OPEN, 2)
