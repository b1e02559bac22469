"""One queue partition as the owner of its main partition knows it: its ledger, and what is under way of it.

`OwnedQueue` keeps the queue partition of one main partition. Its copies are entries of its `PartitionState`: AWAY while
only the ledger (`ledger.py`) knows them. What is asked for is in `reading`; what came is in memory as any record is.
`queues.py` acts on it.

*Copies that this lane has committed itself* are taken in without being read back: to read one back costs as much as to
write it. But a queue is taken in by rising offsets, and what was passed counts as done. So a copy is taken in only
where all that lies before it is known: where the known part of the log ends, or one offset further, if the known part
ends with the last copy of an earlier transaction of this lane. Kafka appends the marker of a transaction behind its
records, and before any record of the same producer's next one, so the one offset between is the marker's. Anything
else may be of others: a redrive, a transaction that was aborted or whose end was unknown; where another producer has
written the second transaction, the marker of the first may come later than it. What lies behind that waits until the
reader of the queue has come so far.

*Copies that a queue has lost before they were read back*: a copy that was committed is awaited from the queue, and its
key is blocked until it comes. If the log is cut meanwhile, by retention or by hand, it never comes. So what is awaited
at a cut, and was not read long after all that the log held then, is lost.

*Heads whose places lie behind the end of their main partition*: a head waits until the main partition is read up to its
place. Where the main topic was made anew, or lost its end by an unclean election, the record of that place is no more,
and the partition may never be so long again. Once all of it was read for a minute, nothing can come before such a head.

*Hops*: progress holds done offsets up to SPAN. Where the first open record lies further below the end, what is done
beyond that would be delivered again (contract 5.3). So the first records are written again at the end, if most between
are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from reconsume.sidecar.core.commit_batch import SettledRecord, WrittenAt
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.ledger import Identity, KeyLedger, KeyLine, Phase, QueuedCopy, WaitingEntry
from reconsume.sidecar.core.partition import AWAY, PartitionState
from reconsume.sidecar.core.record import NEVER, OUR_HEADERS, Now, Partition, Record, weight_of
from reconsume.topics.attempt import attempt_of
from reconsume.topics.render_headers import as_read
from reconsume.topics.retry_headers import RetryState

if TYPE_CHECKING:
    from reconsume.sidecar.core.decisions import ByHand


class Reach(Enum):
    """How far a queue is known.

    state     | what it means                                       | leaves to, when
    ----------|-----------------------------------------------------|-----------------------------------------
    unknown   | nothing of its main partition is delivered          | opened: the group's progress is known
    unknown   |                                                     | absent: there is no such queue
    opened    | the same; it is read up to its end of the take-over | caught up: it was read so far
    absent    | main goes on without it                             | late: it was made, and its progress is known
    late      | main goes on; it is read up to its end              | caught up: it was read so far
    caught up | all that waits is known                             |
    """

    UNKNOWN = "unknown"
    OPENED = "opened"
    ABSENT = "absent"
    LATE = "late"
    CAUGHT_UP = "caught up"


Transaction: TypeAlias = tuple[int, int]
"""The number of its producer, and its own. Both rise."""


class LocatedCopies:
    """The copies of our own in one queue whose places are known, and that were not taken in yet.

    Invariants: they rise by transaction and by offset, and none is taken in before those that lie before it.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Transaction, QueuedCopy]] = deque()
        self._last = ((-1, -1), -1)
        """The transaction of the last copy that left, and the offset behind it."""

    def add(self, transaction: Transaction, copy: QueuedCopy) -> None:
        """Add a copy that is in Kafka.

        One that lies below another is in another log: the reader of the queue finds that out, and ends the process.
        """
        last = self._waiting[-1][1].offset + 1 if self._waiting else self._last[1]
        if copy.offset >= last:
            self._waiting.append((transaction, copy))

    def comes_next(self, transaction: Transaction, offset: int, known_to: int) -> bool:
        """Return whether all before a copy that is in Kafka is known, so that it is taken in at once, without `add`.

        `known_to`: as for `take`. So nearly all are, and a transaction's thousands of copies do not wait here together.
        """
        if self._waiting or not (offset == known_to or self._is_behind_marker(known_to, transaction, offset)):
            return False
        self._last = transaction, offset + 1
        return True

    def take(self, known_to: int) -> QueuedCopy | None:
        """Remove and return the next copy, if all before it is known; those that were read meanwhile are dropped.

        `known_to`: the offset up to which the queue was taken in.
        """
        while self._waiting:
            transaction, copy = self._waiting[0]
            if copy.offset > known_to and not self._is_behind_marker(known_to, transaction, copy.offset):
                return None
            self._waiting.popleft()
            self._last = transaction, copy.offset + 1
            if copy.offset >= known_to:
                return copy
        return None

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        waiting = [(transaction, copy.offset) for transaction, copy in self._waiting]
        offsets = [offset for _, offset in waiting]
        ensure(waiting == sorted(waiting) and offsets == sorted(set(offsets)), "located copies rise")
        ensure(not waiting or self._last[1] <= offsets[0], "located copies leave in their order")

    def _is_behind_marker(self, known_to: int, transaction: Transaction, offset: int) -> bool:
        """Return whether nothing but the marker of an earlier transaction of ours lies before a copy."""
        before, end = self._last
        is_next = before != transaction and before[0] == transaction[0]
        return is_next and offset == known_to + 1 and end == known_to


