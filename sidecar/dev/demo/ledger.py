"""The sample service's own account of what reached it and what it answered: a file of JSON lines.

It is the other half of the proof: the topics say what the sidecar did, the ledger says what the service saw. The
service writes a line at once, so that the file is true whenever the process ends. Times are epoch ms with a fraction.
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

Verdict: TypeAlias = Literal["commit", "retry", "dead-letter", "none"]
"""What the service answered; `none`: nothing, because it was cut off or its caller had gone."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The service is up: it accepts connections on `port`; 0: it is the one who calls."""

    at: float
    port: int


class Closed(msgspec.Struct, frozen=True, tag=True):
    """The service is down: its port is closed and its connections are cut; or it calls and reads no more."""

    at: float


class Began(msgspec.Struct, frozen=True, tag=True):
    """An order has arrived; `number` is that of the arrival, `digest` that of the order's value."""

    at: float
    number: int
    id: str
    times: int
    case: str
    digest: str


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The answer to a request was handed to the system. `status` is 0 where no HTTP status says it."""

    at: float
    number: int
    status: int
    verdict: Verdict


Line: TypeAlias = Opened | Closed | Began | Answered


class Delivery(msgspec.Struct, frozen=True):
    """One order's arrival as the service saw it; `times` is RECONSUMETIMES, `ended` when it was answered, if it was."""

    id: str
    times: int
    at: float
    verdict: Verdict
    digest: str
    ended: float | None = None


class Outage(msgspec.Struct, frozen=True):
    """From when the service was down, and until when no request reached it."""

    began: float
    ended: float


def digest_of(value: bytes | None) -> str:
    """The SHA-256 of a value; null is told apart from empty."""
    return "null" if value is None else hashlib.sha256(value).hexdigest()


def deliveries_of(lines: Iterable[Line]) -> tuple[Delivery, ...]:
    """Every arrival with what came of it, in the order of arrival."""
    found: dict[int, Delivery] = {}
    for line in lines:
        if isinstance(line, Began):
            found[line.number] = Delivery(line.id, line.times, line.at, "none", line.digest)
        elif isinstance(line, Answered):
            found[line.number] = replace(found[line.number], verdict=line.verdict, ended=line.at)
    return tuple(found.values())


def outages_of(lines: Iterable[Line]) -> tuple[Outage, ...]:
    """Each time that the service was down, up to the first request after it."""
    found: list[Outage] = []
    closed: float | None = None
    for line in lines:
        if isinstance(line, Closed):
            closed = line.at
        elif isinstance(line, Began) and closed is not None:
            found.append(Outage(closed, line.at))
            closed = None
    return (*found, Outage(closed, float("inf"))) if closed is not None else tuple(found)


def clock() -> float:
    """Epoch ms."""
    return time.time_ns() / 1e6


class LedgerWriter:
    """Appends lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._encode = msgspec.json.Encoder().encode

    def write(self, line: Line) -> None:
        """Append one line, in one write."""
        self._file.write(self._encode(line) + b"\n")

    def close(self) -> None:
        """Write no more."""
        self._file.close()


class LedgerReader:
    """Reads what is appended, again and again; `lines` holds everything so far."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self.lines: list[Line] = []
        self._file = path.open("rb")
        self._rest = b""
        self._decode = msgspec.json.Decoder(Line).decode

    def read(self) -> list[Line]:
        """The whole lines that are new."""
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
