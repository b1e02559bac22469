"""Learn whether the service accepts connections, without a record: connect, and close at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sidecar.background import background
from sidecar.delivery.push.dial import dial
from sidecar.delivery.push.target import Target

WITHIN = 2.0
"""Seconds in which the service must accept. `dial` waits as long while a socket's backlog is full: a service that is
only busy answers then."""


class ConnectionCheck:
    """ConnectionCheck at one service. Made and called on the event loop."""

    def __init__(self, target: Target, answered: Callable[[str], None]) -> None:
        self._target, self._answered = target, answered
        self._asking: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Connect once; `answered` gets why the service did not accept, empty if it did.

        Does nothing while a call is under way.
        """
        if self._asking is None or self._asking.done():
            self._asking = background(self._ask(), "connection-check")

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WITHIN):
                reason = await dial(loop, self._target, _Closing())
        except TimeoutError:
            reason = "connect-timeout"
        self._answered(reason)


class _Closing(asyncio.Protocol):
    """Closes its connection as soon as it is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