def due_of(state: RetryState, now: Now) -> int:
    """Return the steady time (ms) at which a record may go out; NEVER if it is parked.

    All records that are due already get the same int object, which saves memory."""
    if state.parked:
        return NEVER
    return now.steady_ms + max(0, state.due_at - now.wall_ms)


def located_copy(
    entry: SettledRecord, state: RetryState, identity: Identity, line: bytes, where: WrittenAt, now: Now
) -> QueuedCopy:
    """Return what a ledger knows of the copy of an entry, without the payload. Its weight is about that."""
    record, (offset, written_ms) = entry.record, where
    assert state.order is not None, "a copy in a queue has its order"
    due_ms = due_of(state, now)
    weight = record.weight if record.retry_state is not None else record.weight + OUR_HEADERS
    return QueuedCopy(offset, identity, line, state.order, attempt_of(state), due_ms, written_ms, weight)


def as_read_back(entry: SettledRecord, state: RetryState, source: Partition, where: WrittenAt) -> Record:
    """Return the copy of an entry as whoever reads it in its queue would know it."""
    copy, state = entry.writes[0], as_read(state)
    weight = weight_of(copy.key, copy.value, copy.headers, state)
    offset, timestamp = where
    epoch = entry.record.epoch
    return Record(source, offset, epoch, timestamp, copy.key, copy.value, copy.headers, state, "", weight)


class QueueFacts(NamedTuple):
    """What waits in the queue of one main partition.

    `blocked_keys`: keys of which a record waits; a record without a key is one of its own. `behind_records`: what waits
    behind the first record of its key. `fill`: as `fill_of`. `parked_keys`: those of the blocked keys whose first
    record waits for a person. `due_ms`: the steady time (ms) at which the oldest first record was or will be due that
    is neither parked nor held; NEVER if there is none.
    """

    blocked_keys: int
    behind_records: int
    fill: float
    parked_keys: int = 0
    due_ms: int = NEVER


LOST_AFTER_MS = 60_000
"""ms from a cut until a copy that was not read is held lost: one that was committed just then is read by then."""
SHORT_AFTER_MS = 60_000
"""ms for which a main partition must end before a place: just after an election a leader may tell an end that lies
before what was read already."""
ROUND_MS = 30_000
"""ms between two rounds of hops at least: transactions leave markers, so hops alone may not make a queue short."""
FILLS, STILL_FILLS = 0.75, 0.5
"""Shares of what may wait, from which a queue is named, and below which it may be named again."""


