"""Order that survives long waits: what fails waits in a queue topic, and later records of its key behind it.

Who owns a main partition owns the queue partition of the same number (`owned_queue.py`). Before the first record of the
main partition is delivered, the queue is read up to its end of then, so that every key is known that is blocked. From
then on the ledger says which record of a key may go out, and this machine carries it out, in four parts:

    main     a main record that begins is delivered only if nothing before it of its key waits in the queue; else its
    copy is written behind what waits (contract 5.5)
    copies   a decision that a record waits blocks its key at once; the copy that is in Kafka waits in the ledger, and
             copies that mean nothing any more are done
    heads    the first record of a key that is due is read by its offset, and delivered
    aside    records that are read and not delivered: people have decided about them, the group parks no longer, their
             copies are old, or they hop. Only one record of a key is out at a time, so these wait until its head is
             answered, or is written again

A record of the queue is otherwise one like any other: it has a partition with progress, a place in flight, a decision.
Each call notes which queues have changed (`look_at`), and `turn` looks at those once, at the end of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import SettledRecord, WrittenAt
from reconsume.sidecar.core.decide import dead_letter_unreadable, postponed_since
from reconsume.sidecar.core.decisions import ByHand, Decisions, Ruled, ruled_by_hand
from reconsume.sidecar.core.holds import NO_HOLDS, Holds
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.ledger import (
    FIRST_ATTEMPT,
    Identity,
    Phase,
    QueuedCopy,
    WaitingEntry,
    identity_of,
)
from reconsume.sidecar.core.order import OrderBy, line_by_key, line_of, line_of_key
from reconsume.sidecar.core.owned_queue import (
    OwnedQueue,
    QueueFacts,
    Reach,
    Spans,
    Transaction,
    as_read_back,
    due_of,
    is_culprit,
    located_copy,
)
from reconsume.sidecar.core.ownership import Machines, Ownership
from reconsume.sidecar.core.partition import (
    AWAY,
    DELAYED,
    READY,
    STOPPED,
    AssignedPartition,
    FetchedRecords,
    PartitionState,
)
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Filling, QueueReads
from reconsume.sidecar.core.progress import SPAN
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import NEVER, RECORD_COST, Now, Partition, Record
from reconsume.topics import transitions
from reconsume.topics.attempt import attempt_of, retry_state_of
from reconsume.topics.reasons import reason_class, text_of
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order
from reconsume.topics.transitions import DONE, Commit, Hop, Requeue, Retry, Written

KEEP_MS = 12 * 3_600_000
"""ms after which the progress of a queue is committed again although it is the same: Kafka forgets the offsets of a
topic to which the group is not subscribed, seven days after their last commit by default (KIP-496)."""
GOES_ON = 0.75
"""The share of what may wait below which a main partition goes on that was paused at the whole: at the bound itself it
would be paused and resumed with each record."""
COPIED = (Retry, Requeue, Hop)
"""The decisions after which a record waits in its queue. A union would be made anew for each record."""
SOON_MS = 30_000
"""ms within which a copy of our own must be due to be kept at hand: later ones would push others out."""
AT_HAND_SHARE = 8
"""One part in this many of the room, beside it, keeps the records of queues that were read or written last. They are
wanted again soon where nothing fails for long, and what is not kept is read again."""
ROOM_SHARE = 4
"""One part in this many of the lane's room is for the records of all queues. One record always fits."""
MOST_OUT = 64
"""Records of one queue that are requested, or in memory, at a time. A read by offset takes a few ms, so this keeps some
thousand a second on their way."""
MOST_HOPS = 16
"""Records of one queue that hop at a time, so that a queue of which much is open does not fill its log with hops."""
OLD_MS, LOOK_FOR_OLD_MS = 4 * 3_600_000, 8 * 3_600_000
"""ms after which a copy is old, and between two looks for old ones. They are written again at the end: so none lies in
a queue for more than 12 h, half of the shortest retention that a queue may have, however long a key stands."""
LARGEST_NAMED = 5
"""Keys that the warning of a full queue names: a queue that fills has one or two hot ones, or very many."""


class QueueTies(NamedTuple):
    """What the queues of a lane act on.

    `finish` ends the way of a record. `end_turn` does what follows from a call of a lane. `filling` names a queue in
    which much waits. `supersedes`: whether a copy is of an older cycle than the range of its record.
    """

    machines: Machines
    ownership: Ownership
    decisions: Decisions
    reads: QueueReads
    filling: Filling
    finish: Callable[[PartitionState, Record], None]
    end_turn: Callable[[Now], None]
    supersedes: Callable[[RetryState], bool]


