"""Order that survives long waits: a failing record waits in a queue topic, and later records of its key behind it.

This file is where one enters. `LongWaits` has the queues of one lane, and passes each call on to the queue that it is
about. Who owns a main partition owns the queue partition of the same number.

**The path of one record.** `orders` has records of the key k1 at the offsets 7 and 9, and of k2 at 8.
`retry.ordered_ladder` begins with 10 s.

1. *It fails.* 7 is delivered, and the response is 500. The decision is to retry it in 10 s. The queue hears of that at
   once (`settles`): the ledger has 7 as *writing*, so k1 is blocked. 8 is delivered.
2. *Later records of its key go behind it.* 9 begins (`keeps`). It is not delivered, as its key is blocked: the ledger
   has it behind 7, and its own copy is written at the end of the call (`turn`).
3. *Its copy is in Kafka.* One transaction has the copy of 7 and the progress of `orders` beyond 7, so main goes on. Its
   result says that the copy is at offset 40 of the queue (`copy_written`): the ledger has 7 as *queued*, at 40, due in
   10 s. The map of the queue's partition has 40 as AWAY. Memory has nothing of the payload. The copy of 9 is at 41.
4. *It is due.* The agenda wakes the lane, and `turn` looks at the queue. 7 is the head of k1, main is read up to 7, no
   main record of k1 is in memory, no operator holds k1, and 40 is within reach of progress. So the ledger has 7 as
   *requested*, and the reader gets its offset.
5. *Its turn.* The reader brings it (`fetched`): 7 is *taken*. The map has 40 as READY, and from there 7 passes gates,
   rates and pace as any record does. It is delivered with the count 1.
6. *The response.* After a success, one transaction has the event and the done mark of 40. The ledger forgets 7, and 9
   is the head: it goes through 4 and 5 at once, and what is behind it is read ahead (`copy_reads.py`). After a failure,
   7 goes through 1 and 3 again, with the next wait: the new copy is at 42, and 40 is done with it. 9 waits on. After
   the last failure 7 is a dead letter, and 9 is the head; or 7 is parked (contract 5.6), and waits for an operator.
7. *The next one.* Once 9 has ended, nothing of k1 waits. A record of k1 at 12 is delivered from main as ever.

A copy that a former owner, or a redrive, has written comes by `read` instead of 1 to 3. What is read and not delivered
is read *aside* (`copy_reads.py`): records that an operator settles, copies that are old, and hops.

Before the first record of a main partition is delivered, its queue is read up to its end of then, so that every key is
known that is blocked (`owned_queue.py`). A kill between any two steps loses nothing: what is in Kafka is read by the
next owner, and what is not is delivered again, uncounted.

Each call notes which queues have changed (`look_soon`), and `turn` looks at those once, at the end of the call. Event
loop alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from reconsume.sidecar.core.commit_batch import SettledRecord, WrittenAt
from reconsume.sidecar.core.copy_reads import Spans
from reconsume.sidecar.core.decisions import Ruled
from reconsume.sidecar.core.holds import NO_HOLDS, Holds
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.own_copies import Transaction, as_read_back
from reconsume.sidecar.core.owned_queue import OwnedQueue, QueueFacts, QueueTies, Reach
from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords, PartitionState
from reconsume.sidecar.core.progress import SPAN
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics import transitions
from reconsume.topics.transitions import Commit, Written

SOON_MS = 30_000
"""ms within which a copy of our own must be due to be kept at hand: later ones would push others out."""
AT_HAND_SHARE = 8
"""One part in this many of the room, beside it, keeps the records of queues that were read or written last. They are
wanted again soon where nothing fails for long, and what is not kept is read again."""
ROOM_SHARE = 4
"""One part in this many of the lane's room is for the records of all queues. One record always fits."""


