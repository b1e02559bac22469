"""The sample service's own record of the orders that reached it and of its answers: a file of JSON lines.

It is the other half of the proof: the topics show the sidecar's actions, the ledger shows those of the service. The
service writes each line at once, so the file is correct whenever the process ends. Times are epoch ms with a fraction.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from reconsume.sidecar.files import open_private

Verdict: TypeAlias = Literal["commit", "retry", "dead-letter", "none"]
"""The service's answer; `none`: no answer, because the connection was cut or the caller had gone."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The service is up and accepts connections on `port`; 0 if the service is the caller."""

    at: float
    port: int


class Closed(msgspec.Struct, frozen=True, tag=True):
    """The service is down: its port is closed and its connections are cut. As the caller, it neither calls nor
    reads."""

    at: float


class Began(msgspec.Struct, frozen=True, tag=True):
    """An order has arrived. `number` counts the arrivals, `digest` is that of the order's value."""

    at: float
    number: int
    id: str
    times: int
    case: str
    digest: str


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The answer to a request was handed to the operating system. `status` is 0 if the answer has no HTTP status."""

    at: float
    number: int
    status: int
    verdict: Verdict


Line: TypeAlias = Opened | Closed | Began | Answered


class Delivery(msgspec.Struct, frozen=True):
    """The arrival of one order as the service saw it. `times` is RECONSUMETIMES, `ended` the time of the answer, if
    any."""

    id: str
    times: int
    at: float
    verdict: Verdict
    digest: str
    ended: float | None = None


class Outage(msgspec.Struct, frozen=True):
    """A time in which the service was down, until the first request that reached it afterwards."""

    began: float
    ended: float


def digest_of(value: bytes | None) -> str:
    """Return the SHA-256 of a value; null differs from empty."""
    return "null" if value is None else hashlib.sha256(value).hexdigest()


def deliveries_of(lines: Iterable[Line]) -> tuple[Delivery, ...]:
    """Return every arrival with its answer, in the order of arrival."""
    deliveries: dict[int, Delivery] = {}
    for line in lines:
        if isinstance(line, Began):
            deliveries[line.number] = Delivery(line.id, line.times, line.at, "none", line.digest)
        elif isinstance(line, Answered):
            deliveries[line.number] = replace(deliveries[line.number], verdict=line.verdict, ended=line.at)
    return tuple(deliveries.values())


def outages_of(lines: Iterable[Line]) -> tuple[Outage, ...]:
    """Return each time in which the service was down, up to the first request after it."""
    outages: list[Outage] = []
    closed: float | None = None
    for line in lines:
        if isinstance(line, Closed):
            closed = line.at
        elif isinstance(line, Began) and closed is not None:
            outages.append(Outage(closed, line.at))
            closed = None
    return (*outages, Outage(closed, float("inf"))) if closed is not None else tuple(outages)


def clock() -> float:
    """Return the wall clock, in epoch ms."""
    return time.time_ns() / 1e6


class LedgerWriter:
    """A writer that appends lines."""

    def __init__(self, path: Path) -> None:
        self._file = open_private(path)
        self._encode = msgspec.json.Encoder().encode

    def write(self, line: Line) -> None:
        """Append one line, in one write."""
        self._file.write(self._encode(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class LedgerReader:
    """A reader of a file that still grows; `lines` holds everything read so far."""

    def __init__(self, path: Path) -> None:
        open_private(path).close()
        self.lines: list[Line] = []
        self._file = path.open("rb")
        self._rest = b""
        self._decode = msgspec.json.Decoder(Line).decode

    def read(self) -> list[Line]:
        """Read on, and return the complete lines that are new."""
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        new = [self._decode(line) for line in whole]
        self.lines += new
        return new

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
