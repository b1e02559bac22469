"""Call a running sidecar where its configuration says that it listens."""

from __future__ import annotations

import http.client
import socket

from reconsume.sidecar.settings.addresses import Listen

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The loopback address by which a sidecar is called that listens on all addresses."""


class SidecarConnection(http.client.HTTPConnection):
    """An HTTP connection over TCP on loopback, or over a Unix socket. `timeout`: seconds."""

    def __init__(self, listen: Listen, timeout: float) -> None:
        super().__init__(EVERYWHERE.get(listen.host, listen.host) or "localhost", listen.port or None, timeout=timeout)
        self._path = listen.path

    def connect(self) -> None:
        """Connect over TCP, or over the Unix socket. Nagle's algorithm is of no use for one small request."""
        if self._path is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
