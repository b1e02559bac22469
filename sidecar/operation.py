"""The one shape of what an operator changes: planned, agreed to, carried out, recorded.

An operation is a request (a frozen value that has checked itself) together with what it acts on. Commands, calls of the
API and forms of the dashboard are thin faces over it:

1. A face builds the request from what it was given. A request that cannot be meant raises one error, with one sentence.
2. `plan` looks, and changes nothing. It returns rows, and the question to agree to. An empty question means that there
   is nothing to do.
3. `run` carries it out, reports its progress, and stops early, at a safe point, once `stop` is set.
4. `outcome` says what was done so far, with an exit status. It is also asked after `run` has raised an error.

`run_recorded` is around `run` in every face. It writes who has done what, how many records were changed, and the error
if there was one. Each method blocks, and one thread uses one operation.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

Row = Mapping[str, object]
Report = Callable[[int, int], None]
"""Called with what is done (or read), and of how much. May raise to end what is under way."""


def no_report(_done: int, _of: int) -> None:
    """Report progress to nobody."""


class Status(enum.IntEnum):
    """How an operation has ended; the values are exit codes."""

    DONE = 0
    FAILED = 1
    PARTLY = 3


class Plan(NamedTuple):
    """What an operation would do.

    `question`: what to ask before it is carried out; empty: there is nothing to do. `nothing`: the sentence if nothing
    is done, and `status` the exit code then. `remarks`: what the user should know before. `agreed`: the word to type
    instead of yes.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    question: str
    nothing: str
    remarks: Sequence[str] = ()
    agreed: str | None = None
    status: Status = Status.DONE


class Outcome(NamedTuple):
    """What an operation has done: rows with the columns of its plan, sentences, and how it has ended.

    `rows`: empty if they are those of the plan.
    """

    rows: Sequence[Row]
    sentences: Sequence[str]
    status: Status = Status.DONE


class Operation(Protocol):
    """An operation. `action`, `what` and `why` are for the record of it. `changed`: how many records it has changed."""

    @property
    def action(self) -> str: ...

    @property
    def what(self) -> str: ...

    @property
    def why(self) -> str: ...

    @property
    def changed(self) -> int: ...

    def plan(self, report: Report) -> Plan:
        """Find out what would be done. Raises ReconsumeError."""

    def run(self, report: Report, stop: threading.Event) -> None:
        """Carry the plan out. Raises ReconsumeError."""

    def outcome(self) -> Outcome:
        """Return what was done so far."""


@dataclass
class Tally:
    """What an action has done so far. `records`: how many it has changed. `what`: what it is about, as known by now."""

    records: int = 0
    what: str = ""


class EpochMs(int):
    """A time in epoch ms in a row: a number for programs; a table shows it as a time."""


class Recorder(Protocol):
    """Writes that an action begins, and how it has ended, whatever ends the block."""

    def noted(self, action: str, who: str, what: str = "", why: str = "") -> AbstractContextManager[Tally]: ...


class Unrecorded:
    """The recorder of operations that are records of their own, as holds are."""

    @contextmanager
    def noted(self, _action: str, _who: str, _what: str = "", _why: str = "") -> Iterator[Tally]:
        """Write nothing."""
        yield Tally()


OperationT = TypeVar("OperationT", bound=Operation)


def carried_out(operation: OperationT) -> OperationT:
    """Carry an operation out for a caller who waits for its end. Raises what `Operation.run` raises."""
    operation.run(no_report, threading.Event())
    return operation


def run_recorded(operation: Operation, who: str, recorder: Recorder, report: Report, stop: threading.Event) -> None:
    """Carry an operation out, and record it. `who`: the user. Raises what `Operation.run` raises."""
    with recorder.noted(operation.action, who, operation.what, operation.why) as tally:
        try:
            operation.run(report, stop)
        finally:
            tally.records, tally.what = operation.changed, operation.what
