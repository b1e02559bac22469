"""What waits in queue topics, by key, gathered from copies in any order. Pure; `kafka/listed_records.py` reads.

Of several copies of a record the one with the latest attempt stands, then the last (contract 5.5). The records of a
key are in the order of RETRY_ORDER.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import TypeAlias

import msgspec

from reconsume.sidecar.core.order import OrderBy, line_of
from reconsume.sidecar.core.record import Record
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.group_rules import offset_of
from reconsume.topics.reasons import reason_class
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order

MOST_KEYS = 50_000
"""Keys that are kept, with one record each: some 50 MB. Of others only the records are counted."""
KEY_SHOWN = 256
"""Bytes of a key that are kept to be shown; a longer key is known by its first record."""

Name: TypeAlias = tuple[str, int, bytes]
"""Main topic and partition, and the name of a line (`line_of`)."""


class WaitingRecord(msgspec.Struct, frozen=True, gc=False):
    """One record that waits in a queue topic. Times are epoch ms.

    `id`: the record's id. `order`: where it stands in its key. `at`: its own timestamp. `due`: when it is due; 0
    of one that is `behind` and was not delivered yet, or is `parked`. `offset`: of its copy in the queue. `settled`:
    the nonce of the decision that the copy has come of; empty without one.
    """

    id: str
    order: Order
    cycle: int
    redrives: int
    times: int
    due: int
    at: int
    reason: str
    behind: bool
    offset: int
    parked: bool
    settled: str


_PLACE = attrgetter("order", "id")


class WaitingKey:
    """One key of which records wait: how many, and the first of them, `most` at most.

    `topic`, `partition`: of the main topic. `key` is None for a record without one. `oldest_at`: the lowest timestamp.
    """

    def __init__(self, name: Name, key: bytes | None, most: int) -> None:
        self.topic, self.partition, _ = name
        self.key = None if key is None else key[:KEY_SHOWN]
        self.key_bytes = 0 if key is None else len(key)
        self.waiting, self.oldest_at = 0, 0
        self._records: list[WaitingRecord] = []
        self._most = most

    @property
    def records(self) -> tuple[WaitingRecord, ...]:
        """The first records, in their order."""
        return tuple(self._records)

    @property
    def shown(self) -> int:
        """How many of its records are kept."""
        return len(self._records)

    @property
    def whole(self) -> bytes | None:
        """The key, if there is one, and it is short enough to be kept whole."""
        return self.key if self.key is not None and self.key_bytes == len(self.key) else None

    @property
    def first(self) -> WaitingRecord:
        """The record that all others of the key wait for."""
        return self._records[0]

    def add(self, record: WaitingRecord, *, known: bool) -> None:
        """Take in a copy. `known`: whether another one of the same record was taken in."""
        if not known:
            self.oldest_at = record.at if self.waiting == 0 else min(self.oldest_at, record.at)
            self.waiting += 1
        elif (other := next((one for one in self._records if one.id == record.id), None)) is not None:
            if _rank(other) > _rank(record):
                return
            self._records.remove(other)
        insort(self._records, record, key=_PLACE)
        del self._records[self._most :]


def _rank(record: WaitingRecord) -> tuple[Attempt, int]:
    return attempt_of(record), record.offset


class WaitingKeys:
    """All keys of which records wait. `by`: as `LaneOptions.order`. `most`: records that are kept of a key."""

    def __init__(self, by: OrderBy, most: int) -> None:
        self.beyond = 0
        """Records of keys beyond MOST_KEYS."""
        self._by, self._most = by, most
        self._keys: dict[Name, WaitingKey] = {}
        self._known: set[int] = set()
        """The hashes of the records that were taken in. One of 64 bits that stands for two records is rarer than a
        broken disk, and makes a count wrong by one."""

    def add(self, record: Record, state: RetryState, order: Order) -> None:
        """Take in a copy that is not done."""
        identity = hash((state.topic, record.source.number, offset_of(state.id), state.timestamp))
        known = identity in self._known
        self._known.add(identity)
        name = (state.topic, record.source.number, line_of(record, self._by))
        key = self._keys.get(name)
        if key is None:
            if len(self._keys) >= MOST_KEYS:
                self.beyond += not known
                return
            key = self._keys[name] = WaitingKey(name, None if self._by == "partition" else record.key, self._most)
        key.add(_waiting(record, state, order), known=known)

    def by_due(self) -> list[WaitingKey]:
        """Return the keys, by when their first record is due."""
        return sorted(self._keys.values(), key=lambda key: (key.first.due, key.topic, key.partition, key.first.order))

    @property
    def waiting(self) -> int:
        """How many records wait."""
        return len(self._known)


def _waiting(record: Record, state: RetryState, order: Order) -> WaitingRecord:
    return WaitingRecord(
        id=state.id,
        order=order,
        cycle=state.cycle,
        redrives=state.redrives,
        times=state.times,
        due=0 if state.behind else state.due_at,
        at=state.timestamp,
        reason=reason_class(state.reason),
        behind=state.behind,
        offset=record.offset,
        parked=state.parked,
        settled=state.settled,
    )
