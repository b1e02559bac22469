"""What some requests and responses say, in the versions that librdkafka speaks."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from tests.support.kafka.proxy_rules import Api, Late, Request

INVALID_PRODUCER_EPOCH = 47
"""The error of a request under an epoch that a newer producer of the id has ended."""


class EndTxn(NamedTuple):
    """Which transaction ends, and how."""

    identity: str
    producer: int
    epoch: int
    commits: bool


def end_txn(request: Request) -> EndTxn:
    """Read an EndTxn of version 0 to 2; librdkafka 2.16 sends 1 (from 3 on the form is compact)."""
    assert (request.api, request.version < 3) == (Api.END_TXN, True), request
    (length,) = struct.unpack_from(">h", request.body)
    producer, epoch, commits = struct.unpack_from(">qh?", request.body, 2 + length)
    return EndTxn(request.body[2 : 2 + length].decode(), producer, epoch, commits)


def ends(*, commits: bool) -> Callable[[Request], bool]:
    """Which EndTxn a rule takes: those that commit, or those that abort."""
    return lambda request: end_txn(request).commits is commits


def error_of(late: Late) -> int:
    """The error code of the answer to a late EndTxn or TxnOffsetCommit; of several partitions the first one's."""
    assert late.request is not None, "no request was kept"
    assert late.answer is not None, "it was not answered"
    start = END_TXN_ERROR if late.api is Api.END_TXN else _offset_commit_error(late.request, late.answer)
    return int(struct.unpack_from(">h", late.answer, start)[0])


END_TXN_ERROR = 8
"""Behind the correlation id and the throttle time."""


def _offset_commit_error(request: Request, answer: bytes) -> int:
    """Where the first partition's error stands: behind the first topic's name, the number of its partitions, and the
    partition's own."""
    if request.version < 3:
        return 14 + int.from_bytes(answer[12:14], "big") + 8
    return 11 + answer[10] - 1 + 5  # compact: tags, throttle time, number of topics in a byte, length + 1 in a byte


def without_brokers(request: Request, response: bytes) -> bytes:
    """The response to a Metadata request without brokers, as a node may send it that stops.

    It has topics that nobody asked for. While librdkafka (2.16) reads them, it sees the connection end and wants to
    begin again at `bootstrap.servers`, which it forgets when it has read all. Without them that is a matter of chance.
    """
    assert (request.api, request.version >= 9) == (Api.METADATA, True), request  # from 9 on the form is compact
    count, at = _varint(response, METADATA_BROKERS)
    for _ in range(count - 1):
        length, at = _varint(response, at + 4)  # behind the node's id
        rack, at = _varint(response, at + length - 1 + 4)  # behind host and port
        at += max(0, rack - 1) + 1  # no tags
    length, topics = _varint(response, at)
    topics += max(0, length - 1) + 4  # behind the cluster's id and the controller's
    count, first = _varint(response, topics)
    head = response[:METADATA_BROKERS] + b"\x01" + response[at:topics]
    return head + _as_varint(count + MANY) + _unknown_topics(request.version) + response[first:]


METADATA_BROKERS = 9
"""Behind the correlation id, no tags, and the throttle time."""
MANY = 20_000


@cache
def _unknown_topics(version: int) -> bytes:
    rest = (bytes(16) if version >= 10 else b"") + b"\0\1" + bytes(5)
    names = (b"unknown-%d" % number for number in range(MANY))
    return b"".join(struct.pack(">h", UNKNOWN_TOPIC) + _as_varint(len(name) + 1) + name + rest for name in names)


UNKNOWN_TOPIC = 3


def _varint(frame: bytes, at: int) -> tuple[int, int]:
    """The number there, and where the next field begins."""
    number = shift = 0
    while True:
        byte = frame[at]
        number |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return number, at


def _as_varint(number: int) -> bytes:
    frame = bytearray()
    while number >= 0x80:
        frame.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*frame, number])
