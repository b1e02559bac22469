"""Number every order and log its arrival and its answer, for all fronts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from reconsume.sidecar.dev.demo.ledger import Answered, Began, Closed, LedgerWriter, Opened, Verdict, clock, digest_of
from reconsume.sidecar.dev.demo.orders import CASE_HEADER


class Order(NamedTuple):
    """An order as it arrived."""

    id: str
    times: int
    case: str
    digest: str


class Enveloped(msgspec.Struct, frozen=True):
    """One record of the envelope form, with the fields that the shop needs (contract 1.3)."""

    id: str
    times: int
    value_base64: bytes | None
    headers: list[tuple[str, bytes | None]]
    handle: str = ""

    @property
    def order(self) -> Order:
        """The order in the record."""
        return Order(self.id, self.times, case_of(self.headers), digest_of(self.value_base64))


def case_of(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Return the case from the order's own header; empty if it has none."""
    return next(((value or b"").decode() for name, value in headers if name == CASE_HEADER), "")


class OrderLog:
    """Numbers the orders and writes the ledger."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._numbers = itertools.count()
        self.visited = asyncio.Event()
        """Set by the first order."""

    def came(self, order: Order, at: float | None = None) -> int:
        """Log the arrival of an order at `at` (epoch ms; None: now), and return its number."""
        number = next(self._numbers)
        at = clock() if at is None else at
        self._ledger.write(Began(at, number, order.id, order.times, order.case, order.digest))
        self.visited.set()
        return number

    def answered(self, number: int, verdict: Verdict, status: int = 0, at: float | None = None) -> None:
        """Log that the answer was handed over at `at` (epoch ms; None: now). `status`: the HTTP status, if the
        answer has one."""
        self._ledger.write(Answered(clock() if at is None else at, number, status, verdict))

    def opened(self, port: int = 0) -> None:
        """Log that the shop is up, on `port` if it is a server."""
        self._ledger.write(Opened(clock(), port))

    def closed(self) -> None:
        """Log that the shop is down."""
        self._ledger.write(Closed(clock()))


class Front(Protocol):
    """A way to get orders."""

    async def open(self) -> None:
        """Start to take orders."""

    async def close(self) -> None:
        """Take no more orders, as if the shop were down. It can be opened again."""
