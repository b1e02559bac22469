"""The partitions of a lane as `/status` shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from reconsume.sidecar.core.ages import Wait
from reconsume.sidecar.core.facts import HandOver, LaneFacts, PartitionFacts
from reconsume.sidecar.core.owned_queue import QueueFacts
from reconsume.sidecar.core.reasons import NotDelivered, NotFetched
from reconsume.sidecar.core.record import Now, Partition
from reconsume.topics.in_place_told import InPlaceTold


class PartitionStatus(NamedTuple):
    """One partition as `/status` shows it.

    `not_fetched`: why it is not fetched; None if it is. `not_delivered`: why the oldest waiting record is not
    delivered; None if none waits. `undelivered_for`: seconds for which the oldest record has waited whose reason is not
    deliberate, 0 if none does (`ages.py`). `refused_copies`: settled records whose copies Kafka refuses. `refusal`:
    what Kafka refuses, while nothing of the partition is delivered for it; otherwise empty. `next_due_in`: ms, None if
    nothing is known to wait. `blocked_keys`, `behind_records`, `parked_keys`: as `QueueFacts`, None of a partition
    without a queue. `oldest_for`: the age (ms) of the oldest first record of a key, by its timestamp; None if nothing
    waits. `on_hold`: records that were read and that an operator's hold keeps back. `retried_in_place`: records that
    are delivered again from memory, and keep what comes after them waiting where order counts. `in_place`: the oldest
    of them. `reset_left`: at most so many records of resets that are still to be delivered again.
    """

    topic: str
    partition: int
    level: str
    not_fetched: NotFetched | None
    not_delivered: NotDelivered | None
    undelivered_for: float
    position: int
    in_flight: int
    refused_copies: int
    refusal: str = ""
    next_due_in: int | None = None
    blocked_keys: int | None = None
    behind_records: int | None = None
    oldest_for: int | None = None
    on_hold: int = 0
    parked_keys: int | None = None
    retried_in_place: int = 0
    in_place: InPlaceTold | None = None
    reset_left: int = 0


def statuses(
    facts: LaneFacts, waits: Mapping[Partition, Wait], now: Now, oldest: Mapping[Partition, int] | None = None
) -> list[PartitionStatus]:
    """Return the present state of every partition.

    `oldest`: the timestamps (epoch ms) of the oldest records that wait in queues, by main partition.
    """
    shown = []
    for source, partition in facts.partitions.items():
        status = _status(partition, waits[source], now)
        if (queue := facts.queues.get(source)) is not None:
            status = _with_queue(status, queue, (oldest or {}).get(source), now)
        shown.append(status)
    return shown


def _status(partition: PartitionFacts, wait: Wait, now: Now) -> PartitionStatus:
    pause, counts = partition.pause, partition.counts
    is_timed = pause is not None and pause.because is NotFetched.NOT_DUE
    return PartitionStatus(
        *partition.source,
        partition.kind.level,
        wait.not_fetched,
        wait.reason,
        round(wait.waited_ms / 1000, 1),
        partition.first,
        counts.in_flight,
        counts.refused,
        partition.refusal,
        next_due_in=max(0, pause.at_ms - now.steady_ms) if pause is not None and is_timed else None,
        on_hold=counts.on_hold,
        retried_in_place=counts.retried,
        in_place=None if partition.tried is None else partition.tried.shown(),
        reset_left=0 if partition.reset_left is None else partition.reset_left.records,
    )


def _with_queue(status: PartitionStatus, queue: QueueFacts, oldest_at_ms: int | None, now: Now) -> PartitionStatus:
    return status._replace(
        blocked_keys=queue.blocked_keys,
        behind_records=queue.behind_records,
        oldest_for=None if oldest_at_ms is None else max(0, now.wall_ms - oldest_at_ms),
        parked_keys=queue.parked_keys,
    )


def keys_status(partitions: Iterable[PartitionStatus]) -> dict[str, int | None] | None:
    """Return what waits by keys in all partitions together; None if none has a queue."""
    queued = [one for one in partitions if one.blocked_keys is not None]
    if not queued:
        return None
    return {
        "blocked": sum(one.blocked_keys or 0 for one in queued),
        "behind": sum(one.behind_records or 0 for one in queued),
        "parked": sum(one.parked_keys or 0 for one in queued),
        "oldest_for": max((one.oldest_for for one in queued if one.oldest_for is not None), default=None),
    }


def hand_over_of(lanes: Iterable[HandOver | None]) -> dict[str, object] | None:
    """Return what a rebalance waits for in all lanes together; None if it waits for nothing."""
    waiting = [one for one in lanes if one is not None]
    if not waiting:
        return None
    return {
        "since": min(one.since_ms for one in waiting),
        "in_flight": sum(one.in_flight for one in waiting),
        "oldest_id": next((one.oldest_id for one in waiting if one.oldest_id is not None), None),
    }
