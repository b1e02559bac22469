"""Order by key, or by partition: which record of a key goes next.

A gate over queues of records: the first record of a key may be delivered, and stays the first until it is done, through
every retry in place. So the records behind it are never delivered before it (contract 5.1). Those behind are BEHIND in
the map of their partition. Queues belong to partitions, and are dropped with them.

Where order survives long waits (`queues.py`) a key goes by the name of its line, as in the ledger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterator
from hashlib import blake2b
from typing import Literal, TypeAlias

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.record import Partition, Record, RecordId

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


class KeyQueues:
    """The queues of one lane. Records are added in the order of their offsets, those of queue topics in that of the
    ledger.

    `named`: a queue goes by the name of its line (`line_of`), for a lane with ledgers.

    Invariants: each queue has a first record, and no empty list of others; it holds records of its own key and one
    assignment, each once, and of topics other than queue topics with rising offsets.
    """

    def __init__(self, by: OrderBy, *, named: bool = False) -> None:
        self._by, self._named = by, named
        self._first: dict[Key, Record] = {}
        self._behind: dict[Key, deque[Record]] = {}
        """What waits behind first ones. Apart: most keys have one record at a time, and a deque takes 600 bytes."""

    def enqueue(self, record: Record) -> bool:
        """Add a record to its queue; return True if it is the first, also on a repeated call, and may be delivered."""
        if self._by == "key" and record.key is None:
            return True  # records without a key have no order among themselves
        key = self._key(record)
        first = self._first.setdefault(key, record)
        if first is record or first.offset == record.offset:
            return True
        behind = self._behind.get(key)
        if behind is None:
            self._behind[key] = deque((record,))
        else:
            behind.append(record)
        return False

    def finish(self, record: Record) -> Record | None:
        """Remove the first record of a queue, which is done; return the record that is first now, or None."""
        key = self._key(record)
        first = self._first.pop(key, None)
        if first is None:
            return None
        if first.offset != record.offset:
            self._first[key] = first
            return None
        if not self._behind or (behind := self._behind.get(key)) is None:
            return None
        following = self._first[key] = behind.popleft()
        if not behind:
            del self._behind[key]
        return following

    def holds(self, source: Partition, line: bytes) -> bool:
        """Return whether records of a line are here."""
        return (source, line if self._by == "key" else None) in self._first

    def take_line(self, record: Record) -> list[Record]:
        """Remove and return all records of the line of `record`."""
        first = self._first.pop(key := self._key(record), None)
        return [] if first is None else [first, *self._behind.pop(key, ())]

    def behind(self, but: Container[RecordId] = ()) -> Iterator[Record]:
        """Yield the records that wait behind the first ones of their queues, `but` not behind these."""
        for key, behind in self._behind.items():
            first = self._first[key]
            if (first.source, first.offset) not in but:
                yield from behind

    def shed(self, partition: Partition, firsts: Collection[int], from_offset: int = 0) -> list[Record]:
        """Remove the records behind the first ones from the queues of a partition, and return them.

        `from_offset`: only from this offset on. `firsts`: offsets of first records that are removed too, all of them
        from there on.
        """
        shed: list[Record] = []
        for key in [key for key in self._behind if key[0] == partition]:
            behind = self._behind.pop(key)
            shed += [record for record in behind if record.offset >= from_offset]
            if stays := [record for record in behind if record.offset < from_offset]:
                self._behind[key] = deque(stays)
        if firsts:
            for key in [key for key, first in self._first.items() if key[0] == partition and first.offset in firsts]:
                del self._first[key]
                self._behind.pop(key, None)
        return shed

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop the queues of partitions that are given up."""
        self._first = {key: first for key, first in self._first.items() if key[0] not in partitions}
        self._behind = {key: behind for key, behind in self._behind.items() if key[0] not in partitions}

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self._behind.keys() <= self._first.keys(), "what waits behind others has a first one")
        ensure(all(self._behind.values()), "there is no empty list of others")
        for key, first in self._first.items():
            records = [first, *self._behind.get(key, ())]
            offsets = [record.offset for record in records]
            ensure(len(set(offsets)) == len(offsets), f"the queue of {key} has a record twice")
            ensure(by_ledger(first) or offsets == sorted(offsets), f"the queue of {key} is in the order of its offsets")
            ensure(
                {(self._key(record), record.epoch) for record in records} == {(key, first.epoch)},
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
