"""The lateness of retries, and which of it an outage explains. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from reconsume.sidecar.dev.demo.ledger import Outage
from reconsume.sidecar.dev.demo.record_histories import RecordHistory


class Spread(msgspec.Struct, frozen=True):
    """The distribution of lateness, in ms, and the number of retries measured."""

    count: int = 0
    p50: float = 0
    p99: float = 0
    worst: float = 0


class Late(NamedTuple):
    """The lateness of one retry.

    `due` is epoch ms. `after_due` is the ms from the due time to its first delivery. `after_level` counts from the end
    of its level's delay, if that is later.
    """

    due: int
    after_due: float
    after_level: float


def lateness(history: RecordHistory) -> Iterator[Late]:
    """Yield the lateness of each retry that was delivered."""
    for times, made in history.deliveries.items():
        for copy in history.copies.get(times, [])[-1:]:
            at = min(delivery.at for delivery in made)
            # The earliest time at which the last copy of a retry may be delivered, epoch ms (contract 2.3).
            released_at = max(copy.due, copy.at + history.delays.get(copy.topic, 0))
            yield Late(copy.due, at - copy.due, at - released_at)


def spread(values: Iterable[float]) -> Spread:
    """Return the count, the median, the 99th percentile and the maximum."""
    ordered = sorted(values)
    if not ordered:
        return Spread()
    last = len(ordered) - 1
    return Spread(len(ordered), ordered[last // 2], ordered[round(last * 0.99)], ordered[-1])


def in_outage(late: Late, outages: Iterable[Outage]) -> bool:
    """Whether the service was down at some time between the due time and the delivery."""
    return any(late.due <= outage.ended and late.due + late.after_due >= outage.began for outage in outages)
