"""Learn whether the service accepts connections, without a record: connect, and close at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from reconsume.sidecar.background import background
from reconsume.sidecar.delivery.push.access import Access
from reconsume.sidecar.delivery.push.dial import dial
from reconsume.sidecar.delivery.push.target import Target

WITHIN = 2.0
"""Seconds in which the service must accept. `dial` waits as long while a socket's backlog is full: a service that is
only busy answers then."""


class ConnectionCheck:
    """ConnectionCheck at one service. Made and called on the event loop."""

    def __init__(self, target: Target, answered: Callable[[str], None], access: Access | None = None) -> None:
        """`access`: needed if the target has TLS."""
        self._target, self._answered, self._access = target, answered, access
        self._asking: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Connect once; `answered` gets why the service did not accept, empty if it did.

        Does nothing while a call is under way.
        """
        if self._asking is None or self._asking.done():
            self._asking = background(self._ask_peer(), "connection-check")

    async def _ask_peer(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WITHIN):
                context = None if self._access is None else self._access.context()
                reason = await dial(loop, self._target, _Closing(), context)
        except TimeoutError:
            reason = "connect-timeout"
        self._answered(reason)


class _Closing(asyncio.Protocol):
    """Closes its connection as soon as it is there, without waiting for the end of TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()
