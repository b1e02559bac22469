"""Ordered mode: a queue of records for each key, or for each partition.

Only the first record of a queue may be delivered. It stays first until it is done, through every retry in place. So the
records behind it are never delivered before it (contract 5.1). Queues belong to partitions, and are dropped with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Literal, TypeAlias

from sidecar.core.invariant import ensure
from sidecar.core.record import Partition, Record

OrderBy: TypeAlias = Literal["key", "partition"]
Key: TypeAlias = tuple[Partition, bytes | None]


LONGEST_NAME = 64
"""Bytes of a key that stands for itself in a ledger; a longer one is known by its digest."""


def line_of(record: Record, by: OrderBy) -> bytes:
    """Return the name of a record's line: what must go one after the other has one name.

    Records without a key have no order among themselves: each is a line of its own. Two keys with one name, by a
    chance or by intent, only wait for each other.
    """
    return b"" if by == "partition" else line_by_key(record)


def line_by_key(record: Record) -> bytes:
    """Return the name of a record's line where records are ordered by key."""
    key = record.key
    if key is None:
        return b"\0" + record.id.encode()
    return key if len(key) <= LONGEST_NAME else line_of_key(key)


def by_ledger(record: Record) -> bool:
    """Return whether a record is a copy of a queue topic, whose place in its line the ledger knows."""
    return record.retry_state is not None and record.retry_state.order is not None


def line_of_key(key: bytes) -> bytes:
    """Return the name of the line of a key."""
    return key if len(key) <= LONGEST_NAME else b"#" + blake2b(key, digest_size=16).digest()


class InPlaceQueues:
    """The key queues of one lane. Records are added in the order of their offsets, those of queue topics in that of the
    ledger.

    `named`: a queue goes by the name of its line (`line_of`), for a lane with ledgers.

    Invariants: no queue is empty; each holds records of its own key and one assignment, each once, and of topics other
    than queue topics with rising offsets.
    """

    def __init__(self, by: OrderBy, *, named: bool = False) -> None:
        self._by, self._named = by, named
        self._queues: dict[Key, deque[Record]] = {}

    def enqueue(self, record: Record) -> bool:
        """Add a record to its queue; return True if it is the first, also on a repeated call, and may be delivered."""
        if self._by == "key" and record.key is None:
            return True  # records without a key have no order among themselves
        key = self._key(record)
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque((record,))
            return True
        if queue[0].offset == record.offset:
            return True
        queue.append(record)
        return False

    def finish(self, record: Record) -> Record | None:
        """Remove the first record of a queue, which is done; return the record that is first now, or None."""
        key = self._key(record)
        queue = self._queues.get(key)
        if queue is None or queue[0].offset != record.offset:
            return None
        queue.popleft()
        if queue:
            return queue[0]
        del self._queues[key]
        return None

    def holds(self, source: Partition, line: bytes) -> bool:
        """Return whether records of a line are here."""
        return (source, line if self._by == "key" else None) in self._queues

    def take_line(self, record: Record) -> list[Record]:
        """Remove and return all records of the line of `record`."""
        return list(self._queues.pop(self._key(record), ()))

    def behind(self) -> Iterator[Record]:
        """Return the records that wait behind the first ones of their queues."""
        return (record for queue in self._queues.values() for record in list(queue)[1:])

    def shed(self, partition: Partition, firsts: Collection[int], from_offset: int = 0) -> list[Record]:
        """Remove the records behind the first ones from the queues of a partition, and return them.

        `from_offset`: only from this offset on. `firsts`: offsets of first records that are removed too, all of them
        from there on.
        """
        behind: list[Record] = []
        for key in [key for key in self._queues if key[0] == partition]:
            first, *rest = self._queues[key]
            behind += [record for record in rest if record.offset >= from_offset]
            if first.offset in firsts:
                del self._queues[key]
            else:
                self._queues[key] = deque((first, *(record for record in rest if record.offset < from_offset)))
        return behind

    def behind_of(self, partition: Partition) -> Iterator[Record]:
        """Yield the records of a partition that wait behind the first ones of their queues."""
        queues = (queue for key, queue in self._queues.items() if key[0] == partition)
        return (record for queue in queues for record in islice(queue, 1, None))

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop the queues of partitions that are given up."""
        self._queues = {key: queue for key, queue in self._queues.items() if key[0] not in partitions}

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for key, queue in self._queues.items():
            offsets = [record.offset for record in queue]
            ensure(bool(offsets), f"the queue of {key} has a first record")
            ensure(len(set(offsets)) == len(offsets), f"the queue of {key} has a record twice")
            ensure(
                by_ledger(queue[0]) or offsets == sorted(offsets), f"the queue of {key} is in the order of its offsets"
            )
            ensure(
                {(self._key(record), record.epoch) for record in queue} == {(key, queue[0].epoch)},
                f"{key} has no other records",
            )

    def _key(self, record: Record) -> Key:
        if self._by != "key":
            return record.source, None
        key = record.key
        # Nearly all keys stand for themselves: this is asked three times for each record.
        if self._named and (key is None or len(key) > LONGEST_NAME):
            key = line_by_key(record)
        return record.source, key
