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
        if failure is not None:
            raise failure

    @property
    def idle(self) -> bool:
        """Whether no call is under way. A call that did not return in time may have returned since."""
        return not self.stuck or not self._answers.empty()

    def end(self) -> None:
        """End the thread once it is idle."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, args = job
            try:
                function(*args)
            except BaseException as failure:  # noqa: BLE001 - passed to the caller, which raises it
                self._answers.put(failure)
            else:
                self._answers.put(None)
