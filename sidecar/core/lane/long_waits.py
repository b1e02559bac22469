"""Order that survives long waits: what fails waits in a queue topic, and later records of its key behind it.

Who owns a main partition owns the queue partition of the same number. Before the first record of the main partition is
delivered, the queue is read up to its end of then, so that every key is known that is blocked. From then on the ledger
(`key_ledger.py`) says which record of a key may go out, and this module carries it out: main records of a blocked key
are written behind it, payloads are read when they are due, and copies that mean nothing any more are done.

A record of the queue is otherwise one like any other: it has a partition with progress, a place in flight, a decision.
While it is not in memory it counts as let go (`ProgressTracker.dropped`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from sidecar.core.commit_batch import SettledRecord, WrittenAt
from sidecar.core.decide import dead_letter_unreadable
from sidecar.core.holds import NO_HOLDS, Holds
from sidecar.core.invariant import ensure
from sidecar.core.lane.in_place_queues import OrderBy, line_of, line_of_key
from sidecar.core.lane.ledger_entry import Identity, QueuedCopy
from sidecar.core.lane.located_copies import as_read_back, located_copy
from sidecar.core.lane.owned_queue import LaneTies, OwnedQueue
from sidecar.core.lane.partition import AssignedPartition, Because, FetchedRecords, LanePartition
from sidecar.core.lane.queue_facts import LARGEST_NAMED, QueueFacts, begins_to_fill, named, queue_facts_of
from sidecar.core.lane.queue_hops import HOP_SPAN, Spans, hop
from sidecar.core.lane.read_aside import MOST_OUT, coming, decision_about, fetch, read_aside
from sidecar.core.lane.settled_by_hand import counts_of, meant_for
from sidecar.core.lane.short_main import look_for_former
from sidecar.core.lane.unseen_copies import await_unseen, take_lost
from sidecar.core.progress_bounds import SPAN
from sidecar.core.record import NEVER, Now, Partition, Record
from topics.attempt import retry_state_of
from topics.group_rules import number_of, offset_of
from topics.policy_record import SettlementRecord
from topics.retry_order import Order
from topics.transitions import DONE, Commit, Hop, Requeue, Retry, Written, put_behind

ROOM_SHARE = 4
"""One part in this many of the lane's room is for the records of all queues. One record always fits."""
COPIED = (Retry, Requeue, Hop)
"""The decisions after which a record waits in its queue. A union would be made anew for each record."""
SOON_MS = 30_000
"""ms within which a copy of our own must be due to be kept at hand: later ones would push others out."""
KEEP_MS = 12 * 3_600_000
"""ms after which the progress of a queue is committed again although it is the same: Kafka forgets the offsets of a
topic to which the group is not subscribed, seven days after their last commit by default (KIP-496)."""


