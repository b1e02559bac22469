"""What some requests and responses of the transaction protocol say, in the versions that librdkafka speaks."""

from __future__ import annotations

import struct
from collections.abc import Callable
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
