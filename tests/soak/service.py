"""The soak's service: what it does with each record, well or ill, and a ledger that a long run can keep in memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.soak.layout import ASKED, TIMEOUT
from tests.support.proof.ledger import TOOK, Delivery, Ledger
from tests.support.service.behaviours import CLOSE, FAIL, HANG, OK, Answer, Behaviour, Request, verdict
from tests.support.service.service import Service

ODD: Mapping[int, Behaviour] = {
    76: verdict(f"retry; delay={ASKED:g}s"),
    77: verdict(f"retry; delay={ASKED:g}s"),
    78: HANG,
    79: CLOSE,
}
"""What 4 of 1000 records each get at first."""
THROTTLE = Answer(429, (("Retry-After", "1"),))
Ill = Callable[[Request], Behaviour]


ALWAYS_FAIL = 25
"""Of 1000 records, at every attempt."""
MOST_ATTEMPTS = 5
"""Of a record, by the greatest `max_reconsume_times` that the policy is set to."""


def luck(text: str) -> int:
    """0 to 999, the same for the same text."""
    return zlib.crc32(text.encode()) % 1000


def well(request: Request) -> Behaviour:
    """Two thirds are taken at once; the rest fails once, twice or always, hangs, breaks off, or asks for a delay."""
    kind, times = luck(request.id), request.times
    if kind < 300:
        failing = kind < ALWAYS_FAIL or times < (1 if kind < 200 else 2)
        return Answer(500 if failing else 200, after=pause_of(request))
    if kind < 304:
        return verdict("dead-letter; reason=bad-sku")
    return ODD.get(kind // 4, OK) if times == 0 and kind < 320 else Answer(after=pause_of(request))


def pause_of(request: Request) -> float:
    """A few milliseconds; for one of a hundred more than half a second, so that progress has gaps."""
    place = luck(f"{request.id}/{request.times}")
    return 0.6 if place < 10 else place / 100_000


ILL: Mapping[str, Ill] = {
    "service-hangs": lambda request: HANG if luck(f"{request.id}+{request.seen}") < 300 else well(request),
    "service-refuses": lambda _request: FAIL,
    "service-throttles": lambda request: THROTTLE if luck(f"{request.id}+{request.seen}") < 800 else OK,
    "service-slow": lambda request: Answer(500 if luck(request.id) < 300 else 200, after=TIMEOUT * 0.4),
}


class SlimLedger(Ledger):
    """A ledger without the requests' headers, but for the path; and it counts as it goes."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.seen = 0
        self.took: set[str] = set()

    def received(self, delivery: Delivery) -> int:
        """As the ledger's."""
        self.seen += 1
        return super().received(delivery._replace(headers=((":path", delivery.path),)))

    def answered(self, number: int, answer: str, means: str, at: int) -> None:
        """As the ledger's."""
        super().answered(number, answer, means, at)
        if means == TOOK:
            self.took.add(self._deliveries[number].id)


def soak_service(folder: Path) -> tuple[Service, SlimLedger]:
    """The service, and its ledger."""
    ledger = SlimLedger(folder / "ledger.jsonl")
    return Service(ledger, well), ledger
