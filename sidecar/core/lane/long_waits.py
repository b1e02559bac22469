"""Order that survives long waits: what fails waits in a queue topic, and later records of its key behind it.

Who owns a main partition owns the queue partition of the same number. Before the first record of the main partition is
delivered, the queue is read up to its end of then, so that every key is known that is blocked. From then on the ledger
(`key_ledger.py`) says which record of a key may go out, and the parts of this one carry it out: main records of a
blocked key are written behind it (`behind_keys.py`), payloads are read when they are due (`queue_heads.py`), and copies
are written, and are done once they mean nothing any more (`queue_copies.py`).

A record of the queue is otherwise one like any other: it has a partition with progress, a place in flight, a decision.
While it is not in memory it counts as let go (`ProgressTracker.dropped`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from msgspec.structs import replace

from reconsume.sidecar.core.decide import dead_letter_unreadable
from reconsume.sidecar.core.lane.behind_keys import BehindKeys
from reconsume.sidecar.core.lane.from_memory import settle_from_memory
from reconsume.sidecar.core.lane.in_place_queues import OrderBy
from reconsume.sidecar.core.lane.ledger_entry import Phase, QueuedCopy, identity_of
from reconsume.sidecar.core.lane.owned_queue import LaneTies, OwnedQueue
from reconsume.sidecar.core.lane.owned_queues import OwnedQueues
from reconsume.sidecar.core.lane.partition import AssignedPartition, Because, FetchedRecords, LanePartition
from reconsume.sidecar.core.lane.queue_copies import QueueCopies
from reconsume.sidecar.core.lane.queue_facts import LARGEST_NAMED, QueueFacts, begins_to_fill, named, queue_facts_of
from reconsume.sidecar.core.lane.queue_heads import QueueHeads
from reconsume.sidecar.core.lane.queue_hops import Spans, hop
from reconsume.sidecar.core.lane.read_aside import read_aside
from reconsume.sidecar.core.lane.settled_by_hand import OpenSettlements
from reconsume.sidecar.core.lane.short_main import look_for_former
from reconsume.sidecar.core.lane.unseen_copies import await_unseen, take_lost
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.attempt import attempt_of, retry_state_of
from reconsume.topics.group_rules import number_of, offset_of
from reconsume.topics.policy_record import SettlementRecord

KEEP_MS = 12 * 3_600_000
"""ms after which the progress of a queue is committed again although it is the same: Kafka forgets the offsets of a
topic to which the group is not subscribed, seven days after their last commit by default (KIP-496)."""


class LongWaits:
    """The queues of one lane. `by`: as `LaneOptions.order`.

    `mains` keeps main records behind their keys, `copies` writes into the queues, `heads` lets records out of them;
    this one takes queues over, reads them, and looks at each of which something has changed.

    Invariant: a main partition is read only once what waits in its queue is known.
    """

    def __init__(self, by: OrderBy, ties: LaneTies) -> None:
        self.alarm_ms = NEVER
        """The steady time (ms) at which a head is due, or progress must be committed again."""
        self._ties, self._settlements = ties, OpenSettlements()
        self._queues = OwnedQueues(by, ties)
        self.mains = BehindKeys(self._queues, ties)
        self.copies = QueueCopies(self._queues, self._settlements, ties)
        self.heads = QueueHeads(self._queues, ties)
        ties.ownership.on_drop = self.dropped

    # --- partitions come and go --------------------------------------------------------------------------------------

    def assigned(self, grants: Iterable[AssignedPartition]) -> None:
        """Read the queues of main partitions that begin; nothing of these is delivered before."""
        names = self._ties.policy().names
        for grant in grants:
            main = self._ties.ownership.partitions[grant.partition]
            source = Partition(names.ordered(grant.partition.topic), grant.partition.number)
            self._queues.add(OwnedQueue(source, grant.partition, grant.epoch))
            self._ties.paused.pause(main, main.tracker.unread, NEVER, Because.QUEUE_UNREAD)
            self._ties.queues.open(source, grant.epoch)

    def dropped(self, partitions: Collection[Partition]) -> None:
        """Forget the queues of main partitions that are gone."""
        for owned in self._queues.drop(partitions):
            self._ties.queues.close(owned.source)
        self.mains.dropped(partitions)

    def opened(self, grant: AssignedPartition, now: Now) -> None:
        """Begin with a queue, where the group has read it to."""
        main, owned = self._queues.live(grant.partition, grant.epoch)
        if main is not None and owned is not None and not owned.opened:
            queue = self._ties.ownership.opened(grant, main.source)
            self._ties.commits.soon(queue)  # so that the group has progress there, whatever becomes of this owner
            owned.opened, owned.keep_at_ms = True, now.steady_ms + KEEP_MS
            self._ties.end_turn(now)

    def absent(self, queue: Partition, epoch: int, now: Now) -> None:
        """Note that there is no such queue: nothing waits. It may be opened later, once it was made."""
        main, owned = self._queues.live(queue, epoch)
        if main is not None and owned is not None and not owned.caught_up:
            owned.caught_up = owned.absent = True
            self._let_go_on(main, now)
            self._ties.end_turn(now)

    # --- the queue is read -------------------------------------------------------------------------------------------

    def read(self, run: FetchedRecords, now: Now, *, caught_up: bool) -> None:
        """Take in what a queue holds behind what was read. `caught_up`: it was read up to its end of the take-over."""
        main, owned = self._queues.live(run.partition, run.epoch)
        if main is None or owned is None or not owned.opened:
            return
        queue = self._ties.ownership.partitions[owned.source]
        if run.last_at_ms is not None:
            queue.read_up_to(run.last_at_ms)
        for record in run.records:
            if record.offset >= queue.tracker.next:  # else the lane has known it since it was committed
                self._read_one(queue, owned, record, now)
        self._queues.take_located(queue, owned)
        if run.end is not None:
            owned.end_seen = True
            if queue.tracker.reached(run.end):
                self._ties.commits.soon(queue)
        if caught_up and (owned.absent or not owned.caught_up):
            owned.caught_up, owned.absent = True, False
            self._ties.ownership.caught_up(queue, now)
            self._let_go_on(main, now)
        self._queues.look_at(owned.main)
        self._ties.end_turn(now)

    def _read_one(self, queue: LanePartition, owned: OwnedQueue, record: Record, now: Now) -> None:
        state = retry_state_of(record)
        # Contract 3.6: a copy whose headers break their form is never delivered, and never lost.
        if record.fault or state.order is None:
            self._give_up(queue, record, now)
        elif queue.tracker.put_off(record.offset):
            due_ms = NEVER if state.parked else now.steady_ms
            if state.due_at > now.wall_ms:  # else all of them share the number of this call
                due_ms += state.due_at - now.wall_ms
            identity, line, attempt = identity_of(record), self._queues.line_of(record), attempt_of(state)
            at, weight = record.timestamp, record.weight
            if fault := owned.ledger.fault_of(identity, line, attempt):
                why = f"bad-header: {fault} {record.id}, which waits here"
                self._give_up(queue, replace(record, retry_state=None, fault=why), now)
                return
            self._settlements.bind(owned, identity, state)
            self._queues.know(
                owned, QueuedCopy(record.offset, identity, line, state.order, attempt, due_ms, at, weight)
            )

    def _give_up(self, queue: LanePartition, record: Record, now: Now) -> None:
        """Have a copy dead-lettered that is none of what waits, unless it was done already."""
        if queue.tracker.begin(record.offset):
            self._ties.memory.add(queue, record.weight)
            self._ties.write(queue, record, dead_letter_unreadable(record, self._ties.policy(), now.wall_ms), now)

    def fetched(self, queue: Partition, epoch: int, offset: int, record: Record | None, now: Now) -> None:
        """Take in a record that was read by its offset; None: it is gone."""
        _, owned = self._queues.live(queue, epoch)
        if owned is not None and self.heads.fetched(owned, offset, record, now):
            self._ties.end_turn(now)

    def cut(self, queue: Partition, epoch: int, end: int, now: Now) -> None:
        """Note that the beginning of a queue is gone: what waits there is lost, also what was not read back yet.

        `end`: where its log ends.
        """
        main, owned = self._queues.live(queue, epoch)
        if main is not None and owned is not None:
            await_unseen(owned, end, now.steady_ms)
            self._queues.look_at(owned.main)
            self._ties.end_turn(now)

    # --- people decide -----------------------------------------------------------------------------------------------

    def settle(self, ident: str, settlement: SettlementRecord | None, now: Now) -> None:
        """Take in what a person has decided about the record `ident`; None: it was withdrawn, or is done.

        The settlement must have no fault (`fault_of_settlement`). It is carried out by the owner of the record, as soon
        as no record of its key is out.
        """
        is_news = self._settlements.hear(ident, settlement)
        owned = self._queues.by_main.get(Partition(ident.rsplit(":", 2)[0], number_of(ident)))
        if owned is None or (settlement is not None and not is_news):
            return
        about = [entry for entry in owned.ledger.entries() if entry.identity[0] == offset_of(ident)]
        for entry in about:
            if settlement is None:
                owned.settling.pop(entry.identity, None)
            elif entry.attempt == attempt_of(settlement):
                owned.settling[entry.identity] = settlement
                if entry.phase is Phase.TAKEN:
                    settle_from_memory(self._ties, owned, entry, now)
        self._queues.look_at(owned.main)
        self._ties.end_turn(now)

    # --- queues are looked at ----------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Look at all queues with the next call of the lane: the policy is another one."""
        self._queues.look_at_all()

    def within(self, spans: Spans) -> None:
        """Deliver and hop within other spans: for tests, whose queues are short."""
        self._queues.spans = spans

    def turn(self, now: Now) -> bool:
        """Do what the events of this call of the lane have led to, and what is due: after most answers nothing. Return
        whether there was anything: there may be other deadlines now."""
        if not self._queues.stale and not self.mains.coming and now.steady_ms < self.alarm_ms:
            return False
        if self.mains.coming:
            self.mains.write(now)
        stale = self._queues.take_stale()
        if now.steady_ms >= self.alarm_ms:
            stale |= {main for main, owned in self._queues.by_main.items() if owned.alarm_ms <= now.steady_ms}
        for source in stale:
            owned, main = self._queues.by_main[source], self._ties.ownership.partitions.get(source)
            owned.alarm_ms = NEVER
            if main is not None and owned.opened and owned.caught_up and not main.closing:
                self._look(main, owned, now)
                self.alarm_ms = min(self.alarm_ms, owned.alarm_ms)
        if now.steady_ms >= self.alarm_ms:
            self.alarm_ms = min((owned.alarm_ms for owned in self._queues.by_main.values()), default=NEVER)
        return True

    def _look(self, main: LanePartition, owned: OwnedQueue, now: Now) -> None:
        queue, ledger = self._ties.ownership.partitions[owned.source], owned.ledger
        owned.out_of_reach = -1
        self._pass_heads(main, queue, owned, now)
        if queue.blocked:
            self._queues.look_at(main.source)  # it is looked at as soon as it goes on
        else:
            # In this order: a person's decision, then what is due, then hops, which have what is left of the reads.
            read_aside(self._ties, queue, owned, self._queues.spans.delivered, now)
            self.heads.ask(main, queue, owned)
            hop(self._ties, queue, owned, self._queues.spans, now)
        if self.mains.have_room_again(main, owned):
            self._ties.paused.go_on(main, now.steady_ms)
        if begins_to_fill(owned, fill := self._queues.fill_of(owned)):
            most, keys = self._ties.policy().max_waiting, named(owned, ledger.lines.largest(LARGEST_NAMED))
            self._ties.filling(main.source, len(ledger), most, fill, keys)
        if now.steady_ms >= owned.keep_at_ms:
            owned.keep_at_ms = now.steady_ms + KEEP_MS
            self._ties.commits.soon(queue)
        due_ms = ledger.heads.next_at()  # a head out of reach is due already: what hops has it looked at again
        owned.alarm_ms = min(
            owned.alarm_ms, NEVER if due_ms <= now.steady_ms else due_ms, owned.keep_at_ms, owned.old_at_ms
        )

    def _pass_heads(self, main: LanePartition, queue: LanePartition, owned: OwnedQueue, now: Now) -> None:
        """Let heads go on that waited for their time or for main, and those that come behind a record that is lost."""
        unread, under_way = main.tracker.unread, partial(self._ties.waiting.holds, main.source)
        for identity in take_lost(owned, queue.tracker.next, now.steady_ms) if owned.unseen else ():
            self._queues.lose(owned, owned.ledger.done(identity))
        owned.ledger.heads.advance(now.steady_ms, unread, under_way)
        look_for_former(owned, unread, now.steady_ms, under_way)

    def _let_go_on(self, main: LanePartition, now: Now) -> None:
        """Fetch a main partition again that waited for its queue."""
        if main.paused is None or main.paused.because not in (Because.QUEUE_UNREAD, Because.BEHIND_KEYS):
            return
        self._ties.paused.go_on(main, now.steady_ms)

    # --- questions ---------------------------------------------------------------------------------------------------

    def next_at(self) -> int:
        """Return the steady time (ms) of the next look at a queue; 0 if something of one has changed since the last."""
        return 0 if self._queues.stale and self._queues.can_be_looked_at() else self.alarm_ms

    def facts(self) -> dict[Partition, QueueFacts]:
        """Return what waits in each queue, by its main partition."""
        fill_of = self._queues.fill_of
        return {main: queue_facts_of(owned, fill_of(owned)) for main, owned in self._queues.by_main.items()}

    def oldest(self) -> dict[Partition, int]:
        """Return the timestamp (epoch ms) of the oldest first record of a key, by main partition. Slow: all keys are
        looked at."""
        oldest = {main: owned.ledger.lines.oldest_at() for main, owned in self._queues.by_main.items()}
        return {main: at for main, at in oldest.items() if at is not None}

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for checked in (self.mains, self.copies, self.heads, self._queues):
            checked.check()
