"""Take messages from the client in batches: what is there at once, and at a steady load what comes in the next moment.

A hand-over wakes the event loop. Between wake-ups the processor forgets the code: a record that comes alone costs ten
times what it costs in a batch (measured). So where another record is expected soon, it is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, Message

BATCH = 500
"""Messages in one hand-over at most. Larger ones are slower (the processor's cache)."""
GATHER = 0.0015
"""Seconds that the first message waits for others at a steady load. Each is so much later at most."""
STEADY = 500
"""Messages a second from which on others are waited for. With fewer, hardly one would come meanwhile."""
BUSY = 20_000
"""Messages a second up to which others are waited for. With more, they come in large batches anyway."""
WINDOW = 0.1
"""Seconds over which the load is measured."""


class Batches:
    """The batches of one consumer. All calls come from its thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, nap: Callable[[float], None] = time.sleep) -> None:
        self._clock, self._nap = clock, nap
        self._gathering = False
        self._taken = 0
        self._since = 0.0

    def take(self, consumer: Consumer, wait: float) -> list[Message]:
        """Return the next batch; an empty one if no message comes within `wait` seconds."""
        # consume(500, t) waits its full time even if records are there: +24 ms at low rates. So they come at once.
        messages = consumer.consume(1, wait)
        if not messages:
            return messages
        if self._gathering:
            self._nap(GATHER)
        messages += consumer.consume(BATCH - 1, 0)
        self._taken += len(messages)
        at = self._clock()
        if at - self._since >= WINDOW:
            # In a window of large batches nothing is gained, and a hand-over must not be late.
            self._gathering = STEADY * (at - self._since) <= self._taken <= BUSY * (at - self._since)
            self._taken, self._since = 0, at
        return messages
