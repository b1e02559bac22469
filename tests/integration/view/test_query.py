"""The local copy of the view asked: lists, pages, failures in a window."""

from __future__ import annotations

import sqlite3

import pytest

from reconsume.sidecar.ui.overview import summarize
from reconsume.sidecar.view.copy import ViewCopy
from reconsume.sidecar.view.query import DEAD, LEVELS, BadCursorError, Failures, Filters, Minute, ViewQuery, questions
from reconsume.topics.events import State
from reconsume.topics.view_record import MINUTE
from tests.support.event_histories import BASE, changed
from tests.support.view_copy import take, take_counts
from tests.support.view_rows import view_row


def ids(values: list[bytes]) -> list[int]:
    return [int(value.split(b'"id":"orders:0:')[1].split(b'"')[0]) for value in values]


@pytest.fixture
def mixed(store: ViewCopy) -> None:
    rows = [
        view_row(1, due=300),
        view_row(2, due=100, level="1m", reason="timeout"),
        view_row(3, due=200, topic="invoices"),
        view_row(4, State.DLQ, reason="timeout"),
        view_row(5, State.COMMIT),
    ]
    take(store, *rows)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (Filters(), [4, 5, 2, 3, 1]),
        (Filters(state=State.WAITING_RETRY), [2, 3, 1]),
        (Filters(level="1m"), [2]),
        (Filters(topic="invoices"), [3]),
        (Filters(reason="timeout"), [4, 2]),
        (Filters(reason="timeout", state=State.DLQ), [4]),
        (Filters(due_before=300), [2, 3]),
        (Filters(topic="nobody's"), []),
    ],
    ids=str,
)
def test_lists_are_filtered_and_what_is_due_first_comes_first(
    mixed: None, ask: ViewQuery, filters: Filters, found: list[int]
) -> None:
    assert ids(ask.messages(filters, 10).values) == found


def test_what_waits_is_counted_by_level_with_its_first_and_last_due_time(mixed: None, ask: ViewQuery) -> None:
    assert ask.levels(200) == [("10s", 2, 1, 200, 300), ("1m", 1, 1, 100, 100)]


def test_what_is_parked_waits_for_no_time_and_is_not_among_what_is_due(store: ViewCopy, ask: ViewQuery) -> None:
    """The overview says of it that it waits, and not that nothing does."""
    take(store, view_row(1, due=300), view_row(2, due=0, level=None), view_row(3, State.COMMIT, due=0))
    summary = summarize(ask, 100, 60_000, ())
    assert (ask.parked(), summary.parked, summary.unleveled) == (1, 1, 0)
    assert [(one.level, one.records, one.first) for one in summary.levels] == [("10s", 1, 300)]


@pytest.mark.parametrize(("ordered", "name"), [(False, "ready"), (True, "queue")])
def test_what_waits_in_no_level_is_named_by_where_the_group_keeps_it(
    store: ViewCopy, ask: ViewQuery, ordered: bool, name: str
) -> None:
    take(store, view_row(1, due=300), view_row(2, due=200, level=None))
    summary = summarize(ask, 100, 60_000, (), ordered=ordered)
    assert (summary.unleveled, summary.unleveled_name) == (1, name)
    assert [one.level for one in summary.levels] == ["10s"]


def test_the_topics_of_which_most_waits_come_first(store: ViewCopy, ask: ViewQuery) -> None:
    rows = [view_row(number, due=number, topic="b" if number > 1 else "a") for number in range(1, 5)]
    take(store, *rows, view_row(9, State.COMMIT, due=0, topic="c"))
    assert ask.topics(8) == [("b", 3), ("a", 1)]
    assert ask.topics(1) == [("b", 3)]


def test_dead_letters_are_counted_by_reason_with_the_newest(store: ViewCopy, ask: ViewQuery) -> None:
    """Given letters that are dead, redriven or dismissed, then only what is dead now counts, by an index alone."""
    states = (State.DLQ, State.DLQ, State.DLQ, State.REDRIVEN, State.DISMISSED, State.WAITING_RETRY)
    reasons = ("a", "b", "b", "b", "b", "a")
    rows = [
        view_row(number, state, at=1_000 - number, reason=reason, text=f"text {number}")
        for number, (state, reason) in enumerate(zip(states, reasons, strict=True))
    ]
    take(store, *rows)
    found = ask.dead(10)
    assert [(one.reason, one.records, one.text) for one in found] == [("b", 2, "text 1"), ("a", 1, "text 0")]
    assert [one.reason for one in ask.dead(1)] == ["b"]