class UnseenCopies:
    """The records of one queue whose copies were awaited when its log was cut, and were not read since."""

    def __init__(self) -> None:
        self.identities: set[Identity] = set()
        self._until_ms = NEVER
        """The steady time at which they are held lost."""
        self._end = -1
        """Where the log ended at the cut."""
        self.is_end_seen = False
        """Whether the log was read up to its end since. The client reports none while more comes without a pause, so it
        is not needed."""

    def note_cut(self, ledger: KeyLedger, end: int, steady_ms: int) -> None:
        """Note which copies are awaited while the log is cut, at a steady time. `end`: where it ends then."""
        awaited = (Phase.WRITING, Phase.EXPECTED)
        entries = (e for e in ledger.entries() if e.phase in awaited and e.number not in ledger.early)
        self.identities.update(entry.identity for entry in entries)
        self._until_ms, self._end, self.is_end_seen = steady_ms + LOST_AFTER_MS, end, False

    def take_lost(self, ledger: KeyLedger, read_to: int, steady_ms: int) -> tuple[list[Identity], int]:
        """Return the records whose copies are lost, once that is sure, and when to look again (steady ms).

        `read_to`: the offset below which the queue was read. A copy that is still being written has more time.
        """
        if not self.identities:
            return [], NEVER
        if steady_ms < self._until_ms:
            return [], self._until_ms
        if not self.is_end_seen and read_to < self._end:  # what is read has it looked at again
            return [], NEVER
        waiting = {one: entry for one in self.identities if (entry := ledger.entry(one)) is not None}
        self.identities = {one for one, entry in waiting.items() if entry.phase is Phase.WRITING}
        if self.identities:
            self._until_ms = steady_ms + LOST_AFTER_MS
        lost = [one for one, entry in waiting.items() if entry.phase is Phase.EXPECTED]
        return lost, self._until_ms if self.identities else NEVER


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


class Spans(NamedTuple):
    """Offsets from the first open record of a queue within which records are delivered, and beyond which it hops."""

    delivered: int
    hop: int


class Hops:
    """Which first records of one queue are to be written again at its end."""

    def __init__(self) -> None:
        self.out_of_reach = -1
        """The offset of a record that is to be read, too far from the first open one; −1: there is none."""
        self._round_at_ms = -NEVER
        """The steady time (ms) at which the present round began: what lay below `_round_end` then hops once."""
        self._round_end = -1

    def end_of_hops(self, queue: PartitionState, waiting: int, spans: Spans, steady_ms: int) -> tuple[int, int]:
        """Return the offset below which records are to hop now, and when to look again (steady ms).

        `waiting`: how many records wait in the queue.
        """
        if self.out_of_reach >= 0:  # each hop brings it nearer, however much between is open
            return self.out_of_reach - spans.delivered + 1, NEVER
        offsets = queue.offsets
        span = offsets.span(offsets.next)
        # Where nearly all between is open, a round of hops would only move the gap.
        gains = 2 * waiting <= span if span < spans.delivered * 7 // 8 else 8 * waiting <= 7 * span
        if span < spans.hop or not gains:
            return 0, NEVER
        if offsets.first >= self._round_end:
            if steady_ms < self._round_at_ms + ROUND_MS:
                return 0, self._round_at_ms + ROUND_MS
            self._round_at_ms, self._round_end = steady_ms, offsets.next
        return self._round_end, NEVER


class Reading:
    """What is read of one queue by its offset, and is not delivered although it was read."""

    def __init__(self) -> None:
        self.requested: dict[int, Identity] = {}
        """The records that are being read, by the offset of their copy."""
        self.hopping: set[int] = set()
        """The offsets of those that are written again at the end, or settled, unless they end."""
        self.given_up: set[int] = set()
        """The offsets of copies that are none of what waits, on their way to the DLQ: any number, as others write
        them."""
        self.settling: dict[Identity, ByHand] = {}
        """What operators have decided about records that wait here, until it is carried out."""
        self.old: set[Identity] = set()
        """Those whose copies are to be written again because they are old."""
        self.old_at_ms = -NEVER
        """The steady time (ms) at which old copies are looked for again."""


