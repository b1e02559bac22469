"""The table from error to exit code: each class, and what a user sees of it."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from sidecar.cli.terminal.options import Options, command
from sidecar.errors import BrokerError, ConfigError, ContractError, ReconsumeError, SetupError


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


def test_a_returned_exit_cannot_end_with_0() -> None:
    """typer would take `return typer.Exit(1)` for success."""
    result = run_command(lambda: typer.Exit(1))
    assert result.exit_code == 1
    assert isinstance(result.exception, TypeError)


def test_ctrl_c_that_c_code_swallowed_is_ctrl_c() -> None:
    def body() -> None:
        raise SystemError("<method> returned a result with an exception set") from KeyboardInterrupt()

    result = run_command(body)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")
