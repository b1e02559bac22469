"""The table from error to exit code: each class, and what a user sees of it."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner, Result

from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.program import Group, Program
from reconsume.sidecar.errors import (
    BrokerError,
    ConfigError,
    ContractError,
    LetterError,
    ReconsumeError,
    RecordError,
    SetupError,
)


def run_command(body: Any) -> Result:
    """A one-command program whose command does `body`."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

    @command(app, "it")
    def it(_options: Options) -> int | None:
        result: int | None = body()
        return result

    return CliRunner().invoke(app, [])


def fail(error: BaseException) -> Any:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError(["a: bad", "b: bad"]), 78, "reconsume: configuration: a: bad\nreconsume: configuration: b: bad\n"),
        (SetupError("no Java"), 1, "reconsume: setup: no Java\n"),
        (
            BrokerError("no broker"),
            1,
            "reconsume: Kafka: no broker; `reconsume doctor` looks for the cause\n",
        ),
        (ContractError("no topic"), 1, "reconsume: topics: no topic\n"),
        (ReconsumeError("other"), 1, "reconsume: other\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "reconsume: the system refused: /x: Permission denied\n"),
        (KeyboardInterrupt(), 130, ""),
        (typer.Exit(3), 3, ""),
    ],
)
def test_each_error_has_its_code_and_sentence(error: BaseException, code: int, said: str) -> None:
    result = run_command(fail(error))
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", said)


def test_a_fault_of_ours_is_one_sentence_and_no_traceback() -> None:
    result = run_command(fail(ZeroDivisionError("division by zero")))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "ZeroDivisionError: division by zero" in result.stderr
    assert "--debug" in result.stderr


@pytest.mark.parametrize(("code", "seen"), [(None, 0), (0, 0), (1, 1), (3, 3)])
def test_a_command_returns_its_exit_code(code: int | None, seen: int) -> None:
    assert run_command(lambda: code).exit_code == seen


def test_ctrl_c_that_c_code_swallowed_is_ctrl_c() -> None:
    def body() -> None:
        raise SystemError("<method> returned a result with an exception set") from KeyboardInterrupt()

    result = run_command(body)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_a_c_library_turned_into_its_own_error_ends_with_the_code_of_the_signal(
    number: signal.Signals,
) -> None:
    """SQLite swallows what a callback raises, and reports that the query was interrupted."""

    def body() -> None:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.set_progress_handler(lambda: signal.raise_signal(number), 1)
            connection.execute("SELECT 1").fetchall()

    before = signal.signal(number, signal.SIG_DFL)
    try:
        result = run_command(body)
    finally:
        signal.signal(number, before)
    assert (result.exit_code, result.stdout, result.stderr) == (128 + number, "", "")


JSON_ERRORS = [
    (ConfigError(["a: bad", "b: bad"]), 78, "bad configuration", "a: bad; b: bad"),
    (SetupError("no Java"), 1, "setup", "no Java"),
    (SetupError("it ended:", "one\ntwo"), 1, "setup", "it ended:; one; two"),
    (BrokerError("no broker"), 1, "Kafka", "no broker; `reconsume doctor` looks for the cause"),
    (ContractError("no topic"), 1, "topics", "no topic"),
    (ReconsumeError("a\nb\x1b[2J"), 1, "failed", "a\nb\x1b[2J"),
    (PermissionError(13, "Permission denied", "/x"), 1, "the system refused", "/x: Permission denied"),
    (ZeroDivisionError("0"), 1, "a fault of reconsume itself", "ZeroDivisionError: 0"),
    (KeyboardInterrupt(), 130, "interrupted", ""),
    (typer.BadParameter("it cannot be"), 2, "wrong usage", "Invalid value: it cannot be"),
]


def run_with(form: list[str], body: Any) -> Result:
    """A program with two commands, called with these words before the first one."""
    app = typer.Typer(cls=Program, rich_markup_mode=None, pretty_exceptions_enable=False)
    take_common(app)

    @command(app, "it")
    def it(_options: Options, _number: Annotated[int, typer.Option("--number")] = 0) -> int | None:
        result: int | None = body()
        return result

    return CliRunner().invoke(app, form)


@pytest.mark.parametrize(
    "form", [["-o", "json", "it"], ["it", "-ojsonl"], ["it", "--output=json"], ["it", "-o", "json"]]
)
@pytest.mark.parametrize(("error", "code", "title", "detail"), JSON_ERRORS, ids=lambda value: repr(value)[:40])
def test_with_json_each_error_is_one_object_on_one_line(
    error: BaseException, code: int, title: str, detail: str, form: list[str]
) -> None:
    result = run_with(form, fail(error))
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr[:-1].isprintable()
    assert json.loads(result.stderr) == {"title": title, "detail": detail, "exit": code}


@pytest.mark.parametrize("error", [RecordError("nobody has it"), LetterError("nobody has it")])
@pytest.mark.parametrize(("words", "first"), [(["release"], "release"), (["dlq", "show"], "dlq")])
def test_an_error_about_a_record_begins_with_the_command_that_was_typed(
    words: list[str], first: str, error: BaseException
) -> None:
    app, group = (typer.Typer(cls=kind, rich_markup_mode=None) for kind in (Program, Group))
    take_common(app)
    take_common(group)
    command(app, "release")(lambda _options: fail(error)())
    command(group, "show")(lambda _options: fail(error)())
    command(group, "list")(lambda _options: None)
    app.add_typer(group, name="dlq")

    spoken, for_programs = (CliRunner().invoke(app, [*words, *form]) for form in ([], ["-o", "json"]))

    assert (spoken.exit_code, spoken.stderr) == (1, f"reconsume: {first}: nobody has it\n")
    assert json.loads(for_programs.stderr)["title"] == first


@pytest.mark.parametrize(
    "words", [["nope"], ["it", "--nope"], ["it", "--number", "x"], ["it", "extra"], ["it", "-o", "xml"]]
)
def test_with_json_wrong_usage_is_an_object_too(words: list[str]) -> None:
    """Given words that cannot be parsed, then the last format that is asked for decides, before or behind the fault."""
    for place in (["-o", "json", *words], [*words[:1], "-o", "jsonl", *words[1:]]):
        result = run_with(place, lambda: 0)
        if words[-1] == "xml":
            assert result.exit_code == 2
            continue
        error = json.loads(result.stderr)
        assert (result.exit_code, result.stdout, error["title"], error["exit"]) == (2, "", "wrong usage", 2)
    told = run_with(words, lambda: 0)
    assert "Usage:" in told.stderr, "without JSON it is for people"


@pytest.mark.parametrize("code", [0, 1, 3])
def test_with_json_the_codes_of_results_stay(code: int) -> None:
    result = run_with(["-o", "json", "it"], lambda: code)
    assert (result.exit_code, result.stderr) == (code, "")


def test_the_log_of_a_process_that_did_not_start_is_shown_line_by_line() -> None:
    result = run_command(fail(SetupError("the job has not moved:", "one\x1b[2J\ntwo")))
    assert result.stderr == "reconsume: setup: the job has not moved:\n  one\\x1b[2J\n  two\n"
