"""Resets of the group's position: the owner moves its partition, and no retry of an older cycle is delivered.

An operator's request names partitions, each with a target (`ResetOrder`). Every lane hears of all requests, and of all
resets that owners have carried out (`hear`). It has two parts in them.

The owner of a main partition *moves* it:

    drains   as in a hand-over: nothing new is sent, what is in flight is awaited, and committed in its old cycle
    waits    until 2 s after it has heard of the request. By then every instance has, and delivers no retry of the
             partition until it knows the range
    moves    one transaction has the new progress and the record `reset/<topic>:<partition>`. From then on the reset has
             happened, whoever owns the partition
    begins   it lets the partition go, and takes it over again, as its next owner would

So a kill between any two steps leaves what the next owner finds at every start: a request that was not carried out, or
progress and a record that say that it was. Nothing is repaired.

A reset *backwards* (its target is below the first offset that the owner has not begun) takes out of what is done
all that lies between these two; the rest stays done, or to be delivered. These offsets are the range, in a cycle of its
own. A reset *forwards* calls done all below the target, but for what earlier resets are delivering.

Each lane looks at copies (`reason_against`, `supersedes`). One of an older cycle than the range of its record ends with
an event, and is not delivered. One whose range may come waits for it, for 30 s at most.

Event loop alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitResult
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.ownership import Machines, Ownership
from reconsume.sidecar.core.partition import FetchedRecords, Move, PartitionState
from reconsume.sidecar.core.ports import Notice
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.reasons import Closed, NotDelivered
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.position_ranges import (
    MOST_RANGES,
    MOST_RESETS,
    PartitionResets,
    ResetRange,
    Resets,
    is_superseded,
)
from reconsume.topics.retry_headers import RetryState

HEARD_WITHIN_MS = 2_000
"""ms within which every instance has read a request."""
RETRIES_WAIT_MS = 30_000
"""ms for which retries wait for the range of a reset: an owner may be away for longer."""
REFUSED_FOR_MS = 5_000
"""ms after which an owner tries again whose note Kafka has refused."""
VALID_MS = 3_600_000
"""ms after which a request that was not carried out has no effect."""
RESETS = "resets"
"""The name of the next look at resets in the agenda."""


class ResetOrder(NamedTuple):
    """What an operator wants of one partition.

    `reset`: the id of the request. `topic`: the id of the topic, as digests (`LogId.topic`). `target`: the offset to
    go on at. `based_on`: the id of the last reset that the operator knew; empty: there was none. `until_ms`: when the
    order is void (epoch ms). `skips_all`: also what earlier resets have not delivered yet.
    """

    partition: Partition
    reset: str
    topic: str
    target: int
    based_on: str
    until_ms: int
    skips_all: bool = False


class PositionResets:
    """The resets of one lane.

    `use_notes`: has notes go with the next batches (`notes.py`). `repeat_takeover`: has the consumer take partitions
    over again, at their progress.

    Invariants: what is moved is closing; once its move is made, nothing of it is in flight, or on its way into Kafka.
    """

    def __init__(
        self,
        machines: Machines,
        ownership: Ownership,
        use_notes: Callable[[], None],
        repeat_takeover: Callable[[Collection[Partition]], None],
        notice: Notice,
    ) -> None:
        self.in_force = False
        """Whether copies are to be looked at: asked for each retry."""
        self.moving: dict[Partition, tuple[int, ResetOrder]] = {}
        """The partitions that this owner moves: their assignment epochs, and why."""
        self.known: dict[Partition, PartitionResets] = {}
        """What owners have carried out, by main partition: as was heard, or found at the start of a partition."""
        self.has_orders = False
        """Whether something may have to be moved: asked at the end of each call."""
        self._announced: Resets = {}
        self._orders: tuple[ResetOrder, ...] = ()
        """Those of all requests that are not too old, in their order."""
        self._own: list[ResetOrder] = []
        """Those of them that are not over, and about main partitions that this lane owns."""
        self._heard_ms: dict[str, int] = {}
        """When each open request was heard of first (steady ms)."""
        self._awaited: dict[Partition, int] = {}
        """The main partitions whose retries wait for a range, each with the steady ms until when."""
        self.owing: set[Partition] = set()
        """The main partitions of which the policy topic says something else than is true."""
        self._not_before_ms = -NEVER
        """Until when nothing is moved, as Kafka has refused a note (steady ms)."""
        self._machines, self._ownership = machines, ownership
        self._use_notes, self._repeat_takeover, self._notice = use_notes, repeat_takeover, notice

    # --- what is heard ----------------------------------------------------------------------------------------------

    def hear(self, orders: Iterable[ResetOrder], known: Resets, now: Now) -> None:
        """Take in all open orders, and what owners have carried out."""
        self._orders = tuple(order for order in orders if now.wall_ms < order.until_ms)
        self._heard_ms = {order.reset: self._heard_ms.get(order.reset, now.steady_ms) for order in self._orders}
        for source in self._announced.keys() - known.keys():  # its topic was recreated
            if self.known.get(source) == self._announced[source]:
                del self.known[source]
        self._announced = known
        for source, resets in known.items():
            self._learn(source, resets)
        self._look_for_ranges(now)

    def begin(self, source: Partition, resets: PartitionResets | None, now: Now) -> None:
        """Note what was found about a main partition that begins."""
        if resets is not None:
            self._learn(source, resets)
        if (known := self.known.get(source)) is not None:
            self._learn(source, known)
        self._look_for_ranges(now)

    def _learn(self, source: Partition, resets: PartitionResets) -> None:
        """Take in resets of a partition, unless they are older than those that are known, or of another topic."""
        partition, before = self._machines.partitions.get(source), self.known.get(source)
        log = None if partition is None else partition.commit.progress.log
        if partition is not None and log is not None and resets.topic != log.topic:
            # A recreated topic has had no reset: its copies must not end by those of the former one.
            self.known.pop(source, None)
            self._owe(partition, PartitionResets(log.topic))
            return
        if before is None or before.topic != resets.topic or resets.last_reset not in before.resets[:-1]:
            self.known[source] = before = resets
        if partition is not None:
            partition.commit.resets = before

    def rewrite(self) -> None:
        """Note the resets of the lane's partitions once more: the policy topic was recreated."""
        for partition in self._machines.partitions.values():
            if partition.commit.resets is not None and not partition.closing:
                self._owe(partition, partition.commit.resets)

    def _owe(self, partition: PartitionState, resets: PartitionResets) -> None:
        partition.commit.resets_owed = resets
        self.owing.add(partition.source)
        self._use_notes()
        self._machines.commits.at_once(partition)

    def _look_for_ranges(self, now: Now) -> None:
        """Let retries wait whose range may come, and others go that waited."""
        before, self._awaited = self._awaited, {}
        for order in self._orders:
            until_ms = self._heard_ms[order.reset] + RETRIES_WAIT_MS
            if now.steady_ms < until_ms and now.wall_ms < order.until_ms and not self._is_over(order):
                self._awaited[order.partition] = max(until_ms, self._awaited.get(order.partition, 0))
        partitions = self._machines.partitions
        self.in_force = bool(self._awaited or self.known)
        self._own = [one for one in self._orders if one.partition in partitions and not self._is_over(one)]
        self.has_orders = bool(self._own or self.moving)
        self._machines.agenda.set_time(RESETS, min(self._awaited.values(), default=NEVER))
        if before.keys() - self._awaited.keys():
            for partition in partitions.values():
                if not partition.closing:
                    self._machines.waiting.let_try(partition, first=False)

    def _is_over(self, order: ResetOrder) -> bool:
        """Return whether an order was carried out, or never will be: another one was in between."""
        known = self.known.get(order.partition)
        if known is None or known.topic != order.topic:
            return False
        is_outdated = order.based_on in known.resets[:-1] or not order.based_on
        return order.reset in known.resets or is_outdated

    # --- copies -----------------------------------------------------------------------------------------------------

    def supersedes(self, state: RetryState) -> bool:
        """Return whether a copy is of an older cycle than the range of its record."""
        return bool(self.known) and is_superseded(self.known, state.id, state.cycle)

    def reason_against(self, state: RetryState) -> Closed | None:
        """Return why a copy is not delivered now; None if resets do not matter to it."""
        if self.supersedes(state):
            return NotDelivered.SUPERSEDED
        if self._awaited:
            topic, number, _ = state.id.rsplit(":", 2)
            if Partition(topic, int(number)) in self._awaited:
                return NotDelivered.BEHIND_RESET
        return None

    # --- the owner --------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """Look again: the time of retries that waited may be over, or an order may be due."""
        self._look_for_ranges(now)

    def turn(self, now: Now) -> None:
        """Begin what is to be moved, and move what is ready for it."""
        for order in self._own:
            partition = self._machines.partitions.get(order.partition)
            if partition is None or partition.closing:
                continue
            if order.partition not in self.moving and self._may_move(partition, order, now):
                self.moving[order.partition] = partition.epoch, order
                self._ownership.drain(order.partition)
        for source, (epoch, order) in list(self.moving.items()):
            partition = self._machines.partitions.get(source)
            if partition is None or partition.epoch != epoch:
                del self.moving[source]
                self._repeat_takeover((source,))  # nothing, if it is another member's by now
            elif partition.commit.move is None and self._ownership.is_releasing(source):
                del self.moving[source]  # its next owner hears of the order too
            elif partition.commit.move is None:
                self._move_if_ready(partition, order, now)
        self.has_orders = bool(self._own or self.moving)

    def _may_move(self, partition: PartitionState, order: ResetOrder, now: Now) -> bool:
        log, known = partition.commit.progress.log, partition.commit.resets
        notes = partition.offsets.notes
        if log is None or log.topic != order.topic or now.wall_ms >= order.until_ms:
            return False
        if now.steady_ms < self._not_before_ms or (notes is not None and notes.is_unread):
            return False
        if known is None:
            return not order.based_on
        is_next = order.reset not in known.resets and known.last_reset == order.based_on
        return is_next and (order.target >= _begun_to(partition) or len(known.ranges) < MOST_RANGES)

    def _move_if_ready(self, partition: PartitionState, order: ResetOrder, now: Now) -> None:
        commits, at_ms = self._machines.commits, self._heard_ms.get(order.reset, 0) + HEARD_WITHIN_MS
        under_way = () if commits.in_flight is None else commits.in_flight.commits
        for one in self._ownership.tied_to((partition.source,)):
            tied = self._machines.partitions[one]
            if not tied.is_idle or tied.commit.by_ms != NEVER or one in under_way:
                return  # the end of a delivery, or of a transaction, comes back here
        if now.steady_ms < at_ms:
            self._machines.agenda.set_earlier(RESETS, at_ms)
        elif order.reset not in self._heard_ms or now.wall_ms >= order.until_ms:
            self._begin_again(partition.source)  # it was withdrawn, or is void
        else:
            partition.commit.move = move_of(partition, order, now.wall_ms)
            self._use_notes()
            commits.at_once(partition)

    def committed(self, result: CommitResult, now: Now) -> None:
        """Take partitions over again whose move is in Kafka, or cannot be noted there now."""
        if result.notes_refused:
            self._not_before_ms = now.steady_ms + REFUSED_FOR_MS
        for source in [*self.moving, *self.owing]:
            partition, share = self._machines.partitions.get(source), result.batch.commits.get(source)
            if partition is None or share is None or share.epoch != partition.epoch or share.resets is None:
                continue
            move = partition.commit.move
            if move is None:
                partition.commit.resets_owed = None if result.committed else partition.commit.resets_owed
            elif result.committed and share.resets == move.resets:
                self.known[source] = move.resets
                self._notice("position-reset", source, move.progress.cycle, move.progress.next)
                self._begin_again(source)
            elif result.notes_refused:
                self._begin_again(source)
        partitions = self._machines.partitions
        self.owing = {one for one in self.owing if one in partitions and partitions[one].commit.resets_owed is not None}
        self._look_for_ranges(now)

    def _begin_again(self, source: Partition) -> None:
        """Let a partition go, and take it over at its progress, as its next owner would."""
        del self.moving[source]
        self._ownership.lose_partitions((source,))
        self._repeat_takeover((source,))

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for source in self.moving:
            partition = self._machines.partitions.get(source)
            ensure(partition is None or partition.closing, f"{source} is moved, so it is closing")
        for source, partition in self._machines.partitions.items():
            has_move = partition.commit.move is not None
            ensure(not has_move or source in self.moving, f"{source} has a move, so it is moved")
            ensure(not has_move or partition.is_idle, f"nothing of {source} is under way, as it is moved")
        ensure(self.in_force == bool(self._awaited or self.known), "copies are looked at if a reset may matter to one")


