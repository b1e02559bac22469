"""Made-up facts of one record, and what the audit's rules find in them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from reconsume.sidecar.audit.facts import Breach, Fact, FactKind, Terms
from reconsume.sidecar.audit.rules import judge
from reconsume.sidecar.core.progress import Progress
from reconsume.topics.names import Names

BEGIN = 1_763_690_000_000
ID = "orders:0:7"
SECOND, READY, DLQ, EVENTS = "billing-RETRY-1s", "billing-RETRY", "billing-DLQ", "billing-RETRY-EVENTS"
DELAYS = {SECOND: 1_000, "billing-RETRY-2s": 2_000, READY: 0}
DONE = {(topic, 0): Progress(100) for topic in ("orders", *DELAYS)}
TERMS = Terms(Names("billing"), DELAYS, frozenset({DLQ}), DONE, DONE, compare=False)
RELAY = replace(TERMS, relay=True, before={(SECOND, 0): Progress(9)}, after={(SECOND, 0): Progress(9)})


def copy(
    times: int = 1, at: int = 0, topic: str = SECOND, due: int = 1_000, redrives: int = 0, offset: int = 0
) -> Fact:
    first = BEGIN
    return Fact(
        FactKind.COPY, ID, redrives, times, topic, 0, offset, BEGIN + at, BEGIN + due, first, 1, "http-500", digest=b"d"
    )


def dead(times: int, at: int = 5_000, redrives: int = 0) -> Fact:
    return replace(copy(times, at, DLQ, at, redrives), what=FactKind.DEAD)


def told(
    state: str, times: int = 1, at: int = 0, level: str | None = None, due: int = 1_000, redrives: int = 0
) -> Fact:
    place = ("billing-RETRY-EVENTS", 0, times)
    return Fact(
        FactKind.TOLD,
        ID,
        redrives,
        times,
        *place,
        BEGIN + at,
        BEGIN + due,
        BEGIN,
        1,
        "http-500",
        state=state,
        level=level,
    )


def waits(times: int = 1, at: int = 0, **more: int) -> Fact:
    return told("WAITING_RETRY", times, at, "1s", at + 1_000, **more)


ONCE = (copy(), waits(), told("COMMIT", at=1_500))


def kinds(facts: Iterable[Fact], terms: Terms = TERMS) -> list[Breach]:
    return [finding.kind for finding in judge(facts, terms)]
