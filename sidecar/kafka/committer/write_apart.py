"""Write items in few transactions, so that an item that Kafka refuses fails alone and all others are written at once.

Kafka refuses a produce request as a whole, and then the client sends nothing more of the transaction. So a record may
be refused for its company. What Kafka names is set aside until all others are written. Then each is tried alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.kafka.client_config import BATCH_BYTES
from reconsume.topics.transition_records import Copy

T = TypeVar("T")

Refusals: TypeAlias = Mapping[int, Refusal]
"""The items of a transaction that Kafka has refused, by their position. Empty if Kafka names none of them."""
Attempt: TypeAlias = Callable[[list[T], list[T]], Refusals | None]
"""Runs one transaction: the items to write, and those before or between them that are left. None if nothing is to be
tried again. A single item that is refused must be named."""
MOST_ASIDE = 20
"""Items that are set aside at once. If Kafka names more of them, it refuses their company: they are tried in halves."""


class ApartWriter(Generic[T]):
    """Group items into transactions. Remember from which size on a topic refuses records, and set such records aside.

    `sizes`: the topics and bytes of an item's writes. `packed`: the client sends a larger record in a request of its
    own, so that its refusal has no other cause.
    """

    def __init__(self, sizes: Callable[[T], Iterable[tuple[str, int]]], packed: int = BATCH_BYTES) -> None:
        self._sizes, self._packed = sizes, packed
        self._least: dict[str, int] = {}
        """By topic: bytes of the smallest record that it has refused as too large, alone or beside others."""

    def write(self, items: Sequence[T], attempt: Attempt[T], refuse: Callable[[T, Refusal], None]) -> None:
        """Write all items, and call `refuse` with each that Kafka refuses.

        With a transaction go as left: the items between and below its own that were refused, or that are tried later.
        Raises what `attempt` raises. What was committed until then stays.
        """
        waiting, left, aside = deque([list(items)]), set[int](), list[T]()
        while waiting:
            group = waiting.popleft()
            self._set_aside(filter(self._may_be_too_large, group), left, aside)
            take = [item for item in group if id(item) not in left]
            if not take and waiting:  # recorded with the next transaction
                waiting[0] = group + waiting[0]
                continue
            named = attempt(take, [item for item in group if id(item) in left])
            if named is None:
                self._accepted(take)
                continue
            unsure = self._judge(take, named, left, refuse)
            known = bool(named) and len(aside) + len(unsure) <= MOST_ASIDE
            if known:
                self._set_aside(unsure, left, aside)
            rest = [item for item in take if id(item) not in left]
            waiting.extendleft(reversed([group] if known or len(rest) < 2 else halves(group, rest)))
        for item in aside:
            named = attempt([item], [])
            if named is None:
                self._accepted([item])
            else:
                self._judge([item], named, left, refuse)

    def _set_aside(self, items: Iterable[T], left: set[int], aside: list[T]) -> None:
        for item in items:
            if id(item) not in left and len(aside) < MOST_ASIDE:
                left.add(id(item))
                aside.append(item)

    def _judge(
        self, take: Sequence[T], named: Refusals, left: set[int], refuse: Callable[[T, Refusal], None]
    ) -> list[T]:
        """Refuse the items whose refusal is certain. Return the others that Kafka names."""
        assert named or len(take) > 1, "a single item that is refused must be named"
        unsure = list[T]()
        for number, refusal in named.items():
            item = take[number]
            size = self._learn(item, refusal)
            if len(take) == 1 or refusal.about != "record" or (refusal.too_large and size > self._packed):
                left.add(id(item))
                refuse(item, refusal)
            else:
                unsure.append(item)
        return unsure

    def _may_be_too_large(self, item: T) -> bool:
        least = self._least
        return bool(least) and any(size >= least.get(topic, size + 1) for topic, size in self._sizes(item))

    def _learn(self, item: T, refusal: Refusal) -> int:
        """Return the bytes that were refused, and remember them if they are too many."""
        topic = refusal.where.partition("[")[0]
        size = max((size for written, size in self._sizes(item) if written == topic), default=0)
        if refusal.too_large:
            self._least[topic] = min(size, self._least.get(topic, size))
        return size

    def _accepted(self, items: Iterable[T]) -> None:
        """Forget a size that was accepted: the record was refused for its company, or the topic's limit has changed."""
        for item in items if self._least else ():
            for topic, size in self._sizes(item):
                if size >= self._least.get(topic, size + 1):
                    del self._least[topic]


def halves(items: list[T], take: Sequence[T]) -> list[list[T]]:
    """Return the items in two groups, each with half of those to `take`: two at least."""
    middle = next(number for number, item in enumerate(items) if item is take[len(take) // 2])
    return [items[:middle], items[middle:]]


def by_number(entries: Sequence[SettledRecord], refusals: Iterable[Refusal]) -> Refusals:
    """Return the refusals by the position of their entry; of an entry with several, the first."""
    numbers = {id(entry): number for number, entry in enumerate(entries)}
    numbered = dict[int, Refusal]()
    for refusal in refusals:
        numbered.setdefault(numbers[id(refusal.entry)], refusal)
    return numbered


def copy_sizes(copies: Iterable[Copy]) -> Iterable[tuple[str, int]]:
    """Yield topic and bytes of each copy."""
    for copy in copies:
        headers = sum(len(name) + len(value or b"") for name, value in copy.headers)
        yield copy.topic, len(copy.key or b"") + len(copy.value or b"") + headers
