"""A broker's quota for producers, set by the one request for it: the client library has none."""

from __future__ import annotations

import socket
import struct

ALTER_CLIENT_QUOTAS = 49


def set_producer_rate(bootstrap: str, user_or_client: str, rate: float | None) -> None:
    """Let a client id produce so many bytes a second; None: as many as it likes. Raises OSError, AssertionError."""
    value = struct.pack(">d", rate or 0.0)
    entity = _text("client-id") + _text(user_or_client)
    entry = _array(entity) + _array(_text("producer_byte_rate") + value + struct.pack(">?", rate is None))
    body = _array(entry) + struct.pack(">?", False)
    header = struct.pack(">hhi", ALTER_CLIENT_QUOTAS, 0, 1) + _text("quotas")
    host, port = bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        answer = connection.makefile("rb")
        size = struct.unpack(">i", answer.read(4))[0]
        said = answer.read(size)
    code = struct.unpack(">h", said[12:14])[0]  # correlation, throttle time, count of entries, then the first's code
    assert code == 0, f"the broker refuses the quota: {code}"


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _array(one: bytes) -> bytes:
    return struct.pack(">i", 1) + one
