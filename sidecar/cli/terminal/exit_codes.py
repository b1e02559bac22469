"""The one table from an error to a sentence and an exit code. A traceback is shown only with `--debug`.

0 done · 1 failed · 2 wrong usage · 3 partly done · 75 restarted too often · 78 bad configuration · 130 Ctrl-C ·
141 the reader went away · 143 SIGTERM
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from reconsume.sidecar.cli.terminal.output import flush, talk
from reconsume.sidecar.errors import (
    BrokerError,
    ConfigError,
    ContractError,
    ReconsumeError,
    RecordError,
    SetupError,
)
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import printable_json
from reconsume.sidecar.start_signals import is_unhandled

DONE = 0
FAILED = 1
WRONG_USAGE = 2
"""typer's own code."""
PARTLY = 3
RESTARTED_TOO_OFTEN = 75
"""EX_TEMPFAIL of sysexits.h. `run` ends with it (`runtime/restarts.py`)."""
BAD_CONFIGURATION = 78
"""EX_CONFIG of sysexits.h, so that a supervisor can distinguish a restart that may help from one that cannot."""
INTERRUPTED = 130
READER_GONE = 141
"""128 + SIGPIPE: the code that a shell reports for `cat file | head -1`."""
TERMINATED = 143
"""128 + SIGTERM, as a shell reports it."""

MEANINGS = {
    DONE: "Done.",
    FAILED: "Failed, or a check found something.",
    WRONG_USAGE: "Wrong usage: an option, an argument, or no terminal to ask on.",
    PARTLY: "Partly done; each row says what came of it.",
    RESTARTED_TOO_OFTEN: "The sidecar has restarted in place five times within ten minutes, and would have to again.",
    BAD_CONFIGURATION: "Bad configuration: a setting or a file. Starting again does not help.",
    INTERRUPTED: "Ended by Ctrl-C. What runs until then (`run`, `ui`, `view run`, `dev`) ends with 0.",
    READER_GONE: "Whoever read the data went away, as in `reconsume explain | head -1`.",
    TERMINATED: "Ended by SIGTERM (129: by SIGHUP); its temporary files are removed. See 130 for what ends with 0.",
}
"""The meaning of each code, for people."""
SILENCE = logging.NullHandler()
SIGNALS = (signal.SIGTERM, signal.SIGHUP)

CODES: tuple[tuple[type[BaseException], int, str, str], ...] = (
    (ConfigError, BAD_CONFIGURATION, "bad configuration", "configuration: {}"),
    (SetupError, FAILED, "setup", "setup: {}"),
    (BrokerError, FAILED, "Kafka", "Kafka: {}"),
    (ContractError, FAILED, "topics", "topics: {}"),
    (RecordError, FAILED, "{command}", "{command}: {}"),
    (ReconsumeError, FAILED, "failed", "{}"),
    (KeyboardInterrupt, INTERRUPTED, "interrupted", ""),
    (BrokenPipeError, READER_GONE, "", ""),
    (OSError, FAILED, "the system refused", "the system refused: {}"),
    (
        *(Exception, FAILED, "a fault of reconsume itself"),
        "a fault of reconsume itself, please report it with the output of --debug: {}",
    ),
)
"""From the most specific class to the most general: the first class that fits decides. The third is the title in JSON,
the last the sentence for people; empty where nothing is said. `{command}` is the command's first word."""


def exit_code(call: Callable[[], int | None], *, debug: bool, as_json: bool = False, command: str = "record") -> int:
    """Run a command and return its exit code; an error becomes a sentence on stderr, or with `as_json` a line of JSON.

    `command`: the first word of the command, with which errors about records begin. Raises typer's own exceptions
    (wrong usage: 2; a chosen code): typer ends the program with them.
    """
    if not debug:
        # Without a handler Python would print librdkafka's log lines beside the sentence, which already has the cause.
        logging.getLogger("reconsume.kafka").addHandler(SILENCE)
    came: list[int] = []
    try:
        with unwound_by_signals(came):
            code = call()
        flush()  # a reader that went away is noticed here, not in a traceback at exit
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 — the last code before the user: report all
        if (by_signal := 128 + came[0] if came else _signalled(error)) is not None:
            raise SystemExit(by_signal) from None
        return report(interrupt_in(error), debug=debug, as_json=as_json, command=command)
    return code or DONE


@contextmanager
def unwound_by_signals(came: list[int]) -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as an exception does, so that it removes its temporary files.

    `came` gets the number of each that comes: a C library that calls back may turn the exception into one of its own,
    as SQLite does with that of its progress handler. Commands that go on after a signal, or drain first, have handlers
    of their own, which come later and count.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        sys.exit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()  # no other one may set a handler
    before = {number: signal.getsignal(number) for number in SIGNALS if is_main and is_unhandled(number)}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is end:
                signal.signal(number, handler)


def _signalled(error: BaseException) -> int | None:
    """Return the exit code with which a signal ended the command; None if none did."""
    ended = interrupt_in(error)
    return int(ended.code or 0) if isinstance(ended, SystemExit) else None


def interrupt_in(error: BaseException) -> BaseException:
    """Return the cause of a SystemError, else `error`. The Kafka client at times turns a Ctrl-C or the end by a signal
    in C code into a SystemError."""
    return error.__cause__ if isinstance(error, SystemError) and error.__cause__ is not None else error


def report(error: BaseException, *, debug: bool, as_json: bool = False, command: str = "record") -> int:
    """Print what went wrong, and return the exit code for it."""
    if debug:
        traceback.print_exception(error)
    code, title, sentence = next((code, title, text) for kind, code, title, text in CODES if isinstance(error, kind))
    try:
        sys.stdout.flush()
    except OSError:
        # Python flushes stdout again at exit, and would report the error a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    texts = error.problems if isinstance(error, ConfigError) else [described(error)] if sentence else []
    log = error.log.splitlines() if isinstance(error, SetupError) else []
    if as_json:
        if title:
            json_error(title.format(command=command), "; ".join([*texts, *log]), code)
        return code
    for text in texts:
        talk(f"reconsume: {sentence.format(text, command=command)}")
    for line in log:
        talk(f"  {line}")
    return code


def json_error(title: str, detail: str, code: int) -> None:
    """Print an error for a program: one object on one line of stderr."""
    error = json.dumps({"title": title, "detail": detail, "exit": code}, ensure_ascii=False)
    sys.stderr.write(f"{printable_json(error)}\n")
    sys.stderr.flush()


def described(error: BaseException) -> str:
    """Return the error's own sentence, with its class if the class is not one of this project."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    cause = f"; `{hint('doctor')}` looks for the cause" if isinstance(error, BrokerError) else ""
    return f"{error}{cause}" if isinstance(error, ReconsumeError) else f"{type(error).__name__}: {error}"
