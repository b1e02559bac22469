"""Let callers wait until there is something for them, and wake one at a time, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SETTLING = 4
"""Rounds of the event loop after the wait. In them a hang-up that is already in the socket is read and reported. With
fewer rounds, a caller that hung up could be given something."""


class LongPollQueue:
    """Hold the waiting callers. `there` says whether there is something to take. Used on one event loop."""

    def __init__(self, there: Callable[[], bool]) -> None:
        self._there = there
        self._line: deque[asyncio.Future[None]] = deque()
        self._called: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """Return the number of waiting callers."""
        return len(self._line)

    def wake_next(self) -> None:
        """Wake the first waiting caller if there is something to take.

        Does nothing while the caller that was woken before has not taken its part yet.
        """
        if self._line and self._called is None and self._there():
            self._called = self._line.popleft()
            self._called.set_result(None)

    def wake_all(self) -> None:
        """Wake all waiting callers, because nothing more will come."""
        while self._line:
            self._line.popleft().set_result(None)

    @asynccontextmanager
    async def wait_for_turn(self, seconds: float, gone: asyncio.Future[None]) -> AsyncIterator[None]:
        """Wait until woken, for at most `seconds`, or until the caller is `gone`; then the caller may take its part.

        Inside, the caller must check `gone` first, because a caller that hung up gets there too.
        """
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(call)
        try:
            self.wake_next()
            await asyncio.wait((call, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            # After a pause of the whole process the record, the end of the wait and the hang-up come together.
            for _ in range(SETTLING):
                await asyncio.sleep(0)
            yield
        finally:
            if call in self._line:
                self._line.remove(call)
            if self._called is call:
                self._called = None
            self.wake_next()
