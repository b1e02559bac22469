"""Watch the sidecar's own threads by name: whether each is alive, and when its loop made its last turn (`/livez`).

A thread has ended if it was started and is not alive any more, whatever its own state says. The Kafka client can raise
something out of a callback that no `except` can catch (a bare KafkaError, Python 3.11).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

WORK_LIMIT = 240.0
"""Seconds for one try of a transaction. Each of its four calls has 20 s and may be made again within 20 s more. Then
there are 10 s for a look at the topics. A lower limit would end a sidecar while Kafka is away, which it must
survive."""
FOLLOWER_LIMIT = 600.0
"""Seconds for a follower's turn: opening the view's file checks millions of rows. Records do not wait for followers."""

STOOD_STILL = 30.0
"""Seconds between two looks at the threads, which are a second apart, after which the process itself did not run."""

_LOG = logging.getLogger("reconsume.run")


class StopRequest(threading.Event):
    """The request to a thread to end.

    The thread's loop checks it in each turn, so it also knows the time of the last turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turned_at = time.monotonic()

    def is_set(self) -> bool:
        """Return whether the thread must end. A call is a turn of the calling thread."""
        self.turned_at = time.monotonic()
        return super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the thread must end. A call is a turn of the calling thread."""
        self.turned_at = time.monotonic()
        return super().wait(timeout)


class Thread(Protocol):
    """The part of `threading.Thread` that is watched."""

    @property
    def ident(self) -> int | None:
        """The id of the thread; None before it was started."""

    def is_alive(self) -> bool:
        """Return whether the thread runs."""


class WatchedThread:
    """One thread.

    `turned_at`: the time of its last turn (monotonic seconds), None while it has nothing to do. `limit`: seconds
    without a turn after which it counts as stuck. `why`: what ended it, if that is known.
    """

    def __init__(
        self,
        name: str,
        thread: Thread,
        turned_at: Callable[[], float | None] = lambda: None,
        limit: float = WORK_LIMIT,
        why: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = name
        self._thread, self._turned_at, self._limit, self._why = thread, turned_at, limit, why
        self._seen_at: float | None = None

    def stood_still(self) -> None:
        """Count its time from the next look on: until then the whole process did not run."""
        self._seen_at = None

    def check(self, moment: float) -> str:
        """Check the thread at `moment` (monotonic seconds). Return why it makes no progress.

        Empty if it makes progress, or was not started.
        """
        if self._thread.ident is None:
            return ""
        if not self._thread.is_alive():
            why = self._why()
            return f"thread {self.name} has ended" + ("" if why is None else f": {why!r}")
        if self._seen_at is None:  # a thread is made long before it is started, and its first turn takes a moment
            self._seen_at = moment
        turned = self._turned_at()
        if turned is None or (still := moment - max(turned, self._seen_at)) <= self._limit:
            return ""
        return f"thread {self.name} has not turned for {still:.0f} s, its limit is {self._limit:.0f} s"


class HasThreads(Protocol):
    """A part of the sidecar with threads of its own."""

    def watched(self) -> Sequence[WatchedThread]:
        """Return its threads."""


class ThreadWatch:
    """All threads of a sidecar."""

    def __init__(self, components: Iterable[HasThreads | None]) -> None:
        self._watched = [
            watched for component in components if component is not None for watched in component.watched()
        ]
        self._looked_at: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the threads."""
        return tuple(watched.name for watched in self._watched)

    def check(self, moment: float | None = None) -> list[str]:
        """Check all threads. Return one sentence for each that makes no progress; an empty list if all do.

        If the process was stopped meanwhile (SIGSTOP, a frozen container, a virtual machine that moves), each thread
        gets its whole time once more.
        """
        at = time.monotonic() if moment is None else moment
        if self._looked_at is not None and at - self._looked_at > STOOD_STILL:
            for watched in self._watched:
                watched.stood_still()
        self._looked_at = at
        return [problem for watched in self._watched if (problem := watched.check(at))]


def log_ends() -> None:
    """Log an exception that ends a thread, with its traceback."""

    def log_end(ended: threading.ExceptHookArgs) -> None:
        name, value = "(unknown)" if ended.thread is None else ended.thread.name, ended.exc_value
        # A value that is no exception (see the top of this file) cannot be rendered as one.
        fault = value if isinstance(value, BaseException) else RuntimeError(f"no exception, but {value!r}")
        info = (type(fault), fault, ended.exc_traceback)
        _LOG.error("thread %s ended with %r", name, value, exc_info=info, extra={"event": "thread-ended"})

    threading.excepthook = log_end
