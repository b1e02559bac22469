"""Commit an offset with any bytes as its metadata, as a client of another language may: Kafka's protocol by hand."""

from __future__ import annotations

import socket
import struct

OFFSET_COMMIT, VERSION = 8, 2
SECONDS = 10.0


def commit_bytes(bootstrap: str, group: str, topic: str, partition: int, offset: int, metadata: bytes) -> None:
    """Commit on a cluster of one broker, which coordinates every group. Raises AssertionError if it is refused."""
    host, port = bootstrap.rsplit(":", 1)
    header = struct.pack(">hhi", OFFSET_COMMIT, VERSION, 1) + _text(b"raw")
    commit = _text(group.encode()) + struct.pack(">i", -1) + _text(b"") + struct.pack(">q", -1)
    commit += struct.pack(">i", 1) + _text(topic.encode()) + struct.pack(">iiq", 1, partition, offset) + _text(metadata)
    request = header + commit
    with socket.create_connection((host, int(port)), SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    (code,) = struct.unpack(">h", answer[-2:])
    assert code == 0, f"the broker has refused it: {code}"


def _text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value
