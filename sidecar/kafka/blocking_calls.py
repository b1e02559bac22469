"""A hard limit for calls of the Kafka client, whose own timeouts are none.

After a broker loss `send_offsets_to_transaction(…, 10)` has returned after 44 s, or never (librdkafka#5511, #5456;
measured on Kafka 4.3). So each producer has one thread that makes its blocking calls; whoever waits for it gives up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]


class CallTimeoutError(Exception):
    """A call did not come back in time. Its producer must not be used, nor destroyed, any more."""


class BlockingCalls:
    """One thread that makes the blocking calls of one producer."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self.stuck = False
        """Whether a call has not come back in time."""
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, limit: float, function: Callable[..., Any], *args: Any) -> None:
        """Make a call; raises what it raises, or StuckError after `limit` seconds."""
        self._jobs.put((function, args))
        try:
            failure = self._answers.get(timeout=limit)
        except Empty:
            self.stuck = True
            raise CallTimeoutError(getattr(function, "__name__", "call")) from None
        if failure is not None:
            raise failure

    @property
    def idle(self) -> bool:
        """Whether no call is under way: also the one that did not come back in time has come back by now."""
        return not self.stuck or not self._answers.empty()

    def end(self) -> None:
        """Let the thread go once it is idle."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, args = job
            try:
                function(*args)
            except BaseException as failure:  # noqa: BLE001 - handed to the caller, which raises it
                self._answers.put(failure)
            else:
                self._answers.put(None)
