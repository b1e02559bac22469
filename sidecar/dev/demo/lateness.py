"""How late retries came, and what an outage has to do with it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from sidecar.dev.demo.ledger import Outage
from sidecar.dev.demo.record_histories import Copy, RecordHistory


class Spread(msgspec.Struct, frozen=True):
    """How late retries came, in ms, and how many were measured."""

    count: int = 0
    p50: float = 0
    p99: float = 0
    worst: float = 0


class Late(NamedTuple):
    """How late one retry came: when it was due (epoch ms), and the ms to its first delivery, from then and from when
    its level was over too."""

    due: int
    after_due: float
    after_level: float


def lateness(account: RecordHistory) -> Iterator[Late]:
    """Each retry that was delivered."""
    for times, made in account.deliveries.items():
        for copy in account.copies.get(times, [])[-1:]:
            at = min(delivery.at for delivery in made)
            yield Late(copy.life.due_at, at - copy.life.due_at, at - released_at(copy))


def released_at(copy: Copy) -> int:
    """When the last copy of a retry may be delivered at the earliest, epoch ms (contract §4)."""
    return max(copy.life.due_at, copy.row.timestamp + copy.wait)


def spread(values: Iterable[float]) -> Spread:
    """The middle, the 99th of a hundred, and the worst."""
    ordered = sorted(values)
    if not ordered:
        return Spread()
    last = len(ordered) - 1
    return Spread(len(ordered), ordered[last // 2], ordered[round(last * 0.99)], ordered[-1])


def in_outage(late: Late, outages: Iterable[Outage]) -> bool:
    """Whether the service was down at some time between the due time and the delivery."""
    return any(late.due <= outage.ended and late.due + late.after_due >= outage.began for outage in outages)
