"""The table of states at the top of `pace.py` is what the code does: each row is played, and no other change occurs."""

from collections.abc import Callable

import pytest

from reconsume.sidecar.core.outcome import CANCELLED, COMMITTED, Failed
from reconsume.sidecar.core.pace import pace as pace_module
from reconsume.sidecar.core.pace.pace import IDLE_AFTER_MS, PROBE_HANGS_MS, WELL_FOR_MS, Pace, State
from tests.sim.samples import record
from tests.support.sidecar.paces import AWAY, BAD, BUSY, OTHER, RECORD, at, failing, guarded, probe, probing, row

Row = tuple[State, str, State]


def table() -> list[Row]:
    """The rows of the docstring."""
    lines = [line.split("|") for line in (pace_module.__doc__ or "").splitlines() if line.count("|") == 2]
    cells = [[cell.strip() for cell in line] for line in lines[2:]]
    return [(State(was), event, State(then)) for was, event, then in cells]


ROWS = table()


def opened() -> Pace:
    return Pace(4, failures=3)


def throttled() -> Pace:
    pace = opened()
    pace.note(RECORD, BUSY, at(0))
    return pace


def well() -> Pace:
    """A pace whose probe is out, since the health URL says again that all is well after a row of failures."""
    pace = guarded(4)
    row(pace, WELL_FOR_MS)
    pace.unhealthy("http-503", at(WELL_FOR_MS))
    pace.healthy(at(WELL_FOR_MS + 500))
    probe(pace)
    return pace


def in_doubt() -> Pace:
    pace = guarded(4)
    row(pace, WELL_FOR_MS)
    return pace


def busy_for_some() -> Pace:
    pace = opened()
    for _ in range(15):
        pace.note(RECORD, COMMITTED, at(1))
    return pace


def refused(pace: Pace) -> None:
    pace.note(OTHER, AWAY, at(0))


def answered(pace: Pace) -> None:
    pace.note(RECORD, BAD, at(1_700))


def no_answer(pace: Pace) -> None:
    pace.tick(at(pace.probe_at_ms + PROBE_HANGS_MS), 1)


def hangs(pace: Pace) -> None:
    pace.look(at(0))
    pace.tick(at(pace.probe_at_ms), pace.limit)


def nothing_to_probe_with() -> Pace:
    pace = failing(4)
    pace.tick(at(pace.probe_at_ms), 0)
    return pace


def nothing_is_open(pace: Pace) -> None:
    pace.note_open(is_open=False, now=at(1_000))
    pace.tick(at(1_000 + IDLE_AFTER_MS - 1), 0)
    assert pace.state is State.PROBING, "not at once"
    pace.tick(at(1_000 + IDLE_AFTER_MS), 0)


Play = tuple[Callable[[], Pace], Callable[[Pace], None]]
PLAYS: dict[tuple[str, str], list[Play]] = {
    ("open", "a connection is refused"): [(opened, refused)],
    ("open", "the streak is full"): [(opened, row)],
    ("open", "the streak is full, and the health URL is well"): [
        (in_doubt, lambda pace: pace.healthy(at(WELL_FOR_MS + 1))),
        (lambda: guarded(4), row),
    ],
    ("open", "the streak is full, and the health URL fails"): [
        (in_doubt, lambda pace: pace.unhealthy("http-503", at(WELL_FOR_MS + 1)))
    ],
    ("open", "the service asks for time"): [(opened, lambda pace: pace.note(RECORD, BUSY, at(0)))],
    ("open", "a few of many answers ask for time"): [(busy_for_some, lambda pace: pace.note(RECORD, BUSY, at(2)))],
    ("throttled", "a connection is refused"): [(throttled, refused)],
    ("throttled", "the streak is full"): [(throttled, row)],
    ("throttled", "successes up to the full number"): [
        (throttled, lambda pace: [pace.note(RECORD, COMMITTED, at(1)) for _ in range(2 + 3)][-1])
    ],
    ("throttled", "no answer for a while"): [(throttled, hangs)],
    ("outage", "the pause is over, or the health URL is well"): [
        (lambda: failing(4), lambda pace: pace.tick(at(pace.probe_at_ms), 0)),
        (lambda: Pace(4, guarded=True), lambda pace: (pace.healthy(at(0)), pace.tick(at(0), 0))[-1]),
    ],
    ("outage", "a late answer to what is no probe"): [
        (lambda: failing(4), lambda pace: pace.note(record(9), COMMITTED, at(1)))
    ],
    ("probing", "a late answer to what is no probe"): [
        (lambda: probing(4), lambda pace: pace.note(record(9), COMMITTED, at(1)))
    ],
    ("probing", "the probe gets no answer for a while"): [(lambda: probing(4), no_answer)],
    ("probing", "the probe succeeds"): [(lambda: probing(4), lambda pace: pace.note(RECORD, COMMITTED, at(200)))],
    ("probing", "the probe is answered by a failure"): [
        (lambda: (pace := failing(4), probe(pace))[0], answered),
    ],
    ("probing", "the same, and the service was unreachable"): [(lambda: probing(4), answered)],
    ("probing", "the same, and the health URL is well"): [(well, answered)],
    ("probing", "the probe is not sent, cancelled, or ends unanswered"): [
        (lambda: probing(4), lambda pace: pace.note(RECORD, AWAY, at(200))),
        (lambda: probing(4), lambda pace: pace.note(RECORD, CANCELLED, at(200))),
        (lambda: probing(4), lambda pace: pace.note(RECORD, Failed("timeout", label="timeout"), at(200))),
    ],
    ("probing", "it was failing, and nothing is open for a while"): [(nothing_to_probe_with, nothing_is_open)],
    ("probing", "the service asks for time"): [(lambda: probing(4), lambda pace: pace.note(RECORD, BUSY, at(200)))],
}


@pytest.mark.parametrize(("was", "event", "then"), ROWS)
def test_each_row_of_the_table_is_what_the_code_does(was: State, event: str, then: State) -> None:
    for begin, act in PLAYS[was, event]:
        pace = begin()
        assert pace.state is was
        act(pace)
        assert pace.state is then


def test_each_row_is_played_and_told_apart() -> None:
    assert len(ROWS) == len(PLAYS) == 21
    assert {(was, event) for was, event, _ in ROWS} == PLAYS.keys()
