"""How a server of asyncio ends without losing a connection that it has just accepted."""

from __future__ import annotations

import asyncio

TURNS = 3
"""Turns of the loop between an accepted connection and the first line of its handler: its protocol, the news that it is
connected, the handler's task."""


async def stop_listening(server: asyncio.Server) -> None:
    """Accept no more connections, let the handler of each accepted one begin, and close the port.

    After `Server.close` alone, a connection that the loop accepted in the same turn has neither a handler nor an end:
    its client waits until the socket is garbage (python/cpython#109564).
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    server.close()
