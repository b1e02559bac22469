"""What else is an outage, and how it ends: many failures in a row, a health URL that says no."""

import pytest

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Outcome, output_refused
from reconsume.sidecar.core.pace.pace import FIRST_PROBE_MS, IDLE_AFTER_MS, LAST_PROBE_MS, PROBE_HANGS_MS, Pace, State
from reconsume.sidecar.core.record import NEVER
from tests.sim.samples import record
from tests.support.sidecar.paces import AWAY, BAD, BUSY, OTHER, RECORD, at, paced, probe, probing


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


def test_outputs_that_are_refused_say_nothing_against_the_service() -> None:
    refused = output_refused("one verdict for many records cannot have outputs")
    assert rows(5, *[(offset, refused) for offset in range(50)]).state is State.OPEN


def test_an_outage_without_a_record_to_probe_with_says_since_when() -> None:
    pace = rows(5, *[(offset, BAD) for offset in range(5)])
    assert pace.idle_since(10_000) is None, "a pause"
    pace.tick(at(FIRST_PROBE_MS), 0)
    since = at(FIRST_PROBE_MS).wall_ms
    assert (pace.idle_since(since + IDLE_AFTER_MS - 1), pace.idle_since(since + IDLE_AFTER_MS)) == (None, since)
    pace.sent(RECORD, at(20_000))
    assert pace.idle_since(since + 60_000) is None, "a probe is in flight"
    pace.note(RECORD, COMMITTED, at(20_100))
    assert pace.idle_since(since + 60_000) is None, "it is over"


@pytest.mark.parametrize("different", [1, 2])
def test_a_few_poison_records_are_no_outage(different: int) -> None:
    assert rows(5, *[(turn % different, BAD) for turn in range(50)]).state is State.OPEN


def test_a_batch_that_fails_is_one_failure() -> None:
    """One poison record fails its whole batch: the records of one answer come with one and the same time."""
    pace, once = Pace(64, failures=20), at(0)
    for offset in range(32):
        pace.note(record(offset), BAD, once)
    assert pace.state is State.OPEN


@pytest.mark.parametrize("between", [BUSY, CANCELLED])
def test_what_is_neither_a_success_nor_a_failure_does_not_break_the_row(between: Outcome) -> None:
    story: list[tuple[int, Outcome]] = [(0, BAD), (1, BAD), (2, between), (3, BAD)]
    assert rows(3, *story).state is State.OUTAGE


def test_without_a_limit_no_number_of_failures_is_an_outage() -> None:
    assert paced(8, *[BAD] * 100).state is State.OPEN


def guarded(full: int = 8) -> Pace:
    return Pace(full, guarded=True)


def test_a_guarded_pace_delivers_nothing_until_the_health_url_says_so() -> None:
    pace = guarded()
    pace.tick(at(10_000), 0)
    assert (pace.state, pace.limit, pace.reason) == (State.OUTAGE, 0, "not known to be healthy yet")
    pace.healthy(at(10_000))
    pace.tick(at(10_000), 0)
    assert (pace.state, pace.limit) == (State.PROBING, 1)
    pace.sent(RECORD, at(10_000))
    pace.note(RECORD, AWAY, at(10_001))
    assert pace.probe_at_ms == NEVER


def test_a_health_url_that_is_wrong_does_not_make_probes_more_frequent() -> None:
    """It says healthy all the time, and the service refuses: probes come as seldom as without it."""
    pace, steady, gaps = guarded(), 0, []
    for _ in range(8):
        pace.healthy(at(steady))
        gaps.append(pace.probe_at_ms - steady)
        steady = probe(pace).steady_ms
        pace.note(RECORD, AWAY, at(steady))
    assert gaps == [0, 200, 400, 800, 1_600, 3_200, LAST_PROBE_MS, LAST_PROBE_MS]


def test_a_health_url_that_fails_again_stops_the_probe() -> None:
    pace = guarded()
    pace.healthy(at(0))
    pace.unhealthy("http-503", at(0))
    assert (pace.probe_at_ms, pace.reason) == (NEVER, "http-503")


def test_a_guarded_outage_ends_only_by_a_probe_that_the_health_url_allowed() -> None:
    """A probe that hung and comes back well, while the health URL fails, says nothing about now."""
    pace = guarded()
    pace.healthy(at(0))
    probe(pace)
    pace.tick(at(PROBE_HANGS_MS), 1)
    pace.sent(OTHER, at(PROBE_HANGS_MS))
    pace.note(OTHER, AWAY, at(PROBE_HANGS_MS))
    pace.note(RECORD, COMMITTED, at(PROBE_HANGS_MS + 1))
    assert (pace.state, pace.limit) == (State.OUTAGE, 0)


def test_the_health_url_says_nothing_while_deliveries_go_on() -> None:
    pace = Pace(8, guarded=True)
    pace.healthy(at(0))
    probe(pace)
    pace.note(RECORD, COMMITTED, at(1))
    pace.healthy(at(2))
    pace.unhealthy("http-503", at(3))
    assert (pace.state, pace.probe_at_ms, pace.reason) == (State.OPEN, NEVER, "")


def test_a_new_outage_begins_with_a_short_wait_again() -> None:
    pace = probing(16)
    pace.note(RECORD, AWAY, at(200))
    probe(pace)
    pace.note(RECORD, COMMITTED, at(401))
    pace.note(RECORD, AWAY, at(402))
    assert pace.probe_at_ms == 402 + FIRST_PROBE_MS


def test_an_outage_by_failures_says_how_many_and_the_last() -> None:
    assert rows(5, *[(offset, BAD) for offset in range(5)]).reason == "5 failures in a row, the last http-500"


def test_a_word_of_the_health_url_that_has_turned_bad_no_longer_excuses_failures() -> None:
    """Given a good word, then a bad one, then a full row of failures is doubted as if there had been none."""
    pace = Pace(8, failures=3, guarded=True)
    pace.healthy(at(0))
    probe(pace)
    pace.note(RECORD, COMMITTED, at(1))
    pace.unhealthy("http-503", at(2))
    for offset in (1, 2, 3):
        pace.note(record(offset), BAD, at(3))
    assert (pace.state, pace.limit, pace.unsure) == (State.OPEN, 0, True)


def test_a_probe_that_ends_is_no_probe_any_more() -> None:
    """Given two probes out, when one fails, then the other still ends the outage."""
    pace = probing(8)
    pace.tick(at(pace.probe_at_ms + PROBE_HANGS_MS), 1)
    pace.sent(OTHER, at(PROBE_HANGS_MS + 200))
    pace.note(RECORD, AWAY, at(PROBE_HANGS_MS + 201))
    assert pace.state is State.OUTAGE
    probe(pace, record(7), in_flight=1)
    pace.note(RECORD, COMMITTED, at(PROBE_HANGS_MS + 900))
    assert pace.state is State.PROBING, "it has been answered already"
    pace.note(OTHER, COMMITTED, at(PROBE_HANGS_MS + 901))
    assert (pace.state, pace.limit) == (State.OPEN, 2)
