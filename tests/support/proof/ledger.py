"""What the service saw: every request and every answer, in memory and in a file, with times.

The ledger is one of the two witnesses of a test (the topics are the other): nothing of the product writes in it.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.support.deadline import move

TOOK, FAILED, THROTTLED, BROKEN = "took", "failed", "throttled", "broken"
"""What an answer means: the record is done; one retry is spent; none is; the service said nothing whole."""
POSTPONED = "postponed"
"""No retry is spent, unless the record has been postponed for longer than it may be."""
KEPT = "kept"
"""One retry is spent, which only memory counts: no copy tells of it (a nack)."""


class Delivery(NamedTuple):
    """One request. Times epoch ms; `answered` is None while, or when, no answer was given."""

    number: int
    received: int
    id: str
    times: int
    redrives: int
    idempotency_key: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str], ...]
    answer: str = ""
    means: str = ""
    answered: int | None = None

    @property
    def path(self) -> str:
        """The path that it was posted to."""
        return dict(self.headers)[":path"]


class Ledger:
    """Takes in deliveries and answers, in order; safe to read from any thread.

    Each line is written unbuffered: it outlives the death of any process, which is all that tests bring about.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self._deliveries: list[Delivery] = []

    def received(self, delivery: Delivery) -> int:
        """A request is here; its number."""
        with self._lock:
            number = len(self._deliveries)
            self._deliveries.append(delivery._replace(number=number))
            self._write({"n": number, "got": _plain(delivery)})
        move()
        return number

    def answered(self, number: int, answer: str, means: str, at: int) -> None:
        """Request `number` has got its answer, or has been left without one."""
        with self._lock:
            self._deliveries[number] = self._deliveries[number]._replace(answer=answer, means=means, answered=at)
            self._write({"n": number, "answer": answer, "means": means, "at": at})

    def deliveries(self) -> tuple[Delivery, ...]:
        """All so far."""
        with self._lock:
            return tuple(self._deliveries)

    def of(self, ident: str) -> tuple[Delivery, ...]:
        """The deliveries of one record."""
        return tuple(delivery for delivery in self.deliveries() if delivery.id == ident)

    def taken(self) -> frozenset[str]:
        """The ids of the records that the service took."""
        return frozenset(delivery.id for delivery in self.deliveries() if delivery.means == TOOK)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _write(self, line: dict[str, object]) -> None:
        os.write(self._descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def duplicates(deliveries: Iterable[Delivery]) -> int:
    """Deliveries beyond the first of each attempt; a throttled or postponed one is no attempt."""
    counts = Counter((d.id, d.redrives, d.times) for d in deliveries if d.means not in (THROTTLED, POSTPONED))
    return sum(count - 1 for count in counts.values())


def _plain(delivery: Delivery) -> dict[str, object]:
    """The delivery as JSON, large values shortened: the whole value is in memory and in the topic."""
    plain: dict[str, object] = dict(delivery._asdict())
    for name in ("key", "value"):
        data = getattr(delivery, name)
        plain[name] = None if data is None else base64.b64encode(data[:256]).decode()
    return plain
