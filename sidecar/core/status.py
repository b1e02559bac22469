"""The partitions of a lane as `/status` shows them, and the words that people read for each state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from reconsume.sidecar.core.facts import LaneFacts, PartitionFacts
from reconsume.sidecar.core.overdue import Standing, overdue
from reconsume.sidecar.core.partition import Because
from reconsume.sidecar.core.record import Now, Partition
from reconsume.topics.in_place_told import InPlaceTold

WORDS: Mapping[Because, str] = {
    Because.NOT_DUE: "not due",
    Because.AT_BOUND: "at its bound",
    Because.SKIPS: "passing over done records",
    Because.SLOWED: "slowed by failures",
    Because.BEHIND_RETRY: "behind a retry",
    Because.SHARED: "holds its share of the memory",
    Because.CROWDED: "refused copies take the memory",
    Because.BLOCKED: "stopped",
    Because.QUEUE_UNREAD: "reads its queue",
    Because.BEHIND_KEYS: "behind its keys",
    Because.HELD: "held",
}
"""What people read for each reason of a pause (docs/runbook.md)."""
FETCHING = "fetching"
STOPPED = "stopped: "
"""What people read of a partition that stops for refused copies; the reason follows."""


class PartitionStatus(NamedTuple):
    """One partition as `/status` shows it.

    `next_due_in`: ms, None if nothing is known to wait. `overdue_for`: ms by which its most overdue record is late,
    None if none is (`overdue.py`). `refused_copies`: settled records whose copies Kafka refuses. `blocked_keys`,
    `behind_records`, `parked_keys`: as `QueueFacts`, None of a partition without a queue. `oldest_for`: the age (ms) of
    the oldest first record of a key, by its timestamp; None if nothing waits. `on_hold`: records that were read and
    that an operator's hold keeps back. `retried_in_place`: records that are delivered again from memory, and keep what
    comes after them waiting where order counts. `undelivered_for`: seconds for which the oldest record has waited that
    could be delivered, 0 if none does (`undelivered.py`). `in_place`: the oldest record that is retried in place.
    """

    topic: str
    partition: int
    level: str
    state: str
    position: int
    in_flight: int
    refused_copies: int
    next_due_in: int | None
    overdue_for: int | None = None
    blocked_keys: int | None = None
    behind_records: int | None = None
    oldest_for: int | None = None
    on_hold: int = 0
    parked_keys: int | None = None
    undelivered_for: float = 0.0
    retried_in_place: int = 0
    in_place: InPlaceTold | None = None


def statuses(
    facts: LaneFacts,
    standing: Standing,
    now: Now,
    oldest: Mapping[Partition, int] | None = None,
    ages: Mapping[Partition, int] | None = None,
) -> list[PartitionStatus]:
    """Return the present state of every partition, with how late it is; a stuck partition says where.

    `oldest`: the timestamps (epoch ms) of the oldest records that wait in queues, by main partition. `ages`: for how
    many ms the oldest undelivered record of each partition has waited.
    """
    late, waited = overdue(facts, standing, now), ages or {}
    shown = [
        _status(partition, facts, standing, now, late.get(source))._replace(
            undelivered_for=round(waited.get(source, 0) / 1000, 1)
        )
        for source, partition in facts.partitions.items()
    ]
    return [_with_queue(status, facts, now, oldest or {}) for status in shown] if facts.queues else shown


def _with_queue(
    status: PartitionStatus, facts: LaneFacts, now: Now, oldest: Mapping[Partition, int]
) -> PartitionStatus:
    source = Partition(status.topic, status.partition)
    queue, at = facts.queues.get(source), oldest.get(source)
    if queue is None:
        return status
    age_ms = None if at is None else max(0, now.wall_ms - at)
    return status._replace(
        blocked_keys=queue.blocked_keys,
        behind_records=queue.behind_records,
        oldest_for=age_ms,
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


def _status(
    partition: PartitionFacts, facts: LaneFacts, standing: Standing, now: Now, overdue_for: int | None
) -> PartitionStatus:
    topic, number = partition.source
    waits = partition.pause if partition.pause is not None and partition.pause.because is Because.NOT_DUE else None
    due_ms = None if waits is None else max(0, waits.at_ms - now.steady_ms)
    state = state_of(partition)
    # Any other state gives its reason. A record in memory waits for the pace, which has a state of its own.
    if (
        state in (FETCHING, WORDS[Because.NOT_DUE])
        and partition.source not in facts.due
        and standing.stuck(partition, now.steady_ms)
    ):
        state = f"stuck: {where(partition)}"
    return PartitionStatus(
        *(topic, number, partition.level, state, partition.first, partition.in_flight, partition.refused),
        next_due_in=due_ms,
        overdue_for=overdue_for,
        on_hold=partition.on_hold,
        retried_in_place=partition.retrying,
        in_place=None if partition.tried is None else partition.tried.shown(),
    )


def state_of(partition: PartitionFacts) -> str:
    """Return the state of a partition in the words of docs/runbook.md: what keeps its records most comes first."""
    if partition.closing:
        return "closing"
    if partition.blocked:
        return f"{STOPPED}{partition.blocked}"
    if partition.suspect:
        return "suspect"
    return FETCHING if partition.pause is None else WORDS[partition.pause.because]


def where(partition: PartitionFacts) -> str:
    """Return where the first due record of a stuck partition must be."""
    if partition.pause is not None:
        return "paused"
    if partition.first == partition.next:
        return "not read"
    return "not committed" if partition.unsettled else "no outcome"
