"""A handler in a process of its own: what ends that process ends nothing else, and shows which record it was.

Used for a batch in which a Python worker has died, by the handler's `os._exit`, a crash in a C library, or for want of
memory. In the worker itself the same record would end it again at each repetition, and the batch would never be done.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Final, TypeAlias

from spark.consumer.record import Record
from spark.consumer.routing import Outcome
from spark.consumer.verdict import DeadLetter

MAX_DEATHS: Final = 3
"""How often a record may end its process before it is dead-lettered: the sidecar's `retry.max_deaths`."""
CRASHED: Final = "crashed-service"
"""The sidecar's reason for a record that kills its pod."""
DIED: Final = ("Python worker exited unexpectedly", "ExecutorLostFailure")
"""What Spark says when a process with handlers has died."""

Ask: TypeAlias = Callable[[Record], Outcome]
"""What a handler came to; never raises."""

_FORK = multiprocessing.get_context("fork")


def died(error: BaseException) -> bool:
    """Whether a batch failed because a process with handlers died."""
    return any(sign in str(error) for sign in DIED)


class Apart:
    """Calls `ask` in a child process, one record at a time; a new child takes the place of one that has died.

    The child ends with this object, or with its process.
    """

    def __init__(self, ask: Ask, max_deaths: int = MAX_DEATHS) -> None:
        self._ask, self._max_deaths = ask, max_deaths
        self._child: ForkProcess | None = None
        self._line: Connection | None = None

    def __call__(self, record: Record) -> Outcome:
        """What the handler came to; a dead letter when it has ended its process `max_deaths` times."""
        for _ in range(self._max_deaths):
            line = self._line or self._begin()
            try:
                line.send(record)
                outcome: Outcome = line.recv()
            except (EOFError, OSError):
                self._end()
            else:
                return outcome
        return DeadLetter(CRASHED)

    def __del__(self) -> None:
        """End the child."""
        self._end()

    def _begin(self) -> Connection:
        self._line, theirs = _FORK.Pipe()
        self._child = _FORK.Process(target=serve, args=(self._ask, theirs, self._line), daemon=True)
        self._child.start()
        theirs.close()  # or its end would not be heard
        return self._line

    def _end(self) -> None:
        child, line, self._child, self._line = self._child, self._line, None, None
        if line is not None:
            line.close()
        if child is not None:
            child.join()


def serve(ask: Ask, line: Connection, parents: Connection) -> None:
    """The child: answer until the parent hangs up."""
    parents.close()
    while True:
        try:
            record = line.recv()
        except EOFError:
            return
        line.send(ask(record))
