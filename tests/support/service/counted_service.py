"""A service for millions of records: it takes batches or single records, and knows how often each one came, no more.

The value of a record of the main topic is its number. It hangs on the numbers in `hung`, and fails a number that
`every` divides whenever it comes from the main topic, in a batch.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from types import TracebackType
from typing import Any

from reconsume.sidecar.dev.stop_listening import stop_listening
from tests.support.service.service import free_port

SECONDS = 30.0


class CountedService:
    """It listens while the block runs. `came`: how often each number came from the main topic, 255 at most; `again`:
    how often from a level. `at`: when (monotonic) a number first came that is higher than all before."""

    def __init__(self, numbers: int, hung: Collection[int], every: int = 0) -> None:
        self.came, self.again = bytearray(numbers), bytearray(numbers)
        self.highest, self.at, self.requests = -1, 0.0, 0
        self._hung, self._every = frozenset(hung), every
        self._let = asyncio.Event()
        self._port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="counted service", daemon=True)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Where batches are posted."""
        return f"http://127.0.0.1:{self._port}/events"

    def let(self) -> None:
        """Answer the hung records from now on."""
        self._loop.call_soon_threadsafe(self._let.set)

    def __enter__(self) -> CountedService:
        self._thread.start()
        self._await(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._await(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    def _await(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=1 << 20)

    async def _close(self) -> None:
        assert self._server is not None, "it listens"
        await stop_listening(self._server)
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0.01)  # the loop closes the sockets in its next turn

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(length)
                records = json.loads(body)["records"] if body.startswith(b"{") else [_single(body)]
                writer.write(await self._answer(records))
                await writer.drain()
        self._open.discard(writer)
        writer.close()

    async def _answer(self, records: list[dict[str, Any]]) -> bytes:
        self.requests += 1
        numbers = [int(base64.b64decode(record["value_base64"])) for record in records]
        self._count(numbers, records)
        if not self._hung.isdisjoint(numbers):
            await self._let.wait()
        verdicts = [self._verdict(number, record) for number, record in zip(numbers, records, strict=True)]
        if all(verdict["verdict"] == "commit" for verdict in verdicts):
            return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        body = json.dumps({"verdicts": verdicts}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return head % len(body) + body

    def _count(self, numbers: list[int], records: list[dict[str, Any]]) -> None:
        for number, record in zip(numbers, records, strict=True):
            counts = self.again if record["times"] else self.came
            counts[number] = min(255, counts[number] + 1)
        if max(numbers) > self.highest:
            self.highest, self.at = max(numbers), time.monotonic()

    def _verdict(self, number: int, record: dict[str, Any]) -> dict[str, str]:
        fails = self._every and number % self._every == 0 and number not in self._hung and not record["times"]
        return {"id": record["id"], "verdict": "retry" if fails else "commit"}


def _single(body: bytes) -> dict[str, Any]:
    """The record of a request that has one alone."""
    return {"id": "", "value_base64": base64.b64encode(body), "times": 0}
