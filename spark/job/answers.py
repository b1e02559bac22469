"""Wait for what the brokers answer: until a deadline, until the job must stop, and not in silence.

This module imports nothing of Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ANSWER_SECONDS = 5.0
"""Seconds that an answer may take. Meanwhile the loop waits that watches the queries."""
START_SECONDS = 45.0
"""Seconds that all answers for one start of a query may take together. Of hundreds of groups the first question is
about thousands of partitions, on a cluster that may have to make its topic of consumer offsets for it. It is less than
`liveness.LIVE_SECONDS`, which begin anew with a start and at its end: so it is not taken for a query that stands."""
LOOK_SECONDS = 0.5
"""Seconds between two checks whether the job must stop."""
TELL_SECONDS = 5.0
"""Seconds between two lines that say what is waited for."""


class UnansweredError(RuntimeError):
    """The brokers do not answer, or the answer has an unknown form."""


class Answers:
    """Waits for answers. Methods may be called on any thread; a deadline is of the thread that has set it.

    `stopping` says whether the job must stop. `now`: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        say: Callable[[str], None] = lambda _text: None,
        stopping: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._stopping, self._now = say, stopping, now
        self._end: ContextVar[float | None] = ContextVar("end", default=None)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give all waits of the `with` block one deadline; within another such block, that one's."""
        if self._end.get() is not None:
            yield
            return
        token = self._end.set(self._now() + seconds)
        try:
            yield
        finally:
            self._end.reset(token)

    def until(self, ready: Callable[[float], bool], what: str) -> None:
        """Wait until `ready`, which waits for so many seconds and returns whether the answer is there.

        `what` names it in the log and in the error. Raises UnansweredError at the deadline, after ANSWER_SECONDS
        outside of a `within` block, and when the job must stop.
        """
        began = self._now()
        end = self._end.get() or began + ANSWER_SECONDS
        tell_at = began + TELL_SECONDS
        while not ready(max(0.0, min(LOOK_SECONDS, end - self._now()))):
            now = self._now()
            if self._stopping():
                raise UnansweredError(f"the job stops, and Kafka has not told {what}")
            if now >= end:
                raise UnansweredError(f"Kafka has not told {what} in {now - began:.0f} s")
            if now >= tell_at:
                self._say(f"Kafka is asked for {what}, and has not answered for {now - began:.0f} s")
                tell_at = now + TELL_SECONDS
