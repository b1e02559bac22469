"""A service of pull mode: calls a sidecar's API and writes in the ledger what it got and what it said of it."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.support.proof.ledger import BROKEN, FAILED, KEPT, TOOK, Delivery, Ledger
from tests.support.sidecar.config import AS_OPERATOR, Config
from tests.support.sidecar.process import Reply, SidecarProcess

PULL: Config = {"deliver": {"mode": "pull"}, "pull": {"min_invisible": "100ms"}}
"""What makes a test's sidecar one of pull mode."""


class Got(NamedTuple):
    """A record that was received; `number` is its delivery in the ledger."""

    handle: str
    id: str
    times: int
    value: bytes | None
    number: int
    nacks: int = 0

    @property
    def name(self) -> str:
        """The value up to its first colon."""
        return (self.value or b"").partition(b":")[0].decode(errors="replace")


class Puller:
    """Calls one sidecar. What it says goes into the ledger first, so that a lost answer leaves it there."""

    def __init__(self, sidecar: SidecarProcess, ledger: Ledger) -> None:
        self._sidecar = sidecar
        self.ledger = ledger

    @contextmanager
    def begin(self, name: str, body: Mapping[str, object], seconds: float = 30.0) -> Iterator[Callable[[], Reply]]:
        """Make a call and do not wait: the answer is asked for inside. Raises OSError while the sidecar is down."""
        connection = http.client.HTTPConnection("127.0.0.1", self._sidecar.port, timeout=seconds)
        try:
            connection.request(
                "POST", f"/v1/{name}", json.dumps(body), {"Content-Type": "application/json", **AS_OPERATOR}
            )
            yield lambda: _reply(connection.getresponse())
        finally:
            connection.close()

    def call(self, name: str, body: Mapping[str, object]) -> Reply:
        """One call. Raises OSError while the sidecar does not listen."""
        with self.begin(name, body) as answer:
            return answer()

    def receive(self, most: int = 128, invisible: str = "30s", wait: str = "0s") -> list[Got]:
        """Receive records."""
        reply = self.call("receive", {"max": most, "invisible": invisible, "wait": wait})
        assert reply.status == 200, reply
        return [self._got(one) for one in reply.json["records"]]

    def ack(self, *got: Got) -> list[str]:
        """Ack records; the status of each."""
        return self._all("ack", TOOK, got)

    def nack(self, *got: Got) -> list[str]:
        """Nack records; the status of each."""
        return self._all("nack", KEPT, got)

    def release(self, *got: Got) -> list[str]:
        """Give records back; the status of each."""
        return self._all("release", FAILED, got)

    def later(self, got: Got, **wish: object) -> str:
        """Ask for a retry later; the handle's status."""
        return self._one("reconsume-later", got, wish)

    def dead_letter(self, got: Got, reason: str) -> str:
        """Refuse a record for good; the handle's status."""
        return self._one("dead-letter", got, {"reason": reason})

    def change(self, got: Got, invisible: str) -> Got | str:
        """Let the lease end later or sooner; the record with its new handle, or the old one's status."""
        (entry,) = self.call("change-invisible", {"handles": [got.handle], "invisible": invisible}).json["handles"]
        return got._replace(handle=entry["new_handle"]) if entry["status"] == "ok" else str(entry["status"])

    def _all(self, name: str, means: str, got: tuple[Got, ...]) -> list[str]:
        for one in got:
            self._says(one, name, means)
        reply = self.call(name, {"handles": [one.handle for one in got]})
        statuses = [told["status"] for told in reply.json["handles"]]
        assert reply.status == (409 if {"fenced", "expired"} & {*statuses} else 200), reply
        for one, status in zip(got, statuses, strict=True):
            if status != "ok":
                self._says(one, f"{name}: {status}", BROKEN)
        return statuses

    def _one(self, name: str, got: Got, wish: Mapping[str, object]) -> str:
        self._says(got, name, FAILED)
        (entry,) = self.call(name, {"handles": [got.handle], **wish}).json["handles"]
        status: str = entry["status"]
        if status != "ok":
            self._says(got, f"{name}: {status}", BROKEN)
        return status

    def _got(self, one: dict[str, Any]) -> Got:
        key, value = (_bytes(one[f"{name}_base64"]) for name in ("key", "value"))
        delivery = Delivery(0, _now(), one["id"], one["times"], one["redrives"], one["idempotency_key"], key, value, ())
        return Got(one["handle"], one["id"], one["times"], value, self.ledger.received(delivery), one["nacks"])

    def _says(self, one: Got, answer: str, means: str) -> None:
        self.ledger.answered(one.number, answer, means, _now())


def _reply(answer: http.client.HTTPResponse) -> Reply:
    return Reply(answer.status, answer.read())


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _now() -> int:
    return time.time_ns() // 1_000_000
