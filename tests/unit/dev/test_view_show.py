"""What the demo says of a view that is not what the events make."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from reconsume.sidecar.dev.demo.view import Patience, differences, fold
from reconsume.topics.events import Event, State
from reconsume.topics.view_record import ViewRow

WAITS = Event(
    *(
        "billing",
        "orders:0:7",
        State.WAITING_RETRY,
        1,
        0,
        "1s",
        2_000,
        1_000,
        "http-500",
        "orders",
        0,
        7,
        900,
        1_000,
        "p",
    )
)
DONE = replace(WAITS, state=State.COMMIT, level=None, due=0, at=3_000, reason="")


def row(event: Event) -> ViewRow:
    return ViewRow(**asdict(event) | {"last_failed_at": 1_000, "retries": 1}, updated_at=3_500)


def test_a_view_that_says_what_the_last_events_say_is_right() -> None:
    expected = fold([DONE, WAITS, DONE])
    assert expected == {WAITS.id: DONE}
    assert differences({WAITS.id: row(DONE)}, expected) == []


def test_each_row_that_is_missing_wrong_or_from_nowhere_is_told() -> None:
    expected = fold([WAITS, DONE])
    assert differences({}, expected) == ["orders:0:7: not in the view, which should say COMMIT"]
    assert differences({WAITS.id: row(WAITS)}, expected) == [
        "orders:0:7: the view is wrong in state, level, due, at, reason"
    ]
    assert differences({WAITS.id: row(DONE)}, {}) == ["orders:0:7: in the view, and in no event"]


def test_patience_ends_after_a_time_without_any_step_however_long_it_took_before() -> None:
    """Given a job that moves once a minute for an hour and then stands, then it is given up two minutes later."""
    patience = Patience(120.0)
    assert not any(patience.note((minute, 0), 60.0 * minute) for minute in range(60))
    assert not patience.note((59, 0), 59 * 60.0 + 120)
    assert patience.note((59, 0), 59 * 60.0 + 121)