class LongWaits:
    """The queues of one lane.

    Invariants: a queue is owned with its main partition; between two calls of the lane nothing is to be written behind
    its key, and nothing is at hand.
    """

    def __init__(self, ties: QueueTies) -> None:
        self._ties, self._holds = ties, NO_HOLDS
        self._spans = Spans(SPAN, SPAN // 2)
        """Of queues that begin; tests have short ones."""
        self.by_main: dict[Partition, OwnedQueue] = {}
        self._changed: set[OwnedQueue] = set()
        """The queues of which something has changed since they were looked at."""
        self._coming: list[tuple[PartitionState, Record]] = []
        """Main records that are to be written behind their keys by the end of this call; the keys are blocked already.
        Not written at once: the lane is amid a run of records, or of responses, and would be entered again."""
        self._transaction: Transaction = (0, 0)
        """The last transaction of this lane that has ended, done: the number of its producer, and its own."""
        self._at_hand: dict[OwnedQueue, list[Record]] = {}
        """The queues of which the transaction that ends has told where copies are, with those that are due soon."""
        self._at_hand_bytes = 0

    # --- which queues there are -------------------------------------------------------------------------------------

    def assigned(self, grants: Iterable[AssignedPartition]) -> None:
        """Read the queues of main partitions that begin; nothing of these is delivered before."""
        machines = self._ties.machines
        for grant in grants:
            main = machines.partitions[grant.partition]
            self.by_main[main.source] = owned = OwnedQueue(self._ties, main, self._spans, self._changed)
            machines.fetching.pause(main, main.offsets.unread, NEVER, NotFetched.QUEUE_UNREAD)
            if main.offsets.notes is None or not main.offsets.notes.is_unread:
                self._ties.reads.open(owned.source, grant.epoch)

    def notes_read(self, main: Partition) -> None:
        """Read the queue of a main partition whose notes were awaited: they say which of its copies are superseded."""
        if (owned := self.by_main.get(main)) is not None:
            self._ties.reads.open(owned.source, owned.main.epoch)

    def dropped(self, partitions: Collection[Partition]) -> None:
        """Forget the queues of main partitions that are gone, and main records that their next owner reads again."""
        for source in partitions:
            if (owned := self.by_main.pop(source, None)) is not None:
                self._changed.discard(owned)
                self._ties.machines.agenda.set_time(owned, NEVER)
                self._ties.reads.close(owned.source)
        self._coming = [(main, record) for main, record in self._coming if record.source not in partitions]

    def _live(self, queue: Partition, epoch: int) -> OwnedQueue | None:
        """Return a queue, unless its main partition is gone, or is being released."""
        return next((one for one in self.by_main.values() if one.source == queue and one.is_live(epoch)), None)

    def _queue_of(self, record: Record) -> OwnedQueue | None:
        """Return the queue that a record belongs to, be it of the main partition or of the queue itself."""
        if (owned := self.by_main.get(record.source)) is not None:
            return owned
        partition = self._ties.machines.partitions.get(record.source)
        return None if partition is None else self.under(partition)

    def under(self, queue: PartitionState) -> OwnedQueue | None:
        """Return a queue by its partition; None of a partition that is none of a queue."""
        return None if queue.kind.under is None else self.by_main.get(queue.kind.under)

    # --- what the reader of the queues brings -----------------------------------------------------------------------

    def opened(self, grant: AssignedPartition, now: Now) -> None:
        """Begin with a queue, where the group has read it to."""
        owned = self._live(grant.partition, grant.epoch)
        if owned is not None and owned.state is Reach.UNKNOWN:
            owned.open_at(self._ties.ownership.begin_queue(grant, owned.main.source))
            self._ties.end_turn(now)

    def absent(self, queue: Partition, epoch: int, now: Now) -> None:
        """Note that there is no such queue: nothing waits."""
        owned = self._live(queue, epoch)
        if owned is not None and owned.state is Reach.UNKNOWN:
            owned.go_without(now)
            self._ties.end_turn(now)

    def read(self, run: FetchedRecords, now: Now, *, caught_up: bool) -> None:
        """Take in what a queue holds behind what was read. `caught_up`: it was read up to its end of the start."""
        owned = self._live(run.partition, run.epoch)
        if owned is not None and owned.queue is not None:
            owned.take_in(run, now, caught_up=caught_up)
            self._ties.end_turn(now)

    def cut(self, queue: Partition, epoch: int, end: int, now: Now) -> None:
        """Note that the beginning of a queue is gone, whose log ends at `end`."""
        if (owned := self._live(queue, epoch)) is not None:
            owned.note_cut(end, now)
            self._ties.end_turn(now)

    def fetched(self, queue: Partition, epoch: int, offset: int, record: Record | None, now: Now) -> None:
        """Take in a record that was read by its offset; None: it is gone, as it is where another one is there."""
        if (owned := self._live(queue, epoch)) is not None:
            owned.fetched(offset, record, now)
            self._ties.end_turn(now)

    # --- what becomes of main records, and of decisions ---------------------------------------------------------------

    def admits(self, main: PartitionState, run: FetchedRecords) -> bool:
        """Return whether records of a main partition begin; if as much waits in its queue as may, pause it instead."""
        owned = self.by_main.get(main.source)
        return owned is None or not run.records or owned.admits(run)

    def main_ended(self, main: PartitionState, end: int) -> None:
        """Note that a main partition was read up to its end."""
        if (owned := self.by_main.get(main.source)) is not None:
            owned.main_ended(end)

    def keeper(self, main: PartitionState) -> Callable[[PartitionState, Record], bool] | None:
        """Return `keeps`; None, as nearly always, if no key of a main partition is blocked: what begins blocks none."""
        owned = self.by_main.get(main.source)
        return None if owned is None or not owned.ledger.lines.by_key else self.keeps

    def keeps(self, main: PartitionState, record: Record) -> bool:
        """Return whether a main record that begins is not to be delivered: its copy waits, or its key is blocked."""
        return self.by_main[main.source].keeps(record, self._coming)

    def finished(self, record: Record) -> None:
        """Let the next record of a key go: out, or behind what waits of the key."""
        waiting, owned = self._ties.machines.waiting, self.by_main.get(record.source)
        following = waiting.next_of_key(record)
        if owned is not None and owned.ledger.lines.by_key:
            owned.finished(record, following, self._coming)
        elif following is not None:  # as nearly always no key is blocked
            waiting.let_next(following)

    def settles(self, partition: PartitionState, record: Record, decision: Commit | Written) -> bool:
        """Note a decision about a record, as `OwnedQueue.settles`."""
        owned = self._queue_of(record)
        return owned is not None and owned.settles(partition, record, decision)

    def transaction_ended(self, producer: int) -> None:
        """Note that a transaction is done whose copies are told of next. `producer`: as in `CommitResult`."""
        self._transaction = producer, self._transaction[1] + 1

    def copy_written(self, entry: SettledRecord, where: WrittenAt | None, now: Now) -> None:
        """Note that a decision is in Kafka. `where`: its copy is there in the queue; None: that is to be read."""
        if (owned := self._queue_of(entry.record)) is None:
            return
        state = owned.copy_written(entry, where, self._transaction, now)
        if state is None or where is None:
            return
        at_hand, most_bytes = self._at_hand.setdefault(owned, []), self._ties.machines.room.room // AT_HAND_SHARE
        if state.due_at <= now.wall_ms + SOON_MS and self._at_hand_bytes < most_bytes:
            at_hand.append(kept := as_read_back(entry, state, owned.source, where))
            self._at_hand_bytes += kept.weight

    def pass_located(self) -> None:
        """Have no copy of the transaction that has ended read back, as far as nothing of others is before them."""
        at_hand, self._at_hand, self._at_hand_bytes = self._at_hand, {}, 0
        for owned, records in at_hand.items():
            self._ties.reads.known(owned.source, owned.main.epoch, owned.opened.offsets.next, records)

    # --- what operators want ----------------------------------------------------------------------------------------

    def obey(self, holds: Holds) -> None:
        """Ask for no head that these holds keep back, and for what others have kept back."""
        self._holds = holds
        for owned in self.by_main.values():
            owned.ledger.heads.let_held()
        self.look_again()

    def decided_meanwhile(self, partition: PartitionState, record: Record, now: Now) -> Ruled | None:
        """Return what an operator has decided about a record that is to stay in memory after its response; None if
        nobody has."""
        owned = self.under(partition)
        return None if owned is None else owned.copy_reads.decided_meanwhile(record, now)

    # --- the end of a call ------------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Look at all queues with the next call of the lane: the policy, or what is held, is another one."""
        self._changed.update(self.by_main.values())

    def within(self, spans: Spans) -> None:
        """Deliver and hop within other spans: for tests, whose queues are short."""
        self._spans = spans
        for owned in self.by_main.values():
            owned.copy_reads.spans = spans

    def turn(self, now: Now) -> None:
        """Do what the events of this call of the lane have led to, and what is due: after most responses nothing."""
        if not self._changed and not self._coming:
            return
        coming, self._coming = self._coming, []
        for main, record in coming:
            decision = transitions.put_behind(record, self._ties.decisions.policy)
            self._ties.decisions.write(main, record, decision, now)
        changed = sorted(self._changed, key=lambda owned: owned.source)
        self._changed.clear()
        for owned in changed:
            if owned.state is Reach.CAUGHT_UP and not owned.main.closing:
                owned.let_out(self._holds, self._ties.machines.room.room // (ROOM_SHARE * len(self.by_main)), now)
        # What is blocked is looked at once it goes on.
        if any(owned.queue is not None and not owned.queue.blocked for owned in self._changed):
            self._ties.machines.agenda.wake_by(0)

    # --- questions --------------------------------------------------------------------------------------------------

    def facts(self) -> dict[Partition, QueueFacts]:
        """Return what waits in each queue, by its main partition."""
        return {main: owned.facts() for main, owned in self.by_main.items()}

    def oldest(self) -> dict[Partition, int]:
        """Return the timestamp (epoch ms) of the oldest first record of a key, by main partition. Slow: all keys are
        looked at."""
        oldest = {main: owned.ledger.lines.oldest_at() for main, owned in self.by_main.items()}
        return {main: at for main, at in oldest.items() if at is not None}

    def being_read(self, queue: PartitionState) -> Iterable[int]:
        """Return the offsets of the records of a queue that are being read, and whose turn it is."""
        owned = self.under(queue)
        return () if owned is None else owned.copy_reads.requested.keys() - owned.copy_reads.hopping

    def held_heads(self, queue: PartitionState) -> int:
        """Return how many first records of a queue could go out, and are held by an operator."""
        owned = self.under(queue)
        return 0 if owned is None else owned.ledger.heads.held

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(not self._coming, "what is to be written behind its key is written by the end of a call")
        ensure(not self._at_hand, "what a transaction has told is taken in by the end of a call")
        for source, owned in self.by_main.items():
            is_owned = self._ties.machines.partitions.get(source) is owned.main
            ensure(is_owned, f"the queue of {source} is owned with it")
            owned.check()
