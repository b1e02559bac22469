"""What waits in the queue of one partition at one moment, and when it is so much that an operator should know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reconsume.sidecar.core.lane.key_lines import KeyLine
from reconsume.sidecar.core.lane.owned_queue import OwnedQueue
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.record import NEVER

FILLS, STILL_FILLS = 0.75, 0.5
"""Shares of what may wait, from which a queue is named, and below which it may be named again."""
LARGEST_NAMED = 5
"""Keys that the warning names: a queue that fills has one or two hot ones, or very many."""


class QueueFacts(NamedTuple):
    """What waits in the queue of one main partition.

    `blocked_keys`: keys of which a record waits; a record without a key is one of its own. `behind_records`: what waits
    behind the first record of its key. `fill`: as `fill_of`. `parked_keys`: those of the blocked keys whose first
    record waits for a person. `due_ms`: the steady time (ms) at which the oldest first record was or will be due that
    is neither parked nor held; NEVER if there is none.
    """

    blocked_keys: int
    behind_records: int
    fill: float
    parked_keys: int = 0
    due_ms: int = NEVER


def fill_of(owned: OwnedQueue, queue: LanePartition | None, most: int, reach: int) -> float:
    """Return the share of what may wait that does (contract 5.10); above 1 where a predecessor had a larger bound.

    There are two bounds, and the fuller one counts: `most` records (`retry.ordered_max_waiting`), and `reach` offsets
    from the first of them to the end of the queue, which hold the markers of transactions too. `queue`: None if it was
    not opened yet; then nothing waits.
    """
    if queue is None:
        return 0.0
    return max(len(owned.ledger) / most, queue.tracker.span(queue.tracker.next) / reach)


def queue_facts_of(owned: OwnedQueue, fill: float) -> QueueFacts:
    """Return the facts of a queue that is so full."""
    keys = len(owned.ledger.lines)
    heads = owned.ledger.heads
    return QueueFacts(keys, len(owned.ledger) - keys, fill, owned.ledger.parked_keys, heads.oldest_due())


def begins_to_fill(owned: OwnedQueue, fill: float) -> bool:
    """Note whether three quarters of what may wait do; return True if that is news. It is again after half of it."""
    if owned.filling:
        owned.filling = fill >= STILL_FILLS
        return False
    owned.filling = fill >= FILLS
    return owned.filling


def named(owned: OwnedQueue, lines: Sequence[KeyLine]) -> dict[str, int]:
    """Return how many records of some keys wait, by the id of the first: a key itself may be anybody's name."""
    topic, number = owned.main
    return {f"{topic}:{number}:{line.entries[0].identity[0]}": len(line.entries) for line in lines}
