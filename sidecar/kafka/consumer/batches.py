"""Take messages from the client in batches: what is there at once, and at a steady load what comes in the next moment.

A hand-over wakes the event loop. Between wake-ups the processor forgets the code: a record that comes alone costs ten
times what it costs in a batch (measured). So where another record is expected soon, it is waited for.

A batch is taken a few messages at a time, because what they weigh is known only when their headers were read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, Message

from reconsume.sidecar.kafka.scan import TOGETHER
from reconsume.sidecar.process_memory import trim_memory

BATCH = 500
"""Messages in one hand-over at most. Larger ones are slower (the processor's cache)."""
HEAVY = 4 * 1024 * 1024
"""Bytes (`Record.weight`) after which a hand-over ends. 500 usual records weigh 1 MB, with all headers of a retry 2."""
LIGHT = HEAVY // 64
"""Average weight in a hand-over up to which the next one takes twice as many messages at a time, and else one."""
MOST_TOGETHER = 16
"""Messages that one call may return after light hand-overs. Each call hands Python's lock to the event loop: with 8
messages a call a record in batches costs 2 us more than with all of them. The headers of 16 take 112 MB at worst."""
GATHER = 0.0015
"""Seconds that the first message waits for others at a steady load. Each is so much later at most."""
STEADY = 500
"""Messages a second from which on others are waited for. With fewer, hardly one would come meanwhile."""
BUSY = 20_000
"""Messages a second up to which others are waited for. With more, they come in large batches anyway."""
WINDOW = 0.1
"""Seconds over which the load is measured."""

TRIM_EVERY = 0.1
"""Seconds between two returns of freed memory while hand-overs are heavy. Without it mixed records took 30 MiB more."""


class Batches:
    """The batches of one consumer. All calls come from its thread. `most`: messages that one call may return."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        nap: Callable[[float], None] = time.sleep,
        most: int = MOST_TOGETHER,
    ) -> None:
        self.left: list[Message] = []
        """Messages that were taken from the client and that the last batch was too heavy for; the next one is last."""
        self._clock, self._nap, self._most = clock, nap, most
        self._gathering = False
        self._step = TOGETHER
        self._taken = 0
        self._since = self._trimmed = 0.0

    def next_batch(self, consumer: Consumer, wait: float) -> Iterator[Message]:
        """Return the next batch; an empty one if no message comes within `wait` seconds.

        The caller reads it until it weighs HEAVY, and then calls `ended`. Calls of the client are made meanwhile.
        """
        # consume(500, t) waits its full time even if records are there: +24 ms at low rates. So they come at once.
        messages = consumer.consume(1, wait)
        if messages and self._gathering:
            self._nap(GATHER)
        return self._rest(consumer, messages)

    def _rest(self, consumer: Consumer, messages: list[Message]) -> Iterator[Message]:
        count, asked = 0, 1
        while messages:
            count, taken = count + len(messages), len(messages)
            left = self.left = messages[::-1]
            while left:
                yield left.pop()
            if taken < asked or count == BATCH:
                return
            asked = min(self._step, BATCH - count)
            messages = consumer.consume(asked, 0)

    def ended(self, count: int, weight: int) -> None:
        """Note how many messages of the batch were read, and what their records weigh."""
        self._step = min(2 * self._step, self._most) if weight <= count * LIGHT else 1
        self._taken += count
        at = self._clock()
        if self._step == 1 and at >= self._trimmed + TRIM_EVERY:
            self._trimmed = at
            trim_memory()
        if at - self._since >= WINDOW:
            # In a window of large batches nothing is gained, and a hand-over must not be late.
            self._gathering = STEADY * (at - self._since) <= self._taken <= BUSY * (at - self._since)
            self._taken, self._since = 0, at
