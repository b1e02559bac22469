"""A port where a test's own function deals with each connection: a broker that hangs, a port that speaks TLS."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def listener(talk: Callable[[socket.socket], object]) -> Iterator[str]:
    """A port of 127.0.0.1 where `talk` deals with each connection on a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                threading.Thread(target=quietly, args=(connection,), daemon=True).start()

        def quietly(connection: socket.socket) -> None:
            try:
                talk(connection)
            except OSError:
                connection.close()

        kept: list[socket.socket] = []
        acceptor = threading.Thread(target=serve, daemon=True)
        acceptor.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        for connection in kept:
            connection.close()
