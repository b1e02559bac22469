"""Writes what no client library would: a record whose header keys are any bytes, or such metadata of an offset.

Kafka protocol: request header v1, Produce v3, record batch v2 (KIP-98), one record a request; OffsetCommit v2.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable

from confluent_kafka.admin import AdminClient

PRODUCE, VERSION = 0, 3
OFFSET_COMMIT = 8
SECONDS = 30.0
CASTAGNOLI = 0x82F63B78


def produce_raw(
    bootstrap: str,
    topic: str,
    partition: int,
    value: bytes | None,
    key: bytes | None,
    headers: Iterable[tuple[bytes, bytes | None]],
) -> int:
    """Write one record; its offset. Raises RuntimeError with the broker's error code."""
    batch = record_batch(value, key, list(headers), int(time.time() * 1000))
    topics = _array([_text(topic) + _array([struct.pack(">i", partition) + _bytes(batch)])])
    request = struct.pack(">hhi", PRODUCE, VERSION, 1) + _text("raw") + struct.pack(">hhi", -1, -1, 10_000) + topics
    with socket.create_connection(_leader(bootstrap, topic, partition), SECONDS) as connection:
        connection.sendall(_bytes(request))
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, size)
    error, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
    if error:
        raise RuntimeError(f"the broker refused the record with error {error}")
    return int(offset)


def commit_raw(bootstrap: str, group: str, topic: str, partition: int, offset: int, metadata: bytes) -> None:
    """Commit an offset for a group without members on the only broker. Raises RuntimeError with its error code."""
    part = struct.pack(">iqh", partition, offset, len(metadata)) + metadata
    topics = _array([_text(topic) + _array([part])])
    request = struct.pack(">hhi", OFFSET_COMMIT, 2, 1) + _text("raw") + _text(group) + struct.pack(">i", -1)
    request += _text("") + struct.pack(">q", -1) + topics
    with socket.create_connection(_leader(bootstrap, topic, partition), SECONDS) as connection:
        connection.sendall(_bytes(request))
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, size)
    (error,) = struct.unpack(">h", answer[-2:])
    if error:
        raise RuntimeError(f"the broker refused the offset with error {error}")


def record_batch(value: bytes | None, key: bytes | None, headers: list[tuple[bytes, bytes | None]], at: int) -> bytes:
    """A record batch v2 of one record without producer id; `at` is its timestamp, epoch ms."""
    record = b"\0" + _varint(0) + _varint(0) + _varbytes(key) + _varbytes(value) + _varint(len(headers))
    record += b"".join(_varbytes(name) + _varbytes(data) for name, data in headers)
    body = struct.pack(">hiqqqhii", 0, 0, at, at, -1, -1, -1, 1) + _varint(len(record)) + record
    return struct.pack(">qiibI", 0, 9 + len(body), -1, 2, crc32c(body)) + body


def crc32c(data: bytes) -> int:
    """The checksum of record batches: CRC-32C, which the standard library does not have."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (CASTAGNOLI if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _leader(bootstrap: str, topic: str, partition: int) -> tuple[str, int]:
    cluster = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=SECONDS)
    broker = cluster.brokers[cluster.topics[topic].partitions[partition].leader]
    return str(broker.host), int(broker.port)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise RuntimeError("the broker closed the connection")
        data += part
    return data


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _array(items: list[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def _varbytes(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Zigzag, seven bits a byte, lowest first."""
    rest = number << 1 ^ number >> 63
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])
