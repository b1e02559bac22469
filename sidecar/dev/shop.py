"""The sample order service: fails in the ways in which services fail, and writes down what it saw.

    python -m sidecar.dev.shop LEDGER [--down-after SECONDS] [--down-for SECONDS]

A process of its own that knows nothing of the sidecar but its requests and verdicts (INTERFACE §2). Its behaviour is a
pure function, `answer_to`; the rest is a minimal HTTP/1.1 server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
from pathlib import Path
from typing import NamedTuple

from sidecar.dev.ledger import Answered, Began, Closed, LedgerWriter, Opened, Verdict, clock, digest_of
from sidecar.dev.orders import CASE_HEADER, Case

HOST = "127.0.0.1"
# Below the ports that systems give to outgoing connections: while the port is closed, a client that keeps knocking
# could be given that very port as its own and connect to itself.
PORTS = range(12_000, 20_000)
SLOW_SECONDS = 0.8
STUCK_SECONDS = 10.0
"""Longer than the demo lets a delivery take."""
FLAKY_FAILURES = 2


class Answer(NamedTuple):
    """What the service says, and after how many seconds; `header` is the value of Reconsume-Verdict, if any."""

    status: int
    verdict: Verdict
    after: float = 0
    header: str = ""


OK = Answer(200, "commit")
BROKEN = Answer(500, "retry")


def answer_to(case: str, times: int) -> Answer:
    """The answer to an order that has been retried `times` times."""
    match case:
        case Case.SLOW:
            return OK._replace(after=SLOW_SECONDS)
        case Case.FLAKY:
            return BROKEN if times < FLAKY_FAILURES else OK
        case Case.LATER if times == 0:
            return Answer(200, "retry", header="retry; delay=3s; reason=out-of-stock")
        case Case.STUCK if times == 0:
            return OK._replace(after=STUCK_SECONDS)
        case Case.REFUSED:
            return Answer(422, "dead-letter", header="dead-letter; reason=unknown-sku")
        case Case.POISON:
            return BROKEN
        case _:
            return OK


class Request(NamedTuple):
    """A request: its headers, names in lower case, and its body."""

    headers: dict[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> Request:
    """The next request of a connection; IncompleteReadError when the caller has gone."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = (line.partition(":") for line in head.decode("latin-1").splitlines()[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    return Request(headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def render(answer: Answer) -> bytes:
    """The answer as HTTP/1.1."""
    verdict = f"Reconsume-Verdict: {answer.header}\r\n" if answer.header else ""
    return f"HTTP/1.1 {answer.status} -\r\nContent-Length: 0\r\n{verdict}\r\n".encode()


class Shop:
    """The server. It can be closed, as if it had died, and opened again on the same port."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._numbers = itertools.count()
        self.visited = asyncio.Event()
        """Set by the first request."""

    async def open(self) -> None:
        """Listen: on a free port the first time, on the same one later."""
        for port in [self._port] if self._port else random.sample(PORTS, len(PORTS)):
            try:
                self._server = await asyncio.start_server(self._serve, HOST, port)
            except OSError:
                if self._port:
                    raise
                continue
            self._port = port
            self._ledger.write(Opened(clock(), port))
            return
        raise OSError(f"no free port from {PORTS.start} to {PORTS.stop}")

    def close(self) -> None:
        """Close the port and cut every connection, answered or not."""
        assert self._server is not None
        self._server.close()
        self._ledger.write(Closed(clock()))
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            # However a connection ends, the ledger has what was answered on it; that is all we need to know.
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._answer(reader, writer):
                    pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; False when it could not be answered."""
        headers, body = await read_request(reader)
        number, at = next(self._numbers), clock()
        case, times = headers.get(CASE_HEADER, ""), int(headers["reconsume-times"])
        digest = digest_of(None if "reconsume-null" in headers else body)
        self._ledger.write(Began(at, number, headers["reconsume-id"], times, case, digest))
        self.visited.set()
        answer = answer_to(case, times)
        if answer.after:
            await asyncio.sleep(answer.after)
        if writer.is_closing() or reader.at_eof():
            return False
        writer.write(render(answer))
        self._ledger.write(Answered(clock(), number, answer.status, answer.verdict))
        return True


async def serve(ledger: Path, down_after: float, down_for: float) -> None:
    """Serve until killed; `down_after` seconds from the first request be down for `down_for` seconds."""
    shop = Shop(LedgerWriter(ledger))
    await shop.open()
    await shop.visited.wait()
    if down_for:
        await asyncio.sleep(down_after)
        shop.close()
        await asyncio.sleep(down_for)
        await shop.open()
    await asyncio.Event().wait()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m sidecar.dev.shop", description="The sample order service.")
    parser.add_argument("ledger", type=Path, help="the file to write what was seen to")
    parser.add_argument("--down-after", type=float, default=0, help="seconds from the first request")
    parser.add_argument("--down-for", type=float, default=0, help="seconds; 0: never down")
    given = parser.parse_args()
    asyncio.run(serve(given.ledger, given.down_after, given.down_for))


if __name__ == "__main__":
    main()
