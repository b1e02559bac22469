"""The pace: fewer deliveries when the service asks for time, one probe when it is away, then a slow start."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.hold import NEVER
from sidecar.core.outcome import CANCELLED, COMMITTED, Committed, Failed, NotSent, Outcome, Rejected, Throttled
from sidecar.core.pace import (
    CUT_EVERY,
    FIRST_PROBE,
    LAST_PROBE,
    LONGEST_PAUSE,
    PATIENCE,
    PROBE_HANGS,
    Change,
    Pace,
    State,
)
from sidecar.core.record import Now, Record
from tests.sim.samples import record

RECORD, OTHER = record(0), record(1)
AWAY, BUSY, BAD = NotSent("refused"), Throttled(1_000), Failed("http-500")


def at(steady: int) -> Now:
    return Now(1_763_690_000_000 + steady, steady)


def paced(full: int, *outcomes: Outcome, steady: int = 0) -> Pace:
    pace = Pace(full)
    for outcome in outcomes:
        pace.note(RECORD, outcome, at(steady))
    return pace


def probing(full: int) -> Pace:
    """A pace whose probe, `RECORD`, is out."""
    pace = paced(full, AWAY)
    probe(pace)
    return pace


def failing(full: int) -> Pace:
    """A pace in an outage of a service that answers, and only with failures."""
    pace = Pace(full, failures=3)
    for offset in (1, 2, 3):
        pace.note(record(offset), BAD, at(0))
    assert pace.state is State.OUTAGE
    return pace


def probe(pace: Pace, record: Record = RECORD, in_flight: int = 0) -> Now:
    """Let the next probe go; when that was."""
    when = at(pace.probe_at)
    pace.tick(when, in_flight)
    assert pace.state is State.PROBING
    pace.sent(record, when)
    return when


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


def test_a_probe_that_hangs_is_joined_by_another() -> None:
    """A record may take a quarter of an hour: one slow probe must not stop the group for so long."""
    pace = probing(8)
    assert pace.probe_at == FIRST_PROBE + PROBE_HANGS
    pace.tick(at(pace.probe_at), 1)
    assert (pace.state, pace.limit) == (State.PROBING, 2)
    pace.sent(OTHER, at(FIRST_PROBE + PROBE_HANGS))
    pace.note(OTHER, COMMITTED, at(FIRST_PROBE + PROBE_HANGS))
    assert pace.state is State.OPEN


def test_a_probe_that_hung_spends_nothing_when_it_fails_at_last() -> None:
    pace = probing(8)
    pace.tick(at(pace.probe_at), 1)
    pace.sent(OTHER, at(0))
    timeout = Failed("timeout", label="timeout")
    assert [pace.note(one, timeout, at(9_000)) for one in (OTHER, RECORD)] == [NotSent("timeout", probe=True)] * 2
    assert pace.state is State.OUTAGE


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
        steady = probe(pace).steady
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
    pace = failing(16)
    probe(pace)
    assert pace.note(RECORD, BAD, at(200)) == NotSent("http-500", probe=True)
    assert (pace.state, pace.probe_at) == (State.OUTAGE, 200 + 2 * FIRST_PROBE)


def test_a_service_that_could_not_be_reached_is_back_with_its_first_answer_whatever_it_says() -> None:
    """Else the due retries of a short restart, which mostly fail, would prolong the outage by probes that double."""
    pace = probing(16)
    assert pace.note(RECORD, BAD, at(200)) == NotSent("http-500", probe=True)
    assert (pace.state, pace.limit) == (State.OPEN, 2)


def test_no_answer_at_all_does_not_say_that_it_is_back() -> None:
    pace = probing(16)
    pace.note(RECORD, Failed("connection-lost", label="broken_answer"), at(200))
    assert pace.state is State.OUTAGE


def test_what_fails_after_the_outage_was_noticed_spends_nothing_either() -> None:
    pace = paced(16, AWAY)
    assert pace.note(record(1), BAD, at(1)) == NotSent("http-500", probe=True)
    probe(pace)
    assert pace.note(record(2), BAD, at(200)) == NotSent("http-500", probe=True)
    assert pace.state is State.PROBING


@pytest.mark.parametrize(
    "unanswered", [Failed("timeout", label="timeout"), Failed("connection-lost", "", "broken_answer")]
)
def test_a_service_that_dies_of_a_record_is_an_attempt(unanswered: Failed) -> None:
    pace = paced(16, AWAY)
    assert pace.note(record(1), unanswered, at(1)) is unanswered


@pytest.mark.parametrize("late", [COMMITTED, Rejected("x"), BUSY])
def test_what_ends_well_while_the_service_goes_away_does_not_end_the_outage(late: Outcome) -> None:
    """A service that shuts down in order answers what it has, and refuses connections meanwhile."""
    pace = paced(16, AWAY)
    assert pace.note(record(1), late, at(1)) is late
    assert (pace.state, pace.limit, pace.probe_at) == (State.OUTAGE, 0, FIRST_PROBE)


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
    assert pace.state is State.PROBING
    assert pace.note(RECORD, BAD, at(160)) == NotSent("http-500", probe=True)


def test_a_probe_that_was_cancelled_is_followed_by_another() -> None:
    pace = probing(16)
    pace.note(RECORD, CANCELLED, at(200))
    assert (pace.state, pace.probe_at) == (State.OUTAGE, 200 + 2 * FIRST_PROBE)


@pytest.mark.parametrize("answer", [Rejected("x"), Failed("retry-asked", asked=True)])
def test_a_verdict_of_any_kind_shows_that_the_service_is_there(answer: Outcome) -> None:
    pace = probing(16)
    assert pace.note(RECORD, answer, at(200)) is answer
    assert (pace.state, pace.limit) == (State.OPEN, 2)


def test_the_only_record_there_is_does_not_prolong_an_outage_for_ever() -> None:
    """A poison record alone: after some probes its failure counts, and it moves on to its level."""
    pace, worth = failing(16), []
    for _ in range(PATIENCE + 1):
        probe(pace)
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
    assert (pace.state, pace.limit) == (State.OUTAGE, 0)
    pace.healthy(at(10_000))
    pace.tick(at(10_000), 0)
    assert (pace.state, pace.limit) == (State.PROBING, 1)
    pace.sent(RECORD, at(10_000))
    pace.note(RECORD, AWAY, at(10_001))
    assert pace.probe_at == NEVER


def test_a_health_url_that_is_wrong_does_not_make_probes_more_frequent() -> None:
    """It says healthy all the time, and the service refuses: probes come as seldom as without it."""
    pace, steady, gaps = guarded(), 0, []
    for _ in range(8):
        pace.healthy(at(steady))
        gaps.append(pace.probe_at - steady)
        steady = probe(pace).steady
        pace.note(RECORD, AWAY, at(steady))
    assert gaps == [0, 200, 400, 800, 1_600, 3_200, LAST_PROBE, LAST_PROBE]


def test_a_health_url_that_fails_again_stops_the_probe() -> None:
    pace = guarded()
    pace.healthy(at(0))
    pace.unhealthy("http-503")
    assert (pace.probe_at, pace.reason) == (NEVER, "http-503")


def test_a_guarded_outage_ends_only_by_a_probe_that_the_health_url_allowed() -> None:
    """A probe that hung and comes back well, while the health URL fails, says nothing about now."""
    pace = guarded()
    pace.healthy(at(0))
    probe(pace)
    pace.tick(at(PROBE_HANGS), 1)
    pace.sent(OTHER, at(PROBE_HANGS))
    pace.note(OTHER, AWAY, at(PROBE_HANGS))
    pace.note(RECORD, COMMITTED, at(PROBE_HANGS + 1))
    assert (pace.state, pace.limit) == (State.OUTAGE, 0)


def test_the_health_url_says_nothing_while_deliveries_go_on() -> None:
    pace = Pace(8, guarded=True)
    pace.healthy(at(0))
    probe(pace)
    pace.note(RECORD, COMMITTED, at(1))
    pace.healthy(at(2))
    pace.unhealthy("http-503")
    assert (pace.state, pace.probe_at, pace.reason) == (State.OPEN, NEVER, "")


def test_a_new_outage_begins_with_a_short_wait_again() -> None:
    pace = probing(16)
    pace.note(RECORD, AWAY, at(200))
    probe(pace)
    pace.note(RECORD, COMMITTED, at(401))
    pace.note(RECORD, AWAY, at(402))
    assert pace.probe_at == 402 + FIRST_PROBE


def test_a_burst_of_throttle_answers_halves_the_pace_once() -> None:
    assert paced(16, *[BUSY] * 12).limit == 8


def test_throttling_that_goes_on_halves_it_again_down_to_one() -> None:
    pace = Pace(16)
    for turn in range(4):
        pace.note(RECORD, BUSY, at(turn * CUT_EVERY))
    assert (pace.state, pace.limit) == (State.THROTTLED, 1)


def test_each_round_of_throttle_answers_halves_it_however_fast_they_come() -> None:
    """A service that answers 429 within a millisecond would else be asked thousands of times in a second."""
    pace, limits = Pace(8), []
    for _ in range(8 + 8 + 4 + 2):
        pace.note(RECORD, BUSY, at(0))
        limits.append(pace.limit)
    assert sorted(set(limits), reverse=True) == [4, 2, 1, 0]


def paused(after: int = 700) -> Pace:
    pace = Pace(1)
    pace.note(RECORD, BUSY, at(0))
    pace.note(RECORD, Throttled(after), at(10))
    return pace


def test_when_one_at_a_time_is_too_many_it_pauses_for_as_long_as_it_was_asked_to() -> None:
    pace = paused(700)
    assert (pace.state, pace.limit, pace.probe_at) == (State.THROTTLED, 0, 710)
    pace.tick(at(709), 0)
    assert pace.limit == 0
    pace.tick(at(710), 0)
    assert (pace.state, pace.limit, pace.probe_at) == (State.THROTTLED, 1, NEVER)


def test_one_record_that_asks_for_a_long_time_does_not_stop_the_others_for_so_long() -> None:
    assert paused(300_000).probe_at == 10 + LONGEST_PAUSE


@pytest.mark.parametrize("late", [COMMITTED, BUSY, BAD, CANCELLED, AWAY])
def test_what_was_out_before_a_pause_does_not_end_it(late: Outcome) -> None:
    pace = paused()
    pace.note(record(1), late, at(20))
    assert (pace.state, pace.limit, pace.probe_at) == (State.THROTTLED, 0, 710)


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
    assert (pace.state, pace.limit) == (State.THROTTLED, 1)
    pace.note(RECORD, COMMITTED, at(10))
    assert pace.state is State.OPEN


def test_a_storm_in_the_group_is_an_outage_that_a_probe_ends() -> None:
    pace = paced(16)
    pace.storm(at(0))
    assert (pace.state, pace.probe_at) == (State.OUTAGE, FIRST_PROBE)
    probe(pace)
    pace.storm(at(FIRST_PROBE))
    assert pace.state is State.PROBING
    pace.note(RECORD, COMMITTED, at(200))
    assert pace.state is State.OPEN


def test_each_change_is_told_with_its_reason_and_how_long_it_lasted() -> None:
    told: list[Change] = []
    pace = Pace(2, changed=told.append, since=at(0))
    pace.note(RECORD, AWAY, at(1_000))
    probe(pace)
    pace.note(RECORD, AWAY, at(1_100))
    assert (pace.reason, pace.since) == ("refused", at(1_000))
    probe(pace)
    pace.note(RECORD, BUSY, at(1_300))
    pace.note(RECORD, COMMITTED, at(1_500))
    assert told == [
        Change(State.OPEN, State.OUTAGE, "refused", 1_000),
        Change(State.OUTAGE, State.PROBING, "refused", 100),
        Change(State.PROBING, State.OUTAGE, "refused", 100),
        Change(State.OUTAGE, State.PROBING, "refused", 300),
        Change(State.PROBING, State.THROTTLED, "the service asked for 1000 ms", 300),
        Change(State.THROTTLED, State.OPEN, "", 200),
    ]
    assert pace.changes == {State.OUTAGE: 2, State.PROBING: 2, State.THROTTLED: 1, State.OPEN: 1}


def test_an_outage_by_failures_says_how_many_and_the_last() -> None:
    assert rows(5, *[(offset, BAD) for offset in range(5)]).reason == "5 failures in a row, the last http-500"


OUTCOMES = st.sampled_from([COMMITTED, BAD, BUSY, AWAY, CANCELLED, Rejected("x"), Failed("asked", asked=True)])


class Play:
    """A gate's part, in short: sends what the pace lets out, up to what a story asks for."""

    def __init__(self, pace: Pace) -> None:
        self.pace, self.steady = pace, 0
        self.out: list[Record] = []
        self._offsets = count()

    def pass_time(self, ms: int) -> None:
        self.steady += ms
        self.pace.healthy(at(self.steady))
        self.pace.tick(at(self.steady), len(self.out))

    def send(self, most: int) -> None:
        while len(self.out) < self.pace.limit and most > 0:
            self.out.append(record(next(self._offsets)))
            most -= 1
            if self.pace.state is State.PROBING:
                self.pace.sent(self.out[-1], at(self.steady))

    def answer(self, outcome: Outcome, place: int) -> None:
        if self.out:
            self.pace.note(self.out.pop(place % len(self.out)), outcome, at(self.steady))

    def check(self) -> None:
        pace = self.pace
        assert 0 <= pace.limit <= max(pace.full, len(self.out) + 1)
        if pace.limit == 0:
            assert pace.state in (State.OUTAGE, State.THROTTLED)
            assert pace.probe_at != NEVER or pace.state is State.OUTAGE
        if pace.state is State.OUTAGE:
            assert pace.limit == 0


STEPS = st.tuples(OUTCOMES, st.integers(0, 3_000), st.integers(0, 9), st.integers(0, 9))


@given(st.integers(1, 12), st.sampled_from([None, 2, 5]), st.booleans(), st.lists(STEPS, max_size=60))
def test_it_always_comes_back_to_full_once_all_is_well(
    full: int, failures: int | None, guarded: bool, story: list[tuple[Outcome, int, int, int]]
) -> None:
    play = Play(Pace(full, failures=failures, guarded=guarded))
    for outcome, later, most, place in story:
        play.pass_time(later)
        play.send(most)
        play.answer(outcome, place)
        play.check()
    for _ in range(full * full + 20):
        play.pass_time(LAST_PROBE)
        play.send(1)
        play.answer(COMMITTED, 0)
        play.check()
    assert (play.pace.state, play.pace.limit) == (State.OPEN, full)
