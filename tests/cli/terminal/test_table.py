"""Tables in a narrow terminal: an id is never cut or folded, whatever else gives way."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import textwrap
from datetime import UTC, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from reconsume.sidecar.cli.acls import PLAN_COLUMNS as ACLS
from reconsume.sidecar.cli.dlq.rows import CUT as CUT_OF_LETTERS
from reconsume.sidecar.cli.dlq.rows import LIST as LETTERS
from reconsume.sidecar.cli.retries.rows import CUT, JOURNEY, STATS
from reconsume.sidecar.cli.retries.rows import LIST as RETRIES
from reconsume.sidecar.cli.terminal.output import (
    Format,
    Output,
    cells_of,
    clock,
    column_widths,
    drawn,
    is_id,
    table_width,
    titles_of,
)
from reconsume.sidecar.cli.topics import PLAN_COLUMNS as TOPICS
from reconsume.sidecar.clock import wall
from reconsume.sidecar.dlq.letters import Eligibility
from reconsume.topics.events import State

ID = "orders-of-a-long-name.prod:3:1024"
TABLES = {
    "dlq list": LETTERS,
    "retries list": RETRIES,
    "retries stats": STATS,
    "journey": JOURNEY,
    "topics": TOPICS,
    "acls": ACLS,
}
"""Columns of tables that commands print; each gets an id in its column `id`, or in its first one."""


def printed(columns: tuple[str, ...], width: int, capsys: pytest.CaptureFixture[str], **rows: str) -> tuple[str, str]:
    where = "id" if "id" in columns else columns[0]
    row = {name: f"some words of {name}" for name in columns} | {where: ID, **rows}
    old = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        Output(Format.TABLE).rows(columns, [row, row])
    finally:
        os.environ.pop("COLUMNS") if old is None else os.environ.update(COLUMNS=old)
    shown = capsys.readouterr()
    return shown.out, shown.err


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 140])
@pytest.mark.parametrize("name", TABLES)
def test_the_id_of_each_row_can_be_copied_at_any_width(
    name: str, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given the tables of the commands, then no width cuts an id, and no line is longer than it must be for it."""
    out, err = printed(tuple(TABLES[name]), width, capsys)
    assert out.count(ID) == 2
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= max(width, len(ID) + 2)
    shown = set(re.findall(r"\w+", out.splitlines()[1]))
    told = set(re.findall(r"\w+", err.partition("columns ")[2].partition(":")[0]))
    assert shown | told == set(TABLES[name]), "what is left out is named"


STATES = [*State, *Eligibility]


def lines_of(columns: tuple[str, ...], cut: tuple[str, ...], width: int, row: dict[str, object]) -> list[str]:
    """The lines of a table with one row, below its head and rule."""
    file = io.StringIO()
    cells = cells_of(columns, [row], brief=True)
    widths = column_widths(columns, cells, width, cut)
    Console(file=file, width=max(width, table_width(widths))).print(drawn(columns, cells, widths, cut))
    return [line for line in file.getvalue().splitlines() if line.strip()][2:]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("state", STATES)
def test_a_dead_letter_is_one_line_with_its_state_its_time_and_the_beginning_of_its_text(
    state: str, width: int
) -> None:
    """Given any state and a text of 200 characters, then nothing is folded, and the end of the text is an ellipsis."""
    died = clock(wall())
    row = {"id": "orders:3:1024", "died": died, "state": state, "reason": "http-422", "text": "unknown sku " * 16}
    row |= {"times": "16", "redrives": "0", "topic": "orders", "place": "billing-DLQ:3:77", "fault": ""}
    (line,) = lines_of(LETTERS, CUT_OF_LETTERS, width, row)
    assert [word for word in ("orders:3:1024", died[11:19], state, "http-422", "unknown") if word not in line] == []
    assert ("…" in line, "+00:00" in line) == (True, False)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["retries list", "journey"])
@pytest.mark.parametrize("state", State)
def test_a_record_in_retry_is_one_line(state: str, name: str, width: int) -> None:
    columns, at = tuple(TABLES[name]), clock(wall() - 86_400_000)
    told = f"{at[5:10]} {at[11:16]}" if at[:4] == clock(wall())[:4] else at[:10]
    row: dict[str, object] = dict.fromkeys(columns, "10s") | {"id": "orders:3:1024", "state": state}
    row |= {"at": at, "due": at, "last_failed_at": at, "reason": "http-503", "text": "word " * 40, "topic": "orders"}
    (line,) = lines_of(columns, CUT, width, row)
    assert state in line
    assert told in line, "a day before today has its date"