class LongWaits:
    """The queues of one lane. `by`: as `LaneOptions.order`.

    Invariants: a record of a queue that the lane has is the one that its ledger has taken, or whose copy is on its way;
    a main partition is read only once what waits in its queue is known.
    """

    def __init__(self, by: OrderBy, ties: LaneTies) -> None:
        self.alarm_ms = NEVER
        """The steady time (ms) at which a head is due, or progress must be committed again."""
        self.span, self.hop_span = SPAN, HOP_SPAN
        """Offsets from the first open record of a queue within which records are delivered, and hop."""
        self._by, self._ties = by, ties
        self._queues: dict[Partition, OwnedQueue] = {}
        self._behind: list[tuple[LanePartition, Record]] = []
        """Main records that are to be written behind their keys, by the end of this call of the lane."""
        self._stale: set[Partition] = set()
        """The main partitions of the queues of which something has changed since they were looked at."""
        self._settlements: dict[str, SettlementRecord] = {}
        """What people have decided about records that wait, by their ids; who tells it bounds their number."""
        self._holds = NO_HOLDS
        self._transaction = (0, 0)
        """The last transaction of this lane that has ended, done: the number of its producer, and its own."""
        self._at_hand: dict[Partition, list[Record]] = {}
        """The main partitions of whose queues the transaction that ends has told where copies lie, with those of the
        copies that are due soon."""
        ties.ownership.on_drop = self.dropped

    # --- partitions come and go --------------------------------------------------------------------------------------

    def assigned(self, grants: Iterable[AssignedPartition]) -> None:
        """Read the queues of main partitions that begin; nothing of these is delivered before."""
        names = self._ties.policy().names
        for grant in grants:
            main = self._ties.ownership.partitions[grant.partition]
            source = Partition(names.ordered(grant.partition.topic), grant.partition.number)
            self._queues[grant.partition] = OwnedQueue(source, grant.partition, grant.epoch)
            self._ties.paused.pause(main, main.tracker.unread, NEVER, Because.QUEUE_UNREAD)
            self._ties.queues.open(source, grant.epoch)

    def dropped(self, partitions: Collection[Partition]) -> None:
        """Forget the queues of main partitions that are gone."""
        for source in partitions:
            if (owned := self._queues.pop(source, None)) is not None:
                self._ties.queues.close(owned.source)
        self._behind = [(partition, record) for partition, record in self._behind if record.source not in partitions]

    def opened(self, grant: AssignedPartition, now: Now) -> None:
        """Begin with a queue, where the group has read it to."""
        main, owned = self._owned(grant.partition, grant.epoch)
        if main is not None and owned is not None and not owned.opened:
            queue = self._ties.ownership.opened(grant, main.source)
            self._ties.commits.soon(queue)  # so that the group has progress there, whatever becomes of this owner
            owned.opened, owned.keep_at_ms = True, now.steady_ms + KEEP_MS
            self._ties.end_turn(now)

    def absent(self, queue: Partition, epoch: int, now: Now) -> None:
        """Note that there is no such queue: nothing waits. It may be opened later, once it was made."""
        main, owned = self._owned(queue, epoch)
        if main is not None and owned is not None and not owned.caught_up:
            owned.caught_up = owned.absent = True
            self._let_go_on(main, now)
            self._ties.end_turn(now)

    def _owned(self, queue: Partition, epoch: int) -> tuple[LanePartition | None, OwnedQueue | None]:
        """Return the main partition and the queue, unless it was given up, or is being given up."""
        for source, owned in self._queues.items():
            if owned.source == queue:
                main = self._ties.ownership.partitions.get(source)
                if main is not None and main.epoch == owned.epoch == epoch and not main.closing:
                    return main, owned
        return None, None

    # --- the queue is read -------------------------------------------------------------------------------------------

    def read(self, run: FetchedRecords, now: Now, *, caught_up: bool) -> None:
        """Take in what a queue holds behind what was read. `caught_up`: it was read up to its end of the take-over."""
        main, owned = self._owned(run.partition, run.epoch)
        if main is None or owned is None or not owned.opened:
            return
        queue = self._ties.ownership.partitions[owned.source]
        if run.last_at_ms is not None:
            queue.read_up_to(run.last_at_ms)
        for record in run.records:
            if record.offset >= queue.tracker.next:  # else the lane has known it since it was committed
                self._read_one(queue, owned, record, now)
        self._take_located(queue, owned)
        if run.end is not None:
            owned.end_seen = True
            if queue.tracker.reached(run.end):
                self._ties.commits.soon(queue)
        if caught_up and (owned.absent or not owned.caught_up):
            owned.caught_up, owned.absent = True, False
            self._ties.ownership.caught_up(queue, now)
            self._let_go_on(main, now)
        self._stale.add(owned.main)
        self._ties.end_turn(now)

    def _read_one(self, queue: LanePartition, owned: OwnedQueue, record: Record, now: Now) -> None:
        state = retry_state_of(record)
        if record.fault or state.order is None:
            if queue.tracker.begin(record.offset):
                self._ties.memory.add(queue, record.weight)
                self._ties.write(queue, record, dead_letter_unreadable(record, self._ties.policy(), now.wall_ms), now)
        elif queue.put_off(record.offset):
            due_ms = NEVER if state.parked else now.steady_ms
            if state.due_at > now.wall_ms:  # else all of them share the number of this call
                due_ms += state.due_at - now.wall_ms
            identity, line, count = identity_of(record), line_of(record, self._by), (state.redrives, state.times)
            at, weight = record.timestamp, record.weight
            if self._settlements and (settlement := meant_for(self._settlements, state)) is not None:
                owned.settling[identity] = settlement
            self._know(owned, QueuedCopy(record.offset, identity, line, state.order, count, due_ms, at, weight))

    def _know(self, owned: OwnedQueue, copy: QueuedCopy) -> None:
        """Take in a copy that was let go: its payload is read when it is due."""
        if obsolete := owned.ledger.read(copy):
            self._pass_over(owned, obsolete)
        if owned.unseen:
            owned.unseen.discard(copy.identity)

    def _take_located(self, queue: LanePartition, owned: OwnedQueue) -> None:
        while (copy := owned.located.take(queue.tracker.next)) is not None:
            queue.put_off(copy.offset)
            if queue.last_at_ms == 0:  # else progress beyond it, before it is read, would be one of an unread log
                queue.read_up_to(copy.written_ms)
            self._know(owned, copy)

    def cut(self, queue: Partition, epoch: int, now: Now) -> None:
        """Note that the beginning of a queue is gone: what waits there is lost, also what was not read back yet."""
        main, owned = self._owned(queue, epoch)
        if main is not None and owned is not None:
            await_unseen(owned, now.steady_ms)
            self._stale.add(owned.main)
            self._ties.end_turn(now)

    def _pass_over(self, owned: OwnedQueue, offsets: Iterable[int]) -> None:
        """Mark copies as done that mean nothing any more."""
        queue = self._ties.ownership.partitions.get(owned.source)
        for offset in offsets:
            if queue is not None:
                queue.pass_over(offset)
                self._ties.commits.soon(queue)

    def _line(self, record: Record) -> bytes:
        return line_of(record, self._by)

    # --- a person decides --------------------------------------------------------------------------------------------

    def settle(self, ident: str, settlement: SettlementRecord | None, now: Now) -> None:
        """Take in what a person has decided about the record `ident`; None: it was withdrawn, or is done.

        The settlement must have no fault (`fault_of_settlement`). It is carried out by the owner of the record, as soon
        as no record of its key is out.
        """
        before = self._settlements.pop(ident, None)
        if settlement is not None:
            self._settlements[ident] = settlement
        is_known = before is not None and settlement is not None and before.nonce == settlement.nonce
        owned = self._queues.get(Partition(ident.rsplit(":", 2)[0], number_of(ident)))
        if settlement is None or owned is None or is_known:
            return
        for entry in owned.ledger.entries():
            if entry.identity[0] == offset_of(ident) and entry.counts == counts_of(settlement):
                owned.settling[entry.identity] = settlement
        self._stale.add(owned.main)
        self._ties.end_turn(now)

    # --- main records ------------------------------------------------------------------------------------------------

    def admits(self, main: LanePartition, run: FetchedRecords) -> bool:
        """Return whether records of a main partition begin; if as much waits in its queue as may, pause it instead."""
        owned = self._queues.get(main.source)
        if owned is None or not run.records:
            return True
        if owned.ledger.heads.waits_for_main():
            self._stale.add(main.source)
        if not self._full(owned, self.span):
            return True
        self._ties.paused.pause(main, run.records[0].offset, NEVER, Because.BEHIND_KEYS)
        return False

    def _full(self, owned: OwnedQueue, span: int) -> bool:
        queue, ledger = self._ties.ownership.partitions.get(owned.source), owned.ledger
        if queue is None or ledger.heads.waits_for_main():  # what waits for main records could never go
            return False
        most = self._ties.policy().max_waiting
        return len(ledger) >= max(1, most * span // self.span) or queue.tracker.span(queue.tracker.next) >= span

    def main_ended(self, main: LanePartition, end: int) -> None:
        """Note that a main partition was read up to its end."""
        owned = self._queues.get(main.source)
        if owned is not None:
            owned.main_end = end
            if owned.ledger.heads.waits_for_main():
                self._stale.add(main.source)

    def keeps(self, main: LanePartition, record: Record) -> bool:
        """Return whether a main record that begins is not to be delivered: its copy waits, or its key is blocked."""
        owned = self._queues.get(record.source)
        if owned is None or not len(owned.ledger):
            return False
        line = self._line(record)
        if not owned.ledger.lines.has(line):
            return False
        if owned.ledger.knows(identity_of(record)):  # the progress beside its copy was lost
            self._ties.finish(main, record)
            return True
        if not owned.ledger.lines.blocks(line, record.offset) or self._ties.waiting.holds(record.source, line):
            return False
        self._put_behind(main, owned, record)
        return True

    def _put_behind(self, main: LanePartition, owned: OwnedQueue, record: Record) -> None:
        self._pass_over(
            owned, owned.ledger.writing(identity_of(record), self._line(record), Order(record.offset), (0, 0))
        )
        self._behind.append((main, record))

    def finished(self, record: Record) -> None:
        """Let the next record of a key go: out, or behind what waits of the key."""
        waiting, owned = self._ties.waiting, self._queues.get(record.source)
        following = waiting.next_of(record)
        if owned is None or not len(owned.ledger):
            if following is not None:
                waiting.let_next(following)
            return
        if following is None and not owned.ledger.heads.waits_for_keys:
            return
        line, main = self._line(record), self._ties.ownership.partitions[record.source]
        if following is not None and owned.ledger.lines.blocks(line, following.offset):
            for later in waiting.take_line(following):
                self._put_behind(main, owned, later)
        elif following is not None:
            waiting.let_next(following)
            return
        if not waiting.holds(record.source, line) and owned.ledger.heads.main_ended(line):
            self._stale.add(record.source)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def settles(self, partition: LanePartition, record: Record, decision: Commit | Written) -> bool:
        """Note a decision about a record: if it is to wait, its key is blocked from now on.

        Return whether the record has ended with it: one that came behind another and succeeds has nothing to write.
        """
        if (owned := self._of(record)) is None:
            return False
        if isinstance(decision, COPIED):
            state = decision.retry_state
            assert state.order is not None, "a copy in a queue has its order"
            counts = (state.redrives, state.times)
            self._pass_over(owned, owned.ledger.writing(identity_of(record), self._line(record), state.order, counts))
        elif decision == DONE and partition.under is not None:
            self._ended(owned, record, owned.ledger.done(identity_of(record)))
            self._ties.finish(partition, record)
            return True
        return False

    def written(self, entry: SettledRecord, where: WrittenAt | None, now: Now) -> None:
        """Note that a decision is in Kafka. `where`: its copy lies there in the queue; None: that is to be read."""
        record, owned = entry.record, self._of(entry.record)
        if owned is None:
            return
        if record.fault:  # the ledger has never heard of it, and its offset is another's identity
            self._ended(owned, record, ())
            return
        identity, decision = identity_of(record), entry.decision
        if not isinstance(decision, COPIED):
            self._ended(owned, record, owned.ledger.done(identity))
            return
        self._ended(owned, record, owned.ledger.written(identity))
        if where is not None and owned.opened:
            copy = located_copy(entry, decision.retry_state, identity, self._line(record), where, now)
            owned.located.add(self._transaction, copy)
            soon = self._at_hand.setdefault(owned.main, [])
            if decision.retry_state.due_at <= now.wall_ms + SOON_MS:
                soon.append(as_read_back(entry, decision.retry_state, owned.source, where))
            if self._settlements and (settlement := meant_for(self._settlements, decision.retry_state)) is not None:
                owned.settling[identity] = settlement

    def transaction_ended(self, producer: int) -> None:
        """Note that a transaction is done whose copies are told of next. `producer`: as in `CommitResult`."""
        self._transaction = producer, self._transaction[1] + 1

    def take_located(self) -> None:
        """Take in the copies of the transaction that has ended: they need not be read back, as far as nothing of others
        lies before them."""
        at_hand, self._at_hand = self._at_hand, {}
        partitions = self._ties.ownership.partitions
        for main, records in at_hand.items():
            if not partitions[main].closing:  # then nothing of its queue is read either
                owned = self._queues[main]
                queue = partitions[owned.source]
                self._take_located(queue, owned)
                self._ties.queues.known(owned.source, owned.epoch, queue.tracker.next, records)

    def _ended(self, owned: OwnedQueue, record: Record, obsolete: Sequence[int]) -> None:
        if record.source == owned.source:
            owned.inside.pop(record.offset, None)
            owned.hopping.discard(record.offset)
        if obsolete:
            self._pass_over(owned, obsolete)
        self._stale.add(owned.main)

    def _of(self, record: Record) -> OwnedQueue | None:
        """Return the queue that a record belongs to, be it of the main partition or of the queue itself."""
        if (owned := self._queues.get(record.source)) is not None:
            return owned
        partition = self._ties.ownership.partitions.get(record.source)
        return None if partition is None or partition.under is None else self._queues.get(partition.under)

    # --- heads go out ------------------------------------------------------------------------------------------------

    def turn(self, now: Now) -> None:
        """Do what the events of this call of the lane have led to, and what is due: after most answers nothing."""
        if not self._stale and not self._behind and now.steady_ms < self.alarm_ms:
            return
        if self._behind:
            behind, self._behind = self._behind, []
            for main, record in behind:
                self._ties.write(main, record, put_behind(record, self._ties.policy()), now)
        stale, self._stale = self._stale, set()
        if now.steady_ms >= self.alarm_ms:
            stale |= {source for source, owned in self._queues.items() if owned.alarm_ms <= now.steady_ms}
        for source in stale & self._queues.keys():
            owned, owner = self._queues[source], self._ties.ownership.partitions.get(source)
            owned.alarm_ms = NEVER
            if owner is not None and owned.opened and owned.caught_up and not owner.closing:
                self._look(owner, owned, now)
                self.alarm_ms = min(self.alarm_ms, owned.alarm_ms)
        if now.steady_ms >= self.alarm_ms:
            self.alarm_ms = min((owned.alarm_ms for owned in self._queues.values()), default=NEVER)

    def _look(self, main: LanePartition, owned: OwnedQueue, now: Now) -> None:
        queue, ledger = self._ties.ownership.partitions[owned.source], owned.ledger
        owned.out_of_reach = -1
        unread, holds = main.tracker.unread, partial(self._ties.waiting.holds, main.source)
        ledger.heads.advance(now.steady_ms, unread, holds)
        look_for_former(owned, unread, now.steady_ms, holds)
        for identity in take_lost(owned, now.steady_ms) if owned.unseen else ():
            self._ties.ownership.records_lost[main.source.topic] += 1
            self._pass_over(owned, ledger.done(identity))
            self._stale.add(main.source)
        if queue.blocked:
            self._stale.add(main.source)  # it is looked at as soon as it goes on
        else:
            read_aside(self._ties, queue, owned, self.span, now)
            self._ask(main, queue, owned)
            hop(self._ties, queue, owned, Spans(self.span, self.hop_span), now)
        if (
            main.paused is not None
            and main.paused.because is Because.BEHIND_KEYS
            and not self._full(owned, self.span * 3 // 4)
        ):
            self._let_go_on(main, now)
        if begins_to_fill(owned, most := self._ties.policy().max_waiting):
            self._ties.filling(main.source, len(ledger), most, named(owned, ledger.lines.largest(LARGEST_NAMED)))
        if now.steady_ms >= owned.keep_at_ms:
            owned.keep_at_ms = now.steady_ms + KEEP_MS
            self._ties.commits.soon(queue)
        due_ms = ledger.heads.next_at()  # a head out of reach is due already: what hops has it looked at again
        owned.alarm_ms = min(
            owned.alarm_ms, NEVER if due_ms <= now.steady_ms else due_ms, owned.keep_at_ms, owned.old_at_ms
        )

    def _ask(self, main: LanePartition, queue: LanePartition, owned: OwnedQueue) -> None:
        room = self._ties.memory.room // (ROOM_SHARE * len(self._queues))
        is_held = self._held_lines(queue, main)
        held = queue.load + coming(owned)
        while (out := len(owned.requested) + len(owned.inside)) < MOST_OUT and (held < room or not out):
            entry = owned.ledger.ask(lambda line: self._ties.waiting.holds(main.source, line), is_held)
            if entry is None:
                break
            # It could not be marked as done: the first ones hop before.
            if queue.tracker.span(entry.offset) >= self.span:
                owned.out_of_reach = entry.offset
                owned.ledger.let_go(entry.identity)
                break
            fetch(self._ties, owned, entry)
            queue.request(entry.offset)
            held += entry.weight
        queue.hold_heads(owned.ledger.heads.held)

    def _held_lines(self, queue: LanePartition, main: LanePartition) -> Callable[[bytes], bool]:
        """Return a function that says whether an operator holds all records of a line."""
        level, topic = queue.level, main.source.topic
        if self._holds.covers(level, topic):
            return lambda _line: True
        return frozenset(map(line_of_key, self._holds.keys(level, topic)) if self._by == "key" else ()).__contains__

    def fetched(self, queue: Partition, epoch: int, offset: int, record: Record | None, now: Now) -> None:
        """Take in a record that was read by its offset; None: it is gone, as it is where another one lies there: the
        topic was made anew."""
        _, owned = self._owned(queue, epoch)
        if owned is None or (identity := owned.requested.pop(offset, None)) is None:
            return
        self._stale.add(owned.main)
        self._ties.ownership.partitions[owned.source].came(offset)
        if record is None or not (record.fault or identity_of(record) == identity):
            self._ties.ownership.records_lost[owned.main.topic] += 1
            owned.hopping.discard(offset)
            self._pass_over(owned, [offset, *owned.ledger.done(identity)])
        elif owned.ledger.taken(identity, offset):
            self._take(owned, identity, record, now)
        self._ties.end_turn(now)

    def _take(self, owned: OwnedQueue, identity: Identity, record: Record, now: Now) -> None:
        partition = self._ties.ownership.partitions[owned.source]
        ensure(partition.tracker.begin(record.offset), "what is read again was let go")
        owned.inside[record.offset] = identity
        self._ties.memory.add(partition, record.weight)
        if (decision := decision_about(self._ties, owned, identity, record, now)) is not None:
            self._ties.write(partition, record, decision, now)
        else:
            self._ties.waiting.release(record)

    def _let_go_on(self, main: LanePartition, now: Now) -> None:
        """Fetch a main partition again that waited for its queue."""
        if main.paused is None or main.paused.because not in (Because.QUEUE_UNREAD, Because.BEHIND_KEYS):
            return
        self._ties.paused.go_on(main, now.steady_ms)

    def obey(self, holds: Holds) -> None:
        """Ask for no head that these holds keep back, and for what others have kept back."""
        self._holds = holds
        for owned in self._queues.values():
            owned.ledger.heads.let_held()
        self.look_again()

    def put_back(self, record: Record) -> None:
        """Take back a record whose turn had come, as it is held: it stays in the queue."""
        _, owned = self._owned(record.source, record.epoch)
        if owned is not None and (identity := owned.inside.pop(record.offset, None)) is not None:
            owned.ledger.let_go(identity)
            self._stale.add(owned.main)

    def let_go(self, queue: LanePartition) -> None:
        """Put back what the lane has dropped from memory, because Kafka refuses copies of the queue's records: it is
        read again once the queue goes on."""
        if queue.under is None or (owned := self._queues.get(queue.under)) is None:
            return
        for offset, identity in list(owned.inside.items()):
            if offset in queue.tracker.dropped:
                del owned.inside[offset]
                owned.ledger.let_go(identity)
        self._stale.add(owned.main)

    def look_again(self) -> None:
        """Look at all queues with the next call of the lane: the policy is another one."""
        self._stale.update(self._queues)

    # --- questions ---------------------------------------------------------------------------------------------------

    def facts(self) -> dict[Partition, QueueFacts]:
        """Return what waits in each queue, by its main partition."""
        most = self._ties.policy().max_waiting
        return {source: queue_facts_of(owned, most) for source, owned in self._queues.items()}

    def oldest(self) -> dict[Partition, int]:
        """Return the timestamp (epoch ms) of the oldest first record of a key, by main partition. Slow: all keys are
        looked at."""
        oldest = {source: owned.ledger.lines.oldest_at() for source, owned in self._queues.items()}
        return {source: at for source, at in oldest.items() if at is not None}

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        partitions = self._ties.ownership.partitions
        ensure(not self._at_hand, "what a transaction has told is taken in by the end of a call")
        ensure(not self._behind, "what is to be written behind its key is written by the end of a call")
        for source, owned in self._queues.items():
            ensure(source in partitions, f"the queue of {source} is owned with it")
            main = partitions[source]
            owned.check(partitions[owned.source] if owned.opened and not main.closing else None)
            ensure(
                owned.caught_up or main.tracker.open == 0, f"nothing of {source} has begun before its queue is known"
            )


def identity_of(record: Record) -> Identity:
    """Return which record of the main partition this is, or is a copy of."""
    if (state := record.retry_state) is None:
        return record.offset, record.timestamp if record.timestamp > 0 else 0
    # Of a copy that was read the timestamp is no negative one, and its order is its offset unless it was redriven.
    return state.order.offset if state.order and not state.order.sequence else offset_of(state.id), state.timestamp
