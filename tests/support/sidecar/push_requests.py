"""A record as a service sees it: rendered by the push client, read back by a strict parser."""

from __future__ import annotations

from typing import Any

import httptools

from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.delivery.push.request import Render
from reconsume.sidecar.delivery.push.settings import PushSettings
from reconsume.sidecar.delivery.push.target import parse_target

ALWAYS = [
    "Host",
    "Reconsume-Group",
    "Reconsume-Timeout",
    "Reconsume-Times",
    "Reconsume-Redrives",
    "Reconsume-Topic",
    "Reconsume-Partition",
    "Reconsume-Id",
    "Idempotency-Key",
    "Reconsume-Offset",
    "Reconsume-Timestamp",
]
"""The headers of every request, in this order, before those of the key, the record and the body."""


class Read:
    """A parsed request."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.begun = self.complete = 0
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        self.method = parser.get_method()

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("ascii"), value.decode("ascii")))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete += 1

    @property
    def names(self) -> list[str]:
        """The headers' names, in their order."""
        return [name for name, _ in self.headers]

    def __getitem__(self, name: str) -> str:
        (value,) = [value for given_name, value in self.headers if given_name == name]
        return value


def a_record(**changes: Any) -> Record:
    """A good record of a main topic, with these changes."""
    fields: dict[str, Any] = {
        "source": Partition("orders", 3),
        "offset": 1024,
        "epoch": 1,
        "timestamp": 1_763_690_000_000,
        "key": b"customer-1",
        "value": b"{}",
        "headers": None,
        "retry_state": None,
    }
    return Record(**{**fields, **changes})


def rendered(record: Record, **settings: Any) -> bytes:
    """The request's bytes."""
    given_settings = PushSettings(**{"group": "billing", "timeout_ms": 1, **settings})
    return Render(parse_target("http://127.0.0.1:8080/events?a=b", False), given_settings)(record)


def read(record: Record, **settings: Any) -> Read:
    """The request as it is read."""
    return Read(rendered(record, **settings))