def test_a_records_own_text_is_no_time_whatever_it_looks_like() -> None:
    told = "2026-11-26T04:05:06+00:00"
    assert cells_of(("a", "b"), [{"a": told, "b": clock(0)}], brief=True) == [[told, "1970-01-01"]]
    assert cells_of(("b",), [{"b": clock(0)}], brief=False) == [["1970-01-01T00:00:00+00:00"]]
    assert clock(0) == "1970-01-01T00:00:00Z"


def test_empty_columns_go_first_and_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = printed(("id", "fault", "reason", "place"), 60, capsys, fault="", place=f"dlq-{ID}")
    assert "fault" not in out + err
    assert "place" in err or f"dlq-{ID}" in out


def test_wide_has_all_columns_on_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    os.environ["COLUMNS"] = "20"
    try:
        Output(Format.TABLE, wide=True).rows(("id", "text"), [{"id": ID, "text": "word " * 30}])
    finally:
        del os.environ["COLUMNS"]
    shown = capsys.readouterr()
    assert ("word " * 30).strip() in shown.out
    assert shown.err == ""


TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=60)


@given(st.lists(st.lists(TEXT, min_size=4, max_size=4), min_size=1, max_size=4), st.integers(10, 200))
def test_a_layout_fits_unless_one_table_of_ids_cannot(cells: list[list[str]], width: int) -> None:
    """Given any cells, then the columns fit into the width, or only one is left."""
    widths = column_widths(("id", "reason", "topic", "when"), cells, width)
    assert table_width(widths) <= width or len(widths) == 1


PROGRAM = """
from reconsume.sidecar.cli.terminal.output import Format, Output
rows = [{"key": "ladder", "new": "10s"}]
output = Output(Format.TABLE)
output.talk_rows(("key", "new"), rows)
output.rows_after(rows, ("key", "new"), [%s])
"""


def on_a_terminal(program: str, stdout: int | None = None) -> tuple[str, str]:
    """What a program writes to a terminal; with `stdout` that stream goes to a pipe instead, and is given too."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=stdout or theirs, stderr=theirs, stdin=theirs
    ) as process:
        os.close(theirs)
        piped = process.stdout.read().decode() if process.stdout else ""
        process.wait(60)
        shown = os.read(ours, 65_536).decode()
    os.close(ours)
    return shown, piped


def test_a_plan_that_was_carried_out_as_it_stood_is_shown_once() -> None:
    """Given a plan and an equal result on one terminal, then the table is there once; changed or piped, twice."""
    same, changed = '{"key": "ladder", "new": "10s"}', '{"key": "ladder", "new": "refused"}'
    assert on_a_terminal(PROGRAM % same)[0].count("ladder") == 1
    assert on_a_terminal(PROGRAM % changed)[0].count("ladder") == 2
    shown, piped = on_a_terminal(PROGRAM % same, subprocess.PIPE)
    assert (shown.count("ladder"), piped.count("ladder")) == (1, 1)


@pytest.mark.parametrize(
    ("word", "holds"),
    [
        ("orders:0:1", True),
        ("(orders-x.prod:3:1024)", True),
        ("2026-11-26T04:05:06+00:00", False),
        ("2026-11-26T04:05:06.123Z", False),
        ("12:30:45", False),
        ("http://x:80/a", False),
        ("1m30s", False),
    ],
)
def test_what_is_an_id_and_what_is_a_time(word: str, holds: bool) -> None:
    assert is_id(word) is holds


def test_a_time_gives_way_to_an_id() -> None:
    names = ("id", "due", "reason")
    cells = [[ID, "2026-11-26T04:05:06.123+00:00", "http-500: no"]]
    assert len(column_widths(names, cells, 66)) == 3


def test_times_are_in_the_zone_of_their_reader_and_the_header_names_it() -> None:
    """Given 18:12 UTC and a reader in Berlin in winter, then the table says 19:12 and CET; JSON has Z."""
    berlin, rows = timezone(timedelta(hours=1), "CET"), [{"at": clock(1_763_662_359_000), "id": "orders:0:1"}]
    assert cells_of(("at", "id"), rows, brief=False, zone=berlin) == [["2025-11-20T19:12:39+01:00", "orders:0:1"]]
    assert titles_of(("at", "id"), rows, berlin) == {"at": "at (CET)", "id": "id"}
    assert titles_of(("at", "id"), rows, UTC)["at"] == "at (UTC)"
    assert rows[0]["at"] == "2025-11-20T18:12:39Z"
