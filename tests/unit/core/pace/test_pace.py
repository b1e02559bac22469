"""The pace: fewer deliveries when the service asks for time, and always back to full once all is well."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Committed, Failed, Outcome, Rejected, Throttled
from reconsume.sidecar.core.pace.pace import (
    CUT_EVERY_MS,
    LAST_PROBE_MS,
    LONGEST_PAUSE_MS,
    SURE,
    THROTTLE_HANGS_MS,
    Cause,
    Change,
    Pace,
    State,
)
from reconsume.sidecar.core.record import NEVER, Record
from tests.sim.samples import record
from tests.support.sidecar.paces import AWAY, BAD, BUSY, RECORD, at, paced, probe, probing


def test_a_burst_of_throttle_answers_halves_the_pace_once() -> None:
    assert paced(16, *[BUSY] * 12).limit == 8


def test_throttling_that_goes_on_halves_it_again_down_to_one() -> None:
    pace = Pace(16)
    for turn in range(4):
        pace.note(RECORD, BUSY, at(turn * CUT_EVERY_MS))
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
    assert (pace.state, pace.limit, pace.probe_at_ms) == (State.THROTTLED, 0, 710)
    pace.tick(at(709), 0)
    assert pace.limit == 0
    pace.tick(at(710), 0)
    assert (pace.state, pace.limit, pace.probe_at_ms) == (State.THROTTLED, 1, NEVER)


def test_one_record_that_asks_for_a_long_time_does_not_stop_the_others_for_so_long() -> None:
    assert paused(300_000).probe_at_ms == 10 + LONGEST_PAUSE_MS


@pytest.mark.parametrize("late", [COMMITTED, BUSY, BAD, CANCELLED, AWAY])
def test_what_was_out_before_a_pause_does_not_end_it(late: Outcome) -> None:
    pace = paused()
    pace.note(record(1), late, at(20))
    assert (pace.state, pace.limit, pace.probe_at_ms) == (State.THROTTLED, 0, 710)


def test_after_a_throttle_the_pace_creeps_by_one_each_round() -> None:
    pace = paced(8, BUSY)
    for _ in range(pace.limit):
        pace.note(RECORD, COMMITTED, at(1))
    assert (pace.state, pace.limit) == (State.THROTTLED, 5)
    for _ in range(5 + 6 + 7):
        pace.note(RECORD, COMMITTED, at(1))
    assert (pace.state, pace.limit) == (State.OPEN, 8)


def test_a_throttled_place_that_hangs_lets_one_request_more_out_and_one_that_is_answered_does_not() -> None:
    """A service may work on one record for a quarter of an hour: at one in flight all others would wait for it."""
    pace = paced(2, BUSY)
    pace.look(at(0))
    pace.note(RECORD, CANCELLED, at(10))
    pace.tick(at(THROTTLE_HANGS_MS), 1)
    assert pace.limit == 1
    pace.look(at(THROTTLE_HANGS_MS))
    pace.tick(at(2 * THROTTLE_HANGS_MS), 1)
    assert pace.limit == 2


def test_beside_more_that_hangs_than_a_throttle_allows_for_one_request_more_goes_as_well() -> None:
    """Given a topic that hangs with 20 of 64 places, and another one that is asked to come later."""
    pace = Pace(64)
    for turn in range(4):
        pace.note(RECORD, BUSY, at(turn * CUT_EVERY_MS))
    assert pace.limit == 4
    pace.look(at(0))
    pace.tick(at(THROTTLE_HANGS_MS), 20)
    assert (pace.state, pace.limit) == (State.THROTTLED, 21)


def test_a_probe_that_is_throttled_ends_the_outage() -> None:
    pace = probing(8)
    pace.note(RECORD, BUSY, at(200))
    assert (pace.state, pace.limit, pace.probe_at_ms) == (State.THROTTLED, 1, NEVER)


@pytest.mark.parametrize("took", [COMMITTED, Committed()])
def test_with_one_place_it_opens_again_after_an_outage_and_after_a_throttle(took: Committed) -> None:
    pace = probing(1)
    pace.note(RECORD, took, at(200))
    assert (pace.state, pace.limit) == (State.OPEN, 1)
    for _ in range(SURE):
        pace.note(RECORD, BUSY, at(300))
    assert pace.state is State.THROTTLED
    pace.note(RECORD, took, at(400))
    assert (pace.state, pace.limit) == (State.OPEN, 1)


def test_a_second_throttle_within_the_second_does_not_leave_it_throttled_for_ever() -> None:
    pace = paced(2, BUSY, BUSY)
    assert (pace.state, pace.limit) == (State.THROTTLED, 1)
    pace.note(RECORD, COMMITTED, at(10))
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
        Change(State.OPEN, State.OUTAGE, "refused", 1_000, Cause.UNREACHABLE),
        Change(State.OUTAGE, State.PROBING, "refused", 100, Cause.UNREACHABLE),
        Change(State.PROBING, State.OUTAGE, "refused", 100, Cause.UNREACHABLE),
        Change(State.OUTAGE, State.PROBING, "refused", 300, Cause.UNREACHABLE),
        Change(State.PROBING, State.THROTTLED, "the service asked for 1000 ms", 300),
        Change(State.THROTTLED, State.OPEN, "", 200),
    ]
    assert pace.changes == {State.OUTAGE: 1, State.PROBING: 2, State.THROTTLED: 1, State.OPEN: 1}


OUTCOMES = st.sampled_from([COMMITTED, BAD, BUSY, AWAY, CANCELLED, Rejected("x"), Failed("asked", asked=True)])


class Play:
    """A gate's part, in short: sends what the pace lets out, up to what a story asks for."""

    def __init__(self, pace: Pace) -> None:
        self.pace, self.steady_ms = pace, 0
        self.out: list[Record] = []
        self._offsets = count()

    def pass_time(self, ms: int) -> None:
        self.steady_ms += ms
        self.pace.healthy(at(self.steady_ms))
        self.pace.tick(at(self.steady_ms), len(self.out))

    def send(self, most: int) -> None:
        while len(self.out) < self.pace.limit and most > 0:
            self.out.append(record(next(self._offsets)))
            most -= 1
            if self.pace.state is State.PROBING:
                self.pace.sent(self.out[-1], at(self.steady_ms))

    def answer(self, outcome: Outcome, place: int) -> None:
        if self.out:
            self.pace.note(self.out.pop(place % len(self.out)), outcome, at(self.steady_ms))

    def check(self) -> None:
        pace = self.pace
        assert 0 <= pace.limit <= max(pace.full, len(self.out) + 1)
        if pace.limit == 0:
            assert pace.probe_at_ms != NEVER or pace.unsure
        if pace.state is State.OUTAGE:
            assert pace.limit == 0


STEPS = st.tuples(OUTCOMES, st.integers(0, 3_000), st.integers(0, 9), st.integers(0, 9))


@given(
    st.integers(1, 12),
    st.sampled_from([None, 2, 5]),
    st.booleans(),
    st.sampled_from([None, 1, 4]),
    st.lists(STEPS, max_size=60),
)
def test_it_always_comes_back_to_full_once_all_is_well(
    full: int, failures: int | None, guarded: bool, start: int | None, story: list[tuple[Outcome, int, int, int]]
) -> None:
    play = Play(Pace(full, failures=failures, guarded=guarded, start=start))
    for outcome, later, most, place in story:
        play.pass_time(later)
        play.send(most)
        play.answer(outcome, place)
        play.check()
    for _ in range(full * full + 20):
        play.pass_time(LAST_PROBE_MS)
        play.send(1)
        play.answer(COMMITTED, 0)
        play.check()
    assert (play.pace.state, play.pace.limit) == (State.OPEN, full)
