"""A server that ends while a client calls: whoever it accepted is known to it, and hears at once that it has gone."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from reconsume.sidecar.dev.stop_listening import stop_listening

SECONDS = 5.0
"""Time in which a client has to hear that the server is gone."""


@pytest.mark.parametrize("turns", range(7))
def test_a_client_that_calls_as_a_server_ends_is_cut_off_or_refused(turns: int) -> None:
    """Given a call some turns of the loop before the end, when all known connections are cut, then its is too."""
    known: list[asyncio.StreamWriter] = []

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        known.append(writer)

    async def end_while_called() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname(), SECONDS) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await stop_listening(server)
            for writer in known:
                writer.transport.abort()
            await asyncio.sleep(0)
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""

    asyncio.run(end_while_called())
