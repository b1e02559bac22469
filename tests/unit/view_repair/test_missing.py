"""Which event the view lacks, by a record's row and the copies of it that are there."""

from typing import Any

import pytest

from reconsume.sidecar.audit.facts import Fact, FactKind
from reconsume.sidecar.view_repair.missing import missing_event
from reconsume.topics.events import State
from reconsume.topics.fold import row_of
from reconsume.topics.names import Names
from reconsume.topics.specs import OUTAGE_MARGIN
from reconsume.topics.view_record import ViewRow
from tests.support.view_rows import view_row, wall

NAMES = Names("billing")
DAY = 86_400_000


def copy(times: int = 1, what: FactKind = FactKind.COPY, topic: str = "billing-RETRY-10s", redrives: int = 0) -> Fact:
    return Fact(what, "orders:0:1", redrives, times, topic, 0, 5, at=77, due=99, first_failed_at=11, reason="http-500")


def dead(times: int = 1) -> Fact:
    return copy(times, FactKind.DEAD, "billing-DLQ")


def row(state: State = State.WAITING_RETRY, **changes: Any) -> ViewRow:
    return view_row(1, state, **changes)


@pytest.mark.parametrize(
    ("found", "state", "times", "level"),
    [
        (copy(2), State.WAITING_RETRY, 2, "10s"),
        (copy(2, topic="billing-RETRY"), State.WAITING_RETRY, 2, None),
        (copy(0, topic="billing-RETRY", redrives=1), State.REDRIVEN, 0, None),
        (dead(2), State.DLQ, 2, None),
        (dead(1), State.DLQ, 1, None),
    ],
)
def test_a_copy_that_is_later_than_the_row_says_what_was_lost(
    found: Fact, state: State, times: int, level: str | None
) -> None:
    for known in (None, row()):
        event = missing_event(known, [found], NAMES, wall())
        assert event is not None
        assert (event.state, event.times, event.level, event.redrives) == (state, times, level, found.redrives)
        assert (event.id, event.topic, event.offset, event.at, event.due) == ("orders:0:1", "orders", 1, 77, 99)


@pytest.mark.parametrize("copies", [[copy()], [copy(), dead(0)], [copy(0)]])
def test_a_row_that_waits_as_its_copy_does_lacks_nothing(copies: list[Fact]) -> None:
    assert missing_event(row(), copies, NAMES, wall()) is None


def test_a_row_that_waits_and_has_no_copy_was_committed() -> None:
    event = missing_event(row(times=3, redrives=1), [dead(2)], NAMES, wall())
    assert event is not None
    assert (event.state, event.times, event.redrives, event.level) == (State.COMMIT, 3, 1, None)


def test_what_retention_may_have_deleted_unread_is_not_called_committed() -> None:
    assert missing_event(row(due=wall() - OUTAGE_MARGIN - DAY), [], NAMES, wall()) is None


@pytest.mark.parametrize("state", [State.COMMIT, State.DLQ])
def test_a_record_that_is_done_by_its_row_lacks_nothing(state: State) -> None:
    for copies in ([], [copy()], [dead()]):
        assert missing_event(row(state, times=2), copies, NAMES, wall()) is None


@pytest.mark.parametrize("found", [copy(2), copy(0, topic="billing-RETRY", redrives=1), dead(2)])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_what_is_written_again_forgets_no_retries_of_the_lives_before(found: Fact, most: int) -> None:
    """The facts of a copy do not have them, and the row does."""
    event = missing_event(row(retries=most), [found], NAMES, wall())
    assert event is not None
    assert row_of(event, 0, 0, wall()).row.retries == max(most, found.times)