class LongWaits:
    """The queues of one lane. `by`: as `LaneOptions.order`.

    Invariants: a queue is owned with its main partition, and nothing of that has begun before what waits in its queue
    is known; between two calls of the lane nothing is to be written behind its key, and nothing is at hand.
    """

    def __init__(self, by: OrderBy, ties: QueueTies) -> None:
        self.spans = Spans(SPAN, SPAN // 2)
        """Within these, records of a queue are delivered, and hop; tests have short ones."""
        self._by, self._ties, self._holds = by, ties, NO_HOLDS
        self._by_main: dict[Partition, OwnedQueue] = {}
        self._changed: set[Partition] = set()
        """The main partitions of the queues of which something has changed since they were looked at."""
        self._coming: list[tuple[PartitionState, Record]] = []
        """Main records that are to be written behind their keys by the end of this call; the keys are blocked
        already."""
        self._transaction: Transaction = (0, 0)
        """The last transaction of this lane that has ended, done: the number of its producer, and its own."""
        self._at_hand: dict[Partition, list[Record]] = {}
        """The main partitions of whose queues the transaction that ends has told where copies lie, with those of the
        copies that are due soon."""
        self._at_hand_bytes = 0

    # --- which queues there are -------------------------------------------------------------------------------------

    def assigned(self, grants: Iterable[AssignedPartition]) -> None:
        """Read the queues of main partitions that begin; nothing of these is delivered before."""
        names, machines = self._ties.decisions.policy.names, self._ties.machines
        for grant in grants:
            main = machines.partitions[grant.partition]
            source = Partition(names.ordered(grant.partition.topic), grant.partition.number)
            self._by_main[main.source] = OwnedQueue(source, main.source, grant.epoch)
            machines.fetching.pause(main, main.offsets.unread, NEVER, NotFetched.QUEUE_UNREAD)
            if main.offsets.notes is None or not main.offsets.notes.is_unread:
                self._ties.reads.open(source, grant.epoch)

    def notes_read(self, main: Partition) -> None:
        """Read the queue of a main partition whose notes were awaited: they say which of its copies are superseded."""
        if (owned := self._by_main.get(main)) is not None:
            self._ties.reads.open(owned.source, owned.epoch)

    def dropped(self, partitions: Collection[Partition]) -> None:
        """Forget the queues of main partitions that are gone, and main records that their next owner reads again."""
        for source in partitions:
            if (owned := self._by_main.pop(source, None)) is not None:
                self._ties.machines.agenda.set_time(owned, NEVER)
                self._ties.reads.close(owned.source)
        self._coming = [(main, record) for main, record in self._coming if record.source not in partitions]

    def opened(self, grant: AssignedPartition, now: Now) -> None:
        """Begin with a queue, where the group has read it to."""
        main, owned = self._live(grant.partition, grant.epoch)
        if main is not None and owned is not None and not owned.is_opened:
            queue = self._ties.ownership.begin_queue(grant, main.source)
            self._ties.decisions.settling.begin_partitions([queue])
            self._ties.machines.commits.soon(queue)  # so that the group has progress there, whatever becomes of us
            owned.state = Reach.LATE if owned.state is Reach.ABSENT else Reach.OPENED
            owned.keep_at_ms = now.steady_ms + KEEP_MS
            self._ties.end_turn(now)

    def absent(self, queue: Partition, epoch: int, now: Now) -> None:
        """Note that there is no such queue: nothing waits. It may be opened later, once it was made."""
        main, owned = self._live(queue, epoch)
        if main is not None and owned is not None and not owned.is_known:
            owned.state = Reach.LATE if owned.is_opened else Reach.ABSENT
            self._let_main_go_on(main, now)
            self._ties.end_turn(now)

    def _live(self, queue: Partition, epoch: int) -> tuple[PartitionState | None, OwnedQueue | None]:
        """Return the main partition and the queue, unless it was given up, or is being given up."""
        for source, owned in self._by_main.items():
            if owned.source == queue:
                main = self._ties.machines.partitions.get(source)
                # Contract 9.1: what was read for an earlier assignment is nothing of this one.
                if main is not None and main.epoch == owned.epoch == epoch and not main.closing:
                    return main, owned
        return None, None

    def _queue_of(self, record: Record) -> OwnedQueue | None:
        """Return the queue that a record belongs to, be it of the main partition or of the queue itself."""
        if (owned := self._by_main.get(record.source)) is not None:
            return owned
        partition = self._ties.machines.partitions.get(record.source)
        return None if partition is None or partition.kind.under is None else self._by_main.get(partition.kind.under)

    def _line_of(self, record: Record) -> bytes:
        """Return the name of the line in which a record waits."""
        return line_by_key(record) if self._by == "key" else line_of(record, self._by)

    def _fill_of(self, owned: OwnedQueue) -> float:
        """Return the share of what may wait in a queue that does."""
        queue = self._ties.machines.partitions.get(owned.source)
        return owned.fill_of(queue, self._ties.decisions.policy.max_waiting, self.spans.delivered)

    # --- the queue is read ------------------------------------------------------------------------------------------

    def read(self, run: FetchedRecords, now: Now, *, caught_up: bool) -> None:
        """Take in what a queue holds behind what was read. `caught_up`: it was read up to its end of the take-over."""
        main, owned = self._live(run.partition, run.epoch)
        if main is None or owned is None or not owned.is_opened:
            return
        queue = self._ties.machines.partitions[owned.source]
        for record in run.records:
            if record.offset >= queue.offsets.next:  # else the lane has known it since it was committed
                self._read_copy(queue, owned, record, now)
        self._take_located_copies(queue, owned)
        if run.end is not None:
            owned.unseen.is_end_seen = True
            if queue.offsets.reached(run.end):
                self._ties.machines.commits.soon(queue)
        if caught_up and owned.state is not Reach.CAUGHT_UP:
            owned.state = Reach.CAUGHT_UP
            if (suspects := self._ties.ownership.suspects) is not None:
                suspects.log_ended(queue, now)
            self._let_main_go_on(main, now)
        self._changed.add(owned.main)
        self._ties.end_turn(now)

    def _read_copy(self, queue: PartitionState, owned: OwnedQueue, record: Record, now: Now) -> None:
        state = retry_state_of(record)
        # Contract 3.6: a copy whose headers break their form is never delivered, and never lost.
        if record.fault or state.order is None:
            self._give_up_copy(queue, owned, record, now)
        elif self._ties.supersedes(state):
            # Only its end is written, of which thousands may come at once.
            bare = replace(record, value=None, headers=None, weight=RECORD_COST)
            self._end_copy(queue, owned, bare, transitions.by_reset(record), now)
        elif queue.offsets.begin(record.offset, AWAY, None) is not None:
            identity, line, attempt = identity_of(record), self._line_of(record), attempt_of(state)
            if fault := owned.ledger.fault_of(identity, line, attempt):
                why = f"bad-header: {fault} {record.id}, which waits here"
                self._give_up_copy(queue, owned, replace(record, retry_state=None, fault=why), now)
                return
            due_ms, at_ms = due_of(state, now), record.timestamp
            copy = QueuedCopy(record.offset, identity, line, state.order, attempt, due_ms, at_ms, record.weight)
            self._know_copy(owned, copy)

    def _give_up_copy(self, queue: PartitionState, owned: OwnedQueue, record: Record, now: Now) -> None:
        """Have a copy dead-lettered that is none of what waits, unless it was done already."""
        decision = dead_letter_unreadable(record, self._ties.decisions.policy, now.wall_ms)
        self._end_copy(queue, owned, record, decision, now)

    def _end_copy(
        self, queue: PartitionState, owned: OwnedQueue, record: Record, decision: Commit | Written, now: Now
    ) -> None:
        """Have a copy ended of which the ledger never hears, unless it was done already."""
        if queue.offsets.begin(record.offset, READY, record) is not None:
            owned.reading.given_up.add(record.offset)
            self._ties.machines.room.add_bytes(queue, record.weight)
            self._ties.decisions.write(queue, record, decision, now)

    def cut(self, queue: Partition, epoch: int, end: int, now: Now) -> None:
        """Note that the beginning of a queue is gone: what waits there is lost, also what was not read back yet.

        `end`: where its log ends.
        """
        _, owned = self._live(queue, epoch)
        if owned is not None:
            owned.unseen.note_cut(owned.ledger, end, now.steady_ms)
            self._changed.add(owned.main)
            self._ties.end_turn(now)

    def _know_copy(self, owned: OwnedQueue, copy: QueuedCopy) -> None:
        """Take in a copy that was let go: its payload is read when it is due."""
        self._pass_over(owned, owned.ledger.read(copy))
        owned.unseen.identities.discard(copy.identity)

    def _take_located_copies(self, queue: PartitionState, owned: OwnedQueue) -> None:
        """Take in the copies of our own before which all of a queue is known."""
        while (copy := owned.located.take(queue.offsets.next)) is not None:
            self._pass_own_copy(queue, owned, copy)
            self._know_copy(owned, copy)

    def _pass_own_copy(self, queue: PartitionState, owned: OwnedQueue, copy: QueuedCopy) -> None:
        """Go on behind a copy of our own that lies where all that is known of a queue ends. It waits there."""
        queue.offsets.begin(copy.offset, AWAY, None)

    def _pass_over(self, owned: OwnedQueue, offsets: Iterable[int]) -> None:
        """Mark copies as done that mean nothing any more."""
        queue = self._ties.machines.partitions.get(owned.source)
        for offset in offsets:
            if queue is not None and offset in queue.offsets.entries:  # else its next owner reads the copies again
                queue.offsets.finish(offset)
                self._ties.machines.commits.soon(queue)

    def _lose_record(self, owned: OwnedQueue, offsets: Iterable[int]) -> None:
        """Count a record of a queue as lost, whose copies lay at these offsets; others go on without it."""
        self._ties.ownership.records_lost[owned.main.topic] += 1
        self._pass_over(owned, offsets)
        self._changed.add(owned.main)

    # --- main records of blocked keys -------------------------------------------------------------------------------

    def admits(self, main: PartitionState, run: FetchedRecords) -> bool:
        """Return whether records of a main partition begin; if as much waits in its queue as may, pause it instead."""
        owned = self._by_main.get(main.source)
        if owned is None or not run.records:
            return True
        if owned.ledger.heads.waits_for_main():
            self._changed.add(main.source)
        if not self._is_filled(owned, 1):
            return True
        self._ties.machines.fetching.pause(main, run.records[0].offset, NEVER, NotFetched.BEHIND_KEYS)
        return False

    def _is_filled(self, owned: OwnedQueue, share: float) -> bool:
        """Return whether such a share of what may wait does. What waits for main records could never go."""
        return not owned.ledger.heads.waits_for_main() and self._fill_of(owned) >= share

    def main_ended(self, main: PartitionState, end: int) -> None:
        """Note that a main partition was read up to its end."""
        if (owned := self._by_main.get(main.source)) is not None:
            owned.short_main.main_end = end
            if owned.ledger.heads.waits_for_main():
                self._changed.add(main.source)

    def _let_main_go_on(self, main: PartitionState, now: Now) -> None:
        """Fetch a main partition again that waited for its queue."""
        if main.paused is not None and main.paused.because in (NotFetched.QUEUE_UNREAD, NotFetched.BEHIND_KEYS):
            self._ties.machines.fetching.go_on(main, now.steady_ms)

    def keeper(self, main: PartitionState) -> Callable[[PartitionState, Record], bool] | None:
        """Return `keeps`; None, as nearly always, if no key of a main partition is blocked: what begins blocks none."""
        owned = self._by_main.get(main.source)
        return None if owned is None or not owned.ledger.lines.by_key else self.keeps

    def keeps(self, main: PartitionState, record: Record) -> bool:
        """Return whether a main record that begins is not to be delivered: its copy waits, or its key is blocked."""
        owned, line = self._by_main[record.source], self._line_of(record)
        if line not in owned.ledger.lines.by_key:
            return False
        if owned.ledger.knows(identity_of(record), line):  # the progress beside its copy was lost
            self._ties.finish(main, record)
            return True
        # Where one of the key is in memory, this one queues there: `finished` puts it behind, if that one fails.
        has_line = self._ties.machines.waiting.has_line(record.source, line)
        if has_line or not owned.ledger.lines.blocks(line, record.offset):
            return False
        self._put_behind(main, owned, record)
        return True

    def finished(self, partition: PartitionState, record: Record) -> None:
        """Let the next record of a key go: out, or behind what waits of the key."""
        waiting, owned = self._ties.machines.waiting, self._by_main.get(record.source)
        following = waiting.next_of_key(record)
        if owned is None or not owned.ledger.lines.by_key:  # as nearly always: no key is blocked
            if following is not None:
                waiting.let_next(following)
            return
        if following is None and not owned.ledger.heads.waits_for_keys:
            return
        line = self._line_of(record)
        if following is not None and not owned.ledger.lines.blocks(line, following.offset):
            waiting.let_next(following)
            return
        for later in () if following is None else waiting.take_line(following):
            self._put_behind(partition, owned, later)
        if not waiting.has_line(record.source, line) and owned.ledger.heads.main_ended(line):
            self._changed.add(record.source)

    def _put_behind(self, main: PartitionState, owned: OwnedQueue, record: Record) -> None:
        line = self._line_of(record)
        attempt = attempt_of(record) if record.cycle else FIRST_ATTEMPT  # one object for thousands
        self._pass_over(owned, owned.ledger.writing(identity_of(record), line, Order(record.offset), attempt))
        # Not written here: the lane is amid a run of records, or of answers, and would be entered again.
        self._coming.append((main, record))

    # --- copies that the lane writes --------------------------------------------------------------------------------

    def settles(self, partition: PartitionState, record: Record, decision: Commit | Written) -> bool:
        """Note a decision about a record: if it is to wait, its key is blocked from now on.

        Return whether the record has ended with it: one that came behind another and succeeds has nothing to write.
        """
        if (owned := self._queue_of(record)) is None:
            return False
        is_of_queue = partition.kind.under is not None
        if isinstance(decision, COPIED):
            # A main record that is to wait takes its way, whatever waits as if it were the same.
            if is_of_queue and self._is_other(owned, record):
                return False
            state, line = decision.retry_state, self._line_of(record)
            assert state.order is not None, "a copy in a queue has its order"
            self._pass_over(owned, owned.ledger.writing(identity_of(record), line, state.order, attempt_of(state)))
        elif is_of_queue and decision == DONE and not self._is_other(owned, record):
            self._record_ended(owned, record, owned.ledger.done(identity_of(record)))
            self._ties.finish(partition, record)
            return True
        return False

    def copy_written(self, entry: SettledRecord, where: WrittenAt | None, now: Now) -> None:
        """Note that a decision is in Kafka. `where`: its copy lies there in the queue; None: that is to be read."""
        record, decision = entry.record, entry.decision
        if (owned := self._queue_of(record)) is None:
            return
        state = decision.retry_state if isinstance(decision, COPIED) else None
        is_of_main = state is not None and record.source != owned.source
        # Of one that was given up the ledger has never heard, and its identity may be another's.
        is_given_up = record.source == owned.source and record.offset in owned.reading.given_up
        if record.fault or is_given_up or (not is_of_main and self._is_other(owned, record)):
            self._record_ended(owned, record, ())
        elif state is None:
            self._record_ended(owned, record, owned.ledger.done(identity_of(record)))
        elif where is None or not owned.is_opened or self._ties.machines.partitions[owned.main].closing:
            self._record_ended(owned, record, owned.ledger.written(identity_of(record)))
        else:
            self._locate_copy(owned, entry, state, where, now)

    def _locate_copy(
        self, owned: OwnedQueue, entry: SettledRecord, state: RetryState, where: WrittenAt, now: Now
    ) -> None:
        """Note where the copy of an entry lies."""
        record = entry.record
        identity, queue = identity_of(record), self._ties.machines.partitions[owned.source]
        copy = located_copy(entry, state, identity, self._line_of(record), where, now)
        if owned.located.comes_next(self._transaction, copy.offset, queue.offsets.next):
            self._pass_own_copy(queue, owned, copy)
            self._record_ended(owned, record, owned.ledger.written(identity, copy))
            owned.unseen.identities.discard(identity)
        else:
            owned.located.add(self._transaction, copy)
            self._record_ended(owned, record, owned.ledger.written(identity))
        at_hand = self._at_hand.setdefault(owned.main, [])
        most_bytes = self._ties.machines.room.room // AT_HAND_SHARE
        if state.due_at <= now.wall_ms + SOON_MS and self._at_hand_bytes < most_bytes:
            at_hand.append(kept := as_read_back(entry, state, owned.source, where))
            self._at_hand_bytes += kept.weight

    def _is_other(self, owned: OwnedQueue, record: Record) -> bool:
        """Return whether what waits as this record is another one, and stays."""
        return owned.ledger.has_other_key(identity_of(record), self._line_of(record))

    def _record_ended(self, owned: OwnedQueue, record: Record, obsolete: Sequence[int]) -> None:
        if record.source == owned.source:
            owned.reading.hopping.discard(record.offset)
            owned.reading.given_up.discard(record.offset)
        self._pass_over(
            owned, (offset for offset in obsolete if (owned.source, offset) != (record.source, record.offset))
        )
        self._changed.add(owned.main)

    def transaction_ended(self, producer: int) -> None:
        """Note that a transaction is done whose copies are told of next. `producer`: as in `CommitResult`."""
        self._transaction = producer, self._transaction[1] + 1

    def take_located(self) -> None:
        """Take in what has waited for the copies of the transaction that has ended: none of these need be read back, as
        far as nothing of others lies before them."""
        at_hand, self._at_hand, self._at_hand_bytes = self._at_hand, {}, 0
        for main, records in at_hand.items():
            owned = self._by_main[main]
            queue = self._ties.machines.partitions[owned.source]
            self._take_located_copies(queue, owned)
            self._ties.reads.known(owned.source, owned.epoch, queue.offsets.next, records)

    # --- heads: out, and back ---------------------------------------------------------------------------------------

    def _ask_for_heads(self, main: PartitionState, queue: PartitionState, owned: OwnedQueue) -> None:
        """Have the payloads of heads read that may go out, as far as there is room for them."""
        machines = self._ties.machines
        room = machines.room.room // (ROOM_SHARE * len(self._by_main))
        is_held, under_way = self._held_lines(queue, main), partial(machines.waiting.has_line, main.source)
        bytes_out = queue.throughput.load + owned.coming_bytes()  # what was requested takes its room too
        # From there on none could be marked as done. All before it go first, else they would hop instead, for ever.
        reach = queue.offsets.first + self.spans.delivered
        while (out := owned.count_out(queue)) < MOST_OUT and (bytes_out < room or not out):
            if (entry := owned.ledger.ask(under_way, is_held, reach)) is None:
                break
            self._request_copy(owned, entry)
            bytes_out += entry.weight
        if (far := owned.ledger.heads.nearest_far()) >= 0:
            owned.hops.out_of_reach = far

    def _held_lines(self, queue: PartitionState, main: PartitionState) -> Callable[[bytes], bool]:
        """Return a function that says whether an operator holds all records of a line."""
        level, topic = queue.kind.level, main.source.topic
        if self._holds.covers(level, topic):
            return lambda _line: True
        # Contract 10.4: a hold names a key; the ledger knows the name of its line alone.
        held = map(line_of_key, self._holds.keys(level, topic)) if self._by == "key" else ()
        return frozenset(held).__contains__

    def _request_copy(self, owned: OwnedQueue, entry: WaitingEntry) -> None:
        """Have one record read by its offset."""
        owned.reading.requested[entry.offset] = entry.identity
        self._ties.reads.fetch(owned.source, owned.epoch, entry.offset)

    def fetched(self, queue: Partition, epoch: int, offset: int, record: Record | None, now: Now) -> None:
        """Take in a record that was read by its offset; None: it is gone, as it is where another one lies there."""
        _, owned = self._live(queue, epoch)
        if owned is None or (identity := owned.reading.requested.pop(offset, None)) is None:
            return
        self._changed.add(owned.main)
        if not owned.ledger.taken(identity, offset):  # another copy stands for it by now
            owned.reading.hopping.discard(offset)
        elif record is None or not (record.fault or identity_of(record) == identity):
            owned.reading.hopping.discard(offset)
            self._lose_record(owned, {offset, *owned.ledger.done(identity)})
        else:
            self._take_record(owned, record, now)
        self._ties.end_turn(now)

    def _take_record(self, owned: OwnedQueue, record: Record, now: Now) -> None:
        machines = self._ties.machines
        queue = machines.partitions[owned.source]
        entry = queue.offsets.begin(record.offset, READY, record)
        assert entry is not None, "what is read again was let go"
        machines.room.add_bytes(queue, record.weight)
        if (ruled := self._ruled_aside(owned, record, now)) is not None:
            self._ties.decisions.write(queue, record, ruled.decision, now, settled_by=ruled.by)
        else:
            machines.waiting.release_record(queue, entry)

    def obey(self, holds: Holds) -> None:
        """Ask for no head that these holds keep back, and for what others have kept back."""
        self._holds = holds
        for owned in self._by_main.values():
            owned.ledger.heads.let_held()
        self.look_again()

    def put_back(self, record: Record) -> None:
        """Take back a record whose turn had come, as it is held: it stays in the queue."""
        _, owned = self._live(record.source, record.epoch)
        if owned is not None:
            owned.ledger.put_back(identity_of(record))
            self._changed.add(owned.main)

    def put_back_dropped(self, queue: PartitionState, records: Iterable[Record]) -> None:
        """Put back what the lane drops from memory, because Kafka refuses copies of the queue's records: it is read
        again once the queue goes on."""
        if queue.kind.under is not None and (owned := self._by_main.get(queue.kind.under)) is not None:
            for record in records:
                owned.ledger.put_back(identity_of(record))
            self._changed.add(owned.main)

    # --- aside: read, and not delivered -----------------------------------------------------------------------------

    def bind(self, queue: PartitionState, record: Record, by_hand: ByHand, now: Now) -> int | None:
        """Have a record settled that was read in a queue; return the offset of the copy that waits, if one does."""
        owned = None if queue.kind.under is None else self._by_main.get(queue.kind.under)
        entry = None if owned is None else owned.ledger.entry(identity_of(record))
        if owned is None or entry is None or entry.attempt != attempt_of(retry_state_of(record)):
            return None
        owned.reading.settling[entry.identity] = by_hand._replace(attempt=entry.attempt)
        if entry.phase is Phase.TAKEN:
            self._settle_from_memory(owned, entry, now)
        self._changed.add(owned.main)
        return entry.offset

    def is_under_way(self, record: Record) -> bool:
        """Return whether a newer copy of a record that was read in a queue is written, or was not read yet."""
        owned = self._queue_of(record)
        entry = None if owned is None else owned.ledger.entry(identity_of(record))
        return entry is not None and entry.phase in (Phase.WRITING, Phase.EXPECTED)

    def waits(self, record: Record) -> bool:
        """Return whether the record of a copy that was read in a queue waits."""
        owned = self._queue_of(record)
        return owned is not None and owned.ledger.entry(identity_of(record)) is not None

    def is_head(self, record: Record) -> bool:
        """Return whether the record of a copy that was read in a queue is the first one of its key."""
        owned = self._queue_of(record)
        entry = None if owned is None else owned.ledger.entry(identity_of(record))
        return owned is not None and entry is not None and owned.ledger.lines.is_head(entry)

    def _ruled_by_hand(self, owned: OwnedQueue, record: Record, now: Now) -> Ruled | None:
        """Return what follows from a person's decision about a record that the lane has; None if there is none."""
        said = owned.reading.settling.pop(identity_of(record), None) if not record.fault else None
        # Contract 5.7: a decision acts once, on the copy that it names.
        if said is None or said.by == retry_state_of(record).settled:
            return None
        return ruled_by_hand(said, record, now)

    def decided_meanwhile(self, partition: PartitionState, record: Record, now: Now) -> Ruled | None:
        """Return what a person has decided about a record that is to stay in memory after its answer; None if nobody
        has."""
        under = partition.kind.under
        if under is None or (owned := self._by_main.get(under)) is None:
            return None
        if owned.reading.old and not _are_tries_bounded(self._ties.decisions.policy):  # it may be one of these
            self._changed.add(owned.main)
        return self._ruled_by_hand(owned, record, now) if owned.reading.settling else None

    def _ruled_aside(self, owned: OwnedQueue, record: Record, now: Now) -> Ruled | None:
        """Return what becomes of a record that was read and is not to be delivered now; None if it is."""
        if (by_hand := self._ruled_by_hand(owned, record, now)) is not None:
            return by_hand
        settling, queue = self._ties.decisions.settling, self._ties.machines.partitions[owned.source]
        if settling.in_force and (ruled := settling.ruled_aside(queue, record, now)) is not None:
            return ruled
        state, policy = retry_state_of(record), self._ties.decisions.policy
        if state.parked and policy.queued and not policy.parks:  # the group parks no longer
            why = reason_class(state.reason), text_of(state.reason)
            return Ruled(transitions.dead_letter(record, *why, now.wall_ms), "")
        return Ruled(Hop(state, None), "") if record.offset in owned.reading.hopping else None

    def _read_aside(self, queue: PartitionState, owned: OwnedQueue, now: Now) -> None:
        """Have the records read about which somebody has decided, and those whose copies are old."""
        ledger, policy, reading = owned.ledger, self._ties.decisions.policy, owned.reading
        if policy.queued and not policy.parks:
            self._request_aside(queue, owned, ledger.parked(), MOST_OUT)
        if reading.settling:
            about = ((ledger.entry(identity), one) for identity, one in reading.settling.items())
            meant = [(entry, one) for entry, one in about if entry and entry.attempt == one.attempt]
            reading.settling = {
                entry.identity: one for entry, one in meant
            }  # what is meant for another wait is forgotten
            self._request_aside(queue, owned, [entry for entry, _ in meant], MOST_OUT)
        if now.steady_ms >= reading.old_at_ms:
            reading.old_at_ms = now.steady_ms + LOOK_FOR_OLD_MS
            aged = [entry for entry in ledger.entries() if entry.written_ms < now.wall_ms - OLD_MS]
            reading.old = {entry.identity for entry in aged if not is_culprit(queue, entry)}
        if reading.old and len(reading.hopping) < MOST_HOPS:
            old = [entry for identity in reading.old if (entry := ledger.entry(identity)) is not None]
            going = self._request_aside(queue, owned, old, MOST_HOPS - len(reading.hopping))
            # What follows of its key could not be written again either: one of a key is out at a time.
            going += [one.identity for one in old if one.phase is Phase.TAKEN and self._write_again(queue, one, now)]
            reading.old = {entry.identity for entry in old}.difference(going)

    def _request_aside(
        self, queue: PartitionState, owned: OwnedQueue, entries: Iterable[WaitingEntry], most: int
    ) -> list[Identity]:
        """Have records read that need not be heads, `most` of them at most; return which."""
        requested = list[Identity]()
        for entry in entries:
            if len(requested) >= most or owned.count_out(queue) >= MOST_OUT:
                break
            if queue.offsets.span(entry.offset) >= self.spans.delivered:
                owned.hops.out_of_reach = entry.offset  # the first ones hop, until progress reaches it
            elif self._take_aside(owned, entry):
                requested.append(entry.identity)
        return requested

    def _take_aside(self, owned: OwnedQueue, entry: WaitingEntry) -> bool:
        """Have a record read that is not to be delivered; return False if another one of its key is out."""
        if is_taken := owned.ledger.take_aside(entry):
            owned.reading.hopping.add(entry.offset)
            self._request_copy(owned, entry)
        return is_taken

    def _hop(self, queue: PartitionState, owned: OwnedQueue, now: Now) -> int:
        """Write the first records of a queue again at its end, if progress could not reach to the end otherwise; return
        when to look again (steady ms)."""
        room = MOST_HOPS - len(owned.reading.hopping)
        if room <= 0:
            return NEVER
        end, again_ms = owned.hops.end_of_hops(queue, len(owned.ledger), self.spans, now.steady_ms)
        if end > queue.offsets.first:
            for entry in owned.ledger.lowest(room):
                if entry.offset < end and not is_culprit(queue, entry):
                    self._take_aside(owned, entry)
        return again_ms

    def _settle_from_memory(self, owned: OwnedQueue, entry: WaitingEntry, now: Now) -> None:
        """Carry out a decision about a record, if it waits in memory; one that is out is answered before."""
        queue = self._ties.machines.partitions[owned.source]
        record = self._record_to_settle(queue, entry)
        if record is not None and (ruled := self._ruled_by_hand(owned, record, now)) is not None:
            self._ties.machines.waiting.pick_record(queue, queue.offsets.entries[record.offset])
            self._ties.decisions.write(queue, record, ruled.decision, now, settled_by=ruled.by)

    def _write_again(self, queue: PartitionState, entry: WaitingEntry, now: Now) -> bool:
        """Write a record again at the end of its queue, if it waits in memory; return whether it does.

        The retries that were made in place are not counted any more, so one of which they are bounded stays.
        """
        record = self._waiting_record(queue, entry)
        if record is None:
            return False
        state = retry_state_of(record)
        if record.times > state.times and _are_tries_bounded(self._ties.decisions.policy):
            return False
        until_ms = self._ties.machines.waiting.pick_record(queue, queue.offsets.entries[record.offset])
        state = replace(state, postponed_at=postponed_since(record))
        if until_ms > now.steady_ms:
            state = replace(state, due_at=now.wall_ms + until_ms - now.steady_ms)
        self._ties.decisions.write(queue, record, Hop(state, None), now)
        return True

    @staticmethod
    def _record_to_settle(queue: PartitionState, entry: WaitingEntry) -> Record | None:
        """Return a record that waits in memory, a suspect too, but for the one that is about to be delivered alone."""
        queued = queue.offsets.entries.get(entry.offset)
        if queued is None or queue.blocked or queued.where not in (READY, DELAYED, STOPPED):
            return None
        is_marked = queue.suspicion is not None and queue.suspicion.mark == entry.offset
        return None if is_marked else queued.record

    @staticmethod
    def _waiting_record(queue: PartitionState, entry: WaitingEntry) -> Record | None:
        """Return a record that waits in memory for its time or its turn. Of a suspect the gate after a crash knows
        whether it may be out, and of a blocked queue nothing is written: those take their turn."""
        if queue.suspicion is not None or queue.blocked:
            return None
        queued = queue.offsets.entries.get(entry.offset)
        is_waiting = queued is not None and (
            queued.where in (READY, DELAYED) or (queued.where is STOPPED and bool(queued.hold))
        )
        return queued.record if queued is not None and is_waiting else None

    # --- queues are looked at ---------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Look at all queues with the next call of the lane: the policy, or what is held, is another one."""
        self._changed.update(self._by_main)

    def within(self, spans: Spans) -> None:
        """Deliver and hop within other spans: for tests, whose queues are short."""
        self.spans = spans

    def look_at(self, owned: OwnedQueue) -> None:
        """Look at one queue with this call of the lane."""
        self._changed.add(owned.main)

    def turn(self, now: Now) -> None:
        """Do what the events of this call of the lane have led to, and what is due: after most answers nothing."""
        if not self._changed and not self._coming:
            return
        coming, self._coming = self._coming, []
        for main, record in coming:
            decision = transitions.put_behind(record, self._ties.decisions.policy)
            self._ties.decisions.write(main, record, decision, now)
        changed = self._changed & self._by_main.keys()
        self._changed.clear()
        for source in changed:
            owned, main_partition = self._by_main[source], self._ties.machines.partitions.get(source)
            if main_partition is not None and not main_partition.closing and owned.is_known and owned.is_opened:
                self._look(main_partition, owned, now)
        if any(self._can_be_looked_at(main) for main in self._changed):
            self._ties.machines.agenda.wake_by(0)

    def _can_be_looked_at(self, main: Partition) -> bool:
        """Return whether a look would do anything: what is blocked is looked at once it goes on."""
        owned = self._by_main.get(main)
        queue = None if owned is None else self._ties.machines.partitions.get(owned.source)
        return queue is not None and not queue.blocked

    def _look(self, main: PartitionState, owned: OwnedQueue, now: Now) -> None:
        """Let out of one queue what may go, and see when to look at it again."""
        machines, ledger = self._ties.machines, owned.ledger
        queue = machines.partitions[owned.source]
        owned.hops.out_of_reach = -1
        times = [self._pass_heads(main, queue, owned, now)]
        if queue.blocked:
            self._changed.add(main.source)  # it is looked at as soon as it goes on
        else:
            # In this order: a person's decision, then what is due, then hops, which have what is left of the reads.
            self._read_aside(queue, owned, now)
            self._ask_for_heads(main, queue, owned)
            times.append(self._hop(queue, owned, now))
        is_paused = main.paused is not None and main.paused.because is NotFetched.BEHIND_KEYS
        if is_paused and not self._is_filled(owned, GOES_ON):
            machines.fetching.go_on(main, now.steady_ms)
        fill = self._fill_of(owned)
        if owned.begins_to_fill(fill):
            most, keys = self._ties.decisions.policy.max_waiting, owned.named(ledger.lines.largest(LARGEST_NAMED))
            self._ties.filling(main.source, len(ledger), most, fill, keys)
        if now.steady_ms >= owned.keep_at_ms:
            owned.keep_at_ms = now.steady_ms + KEEP_MS
            machines.commits.soon(queue)
        due_ms = ledger.heads.next_at()  # a head out of reach is due already: what hops has it looked at again
        times += [NEVER if due_ms <= now.steady_ms else due_ms, owned.keep_at_ms, owned.reading.old_at_ms]
        machines.agenda.set_time(owned, min(times))

    def _pass_heads(self, main: PartitionState, queue: PartitionState, owned: OwnedQueue, now: Now) -> int:
        """Let heads go on that waited for their time or for main, and those that come behind a record that is lost;
        return when to look again (steady ms)."""
        unread, heads = main.offsets.unread, owned.ledger.heads
        under_way = partial(self._ties.machines.waiting.has_line, main.source)
        lost, lost_at_ms = owned.unseen.take_lost(owned.ledger, queue.offsets.next, now.steady_ms)
        for identity in lost:
            self._lose_record(owned, owned.ledger.done(identity))
        heads.advance(now.steady_ms, unread, under_way)
        former, short_at_ms = owned.short_main.former_from(heads.lowest_ahead_of_main(), unread, now.steady_ms)
        if former is not None:
            heads.take_as_former(former, under_way)
        return min(lost_at_ms, short_at_ms)

    # --- questions --------------------------------------------------------------------------------------------------

    def facts(self) -> dict[Partition, QueueFacts]:
        """Return what waits in each queue, by its main partition."""
        return {main: owned.facts(self._fill_of(owned)) for main, owned in self._by_main.items()}

    def oldest(self) -> dict[Partition, int]:
        """Return the timestamp (epoch ms) of the oldest first record of a key, by main partition. Slow: all keys are
        looked at."""
        oldest = {main: owned.ledger.lines.oldest_at() for main, owned in self._by_main.items()}
        return {main: at for main, at in oldest.items() if at is not None}

    def being_read(self, queue: PartitionState) -> Iterable[int]:
        """Return the offsets of the records of a queue that are being read, and whose turn it is."""
        owned = None if queue.kind.under is None else self._by_main.get(queue.kind.under)
        return () if owned is None else owned.reading.requested.keys() - owned.reading.hopping

    def held_heads(self, queue: PartitionState) -> int:
        """Return how many first records of a queue could go out, and are held by an operator."""
        owned = None if queue.kind.under is None else self._by_main.get(queue.kind.under)
        return 0 if owned is None else owned.ledger.heads.held

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(not self._coming, "what is to be written behind its key is written by the end of a call")
        ensure(not self._at_hand, "what a transaction has told is taken in by the end of a call")
        partitions: Mapping[Partition, PartitionState] = self._ties.machines.partitions
        for source, owned in self._by_main.items():
            ensure(source in partitions, f"the queue of {source} is owned with it")
            main = partitions[source]
            queue = partitions.get(owned.source) if owned.is_opened and not main.closing else None
            owned.check(queue)
            if queue is not None:
                out = owned.count_out(queue)
                ensure(out <= MOST_OUT + MOST_HOPS, f"{out} records of the queue of {source} are out")
            is_begun = bool(main.offsets.entries)
            ensure(owned.is_known or not is_begun, f"nothing of {source} has begun before its queue is known")


def _are_tries_bounded(policy: Policy) -> bool:
    """Return whether retries in place end by themselves, and are counted for that in memory."""
    return policy.in_place is not None and policy.in_place.max_times is not None
