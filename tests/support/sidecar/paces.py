"""A pace in a state that a test begins with, and the outcomes that bring it there."""

from reconsume.sidecar.core.outcome import COMMITTED, Failed, NotSent, Outcome, Throttled
from reconsume.sidecar.core.pace.pace import PROBE_INTERVAL_MS, Pace, State
from reconsume.sidecar.core.record import Now, Record
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


def failing(full: int, *, interval: int = PROBE_INTERVAL_MS) -> Pace:
    """A pace in an outage of a service that answers, and only with failures."""
    pace = Pace(full, failures=3, interval_ms=interval)
    row(pace)
    assert pace.state is State.OUTAGE
    return pace


def row(pace: Pace, steady: int = 0) -> None:
    """Three different records fail."""
    for offset in (1, 2, 3):
        pace.note(record(offset), BAD, at(steady))


def guarded(full: int) -> Pace:
    """A pace that is open, with a health URL whose word was good until now: at `WELL_FOR_MS` it is asked again."""
    pace = Pace(full, failures=3, guarded=True)
    pace.healthy(at(0))
    probe(pace)
    while pace.state is not State.OPEN or pace.limit < full:
        pace.note(RECORD, COMMITTED, at(0))
    return pace


def probe(pace: Pace, record: Record = RECORD, in_flight: int = 0) -> Now:
    """Let the next probe go; when that was."""
    when = at(pace.probe_at_ms)
    pace.tick(when, in_flight)
    assert pace.state is State.PROBING
    pace.sent(record, when)
    return when