def stamped(run: FetchedRecords, resets: PartitionResets) -> FetchedRecords:
    """Return records of a main partition in their cycles."""
    return run._replace(records=list(_in_cycles(run.records, resets)))


def _in_cycles(records: Iterable[Record], resets: PartitionResets) -> Iterator[Record]:
    for record in records:
        cycle = resets.cycle_of(record.offset)
        yield record.in_cycle(cycle) if cycle else record


def _begun_to(partition: PartitionState) -> int:
    """Return the first offset that neither this owner nor, as far as it knows, an earlier one has begun. What an
    earlier reset has moved back over was begun before it."""
    offsets, resets = partition.offsets, partition.commit.resets
    ranges = () if resets is None else resets.ranges
    return max(offsets.next, offsets.top, offsets.inherited.end, *(one.end for one in ranges))


def move_of(partition: PartitionState, order: ResetOrder, at_ms: int) -> Move:
    """Return the progress after a reset at `at_ms` (epoch ms), and what is noted of it. Nothing may be under way."""
    now, before = partition.offsets.snapshot(), partition.commit.progress
    known = partition.commit.resets or PartitionResets(order.topic)
    begun_to, ids = _begun_to(partition), (*known.resets, order.reset)[-MOST_RESETS:]
    if order.target < begun_to:
        # One more than the greater: the record may be lost with its topic, and progress with the group.
        cycle = max(before.cycle, known.cycle) + 1
        ranges = known.with_range(ResetRange(order.target, begun_to, cycle, at_ms))
        resets = PartitionResets(known.topic, cycle, ranges, ids)
        done = OffsetRanges.of(now.done).within(now.next, order.target)
        progress = Progress(min(now.next, order.target), done)
    else:
        cycle = max(before.cycle, known.cycle)
        kept = () if order.skips_all else tuple((one.start, one.end) for one in known.ranges)
        skipped, progress = _skip(now, order.target, OffsetRanges(sorted(kept)))
        resets = PartitionResets(known.topic, cycle, known.ranges, ids, skipped)
    moved = replace(progress, clean=True, width=before.width, log=before.log, cycle=cycle, notes=True)
    return Move(moved, resets)


def _skip(now: Progress, target: int, kept: OffsetRanges) -> tuple[tuple[tuple[int, int], ...], Progress]:
    """Return what is skipped, as ranges, and the progress behind it: done below `target`, but for what is `kept`."""
    opened = _holes(now.next, target, OffsetRanges.of(now.done).ranges)
    skipped, still_open = list[tuple[int, int]](), list[tuple[int, int]]()
    for start, end in opened:
        inside = kept.within(start, end).ranges
        still_open += inside
        skipped += _holes(start, end, inside)
    if not still_open:
        return tuple(skipped), Progress(target)
    return tuple(skipped), Progress(still_open[0][0], OffsetRanges(_holes(still_open[0][0], target, still_open)))


def _holes(start: int, end: int, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what is from `start` to `end` and in none of these ascending ranges."""
    holes, at = list[tuple[int, int]](), start
    for first, after in ranges:
        if at < min(first, end):
            holes.append((at, min(first, end)))
        at = max(at, after)
    if at < end:
        holes.append((at, end))
    return holes
