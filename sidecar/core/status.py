"""The partitions of a lane as `/status` shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from reconsume.sidecar.core.ages import Wait
from reconsume.sidecar.core.facts import HandOver, LaneFacts, PartitionFacts
from reconsume.sidecar.core.owned_queue import QueueFacts
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import Now, Partition

PartitionRow: TypeAlias = dict[str, Any]
"""One partition, by the names of `/status`.

`not_fetched`, `not_delivered`: why (`why.py`); None if it is fetched, or if nothing waits. `undelivered_for`: seconds
for which the oldest record has waited whose reason is not deliberate, 0 if none does. `refused_copies`: settled records
whose copies Kafka refuses. `refusal`: what Kafka refuses, while nothing of the partition is delivered for it; otherwise
empty. `next_due_in`: ms, None if nothing is known to wait. `blocked_keys`, `behind_records`, `parked_keys`: as
`QueueFacts`, None of a partition without a queue. `oldest_for`: the age (ms) of the oldest first record of a key, by
its timestamp; None if nothing waits. `on_hold`: records that were read and that an operator keeps back.
`retried_in_place`: records that are delivered again from memory, and keep what comes after them waiting where order
counts. `in_place`: the oldest of them. `reset_left`: at most so many records of resets that are still to be delivered
again.
"""


def partition_rows(
    facts: LaneFacts, waits: Mapping[Partition, Wait], now: Now, oldest: Mapping[Partition, int] | None = None
) -> list[PartitionRow]:
    """Return the present state of every partition.

    `oldest`: the timestamps (epoch ms) of the oldest records that wait in queues, by main partition.
    """
    return [
        _row(partition, waits[source], facts.queues.get(source), (oldest or {}).get(source), now)
        for source, partition in facts.partitions.items()
    ]


def _row(
    partition: PartitionFacts, wait: Wait, queue: QueueFacts | None, oldest_at_ms: int | None, now: Now
) -> PartitionRow:
    pause, counts = partition.pause, partition.counts
    is_timed = pause is not None and pause.because is NotFetched.NOT_DUE
    return {
        "topic": partition.source.topic,
        "partition": partition.source.number,
        "level": partition.kind.level,
        "not_fetched": wait.not_fetched,
        "not_delivered": wait.reason,
        "undelivered_for": round(wait.waited_ms / 1000, 1),
        "position": partition.first,
        "in_flight": counts.in_flight,
        "refused_copies": counts.refused,
        "refusal": partition.refusal,
        "next_due_in": max(0, pause.at_ms - now.steady_ms) if pause is not None and is_timed else None,
        "blocked_keys": None if queue is None else queue.blocked_keys,
        "behind_records": None if queue is None else queue.behind_records,
        "oldest_for": None if queue is None or oldest_at_ms is None else max(0, now.wall_ms - oldest_at_ms),
        "on_hold": counts.on_hold,
        "parked_keys": None if queue is None else queue.parked_keys,
        "retried_in_place": counts.retried,
        "in_place": None if partition.tried is None else partition.tried.shown(),
        "reset_left": 0 if partition.reset_left is None else partition.reset_left.records,
    }


def keys_status(rows: Iterable[PartitionRow]) -> dict[str, int | None] | None:
    """Return what waits by keys in all partitions together; None if none has a queue."""
    queued = [row for row in rows if row["blocked_keys"] is not None]
    if not queued:
        return None
    return {
        "blocked": sum(row["blocked_keys"] for row in queued),
        "behind": sum(row["behind_records"] for row in queued),
        "parked": sum(row["parked_keys"] for row in queued),
        "oldest_for": max((row["oldest_for"] for row in queued if row["oldest_for"] is not None), default=None),
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
