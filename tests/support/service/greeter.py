"""A listener that does one thing with each connection: for handshakes that never come to a request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

JOIN_SECONDS = 30.0

Greet: TypeAlias = Callable[[socket.socket], object]


class Greeter:
    """A listener that does one thing with each connection, and keeps it open unless that closes it."""

    def __init__(self, greet: Greet) -> None:
        self._greet = greet
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Greeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(JOIN_SECONDS)
        self._listener.close()
        self.forget()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._listener.getsockname()[1]}/events"

    def forget(self) -> None:
        """Close what is still open."""
        for connection in self._open:
            connection.close()
        self._open.clear()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            with suppress(OSError):  # the client may leave at any time
                self._greet(connection)
