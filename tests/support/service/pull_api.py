"""The API of pull mode on a real server, with leases that a test fills by hand, and a client of its calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from reconsume.sidecar.api.app import build_app
from reconsume.sidecar.api.pull import pull_routes
from reconsume.sidecar.clock import now
from reconsume.sidecar.core.outcome import Outcome
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.delivery.pull.queue import PullQueue
from reconsume.sidecar.http.access import Access
from reconsume.sidecar.http.protocol import Limits
from reconsume.sidecar.http.server import Server
from reconsume.sidecar.settings.addresses import parse_listen
from tests.sim.samples import ORDERS, record
from tests.support.deadline import until
from tests.support.sidecar.running_api import Answer, Client, Loop, Operation

SHORTEST = 100
"""ms: the shortest invisible duration of these tests."""


class Ended(NamedTuple):
    """What the lane was told."""

    offset: int
    outcome: Outcome


class PullApi:
    """A server and its leases. `place`: its port or socket."""

    def __init__(self, loop: Loop, leases: PullQueue, place: str | int) -> None:
        self.loop = loop
        self.leases = leases
        self.place = place
        self.ended: list[Ended] = []

    def add(self, *offsets: int, source: Partition = ORDERS, **more: Any) -> None:
        """Make records ready, as a lane does."""
        self.on_loop(lambda: [self.leases(record(offset, source=source, **more), self._reply) for offset in offsets])

    def on_loop(self, do: Any) -> Any:
        """Do something on the event loop."""

        async def doing() -> Any:
            return do()

        return self.loop.run(doing)

    def until_ended(self, count: int) -> list[Ended]:
        """Wait until the lane was told of so many ends, in any order; them by their offset."""
        until(lambda: len(self.ended) >= count, 5, f"{count} leases have ended")
        assert len(self.ended) == count
        return sorted(self.ended, key=lambda one: one.offset)

    def call(self, name: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One call on a connection of its own; `body` as JSON, or bytes as they are."""
        with Client(self.place) as client:
            client.send(request(name, {} if body is None else body, headers))
            return client.answer("POST")

    def receive(self, **fields: object) -> list[Any]:
        """The records of one receive."""
        answer = self.call("receive", {"wait": "0s", "invisible": "1h", **fields})
        assert answer.status == 200, answer
        records: list[Any] = answer.json["records"]
        return records

    def receive_one(self, **fields: object) -> str:
        """The handle of the one record that is ready."""
        (one,) = self.receive(**fields)
        handle: str = one["handle"]
        return handle

    def _reply(self, record: Record, outcome: Outcome, _now: Now) -> None:
        self.ended.append(Ended(record.offset, outcome))


def request(name: str, body: object, headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a call."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Host": "localhost", "Content-Type": "application/json", **(headers or {})}
    lines = [f"POST /v1/{name} HTTP/1.1", *(f"{key}: {value}" for key, value in given.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode("latin-1") + data


@contextmanager
def pull_api(
    listen: str = "127.0.0.1:0", access: Access | None = None, most_waiting: int = 1_024, limits: Limits | None = None
) -> Iterator[PullApi]:
    """A server with nothing ready yet. `most_waiting`: callers that may wait for a record."""
    loop = Loop()

    async def make() -> tuple[PullQueue, Server]:
        leases = PullQueue(now)
        app = build_app(
            Operation(),
            lambda: b"",
            access or Access(),
            calls=pull_routes(leases, "billing", SHORTEST, most_waiting=most_waiting),
        )
        server = Server(app, parse_listen(listen), limits)
        await server.start()
        return leases, server

    leases, server = loop.run(make)
    try:
        yield PullApi(loop, leases, server.path or server.port or 0)
    finally:
        loop.run(server.stop)
        loop.close()
