"""The records of a lane that wait in memory: begun, and neither out nor settled. Each waits in exactly one way.

ready     it may be delivered as soon as a place in flight is free
delayed   its time has not come, or the service asked for a later attempt
behind    an earlier record of its key, or partition, is not done
withheld  its partition is blocked, or Kafka must know first that it may be out
held      an operator holds it, and it cannot be fetched again
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.delay_queue import DelayQueue
from reconsume.sidecar.core.lane.in_place_queues import InPlaceQueues, OrderBy
from reconsume.sidecar.core.pace.topic_turns import ReadyFlows
from reconsume.sidecar.core.record import Partition, Record

_OFFSET = attrgetter("offset")
_TOPIC = attrgetter("source.topic")  # runs in C: thousands of records wait when the service is slow


class WaitingRecords:
    """The waiting records of one lane. `room`: bytes that the lane may hold. `order`: as in `LaneOptions`.
    `named`: as in `InPlaceQueues`.

    Invariants: no record waits in two ways; withheld records stand by their offsets; a partition without withheld
    records has no list of them.
    """

    def __init__(self, room: int, order: OrderBy | None, *, named: bool = False) -> None:
        self.ready = ReadyFlows()
        self._delayed = DelayQueue(room)
        self._in_place = None if order is None else InPlaceQueues(order, named=named)
        self.next_of: Callable[[Record], Record | None] = _no_next if self._in_place is None else self._in_place.finish
        """Notes that a record is done, as `done` does, but returns the next one of its key: the caller lets it go. Each
        record of an ordered lane comes here, and a method of ours would be a call more."""
        self._withheld: dict[Partition, list[Record]] = {}
        self.held: dict[Partition, list[Record]] = {}
        """By partition, the records that an operator holds, by offset."""

    @property
    def patience_ms(self) -> int:
        """The ms that one more record may wait for its time."""
        return self._delayed.patience_ms

    # --- a record begins to wait, and goes on -----------------------------------------------------------------------

    def own(self, source: Partition) -> None:
        """Note that a partition is owned, so that it counts as a flow before it has records."""
        self.ready.own(source)

    def release(self, record: Record) -> None:
        """Let a record go that need not wait for its time: it is ready, unless an earlier one of its key is not
        done."""
        if self._in_place is None or self._in_place.enqueue(record):
            self.ready.append(record)

    def release_run(self, records: Sequence[Record]) -> None:
        """Let records of one partition go, as `release` does: without an order this costs next to nothing a record."""
        if self._in_place is None:
            self.ready.extend(records)
        else:
            self.ready.extend([record for record in records if self._in_place.enqueue(record)])

    def repeat(self, record: Record) -> None:
        """Let a record go before all others of its partition: it was out, and may be delivered again at once."""
        self.ready.put_first((record,))

    def delay(self, record: Record, until_ms: int) -> None:
        """Keep a record until the steady time `until_ms`."""
        self._delayed.put(record, until_ms)

    def take_due(self, steady_ms: int) -> list[Record]:
        """Remove and return every delayed record whose time has come, earliest first."""
        return self._delayed.due(steady_ms)

    def next_at(self) -> int:
        """Return the steady time (ms) at which the next delayed record is due; NEVER if none waits."""
        return self._delayed.next_at()

    def withhold(self, record: Record) -> None:
        """Keep a record back, by its offset: lower ones go first, whatever was tried and kept back again."""
        insort(self._withheld.setdefault(record.source, []), record, key=_OFFSET)

    def withheld(self, source: Partition) -> Sequence[Record]:
        """Return the records of a partition that are kept back, by offset."""
        return self._withheld.get(source, ())

    def let_try(self, source: Partition, most: int | None = None, *, first: bool) -> None:
        """Let the withheld records of a partition try again, `most` of them, or all; before all others if `first`."""
        records = self._withheld.pop(source, [])
        if most is not None and records[most:]:
            self._withheld[source] = records[most:]
        (self.ready.put_first if first else self.ready.extend)(records[:most])

    def hold(self, record: Record) -> None:
        """Keep a record that an operator holds."""
        insort(self.held.setdefault(record.source, []), record, key=_OFFSET)

    def put_back(self, record: Record) -> None:
        """Forget a record of a queue whose turn had come: its copy is read again later."""
        if self._in_place is not None:
            self._in_place.shed(record.source, {record.offset})

    def let_held(self, source: Partition, is_free: Callable[[Record], bool]) -> int:
        """Let held records of a partition go before all others, if nobody holds them now; return how many."""
        held, free, stays = self.held.pop(source, ()), list[Record](), list[Record]()
        for record in held:
            (free if is_free(record) else stays).append(record)
        if stays:
            self.held[source] = stays
        self.ready.put_first(free)
        return len(free)

    def waiting_at(self, source: Partition, offset: int) -> Record | None:
        """Return the record at an offset, if it waits for its time or its turn, or is held. Slow."""
        ways = (self._delayed.all(), self.held.get(source, ()), self.ready.of(source))
        return next((one for one in chain(*ways) if one.source == source and one.offset == offset), None)

    def pick(self, record: Record) -> tuple[bool, int]:
        """Remove a record that `waiting_at` has returned, and that ends now. Return whether it was held, and as
        `DelayQueue.pick`."""
        until_ms = self._delayed.pick(record)
        self.ready.pick(record)
        held = self.held.pop(record.source, [])
        if stays := [one for one in held if one is not record]:
            self.held[record.source] = stays
        return len(stays) < len(held), until_ms

    def done(self, record: Record) -> None:
        """Note that a record is done: the next one of its key is ready."""
        if self._in_place is not None and (following := self._in_place.finish(record)) is not None:
            self.ready.append(following)

    def let_next(self, record: Record) -> None:
        """Let a record go that `next_of` has returned."""
        self.ready.append(record)

    def take_line(self, record: Record) -> list[Record]:
        """Remove and return what waits of the key of a record: `record`, which `next_of` has returned, and all
        behind."""
        # Contract 5.5: what waits behind a failing key goes to its queue with it, in its order.
        return [] if self._in_place is None else self._in_place.take_line(record)

    def holds(self, source: Partition, line: bytes) -> bool:
        """Return whether records of a line (`line_of`) wait here, or are out."""
        return self._in_place is not None and self._in_place.holds(source, line)

    # --- partitions go, or stop ---------------------------------------------------------------------------------------

    def drop(self, partitions: Collection[Partition]) -> None:
        """Drop the records of partitions that are given up."""
        self.ready.drop(partitions)
        self._delayed.drop(partitions)
        if self._in_place is not None:
            self._in_place.drop(partitions)
        for source in partitions:
            self._withheld.pop(source, None)
            self.held.pop(source, None)

    def take_back(self, source: Partition, *, withheld: bool) -> list[Record]:
        """Remove and return the records of a partition that can be fetched again.

        Those that are retried in place stay, because their count is kept nowhere else. `withheld`: take those that are
        kept back too.
        """
        taken = self.ready.take_back(source) + self._delayed.take(source)
        if withheld:
            kept_back = self._withheld.pop(source, [])
            taken += [record for record in kept_back if not record.again]
            if stays := [record for record in kept_back if record.again]:
                self._withheld[source] = stays
        if self._in_place is not None:
            taken += self._in_place.shed(source, {record.offset for record in taken})
        return taken

    def take_back_ready(self, source: Partition, from_offset: int = 0) -> list[Record]:
        """Remove and return the records of a partition that are ready, or behind their key, and can be fetched again.

        What is delayed stays: the service may have asked for the wait, and fetched again it would come at once.
        `from_offset`: only from this offset on.
        """
        taken = self.ready.take_back(source, from_offset)
        if self._in_place is not None:
            taken += self._in_place.shed(source, {record.offset for record in taken}, from_offset)
        return taken

    def ready_or_behind(self, source: Partition) -> list[Record]:
        """Return the records of a partition that are ready, or behind their key, by offset."""
        behind = () if self._in_place is None else self._in_place.behind_of(source)
        return sorted(chain(self.ready.of(source), behind), key=_OFFSET)

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many records wait for their time or for a place in flight."""
        return len(self.ready) + len(self._delayed)

    def count_by_topic(self) -> Counter[str]:
        """Return how many records wait, by the topic that they were read from; without those behind their key."""
        counts = Counter(self._delayed.count_by_topic())
        counts.update(map(_TOPIC, self.ready))
        for source, records in (*self._withheld.items(), *self.held.items()):
            counts[source.topic] += len(records)
        return counts

    def overdue(self, steady_ms: int) -> Iterator[Record]:
        """Yield the records that could be delivered at a steady time (ms), and wait all the same."""
        yield from self.ready
        yield from self._delayed.over(steady_ms)
        for records in self._withheld.values():
            yield from records

    def put_off(self, steady_ms: int) -> list[Record]:
        """Return the records whose time has not come at a steady time (ms)."""
        return self._delayed.later(steady_ms)

    def by_way(self) -> dict[str, Iterable[Record]]:
        """Return all records, by the way in which they wait."""
        return {
            "ready": self.ready,
            "delayed": self._delayed.all(),
            "behind": () if self._in_place is None else self._in_place.behind(),
            "withheld": (record for records in self._withheld.values() for record in records),
            "held": (record for records in self.held.values() for record in records),
        }

    def not_held(self) -> Iterator[Record]:
        """Yield the records that wait, but for those that an operator holds and those behind them."""
        held = {(source, record.offset) for source, records in self.held.items() for record in records}
        behind = () if self._in_place is None else self._in_place.behind(held)
        return chain(self.ready, self._delayed.all(), behind, *self._withheld.values())

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        self.ready.check()
        self._delayed.check()
        if self._in_place is not None:
            self._in_place.check()
        for source, records in (*self._withheld.items(), *self.held.items()):
            offsets = [record.offset for record in records]
            ensure(bool(offsets), f"{source} has withheld records, or no list of them")
            ensure(offsets == sorted(set(offsets)), f"the withheld records of {source} stand by their offsets")


def _no_next(_record: Record) -> None:
    """Nothing comes after a record of a lane without an order."""
