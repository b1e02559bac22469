"""Callers that wait for something to be there: one is called at a time, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SETTLING = 4
"""Rounds of the event loop in which a hang-up that is in the socket already is read and made known."""


class LongPollQueue:
    """`there` says whether it is worth calling anybody. Used on one event loop."""

    def __init__(self, there: Callable[[], bool]) -> None:
        self._there = there
        self._line: deque[asyncio.Future[None]] = deque()
        self._called: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self._line)

    def wake_next(self) -> None:
        """Something is there: call the first in the line, unless the one who was called has not taken its part yet."""
        if self._line and self._called is None and self._there():
            self._called = self._line.popleft()
            self._called.set_result(None)

    def wake_all(self) -> None:
        """Nothing will be there any more: call everybody."""
        while self._line:
            self._line.popleft().set_result(None)

    @asynccontextmanager
    async def turn(self, seconds: float, gone: asyncio.Future[None]) -> AsyncIterator[None]:
        """Wait until called, at most so long, or until the caller is `gone`; inside, the caller takes what is there.

        Whoever is inside must look at `gone` first: a caller that hung up is told from one that did not.
        """
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(call)
        try:
            self.wake_next()
            await asyncio.wait((call, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            # After a pause of the whole process the record, the end of the wait and the hang-up come at once.
            for _ in range(SETTLING):
                await asyncio.sleep(0)
            yield
        finally:
            if call in self._line:
                self._line.remove(call)
            if self._called is call:
                self._called = None
            self.wake_next()