class OwnedQueue:
    """One queue partition, of the partition `main`.

    Invariants: what is AWAY of its partition is what waits in it, and nothing else.
    """

    def __init__(self, source: Partition, main: Partition, epoch: int) -> None:
        self.source, self.main, self.epoch = source, main, epoch
        self.ledger, self.located, self.reading = KeyLedger(), LocatedCopies(), Reading()
        self.unseen, self.short_main, self.hops = UnseenCopies(), ShortMain(), Hops()
        self.state = Reach.UNKNOWN
        self.keep_at_ms = NEVER
        """When its progress is committed again although it is the same (steady ms)."""
        self.is_filling = False
        """Whether so much waits that it was named."""

    @property
    def is_known(self) -> bool:
        """Whether all that waits is known, so that main records may be delivered."""
        return self.state in (Reach.ABSENT, Reach.LATE, Reach.CAUGHT_UP)

    @property
    def is_opened(self) -> bool:
        """Whether the queue is there, and it is known how far the group has read it."""
        return self.state in (Reach.OPENED, Reach.LATE, Reach.CAUGHT_UP)

    def count_out(self, queue: PartitionState) -> int:
        """Return how many records of it are being read, or in memory."""
        in_memory = len(queue.offsets.entries) - queue.offsets.counts[AWAY] - len(self.reading.given_up)
        return len(self.reading.requested) + in_memory

    def coming_bytes(self) -> int:
        """Return the bytes of the records that are being read."""
        entries = (self.ledger.entry(identity) for identity in self.reading.requested.values())
        return sum(entry.weight for entry in entries if entry is not None)

    def fill_of(self, queue: PartitionState | None, most: int, span: int) -> float:
        """Return the share of what may wait that does (contract 5.10); above 1 where a predecessor had a larger bound.

        There are two bounds, and the fuller one counts: `most` records (`retry.ordered_max_waiting`), and `span`
        offsets from the first of them to the end of the queue, which hold the markers of transactions too. `queue`:
        None if it was not opened yet; then nothing waits.
        """
        if queue is None:
            return 0.0
        return max(len(self.ledger) / most, queue.offsets.span(queue.offsets.next) / span)

    def begins_to_fill(self, fill: float) -> bool:
        """Note whether three quarters of what may wait do; return True if that is news. It is again after half of
        it."""
        was_filling, self.is_filling = self.is_filling, fill >= (STILL_FILLS if self.is_filling else FILLS)
        return self.is_filling and not was_filling

    def facts(self, fill: float) -> QueueFacts:
        """Return what waits here, where the queue is so full."""
        keys, heads = len(self.ledger.lines), self.ledger.heads
        return QueueFacts(keys, len(self.ledger) - keys, fill, self.ledger.parked_keys, heads.oldest_due())

    def named(self, lines: Iterable[KeyLine]) -> dict[str, int]:
        """Return how many records of some keys wait, by the id of the first: a key itself may be anybody's name."""
        topic, number = self.main
        return {f"{topic}:{number}:{line.entries[0].identity[0]}": len(line.entries) for line in lines}

    def check(self, queue: PartitionState | None) -> None:
        """Raise BrokenInvariantError if an invariant does not hold. `queue`: its partition, if records of it begin."""
        self.ledger.check()
        self.located.check()
        if queue is None:
            return
        at_rest = {e.offset for e in self.ledger.entries() if e.phase in (Phase.QUEUED, Phase.REQUESTED)}
        late = {copy.offset for copy in (*self.ledger.early.values(), *self.ledger.later.values())}
        away = {offset for offset, e in queue.offsets.entries.items() if e.where is AWAY}
        ensure(
            away == at_rest | late,
            f"{queue.source} has away what waits in it, and nothing else: {away} {at_rest} {late}",
        )
        taken = {e.offset for e in self.ledger.entries() if e.phase is Phase.TAKEN}
        in_memory = queue.offsets.entries.keys() - away
        ensure(taken <= in_memory, f"{queue.source} has {taken - in_memory} nowhere")


def is_culprit(queue: PartitionState, entry: WaitingEntry) -> bool:
    """Return whether a record is the one that crashes its service: it is known by the offset of its copy alone."""
    return queue.suspicion is not None and queue.suspicion.culprit == entry.offset


UnderWay: TypeAlias = Callable[[bytes], bool]
"""Whether main records of a line are in the lane's memory, or out."""
