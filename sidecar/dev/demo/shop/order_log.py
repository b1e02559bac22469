"""Where every order comes in and goes out, whatever the front: it is given a number, and both are written down."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from sidecar.dev.demo.ledger import Answered, Began, Closed, LedgerWriter, Opened, Verdict, clock, digest_of
from sidecar.dev.demo.orders import CASE_HEADER


class Order(NamedTuple):
    """An order as it came in."""

    id: str
    times: int
    case: str
    digest: str


class Enveloped(msgspec.Struct, frozen=True):
    """One record of the envelope form, as far as the shop cares (INTERFACE §2)."""

    id: str
    times: int
    value_base64: bytes | None
    headers: list[tuple[str, bytes | None]]
    handle: str = ""

    @property
    def order(self) -> Order:
        """The order in it."""
        return Order(self.id, self.times, case_of(self.headers), digest_of(self.value_base64))


def case_of(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """What the order's own header says of its case; empty when it has none."""
    return next(((value or b"").decode() for name, value in headers if name == CASE_HEADER), "")


class OrderLog:
    """Numbers the orders and writes the ledger."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._numbers = itertools.count()
        self.visited = asyncio.Event()
        """Set by the first order."""

    def came(self, order: Order, at: float | None = None) -> int:
        """An order is here, since `at` (epoch ms; None: now); its number."""
        number = next(self._numbers)
        at = clock() if at is None else at
        self._ledger.write(Began(at, number, order.id, order.times, order.case, order.digest))
        self.visited.set()
        return number

    def answered(self, number: int, verdict: Verdict, status: int = 0, at: float | None = None) -> None:
        """The answer was handed over at `at` (epoch ms; None: now); `status` where HTTP has said it."""
        self._ledger.write(Answered(clock() if at is None else at, number, status, verdict))

    def opened(self, port: int = 0) -> None:
        """The shop is up, on `port` if it is a server."""
        self._ledger.write(Opened(clock(), port))

    def closed(self) -> None:
        """The shop is down."""
        self._ledger.write(Closed(clock()))


class Front(Protocol):
    """A way to get orders."""

    async def open(self) -> None:
        """Take orders."""

    async def close(self) -> None:
        """Take none, as if the shop were down; it can be opened again."""
