"""The queues that a lane owns, by the main partitions that they belong to, and what is known of any copy in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.in_place_queues import OrderBy, line_by_key, line_of
from reconsume.sidecar.core.lane.ledger_entry import QueuedCopy
from reconsume.sidecar.core.lane.owned_queue import LaneTies, OwnedQueue
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.queue_facts import fill_of
from reconsume.sidecar.core.lane.queue_hops import HOP_SPAN, Spans
from reconsume.sidecar.core.progress import SPAN
from reconsume.sidecar.core.record import Partition, Record


class OwnedQueues:
    """The queues of one lane. `by`: as `LaneOptions.order`.

    Invariants: a queue is owned with its main partition; nothing of a main partition has begun before what waits in its
    queue is known.
    """

    def __init__(self, by: OrderBy, ties: LaneTies) -> None:
        self.by = by
        self.spans = Spans(SPAN, HOP_SPAN)
        """Within these, records of a queue are delivered, and hop."""
        self._ties = ties
        self._by_main: dict[Partition, OwnedQueue] = {}
        self.by_main: Mapping[Partition, OwnedQueue] = self._by_main
        self.stale = set[Partition]()
        """The main partitions of the queues of which something has changed since they were looked at."""
        # The set's own method: each failure calls it, and one of ours would be a call more.
        self.look_at: Callable[[Partition], None] = self.stale.add
        self.line_of: Callable[[Record], bytes] = line_by_key if by == "key" else partial(line_of, by=by)
        """Returns the name of the line in which a record waits. As `look_at`."""

    # --- which there are ---------------------------------------------------------------------------------------------

    def add(self, owned: OwnedQueue) -> None:
        """Own a queue; what waits in it is not known yet."""
        self._by_main[owned.main] = owned

    def drop(self, partitions: Collection[Partition]) -> list[OwnedQueue]:
        """Forget the queues of main partitions that are gone; return them."""
        gone = (self._by_main.pop(main, None) for main in partitions)
        return [owned for owned in gone if owned is not None]

    def live(self, queue: Partition, epoch: int) -> tuple[LanePartition | None, OwnedQueue | None]:
        """Return the main partition and the queue, unless it was given up, or is being given up."""
        for source, owned in self._by_main.items():
            if owned.source == queue:
                main = self._ties.ownership.partitions.get(source)
                # Contract 9.1: what was read for an earlier assignment is nothing of this one.
                if main is not None and main.epoch == owned.epoch == epoch and not main.closing:
                    return main, owned
        return None, None

    def of(self, record: Record) -> OwnedQueue | None:
        """Return the queue that a record belongs to, be it of the main partition or of the queue itself."""
        if (owned := self._by_main.get(record.source)) is not None:
            return owned
        partition = self._ties.ownership.partitions.get(record.source)
        return None if partition is None or partition.under is None else self._by_main.get(partition.under)

    def fill_of(self, owned: OwnedQueue) -> float:
        """Return the share of what may wait in a queue that does."""
        queue = self._ties.ownership.partitions.get(owned.source)
        return fill_of(owned, queue, self._ties.policy().max_waiting, self.spans.delivered)

    # --- which are to be looked at -----------------------------------------------------------------------------------

    def look_at_all(self) -> None:
        """Have all queues looked at with the next call of the lane."""
        self.stale.update(self._by_main)

    def take_stale(self) -> set[Partition]:
        """Return the main partitions whose queues are to be looked at now; what comes up meanwhile is for later."""
        stale = self.stale & self._by_main.keys()
        self.stale.clear()
        return stale

    def can_be_looked_at(self) -> bool:
        """Return whether a look at what is stale would do anything: what is blocked is looked at once it goes on."""
        owned = (self._by_main.get(main) for main in self.stale)
        partitions = (self._ties.ownership.partitions.get(one.source) for one in owned if one is not None)
        return any(queue is not None and not queue.blocked for queue in partitions)

    # --- copies ------------------------------------------------------------------------------------------------------

    def know(self, owned: OwnedQueue, copy: QueuedCopy) -> None:
        """Take in a copy that was let go: its payload is read when it is due."""
        if obsolete := owned.ledger.read(copy):
            self.pass_over(owned, obsolete)
        if owned.unseen:
            owned.unseen.discard(copy.identity)

    def take_located(self, queue: LanePartition, owned: OwnedQueue) -> None:
        """Take in the copies of our own before which all of a queue is known."""
        while (copy := owned.located.take(queue.tracker.next)) is not None:
            self.pass_own(queue, owned, copy)
            self.know(owned, copy)

    def pass_own(self, queue: LanePartition, owned: OwnedQueue, copy: QueuedCopy) -> None:
        """Go on behind a copy of our own that lies where all that is known of a queue ends. It waits there."""
        queue.tracker.put_off(copy.offset)
        if copy.written_ms > owned.own_at_ms:
            owned.own_at_ms = copy.written_ms
        if queue.last_at_ms == 0:  # else progress beyond it, before it is read, would be one of an unread log
            queue.read_up_to(copy.written_ms)

    def pass_over(self, owned: OwnedQueue, offsets: Iterable[int]) -> None:
        """Mark copies as done that mean nothing any more."""
        queue = self._ties.ownership.partitions.get(owned.source)
        for offset in offsets:
            if queue is not None:  # None: it was not opened yet, and its next owner reads the copies again
                queue.pass_over(offset)
                self._ties.commits.soon(queue)

    def lose(self, owned: OwnedQueue, offsets: Iterable[int]) -> None:
        """Count a record of a queue as lost, whose copies lay at these offsets; others go on without it."""
        self._ties.ownership.records_lost[owned.main.topic] += 1
        self.pass_over(owned, offsets)
        self.look_at(owned.main)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        partitions = self._ties.ownership.partitions
        for source, owned in self._by_main.items():
            ensure(source in partitions, f"the queue of {source} is owned with it")
            main = partitions[source]
            owned.check(partitions[owned.source] if owned.opened and not main.closing else None)
            ensure(
                owned.caught_up or main.tracker.open == 0, f"nothing of {source} has begun before its queue is known"
            )
