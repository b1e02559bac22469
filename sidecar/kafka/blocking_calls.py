"""Set a hard time limit for calls of the Kafka client, because the client does not keep its own timeouts.

After a broker loss `send_offsets_to_transaction(…, 10)` has returned after 44 s, or never (librdkafka#5511, #5456;
measured on Kafka 4.3). So each producer has one thread that makes its blocking calls. The caller waits for that thread
only until its limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]


class CallTimeoutError(Exception):
    """A call did not return in time. Its producer must not be used or destroyed any more."""


class BlockingCalls:
    """One thread that makes the blocking calls of one producer."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self.stuck = False
        """Whether a call did not return in time."""
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, limit: float, function: Callable[..., Any], *args: Any) -> None:
        """Make a call and wait for it for at most `limit` seconds.

        Raises what the call raises, or CallTimeoutError after `limit` seconds.
        """
        self._jobs.put((function, args))
        try:
            failure = self._answers.get(timeout=limit)
        except Empty:
            self.stuck = True
            raise CallTimeoutError(getattr(function, "__name__", "call")) from None
        try:
            if failure is not None:
                raise failure
        finally:
            # The traceback refers to this frame: an error that the frame names would hold itself, and all its callers.
            del failure

    def end(self, last: list[Any]) -> None:
        """End the thread once it is idle. Let it destroy the client, the only element of `last`.

        To destroy a client takes as long as its own threads take to end. With a call under way it may never return.
        """
        self._jobs.put((last.clear, ()))
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._answers.put(_failure_of(*job))
            del job  # while the thread waits, it must not hold the client by a bound method


def _failure_of(function: Callable[..., Any], args: tuple[Any, ...]) -> BaseException | None:
    try:
        function(*args)
    except BaseException as failure:  # noqa: BLE001 - the caller raises it
        return failure
    return None
