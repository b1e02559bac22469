"""What tests of relay mode share: a relay without a service, records as services write them, and posts."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import Out, Row
from tests.support.sidecar.config import Config
from tests.support.sidecar.process import SidecarProcess

RELAY: Config = {"deliver": {"mode": "relay"}}


class Posted(NamedTuple):
    """An answer to a post."""

    status: int
    json: Any


def now() -> int:
    """Epoch ms."""
    return time.time_ns() // 1_000_000


def waiting(group: GroupTopics, offset: int, delay: int, *, value: bytes | None = b"v", **changed: bytes | None) -> Out:
    """A record as a service writes it to the level topic of `delay` ms when record `offset` of partition 0 has failed.

    `changed` replaces headers; None leaves one out.
    """
    failed = now()
    ours: dict[str, bytes | None] = {
        "REAL_TOPIC": group.main.encode(),
        "ORIGIN_MESSAGE_ID": f"{group.main}:0:{offset}".encode(),
        "RETRY_TOPIC": group.names.level(delay, group.main).encode(),
        "RECONSUMETIMES": b"1",
        "RETRY_DUE_AT": b"%d" % (failed + delay),
        "RETRY_REAL_TIMESTAMP": b"%d" % failed,
        "RETRY_GROUP": group.group.encode(),
        **changed,
    }
    own: tuple[tuple[str, bytes | None], ...] = (("a", b"1"), ("b", None), ("a", b"\xff"))
    return Out(value, b"key-%d" % offset, (*own, *((k, v) for k, v in ours.items() if v is not None)))


def post_of(topic: str, row: Row, **more: object) -> dict[str, object]:
    """The body of a post of a record that was read from `topic`."""
    return {
        "topic": topic,
        "partition": row.partition,
        "offset": row.offset,
        "key_base64": _text(row.key),
        "value_base64": _text(row.value),
        "headers": [[name, _text(value)] for name, value in row.headers],
        "timestamp": row.timestamp,
        **more,
    }


def post(sidecar: SidecarProcess, body: Mapping[str, object], seconds: float = 60.0) -> Posted:
    """`POST /v1/retry`."""
    connection = http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=seconds)
    try:
        connection.request("POST", "/v1/retry", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return Posted(answer.status, json.loads(answer.read()))
    finally:
        connection.close()


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
