"""The agenda of a lane: whatever needs a later call is in one heap, and an idle lane is woken for the first of it.

What is in it is a record that is delayed (its `Entry`), a partition that may be fetched again (its `PartitionState`),
or the name of a part of the lane. Each has one time; a new one replaces it, and NEVER takes it off. What was replaced
stays in the heap until its time comes, and is dropped then.

`wake` is the port: what is asked for last counts, so only an earlier time is asked for. Event loop alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from itertools import count

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.record import NEVER


class Agenda:
    """Times (steady ms) by what is to be looked at then.

    Invariant: while a wake-up is pending, it comes at the first time, or before.
    """

    def __init__(self, wake: Callable[[int], None]) -> None:
        self.times: dict[Hashable, int] = {}
        """When each is looked at. Only `set_time` and `take_due` change it; each answer asks, and a call would cost
        more."""
        self._heap: list[tuple[int, int, Hashable]] = []
        self._numbers = count()
        """Of two things with one time the one that was set first comes first."""
        self._wake, self._woken_at_ms = wake, NEVER

    def set_time(self, what: Hashable, at_ms: int) -> None:
        """Have something looked at then, and at no other time. NEVER: not at all."""
        if at_ms == NEVER:
            self.times.pop(what, None)
        elif self.times.get(what) != at_ms:
            self.times[what] = at_ms
            heapq.heappush(self._heap, (at_ms, next(self._numbers), what))
            self.wake_by(at_ms)

    def set_earlier(self, what: Hashable, at_ms: int) -> None:
        """Have something looked at then, unless it is looked at before."""
        if at_ms < self.times.get(what, NEVER):
            self.set_time(what, at_ms)

    def time_of(self, what: Hashable) -> int:
        """Return when something is looked at; NEVER if it is not."""
        return self.times.get(what, NEVER)

    def wake_by(self, at_ms: int) -> None:
        """Have the lane ticked at a steady time (ms) at the latest."""
        if at_ms < self._woken_at_ms:
            self._woken_at_ms = at_ms
            self._wake(at_ms)

    def begin_tick(self) -> None:
        """Note that the lane is ticked, so no wake-up is pending any more."""
        self._woken_at_ms = NEVER

    def take_due(self, steady_ms: int) -> Iterator[Hashable]:
        """Yield what is due, the earliest first, and forget its time."""
        while self._heap and self._heap[0][0] <= steady_ms:
            at_ms, _, what = heapq.heappop(self._heap)
            if self.times.get(what) == at_ms:
                del self.times[what]
                yield what

    def wake_for_first(self) -> None:
        """Have the lane ticked for what comes first."""
        heap, times = self._heap, self.times
        while heap and times.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        if heap:
            self.wake_by(heap[0][0])

    def wakes_by(self, at_ms: int) -> bool:
        """Return whether a wake-up is pending that comes at a steady time (ms) at the latest."""
        return self._woken_at_ms <= at_ms

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        first = min(self.times.values(), default=NEVER)
        ensure(self._woken_at_ms <= first, f"the lane is woken for what comes first: {first}")
        heap = {(at_ms, what) for at_ms, _, what in self._heap}
        ensure(all((at_ms, what) in heap for what, at_ms in self.times.items()), "each time stands in the heap")
