"""Write items in few transactions, so that an item that Kafka refuses fails alone and all others are written at once.

Kafka refuses a produce request as a whole, and then the client sends nothing more of the transaction. So a record may
be refused for its company. What Kafka names is set aside until all others are written. Then each is tried alone. If
Kafka names nothing, or too many, halves find the cause.

Redrives, imports and posts of relays write so, each on its own thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord

T = TypeVar("T")

Refusals: TypeAlias = Mapping[int, Refusal]
"""The items of a transaction that Kafka has refused, by their position. Empty if Kafka names none of them."""
Attempt: TypeAlias = Callable[[list[T], list[T]], Refusals | None]
"""Runs one transaction: the items to write, and those before or between them that are left. None if nothing is to be
tried again. A single item that is refused must be named."""
MOST_ASIDE = 20
"""Items that are set aside at once. If Kafka names more of them, it refuses their company: they are tried in halves."""


def write_apart(items: Sequence[T], attempt: Attempt[T], refuse: Callable[[T, Refusal], None]) -> None:
    """Write all items, and call `refuse` with each that Kafka refuses.

    With a transaction go as left: the items between and below its own that were refused, or that are tried later.
    Raises what `attempt` raises. What was committed until then stays.
    """
    waiting, left, aside = deque([list(items)]), set[int](), list[T]()
    while waiting:
        group = waiting.popleft()
        taken = [item for item in group if id(item) not in left]
        if not taken and waiting:  # recorded with the next transaction
            waiting[0] = group + waiting[0]
            continue
        named = attempt(taken, [item for item in group if id(item) in left])
        if named is None:
            continue
        assert named or len(taken) > 1, "a single item that is refused must be named"
        unsure = list[T]()
        for number, refusal in named.items():
            if len(taken) > 1 and refusal.about == "record":
                unsure.append(taken[number])
            else:
                left.add(id(taken[number]))
                refuse(taken[number], refusal)
        is_cause_known = bool(named) and len(aside) + len(unsure) <= MOST_ASIDE
        if is_cause_known:
            left.update(map(id, unsure))
            aside += unsure
        rest = [item for item in taken if id(item) not in left]
        waiting.extendleft(reversed([group] if is_cause_known or len(rest) < 2 else halves(group, rest)))
    for item in aside:
        if (named := attempt([item], [])) is not None:
            refuse(item, named[0])


def halves(items: list[T], taken: Sequence[T]) -> list[list[T]]:
    """Return the items in two groups, each with half of those that are `taken`: two at least."""
    middle = next(number for number, item in enumerate(items) if item is taken[len(taken) // 2])
    return [items[:middle], items[middle:]]


def by_number(entries: Sequence[SettledRecord], refusals: Iterable[Refusal]) -> Refusals:
    """Return the refusals by the position of their entry; of an entry with several, the first."""
    numbers = {id(entry): number for number, entry in enumerate(entries)}
    numbered = dict[int, Refusal]()
    for refusal in refusals:
        numbered.setdefault(numbers[id(refusal.entry)], refusal)
    return numbered
