"""How long a quota holds back a producer: the broker answers a request at once, and then reads no further one."""

from __future__ import annotations

import time

from confluent_kafka import ThrottleEvent


class Throttle:
    """What the client has heard of a quota. `longest`: seconds of the longest wait since it was last set to 0."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._until = 0.0

    def hear(self, event: ThrottleEvent) -> None:
        """Take in that a broker reads nothing for a while (the client calls it, also with no wait when one is over)."""
        self.longest = max(self.longest, event.throttle_time)
        self._until = time.monotonic() + event.throttle_time

    def left(self) -> float:
        """Return the seconds until the brokers read again; 0 or less if they do."""
        return self._until - time.monotonic()
