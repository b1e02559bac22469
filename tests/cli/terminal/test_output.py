"""How data is printed: four formats, stable and safe for other programs."""

from __future__ import annotations

import json

import pytest

from reconsume.sidecar.cli.terminal.output import Format, Output, cell, talk
from reconsume.sidecar.printable import printable

ROWS: list[dict[str, object]] = [
    {"a": 1, "b": ["x", "y"], "hidden": True},
    {"a": None, "b": {"k": "tab\there\nline\\"}, "hidden": False},
]


def test_json_is_one_document_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.JSON).rows(("a",), ROWS)
    assert json.loads(capsys.readouterr().out) == ROWS


def test_json_of_no_rows_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.JSON).rows(("a",), [])
    assert json.loads(capsys.readouterr().out) == []


def test_jsonl_is_one_row_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.JSONL).rows(("a",), ROWS)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS


def test_tsv_has_a_header_and_one_line_a_row_whatever_a_cell_holds(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.TSV).rows(("a", "b"), ROWS)
    assert capsys.readouterr().out == "a\tb\n1\tx, y\n\tk=tab\\there\\nline\\\\\n"


def test_a_table_in_a_pipe_is_neither_cut_nor_wrapped_nor_marked_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "[bold]" + "word " * 60
    Output(Format.TABLE).rows(("a", "b"), [{"a": long, "b": 1}])
    assert long.strip() in capsys.readouterr().out


def test_jsonl_is_the_format_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output().rows(("a",), ROWS[:1])
    assert json.loads(capsys.readouterr().out) == ROWS[0]


def test_talk_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    talk("hello")
    Output().talk_rows(("a",), ROWS[:1])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hello\n")


@pytest.mark.parametrize(("value", "text"), [(None, ""), (True, "true"), ([], ""), (1.5, "1.5"), ("x", "x")])
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text


HOSTILE = "\x1b[31mred\x9b2J\u202eevil\x07\u200f\u061c\U000e0041"


@pytest.mark.parametrize("form", list(Format))
def test_no_format_lets_a_field_talk_to_the_terminal(form: Format, capsys: pytest.CaptureFixture[str]) -> None:
    Output(form).rows(("a",), [{"a": HOSTILE}])
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert "red" in printed


def test_json_with_hostile_fields_is_the_same_json(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.JSONL).rows(("a",), [{"a": HOSTILE}])
    assert json.loads(capsys.readouterr().out) == {"a": HOSTILE}


def test_talk_tells_what_a_record_says_and_obeys_none_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Given an author of a policy whose name would clear the screen, or begin a line of its own, then both are seen."""
    talk(f"set by {HOSTILE}\nwarning: all is well")
    printed = capsys.readouterr().err
    assert printed == f"set by {printable(HOSTILE)}\\nwarning: all is well\n"
