"""The pace: fewer deliveries when the service asks for time, one probe when it is away, then a slow start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.hold import NEVER
from sidecar.core.outcome import CANCELLED, COMMITTED, Committed, Failed, NotSent, Outcome, Rejected, Throttled
from sidecar.core.pace import CUT_EVERY, FIRST_PROBE, LAST_PROBE, PATIENCE, Pace, State
from sidecar.core.record import Now
from tests.sim.samples import record

RECORD = record(0)
AWAY, BUSY, BAD = NotSent("refused"), Throttled(1_000), Failed("http-500")


def at(steady: int) -> Now:
    return Now(1_763_690_000_000 + steady, steady)


def paced(full: int, *outcomes: Outcome, steady: int = 0) -> Pace:
    pace = Pace(full)
    for outcome in outcomes:
        pace.note(RECORD, outcome, at(steady))
    return pace


def probing(full: int) -> Pace:
    pace = paced(full, AWAY)
    pace.tick(at(FIRST_PROBE), 0)
    return pace


def test_failures_and_refusals_do_not_slow_it_down() -> None:
    story: list[Outcome] = [BAD, Rejected("x"), CANCELLED]
    assert paced(8, *story * 50).limit == 8


def test_one_refused_connection_is_an_outage() -> None:
    pace = paced(8, AWAY)
    assert (pace.state, pace.limit, pace.probe_at) == (State.OUTAGE, 0, FIRST_PROBE)


def test_nothing_goes_before_the_probe_is_due_and_then_one() -> None:
    pace = paced(8, AWAY)
    pace.tick(at(FIRST_PROBE - 1), 0)
    assert (pace.state, pace.limit) == (State.OUTAGE, 0)
    pace.tick(at(FIRST_PROBE), 0)
    assert (pace.state, pace.limit, pace.probe_at) == (State.PROBING, 1, NEVER)


def test_what_was_out_when_the_outage_began_does_not_put_off_the_probe() -> None:
    pace = paced(8, AWAY)
    for steady in range(1, 9):
        pace.note(RECORD, AWAY, at(steady))
    assert pace.probe_at == FIRST_PROBE


def test_deliveries_that_hang_do_not_put_off_the_probe() -> None:
    """Given three that are still out, then the probe goes beside them: they may hang for a quarter of an hour."""
    pace = Pace(8)
    pace.note(RECORD, NotSent("connection-refused"), at(0))
    pace.tick(at(FIRST_PROBE), 3)
    assert (pace.state, pace.limit) == (State.PROBING, 4)


def test_probes_come_less_often_up_to_a_limit() -> None:
    pace, steady, gaps = paced(8, AWAY), 0, []
    for _ in range(10):
        gaps.append(pace.probe_at - steady)
        steady = pace.probe_at
        pace.tick(at(steady), 0)
        pace.note(RECORD, AWAY, at(steady))
    assert gaps == [100, 200, 400, 800, 1_600, 3_200, LAST_PROBE, LAST_PROBE, LAST_PROBE, LAST_PROBE]


def test_after_an_outage_the_pace_doubles_with_each_round() -> None:
    pace, rounds = probing(16), []
    for _ in range(5):
        rounds.append(pace.limit)
        for _ in range(pace.limit):
            pace.note(RECORD, COMMITTED, at(200))
    assert rounds == [1, 2, 4, 8, 16]
    assert pace.state is State.OPEN


def test_a_probe_that_fails_spends_nothing_and_the_outage_goes_on() -> None:
    pace = probing(16)
    pace.sent(RECORD)
    assert pace.note(RECORD, BAD, at(200)) == NotSent("http-500", probe=True)
    assert (pace.state, pace.probe_at) == (State.OUTAGE, 200 + 2 * FIRST_PROBE)


def test_what_hung_since_before_the_outage_is_an_attempt_and_no_probe() -> None:
    pace, hung = probing(16), record(1)
    pace.sent(RECORD)
    assert pace.note(hung, BAD, at(200)) is BAD
    assert pace.state is State.PROBING


def test_the_only_record_there_is_does_not_prolong_an_outage_for_ever() -> None:
    """A poison record alone: after some probes its failure counts, and it moves on to its level."""
    pace, worth = paced(16, AWAY), []
    for _ in range(PATIENCE + 1):
        pace.tick(at(pace.probe_at), 0)
        pace.sent(RECORD)
        worth.append(pace.note(RECORD, BAD, at(0)))
    assert worth == [NotSent("http-500", probe=True)] * PATIENCE + [BAD]


def rows(failures: int, *outcomes: tuple[int, Outcome]) -> Pace:
    pace = Pace(8, failures=failures)
    for offset, outcome in outcomes:
        pace.note(record(offset), outcome, at(0))
    return pace


def test_many_failures_in_a_row_are_an_outage() -> None:
    story = [(offset, BAD) for offset in range(5)]
    assert rows(5, *story[:4]).state is State.OPEN
    assert rows(5, *story).state is State.OUTAGE


def test_one_success_between_failures_shows_that_the_service_is_there() -> None:
    story: list[tuple[int, Outcome]] = [(offset, BAD) for offset in range(4)]
    assert rows(5, *story, (4, COMMITTED), *story).state is State.OPEN


@pytest.mark.parametrize("different", [1, 2])
def test_a_few_poison_records_are_no_outage(different: int) -> None:
    assert rows(5, *[(turn % different, BAD) for turn in range(50)]).state is State.OPEN


def test_without_a_limit_no_number_of_failures_is_an_outage() -> None:
    assert paced(8, *[BAD] * 100).state is State.OPEN


def test_a_guarded_pace_delivers_nothing_until_the_health_url_says_so() -> None:
    pace = Pace(8, guarded=True)
    pace.tick(at(10_000), 0)
    assert (pace.state, pace.limit) == (State.OUTAGE, 0)
    pace.healthy(at(10_000))
    pace.tick(at(10_000), 0)
    assert (pace.state, pace.limit) == (State.PROBING, 1)
    pace.note(RECORD, AWAY, at(10_001))
    assert pace.probe_at == NEVER


def test_a_new_outage_begins_with_a_short_wait_again() -> None:
    pace = probing(16)
    pace.note(RECORD, AWAY, at(200))
    pace.tick(at(400), 0)
    pace.note(RECORD, COMMITTED, at(401))
    pace.note(RECORD, AWAY, at(402))
    assert pace.probe_at == 402 + FIRST_PROBE


def test_a_burst_of_throttle_answers_halves_the_pace_once() -> None:
    assert paced(16, *[BUSY] * 12).limit == 8


def test_throttling_that_goes_on_halves_it_again_down_to_one() -> None:
    pace = Pace(16)
    for turn in range(8):
        pace.note(RECORD, BUSY, at(turn * CUT_EVERY))
    assert (pace.state, pace.limit) == (State.THROTTLED, 1)


def test_after_a_throttle_the_pace_creeps_by_one_each_round() -> None:
    pace = paced(8, BUSY)
    for _ in range(pace.limit):
        pace.note(RECORD, COMMITTED, at(1))
    assert (pace.state, pace.limit) == (State.THROTTLED, 5)
    for _ in range(5 + 6 + 7):
        pace.note(RECORD, COMMITTED, at(1))
    assert (pace.state, pace.limit) == (State.OPEN, 8)


def test_a_probe_that_is_throttled_ends_the_outage() -> None:
    pace = probing(8)
    pace.note(RECORD, BUSY, at(200))
    assert (pace.state, pace.limit, pace.probe_at) == (State.THROTTLED, 1, NEVER)


@pytest.mark.parametrize("took", [COMMITTED, Committed()])
def test_with_one_place_it_opens_again_after_an_outage_and_after_a_throttle(took: Committed) -> None:
    pace = probing(1)
    pace.note(RECORD, took, at(200))
    assert (pace.state, pace.limit) == (State.OPEN, 1)
    pace.note(RECORD, BUSY, at(300))
    assert pace.state is State.THROTTLED
    pace.note(RECORD, took, at(400))
    assert (pace.state, pace.limit) == (State.OPEN, 1)


def test_a_second_throttle_within_the_second_does_not_leave_it_throttled_for_ever() -> None:
    pace = paced(2, BUSY, COMMITTED, BUSY)
    assert (pace.state, pace.limit) == (State.THROTTLED, 2)
    pace.note(RECORD, COMMITTED, at(10))
    assert pace.state is State.OPEN


OUTCOMES = st.sampled_from([COMMITTED, BAD, BUSY, AWAY, CANCELLED, Rejected("x")])


@given(st.integers(1, 40), st.lists(st.tuples(OUTCOMES, st.integers(0, 3_000)), max_size=60))
def test_it_always_comes_back_to_full_once_all_is_well(full: int, story: list[tuple[Outcome, int]]) -> None:
    pace, steady = Pace(full), 0
    for outcome, later in story:
        steady += later
        pace.tick(at(steady), 0)
        pace.note(RECORD, outcome, at(steady))
        assert 0 <= pace.limit <= full
        assert (pace.limit == 0) is (pace.state is State.OUTAGE) is (pace.probe_at != NEVER)
    for _ in range(full * full + 2):
        steady = max(steady, 0 if pace.probe_at == NEVER else pace.probe_at)
        pace.tick(at(steady), 0)
        assert pace.limit > 0
        pace.note(RECORD, COMMITTED, at(steady))
    assert (pace.state, pace.limit) == (State.OPEN, full)
