"""What waits in the queue of one partition at one moment, and when it is so much that an operator should know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sidecar.core.lane.key_lines import KeyLine
from sidecar.core.lane.owned_queue import OwnedQueue

LARGEST_NAMED = 5
"""Keys that the warning names: a queue that fills has one or two hot ones, or very many."""


class QueueFacts(NamedTuple):
    """What waits in the queue of one main partition.

    `blocked_keys`: keys of which a record waits; a record without a key is one of its own. `behind_records`: what waits
    behind the first record of its key. `most`: how many records may wait (`retry.ordered_max_waiting`). `parked_keys`:
    those of the blocked keys whose first record waits for a person.
    """

    blocked_keys: int
    behind_records: int
    most: int
    parked_keys: int = 0

    @property
    def fill(self) -> float:
        """The share of what may wait that waits; above 1 where a predecessor had a larger bound."""
        return (self.blocked_keys + self.behind_records) / self.most


def queue_facts_of(owned: OwnedQueue, most: int) -> QueueFacts:
    """Return the facts of a queue in which `most` records may wait."""
    keys = len(owned.ledger.lines)
    return QueueFacts(keys, len(owned.ledger) - keys, most, owned.ledger.parked_keys)


def begins_to_fill(owned: OwnedQueue, most: int) -> bool:
    """Note whether three quarters of what may wait do; return True if that is news. It is again after half of it."""
    waiting = len(owned.ledger)
    if owned.filling:
        owned.filling = 2 * waiting >= most
        return False
    owned.filling = 4 * waiting >= 3 * most
    return owned.filling


def named(owned: OwnedQueue, lines: Sequence[KeyLine]) -> dict[str, int]:
    """Return how many records of some keys wait, by the id of the first: a key itself may be anybody's name."""
    topic, number = owned.main
    return {f"{topic}:{number}:{line.entries[0].identity[0]}": len(line.entries) for line in lines}