def test_counts_of_levels_and_of_dead_letters_look_at_no_row(store: ViewCopy) -> None:
    with sqlite3.connect(store.path) as connection:
        for query, values, index in ((DEAD, (8,), "message_dead"), (LEVELS, (1, 8), "message_level")):
            plan = connection.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall()
            assert f"USING COVERING INDEX {index}" in plan[0][3]


def test_a_page_of_large_rows_is_cut_by_its_bytes_and_goes_on_where_it_was_cut(store: ViewCopy, ask: ViewQuery) -> None:
    """Given rows that somebody has made as long as they may be, then a page of a thousand has a megabyte of them."""
    most = 100
    take(store, *(view_row(number, due=number, instance="x" * 15_000) for number in range(most)))
    first = ask.messages(Filters(), 1_000)
    assert sum(map(len, first.values)) < 1_100_000
    found, cursor = ids(first.values), first.cursor
    while cursor is not None:
        page = ask.messages(Filters(), 1_000, cursor)
        found, cursor = found + ids(page.values), page.cursor
    assert found == list(range(most))


def test_each_filter_has_an_index(store: ViewCopy) -> None:
    with sqlite3.connect(store.path) as connection:
        for column in ("state", "level", "topic", "reason"):
            query = f"EXPLAIN QUERY PLAN SELECT value FROM message WHERE {column} = ? ORDER BY due, number LIMIT 9"
            plan = " ".join(row[3] for row in connection.execute(query, ("x",)))
            assert f"message_{column}" in plan
            assert "TEMP B-TREE" not in plan
    connection.close()


def test_pages_together_are_the_list_also_where_due_times_are_equal(store: ViewCopy, ask: ViewQuery) -> None:
    take(store, *(view_row(number, due=number % 3) for number in range(50)))
    found: list[int] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        page = ask.messages(Filters(state=State.WAITING_RETRY), 7, cursor)
        found += ids(page.values)
        cursor, pages = page.cursor, pages + 1
    assert pages == 8
    assert found == sorted(range(50), key=lambda number: (number % 3, number))


@pytest.mark.parametrize(
    "forged", ["", "x", "é", "1", "1.", ".1", "-1.1", "1.1.1", "1.1 ", "1.٣", "1" * 5_000, f"1.{2**63}", f"{2**63}.1"]
)
def test_what_is_no_cursor_is_refused(store: ViewCopy, ask: ViewQuery, forged: str) -> None:
    with pytest.raises(BadCursorError):
        ask.messages(Filters(), 1, forged)


def test_failures_are_counted_in_their_window_by_reason(store: ViewCopy, ask: ViewQuery) -> None:
    rows = [view_row(number, reason="a" if number % 3 else "b", last_failed_at=number) for number in range(10)]
    take(store, *rows, view_row(99, State.COMMIT, reason="a", last_failed_at=5))
    assert ask.failures(3, 8) == Failures(6, (("a", 5), ("b", 1)))
    assert ask.failures(100, 200) == Failures(0, ())


def test_a_question_that_takes_too_long_is_given_up(store: ViewCopy) -> None:
    take(store, *(view_row(number) for number in range(5_000)))
    with questions(store.path, within=-1) as query, pytest.raises(sqlite3.OperationalError, match="interrupted"):
        query.failures(0, 2**62)


def test_a_reader_cannot_write(store: ViewCopy) -> None:
    with questions(store.path) as query, pytest.raises(sqlite3.OperationalError, match="readonly"):
        query._connection.execute("DELETE FROM message")


def test_minutes_are_summed_over_topics(store: ViewCopy, ask: ViewQuery) -> None:
    take_counts(store, *(changed(topic=topic) for topic in ("a", "b", "c")), changed(at=BASE + MINUTE))
    begin = BASE // MINUTE * MINUTE
    assert ask.minutes(begin, begin + MINUTE) == [Minute(begin, 3, 0, 0)]
