"""Records of queues on their way out and back: the head that is due is read by its offset, and delivered if it may be.

A record of a queue is in the lane from the read of its payload until its decision is in Kafka, or until it is put back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from reconsume.sidecar.core.holds import NO_HOLDS, Holds
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.from_memory import decision_by_hand, tries_are_bounded
from reconsume.sidecar.core.lane.in_place_queues import line_of_key
from reconsume.sidecar.core.lane.ledger_entry import Identity, identity_of
from reconsume.sidecar.core.lane.owned_queue import LaneTies, OwnedQueue
from reconsume.sidecar.core.lane.owned_queues import OwnedQueues
from reconsume.sidecar.core.lane.partition import LanePartition
from reconsume.sidecar.core.lane.read_aside import MOST_HOPS, MOST_OUT, coming, decision_about, fetch
from reconsume.sidecar.core.record import Now, Record
from reconsume.topics.transitions import Commit, Written

ROOM_SHARE = 4
"""One part in this many of the lane's room is for the records of all queues. One record always fits."""


class QueueHeads:
    """What goes out of the queues of one lane, and comes back to them.

    Invariant: of each queue no more is read, or in memory, than may be: what is asked, and what hops beside it. That
    the lane has nothing but what a ledger has taken, and copies on their way, each queue checks (`OwnedQueue`).
    """

    def __init__(self, queues: OwnedQueues, ties: LaneTies) -> None:
        self._queues, self._ties = queues, ties
        self._holds = NO_HOLDS

    def ask(self, main: LanePartition, queue: LanePartition, owned: OwnedQueue) -> None:
        """Have the payloads of heads read that may go out, as far as there is room for them."""
        room = self._ties.memory.room // (ROOM_SHARE * len(self._queues.by_main))
        is_held, under_way = self._held_lines(queue, main), partial(self._ties.waiting.holds, main.source)
        held = queue.load + coming(owned)  # what was requested has no load yet, and takes its room all the same
        # From there on none could be marked as done. All before it go first, else they would hop instead, for ever.
        reach = queue.tracker.first + self._queues.spans.delivered
        while (out := len(owned.requested) + len(owned.inside)) < MOST_OUT and (held < room or not out):
            if (entry := owned.ledger.ask(under_way, is_held, reach)) is None:
                break
            fetch(self._ties, owned, entry)
            queue.request(entry.offset)
            held += entry.weight
        if (far := owned.ledger.heads.nearest_far()) >= 0:
            owned.out_of_reach = far
        queue.hold_heads(owned.ledger.heads.held)

    def _held_lines(self, queue: LanePartition, main: LanePartition) -> Callable[[bytes], bool]:
        """Return a function that says whether an operator holds all records of a line."""
        level, topic = queue.level, main.source.topic
        if self._holds.covers(level, topic):
            return lambda _line: True
        # Contract 10.4: a hold names a key; the ledger knows the name of its line alone.
        held = map(line_of_key, self._holds.keys(level, topic)) if self._queues.by == "key" else ()
        return frozenset(held).__contains__

    def fetched(self, owned: OwnedQueue, offset: int, record: Record | None, now: Now) -> bool:
        """Take in a record that was read by its offset; None: it is gone, as it is where another one lies there: the
        topic was made anew. Return whether it was asked for."""
        if (identity := owned.requested.pop(offset, None)) is None:
            return False
        self._queues.look_at(owned.main)
        self._ties.ownership.partitions[owned.source].came(offset)
        if not owned.ledger.taken(identity, offset):  # another copy stands for it by now
            owned.hopping.discard(offset)
        elif record is None or not (record.fault or identity_of(record) == identity):
            owned.hopping.discard(offset)
            self._queues.lose(owned, [offset, *owned.ledger.done(identity)])
        else:
            self._take(owned, identity, record, now)
        return True

    def _take(self, owned: OwnedQueue, identity: Identity, record: Record, now: Now) -> None:
        partition = self._ties.ownership.partitions[owned.source]
        ensure(partition.tracker.begin(record.offset), "what is read again was let go")
        owned.inside[record.offset] = identity
        self._ties.memory.add(partition, record.weight)
        if (decision := decision_about(self._ties, owned, record, now)) is not None:
            self._ties.write(partition, record, decision, now)
        else:
            self._ties.waiting.release(record)

    # --- people decide ------------------------------------------------------------------------------------------------

    def stays(self, partition: LanePartition, record: Record, now: Now) -> Commit | Written | None:
        """Note that a record is to stay in memory after its answer. Return what a person has decided about it, which is
        done instead; None if nobody has."""
        if partition.under is None or (owned := self._queues.by_main.get(partition.under)) is None:
            return None
        if owned.old and not tries_are_bounded(self._ties.policy()):  # it may be one of these
            self._queues.look_at(owned.main)
        return decision_by_hand(owned, record, now) if owned.settling else None

    # --- what comes back ---------------------------------------------------------------------------------------------

    def obey(self, holds: Holds) -> None:
        """Ask for no head that these holds keep back, and for what others have kept back."""
        self._holds = holds
        for owned in self._queues.by_main.values():
            owned.ledger.heads.let_held()
        self._queues.look_at_all()

    def put_back(self, record: Record) -> None:
        """Take back a record whose turn had come, as it is held: it stays in the queue."""
        _, owned = self._queues.live(record.source, record.epoch)
        if owned is not None and (identity := owned.inside.pop(record.offset, None)) is not None:
            owned.ledger.let_go(identity)
            self._queues.look_at(owned.main)

    def let_go(self, queue: LanePartition) -> None:
        """Put back what the lane has dropped from memory, because Kafka refuses copies of the queue's records: it is
        read again once the queue goes on."""
        if queue.under is None or (owned := self._queues.by_main.get(queue.under)) is None:
            return
        for offset, identity in list(owned.inside.items()):
            if offset in queue.tracker.dropped:
                del owned.inside[offset]
                owned.ledger.let_go(identity)
        self._queues.look_at(owned.main)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for main, owned in self._queues.by_main.items():
            out = len(owned.requested) + len(owned.inside)
            ensure(out <= MOST_OUT + MOST_HOPS, f"{out} records of the queue of {main} are out")
