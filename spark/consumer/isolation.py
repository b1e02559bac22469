"""Run a handler in a child process. A record that ends this process ends nothing else, and is known afterwards.

This is used for a batch in which a Python worker has ended: by the handler's `os._exit`, a crash in a C library, or a
lack of memory. In the worker itself the same record would end it again at each repetition, and the batch would never
end.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Final, TypeAlias

from reconsume.spark.consumer.record import Record
from reconsume.spark.consumer.routing import Outcome
from reconsume.spark.consumer.verdict import DeadLetter

MAX_DEATHS: Final = 3
"""How many times a record may end its process before it is dead-lettered: the sidecar's `retry.max_deaths`."""
CRASHED: Final = "crashed-service"
"""The sidecar's reason for a record that crashes its service."""
DIED: Final = ("Python worker exited unexpectedly", "ExecutorLostFailure")
"""Parts of the messages by which Spark reports that a process with handlers has ended."""

Ask: TypeAlias = Callable[[Record], Outcome]
"""A function that calls a handler and returns its outcome; it never raises."""

_FORK = multiprocessing.get_context("fork")


def died(error: BaseException) -> bool:
    """Whether a batch failed because a process with handlers has ended."""
    return any(sign in str(error) for sign in DIED)


class ChildProcess:
    """A caller of `ask` in a child process, one record at a time. It replaces a child that has ended by a new one.

    The child ends when this object or its process ends.
    """

    def __init__(self, ask: Ask, max_deaths: int = MAX_DEATHS) -> None:
        self._ask, self._max_deaths = ask, max_deaths
        self._child: ForkProcess | None = None
        self._line: Connection | None = None

    def __call__(self, record: Record) -> Outcome:
        """Return the handler's outcome; a dead letter if the record has ended its process `max_deaths` times."""
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
        self._end()

    def _begin(self) -> Connection:
        # The child holds the worker's sockets too, so it must end when its pipe does.
        self._line, theirs = _FORK.Pipe()
        self._child = _FORK.Process(target=serve, args=(self._ask, theirs, self._line), daemon=True)
        self._child.start()
        theirs.close()  # an open copy here would hide the end of the child
        return self._line

    def _end(self) -> None:
        child, line, self._child, self._line = self._child, self._line, None, None
        if line is not None:
            line.close()
        if child is not None:
            child.join()


def serve(ask: Ask, line: Connection, parents: Connection) -> None:
    """Run the child process: answer records until the parent closes the connection."""
    parents.close()
    while True:
        try:
            record = line.recv()
        except EOFError:
            return
        line.send(ask(record))
