"""One queue topic's partition, as the owner of its main partition works it.

`OwnedQueue` takes in copies, keeps main records behind their keys, has heads read and delivered, and notes what became
of them. The path of one record is at the head of `queues.py`. Around it: `ledger.py` knows what waits, `own_copies.py`
which copies need not be read back, `copy_reads.py` reads what is not delivered.

The copies are entries of the queue's `PartitionState`: AWAY while only the ledger knows them, in memory as any record
is once they were read. So the queue has progress, deliveries in flight and decisions like every partition.

*Copies that a queue has lost before they were read back* (`UnseenCopies`): a copy that was committed is awaited from
the queue, and its key is blocked until it comes. If the log is cut meanwhile, by retention or by hand, it never comes.
So what is awaited at a cut, and was not read long after all that the log held then, is lost.

*Heads behind the end of their main partition* (`ShortMain`): a head waits until the main partition is read up to its
offset. Where the main topic was recreated, or lost its end by an unclean election, the record at that offset is gone,
and the partition may never be so long again. Once all of it was read for a minute, nothing can come before such a head.

`LongWaits` (`queues.py`) makes and calls it, on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import SettledRecord, WrittenAt
from reconsume.sidecar.core.copy_reads import CopyReads, Spans
from reconsume.sidecar.core.decide import dead_letter_unreadable
from reconsume.sidecar.core.decisions import Decisions
from reconsume.sidecar.core.holds import Holds
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.key_lines import Identity, KeyLine, Phase, WaitingEntry
from reconsume.sidecar.core.ledger import FIRST_ATTEMPT, KeyLedger, QueuedCopy, identity_of
from reconsume.sidecar.core.order import OrderBy, line_by_key, line_of, line_of_key
from reconsume.sidecar.core.own_copies import OwnCopies, Transaction, due_of, located_copy
from reconsume.sidecar.core.ownership import Machines, Ownership
from reconsume.sidecar.core.partition import AWAY, READY, FetchedRecords, PartitionState
from reconsume.sidecar.core.ports import Filling, QueueReads
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import NEVER, RECORD_COST, Now, Partition, Record
from reconsume.topics import transitions
from reconsume.topics.attempt import attempt_of, retry_state_of
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order
from reconsume.topics.transitions import DONE, Commit, Hop, Requeue, Retry, Written

COPIED = (Retry, Requeue, Hop)
"""The decisions after which a record waits in its queue. A union would be made again for each record."""
GOES_ON = 0.75
"""The share of what may wait below which a main partition goes on that was paused at the whole: at the bound itself it
would be paused and resumed with each record."""
LARGEST_NAMED = 5
"""Keys that the warning of a full queue names: a queue that fills has one or two hot ones, or very many."""
FILLS, STILL_FILLS = 0.75, 0.5
"""Shares of what may wait, from which a queue is named, and below which it may be named again."""
LOST_AFTER_MS = 60_000
"""ms from a cut until a copy that was not read is held lost: one that was committed just then is read by then."""
SHORT_AFTER_MS = 60_000
"""ms for which a main partition must end before an offset: just after an election a leader may tell an end that is
before what was read already."""


class QueueTies(NamedTuple):
    """What the queues of a lane act on. `by`: as `LaneOptions.order`.

    `finish` ends a record. `end_turn` does what follows from a call of a lane. `filling` names a queue in which much
    waits. `supersedes`: whether a copy is of an older cycle than the range of its record.
    """

    by: OrderBy
    machines: Machines
    ownership: Ownership
    decisions: Decisions
    reads: QueueReads
    filling: Filling
    finish: Callable[[PartitionState, Record], None]
    end_turn: Callable[[Now], None]
    supersedes: Callable[[RetryState], bool]

    def line_of(self, record: Record) -> bytes:
        """Return the name of the line in which a record waits."""
        return line_by_key(record) if self.by == "key" else line_of(record, self.by)


class Reach(Enum):
    """How far a queue is known.

    state     | what it means                                       | leaves to, when
    ----------|-----------------------------------------------------|-------------------------------------
    unknown   | nothing of its main partition is delivered          | opened: the group's progress is known
    unknown   |                                                     | absent: there is no such queue
    opened    | the same; it is read up to its end of the take-over | caught up: it was read so far
    absent    | main goes on without it, until the process restarts |
    caught up | all that waits is known                             |
    """

    UNKNOWN = "unknown"
    OPENED = "opened"
    ABSENT = "absent"
    CAUGHT_UP = "caught up"


class QueueFacts(NamedTuple):
    """What waits in the queue of one main partition.

    `blocked_keys`: keys of which a record waits; a record without a key is one of its own. `behind_records`: what waits
    behind the first record of its key. `fill`: as `fill_of`. `parked_keys`: those of the blocked keys whose first
    record waits for an operator. `due_ms`: the steady time (ms) at which the oldest first record was or will be due
    that is neither parked nor held; NEVER if there is none.
    """

    blocked_keys: int
    behind_records: int
    fill: float
    parked_keys: int = 0
    due_ms: int = NEVER


class UnseenCopies:
    """The records of one queue whose copies were awaited when its log was cut, and were not read since."""

    def __init__(self) -> None:
        self.identities: set[Identity] = set()
        self._until_ms = NEVER
        """The steady time at which they are held lost."""
        self._end = -1
        """Where the log ended at the cut."""

    def note_cut(self, ledger: KeyLedger, end: int, steady_ms: int) -> None:
        """Note which copies are awaited while the log is cut, at a steady time. `end`: where it ends then."""
        self.identities.update(entry.identity for entry in ledger.entries() if entry.offset < 0)
        self._until_ms, self._end = steady_ms + LOST_AFTER_MS, end

    def take_lost(self, ledger: KeyLedger, read_to: int, steady_ms: int) -> tuple[list[Identity], int]:
        """Return the records whose copies are lost, once that is sure, and when to look again (steady ms).

        `read_to`: the offset below which the queue was read. A copy that is still being written has more time.
        """
        if not self.identities or (steady_ms >= self._until_ms and read_to < self._end):
            return [], NEVER  # what is read has it looked at again
        if steady_ms < self._until_ms:
            return [], self._until_ms
        waiting = {one: entry for one in self.identities if (entry := ledger.entry(one)) is not None}
        self.identities = {one for one, entry in waiting.items() if entry.phase is Phase.WRITING}
        self._until_ms = steady_ms + LOST_AFTER_MS if self.identities else NEVER
        return [one for one, entry in waiting.items() if entry.phase is Phase.EXPECTED], self._until_ms


class ShortMain:
    """Whether heads wait for offsets that the main partition does not have."""

    def __init__(self) -> None:
        self.main_end = -1
        """Where the main partition ended when it was read up to its end; −1: it was not."""
        self._lowest = -1
        """The lowest offset of a head that the main partition does not reach, and since when (steady ms)."""
        self._since_ms = NEVER

    def former_from(self, lowest: int, unread: int, steady_ms: int) -> tuple[int | None, int]:
        """Return the offset from which on heads are of a former log, if that is sure, and when to look again (steady
        ms).

        `lowest`: the lowest offset for which a head waits. `unread`: the first offset of main that was not read.
        """
        if lowest == NEVER or unread != self.main_end:
            return None, NEVER
        if lowest != self._lowest:
            self._lowest, self._since_ms = lowest, steady_ms
        sure_ms = self._since_ms + SHORT_AFTER_MS
        return (lowest, NEVER) if steady_ms >= sure_ms else (None, sure_ms)


class OwnedQueue:
    """One queue partition, of the partition `main`. `changed`: the queues of the lane that are to be looked at.

    Invariants: what is AWAY of its partition is what waits in it, and nothing else; nothing of `main` has begun before
    what waits is known.
    """

    def __init__(self, ties: QueueTies, main: PartitionState, spans: Spans, changed: set[OwnedQueue]) -> None:
        self._ties, self._changed = ties, changed
        self.main = main
        self.source = Partition(ties.decisions.policy.names.ordered(main.source.topic), main.source.number)
        self.queue: PartitionState | None = None
        """None until it is opened."""
        self.state = Reach.UNKNOWN
        self.ledger, self.own = KeyLedger(), OwnCopies()
        self.unseen, self.short_main = UnseenCopies(), ShortMain()
        self.copy_reads = CopyReads(self, ties, spans)
        self.is_filling = False
        """Whether so much waits that it was named."""

    @property
    def opened(self) -> PartitionState:
        """The queue's partition, once it is opened."""
        assert self.queue is not None, f"{self.source} was opened"
        return self.queue

    @property
    def is_known(self) -> bool:
        """Whether all that waits is known, so that main records may be delivered."""
        return self.state in (Reach.ABSENT, Reach.CAUGHT_UP)

    def is_live(self, epoch: int) -> bool:
        """Return whether what comes for an assignment is about this one, which is not being released."""
        # Contract 9.1: what was read for an earlier assignment is nothing of this one.
        return self.main.epoch == epoch and not self.main.closing

    def look_soon(self) -> None:
        """Look at this queue with this call of the lane."""
        self._changed.add(self)

    # --- the queue is opened and read -------------------------------------------------------------------------------

    def open_at(self, queue: PartitionState) -> None:
        """Begin with the queue's partition, where the group has read it to."""
        self._ties.decisions.settling.begin_partitions([queue])
        self._ties.machines.commits.soon(queue)  # so that the group has progress there, whatever becomes of us
        self.queue, self.state = queue, Reach.OPENED

    def go_without(self, now: Now) -> None:
        """Note that there is no such queue: nothing waits. Once it is created, the process restarts in place."""
        self.state = Reach.ABSENT
        self._let_main_go_on(now)

    def take_in(self, run: FetchedRecords, now: Now, *, caught_up: bool) -> None:
        """Take in what the queue holds behind what was read. `caught_up`: it was read up to its end of the start."""
        queue = self.opened
        for record in run.records:
            if record.offset >= queue.offsets.next:  # else the lane has known it since it was committed
                self._read_copy(queue, record, now)
        if run.end is not None and queue.offsets.reached(run.end):
            self._ties.machines.commits.soon(queue)
        if caught_up and self.state is not Reach.CAUGHT_UP:
            self.state = Reach.CAUGHT_UP
            if (suspects := self._ties.ownership.suspects) is not None:
                suspects.log_ended(queue, now)
            self._let_main_go_on(now)
        self.look_soon()

    def _read_copy(self, queue: PartitionState, record: Record, now: Now) -> None:
        state = retry_state_of(record)
        # Contract 3.6: a copy whose headers break their form is never delivered, and never lost.
        if record.fault or state.order is None:
            self._give_up_copy(queue, record, now)
        elif self._ties.supersedes(state):
            # Only its end is written, of which thousands may come at once.
            bare = replace(record, value=None, headers=None, weight=RECORD_COST)
            self._end_copy(queue, bare, transitions.by_reset(record), now)
        elif queue.offsets.begin(record.offset, AWAY, None) is not None:
            identity, line, attempt = identity_of(record), self._ties.line_of(record), attempt_of(state)
            if fault := self.ledger.fault_of(identity, line, attempt):
                why = f"bad-header: {fault} {record.id}, which waits here"
                self._give_up_copy(queue, replace(record, retry_state=None, fault=why), now)
                return
            due_ms, at_ms = due_of(state, now), record.timestamp
            copy = QueuedCopy(record.offset, identity, line, state.order, attempt, due_ms, at_ms, record.weight)
            self._pass_over(self.ledger.read(copy))
            self.unseen.identities.discard(identity)

    def _give_up_copy(self, queue: PartitionState, record: Record, now: Now) -> None:
        """Have a copy dead-lettered that is none of what waits, unless it was done already."""
        self._end_copy(queue, record, dead_letter_unreadable(record, self._ties.decisions.policy, now.wall_ms), now)

    def _end_copy(self, queue: PartitionState, record: Record, decision: Commit | Written, now: Now) -> None:
        """Have a copy ended of which the ledger never hears, unless it was done already."""
        if queue.offsets.begin(record.offset, READY, record) is not None:
            self.copy_reads.given_up.add(record.offset)
            self._ties.machines.room.add_bytes(queue, record.weight)
            self._ties.decisions.write(queue, record, decision, now)

    def _pass_over(self, copy_offsets: Iterable[int]) -> None:
        """Mark copies as done that mean nothing any more."""
        for offset in copy_offsets:
            # Without the entry the next owner reads the copies again.
            if self.queue is not None and offset in self.queue.offsets.entries:
                self.queue.offsets.finish(offset)
                self._ties.machines.commits.soon(self.queue)

    def note_cut(self, end: int, now: Now) -> None:
        """Note that the beginning of the queue is gone: what waits there is lost, also what was not read back yet.

        `end`: where its log ends.
        """
        self.unseen.note_cut(self.ledger, end, now.steady_ms)
        self.look_soon()

    def lose_record(self, copy_offsets: Iterable[int]) -> None:
        """Count a record as lost, whose copies were at these offsets; others go on without it."""
        self._ties.ownership.records_lost[self.main.source.topic] += 1
        self._pass_over(copy_offsets)
        self.look_soon()

    # --- main records of blocked keys -------------------------------------------------------------------------------

    def admits(self, run: FetchedRecords) -> bool:
        """Return whether records of the main partition begin; if as much waits as may, pause it instead."""
        if self.ledger.heads.waits_for_main():
            self.look_soon()
        if not self._is_filled(1):
            return True
        self._ties.machines.fetching.pause(self.main, run.records[0].offset, NEVER, NotFetched.BEHIND_KEYS)
        return False

    def _is_filled(self, share: float) -> bool:
        """Return whether such a share of what may wait does. What waits for main records could never go."""
        return not self.ledger.heads.waits_for_main() and self.fill() >= share

    def main_ended(self, end: int) -> None:
        """Note that the main partition was read up to its end."""
        self.short_main.main_end = end
        if self.ledger.heads.waits_for_main():
            self.look_soon()

    def _let_main_go_on(self, now: Now) -> None:
        """Fetch the main partition again that waited for its queue."""
        pause = self.main.paused
        if pause is not None and pause.because in (NotFetched.QUEUE_UNREAD, NotFetched.BEHIND_KEYS):
            self._ties.machines.fetching.go_on(self.main, now.steady_ms)

    def keeps(self, record: Record, coming: list[tuple[PartitionState, Record]]) -> bool:
        """Return whether a main record that begins is not to be delivered: its copy waits, or its key is blocked.

        `coming`: what is to be written behind its key gets it then.
        """
        line, lines = self._ties.line_of(record), self.ledger.lines
        if line not in lines.by_key:
            return False
        entry = self.ledger.entry(identity_of(record))
        if entry is not None and entry.key == line:  # the progress beside its copy was lost
            self._ties.finish(self.main, record)
            return True
        # Where one of the key is in memory, this one queues there: `finished` puts it behind, if that one fails.
        if self._ties.machines.waiting.has_line(record.source, line) or not lines.blocks(line, record.offset):
            return False
        self._put_behind(record, coming)
        return True

    def finished(self, record: Record, following: Record | None, coming: list[tuple[PartitionState, Record]]) -> None:
        """Let the next main record of a key go once one has ended: out, or behind what waits of the key."""
        waiting, ledger = self._ties.machines.waiting, self.ledger
        if following is None and not ledger.heads.waits_for_keys:
            return
        line = self._ties.line_of(record)
        if following is not None and not ledger.lines.blocks(line, following.offset):
            waiting.let_next(following)
            return
        for later in () if following is None else waiting.take_line(following):
            self._put_behind(later, coming)
        if not waiting.has_line(record.source, line) and ledger.heads.main_ended(line):
            self.look_soon()

    def _put_behind(self, record: Record, coming: list[tuple[PartitionState, Record]]) -> None:
        line = self._ties.line_of(record)
        attempt = attempt_of(record) if record.cycle else FIRST_ATTEMPT  # one object for thousands
        self._pass_over(self.ledger.writing(identity_of(record), line, Order(record.offset), attempt))
        coming.append((self.main, record))

    # --- copies that the lane writes --------------------------------------------------------------------------------

    def settles(self, partition: PartitionState, record: Record, decision: Commit | Written) -> bool:
        """Note a decision about a record: if it is to wait, its key is blocked from now on.

        Return whether the record has ended with it: one that came behind another and succeeds has nothing to write.
        """
        is_of_queue = partition is self.queue
        if isinstance(decision, COPIED):
            # A main record that is to wait takes the place of whatever waits as if it were the same.
            if is_of_queue and self._is_other(record):
                return False
            state, line = decision.retry_state, self._ties.line_of(record)
            assert state.order is not None, "a copy in a queue has its order"
            self._pass_over(self.ledger.writing(identity_of(record), line, state.order, attempt_of(state)))
        elif is_of_queue and decision == DONE and not self._is_other(record):
            self._record_ended(record, self.ledger.done(identity_of(record)))
            self._ties.finish(partition, record)
            return True
        return False

    def copy_written(
        self, entry: SettledRecord, where: WrittenAt | None, transaction: Transaction, now: Now
    ) -> RetryState | None:
        """Note that a decision is in Kafka. Return the state of its copy, if it is known where that is.

        `where`: its copy is there in the queue, written by this transaction; None: that is to be read.
        """
        record, decision = entry.record, entry.decision
        state = decision.retry_state if isinstance(decision, COPIED) else None
        is_of_main = state is not None and record.source != self.source
        # Of one that was given up the ledger has never heard, and its identity may be another's.
        is_given_up = record.source == self.source and record.offset in self.copy_reads.given_up
        if record.fault or is_given_up or (not is_of_main and self._is_other(record)):
            self._record_ended(record, ())
        elif state is None:
            self._record_ended(record, self.ledger.done(identity_of(record)))
        elif where is None or (queue := self.queue) is None or self.main.closing:
            self._record_ended(record, self.ledger.written(identity_of(record)))
        else:
            copy, (offset, _) = None, where
            if self.own.continues(transaction, offset, queue.offsets.next):
                copy = located_copy(entry, state, identity_of(record), self._ties.line_of(record), where, now)
                queue.offsets.begin(offset, AWAY, None)
                self.unseen.identities.discard(copy.identity)
            self._record_ended(record, self.ledger.written(identity_of(record), copy))
            return state
        return None

    def _is_other(self, record: Record) -> bool:
        """Return whether what waits as this record is another one, and stays."""
        return self.ledger.has_other_key(identity_of(record), self._ties.line_of(record))

    def _record_ended(self, record: Record, obsolete: Iterable[int]) -> None:
        if record.source == self.source:
            self.copy_reads.hopping.discard(record.offset)
            self.copy_reads.given_up.discard(record.offset)
            obsolete = [offset for offset in obsolete if offset != record.offset]
        self._pass_over(obsolete)
        self.look_soon()

    # --- heads: out, and back ---------------------------------------------------------------------------------------

    def _ask_for_heads(self, holds: Holds, most_bytes: int, now: Now) -> None:
        """Have the payloads of heads read that may go out, as far as there is room for them."""
        queue, copy_reads = self.opened, self.copy_reads
        is_held, under_way = self._held_lines(holds), partial(self._ties.machines.waiting.has_line, self.main.source)
        bytes_out = queue.throughput.load + copy_reads.coming_bytes()  # what was requested takes its room too
        # From there on none could be marked as done. All before it go first, else they would hop instead, forever.
        reach = queue.offsets.first + copy_reads.spans.delivered
        requested_heads = list[WaitingEntry]()
        while copy_reads.has_room() and (bytes_out < most_bytes or not copy_reads.count_out()):
            if (entry := self.ledger.ask(under_way, is_held, reach)) is None:
                break
            copy_reads.request_copy(entry)
            requested_heads.append(entry)
            bytes_out += entry.weight
        if requested_heads:
            copy_reads.read_ahead(requested_heads, most_bytes, now)
        if (far := self.ledger.heads.nearest_far()) >= 0:
            copy_reads.hops.out_of_reach = far

    def _held_lines(self, holds: Holds) -> Callable[[bytes], bool]:
        """Return a function that says whether an operator holds all records of a line."""
        level, topic = self.opened.kind.level, self.main.source.topic
        if holds.covers(level, topic):
            return lambda _line: True
        # Contract 10.4: a hold names a key; the ledger knows the name of its line alone.
        held = map(line_of_key, holds.keys(level, topic)) if self._ties.by == "key" else ()
        return frozenset(held).__contains__

    def fetched(self, offset: int, record: Record | None, now: Now) -> None:
        """Take in a record that was read by its offset; None: it is gone, as it is where another one is there."""
        copy_reads = self.copy_reads
        if (identity := copy_reads.requested.pop(offset, None)) is None:
            return
        if not self.ledger.taken(identity, offset):  # another copy counts by now
            copy_reads.hopping.discard(offset)
            self.look_soon()
        elif record is None or not (record.fault or identity_of(record) == identity):
            copy_reads.hopping.discard(offset)
            self.lose_record({offset, *self.ledger.done(identity)})
        else:
            copy_reads.take_record(record, now)

    def put_back(self, records: Iterable[Record]) -> None:
        """Take back records that the lane drops from memory: they stay in the queue, and are read again."""
        for record in records:
            self.ledger.put_back(identity_of(record))
        self.look_soon()

    # --- the queue is looked at -------------------------------------------------------------------------------------

    def let_out(self, holds: Holds, most_bytes: int, now: Now) -> None:
        """Let out what may go, and see when to look at it again.

        `holds`: what operators hold. `most_bytes`: of its records that may be in memory.
        """
        machines, copy_reads = self._ties.machines, self.copy_reads
        copy_reads.hops.out_of_reach = -1
        if now.steady_ms >= copy_reads.refresh_at_ms:
            copy_reads.look_for_old(now)
            machines.commits.soon(self.opened)
        times = [self._pass_heads(now)]
        if self.opened.blocked:
            self.look_soon()  # as soon as it goes on
        else:
            # In this order: a person's decision, then what is due, then hops, which have what is left of the reads.
            copy_reads.read_aside(now)
            self._ask_for_heads(holds, most_bytes, now)
            times.append(copy_reads.hop(now))
        is_paused = self.main.paused is not None and self.main.paused.because is NotFetched.BEHIND_KEYS
        if is_paused and not self._is_filled(GOES_ON):
            machines.fetching.go_on(self.main, now.steady_ms)
        if self.begins_to_fill(fill := self.fill()):
            most, keys = self._ties.decisions.policy.max_waiting, self.named(self.ledger.lines.largest(LARGEST_NAMED))
            self._ties.filling(self.main.source, len(self.ledger), most, fill, keys)
        due_ms = self.ledger.heads.next_at()  # a head out of reach is due already: what hops has it looked at again
        times += [NEVER if due_ms <= now.steady_ms else due_ms, copy_reads.refresh_at_ms]
        machines.agenda.set_time(self, min(times))

    def _pass_heads(self, now: Now) -> int:
        """Let heads go on that waited for their time or for main, and those that come behind a record that is lost;
        return when to look again (steady ms)."""
        unread, heads = self.main.offsets.unread, self.ledger.heads
        under_way = partial(self._ties.machines.waiting.has_line, self.main.source)
        lost, lost_at_ms = self.unseen.take_lost(self.ledger, self.opened.offsets.next, now.steady_ms)
        for identity in lost:
            self.lose_record(self.ledger.done(identity))
        heads.advance(now.steady_ms, unread, under_way)
        former, short_at_ms = self.short_main.former_from(heads.lowest_ahead_of_main(), unread, now.steady_ms)
        if former is not None:
            heads.take_as_former(former, under_way)
        return min(lost_at_ms, short_at_ms)

    # --- questions --------------------------------------------------------------------------------------------------

    def fill(self) -> float:
        """Return the share of what may wait that does, as `fill_of`."""
        most = self._ties.decisions.policy.max_waiting
        return fill_of(len(self.ledger), self.queue, most, self.copy_reads.spans.delivered)

    def begins_to_fill(self, fill: float) -> bool:
        """Note whether three quarters of what may wait do; return True if that is news. It is again after half of
        it."""
        was_filling, self.is_filling = self.is_filling, fill >= (STILL_FILLS if self.is_filling else FILLS)
        return self.is_filling and not was_filling

    def facts(self) -> QueueFacts:
        """Return what waits here."""
        keys, heads = len(self.ledger.lines.by_key), self.ledger.heads
        return QueueFacts(keys, len(self.ledger) - keys, self.fill(), self.ledger.parked_keys, heads.oldest_due())

    def named(self, lines: Iterable[KeyLine]) -> dict[str, int]:
        """Return how many records of some keys wait, by the id of the first: a key itself may be anybody's name."""
        topic, number = self.main.source
        return {f"{topic}:{number}:{line.entries[0].identity[0]}": len(line.entries) for line in lines}

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        self.ledger.check()
        ensure(self.is_known or not self.main.offsets.entries, f"{self.main.source} begins once its queue is known")
        if (queue := self.queue) is None or self.main.closing:
            return
        at_rest = {e.offset for e in self.ledger.entries() if e.offset >= 0 and e.phase is not Phase.TAKEN}
        away = {offset for offset, e in queue.offsets.entries.items() if e.where is AWAY}
        ensure(away == at_rest, f"{queue.source} has away what waits in it, and nothing else: {away} {at_rest}")
        taken = {e.offset for e in self.ledger.entries() if e.phase is Phase.TAKEN}
        in_memory = queue.offsets.entries.keys() - away
        ensure(taken <= in_memory, f"{queue.source} has {taken - in_memory} nowhere")
        self.copy_reads.check()


def fill_of(waiting: int, queue: PartitionState | None, most: int, span: int) -> float:
    """Return the share of what may wait in a queue that does (contract 5.10); above 1 where a predecessor had a larger
    bound.

    There are two bounds, and the fuller one counts: `most` records (`retry.ordered_max_waiting`), and `span` offsets
    from the first of them to the end of the queue, which hold the markers of transactions too. `queue`: None if it was
    not opened yet; then nothing waits.
    """
    return 0.0 if queue is None else max(waiting / most, queue.offsets.span(queue.offsets.next) / span)
