"""The memory of a lane: what its records take, and how much of it each partition may have.

No limit is stored: each is computed from the present state when it is needed, so none outlives the outage, the retries
or the refused copies that it comes from.

Refused copies stay in memory until Kafka accepts them. They have bytes of their own beside the room, half as much, so
that they do not keep the lane from the records of other partitions. What they take beyond these counts in the room: at
worst the lane stands, but its memory is bounded.

While a lane is more than half full, each topic may have a part of half of the room, and each of its partitions a part
of that: records that nobody takes would keep all other flows out. What a partition gets done within two seconds it may
have in any case. A lane of a fast service is full nearly always, because the consumer fills it at once, and nobody
waits for long; to pause partitions there would cost more than it is worth, since a pause drops what the client has
fetched. If a fast partition hangs when the lane is full, it lets go of what waits in memory, and a share of it is
fetched again. Where a limit of its topic keeps it waiting, it lets go of what is above its share, and keeps the rest:
at a low rate what was fetched again would be let go again at each look.

In a process of several groups their main lanes share one room, and so do their retry lanes (`SharedRoom`). A lane has
LEAST for itself and takes more as it needs it, up to twice what is still free: one lane alone gets two thirds of what
is shared, two that need it get two fifths each, and a lane that comes last still has something free. Nothing is taken
back from a lane whose part has become smaller; it fetches no more until its records are done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.partition import BEHIND, READY, PartitionState
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import NEVER, Now, Partition
from reconsume.sidecar.core.suspicion import Stage

if TYPE_CHECKING:
    from reconsume.sidecar.core.fetching import Fetching
    from reconsume.sidecar.core.pace.dispatcher import Dispatcher
    from reconsume.sidecar.core.waiting import WaitingRecords

REFUSED_SHARE = 2
"""One part in this many of the room, as much again, is for refused copies. The memory limit of a pod has room for it
(`deploy/container.py`)."""
SLOW = 2
"""Seconds. What a partition gets done in this time it may hold, whatever its share: others wait for room no longer than
that."""
LOOK_EVERY_MS = 500
"""ms between two looks at a lane that is more than half full. A flow that comes to a full lane waits that long, or
twice: a due retry must not be late by more than a second for it."""
LOOK_AT_MOST_MS = 100
"""ms between two looks at least, while records come: so soon a fast partition is known to be fast."""
FULL = 8
"""One part in this many of the room is what a full lane may have free: the last records that came did not fit."""
ROOM = "room"
"""The name of the looks in the agenda."""


LEAST = 1 << 20
"""Bytes that each lane of a shared room has for itself."""
FREE_PARTS = 2
"""How many times what is free of a shared room a lane may take of it."""


class SharedRoom:
    """The bytes that lanes of several groups share. `whole`: all of them, at least LEAST for each of the `lanes`.

    What is free is `whole` less LEAST for each lane, and less what the lanes have taken beyond LEAST.
    """

    def __init__(self, whole: int, lanes: int) -> None:
        self._free = whole - lanes * LEAST

    def move(self, old_load: int, new_load: int) -> None:
        """Take note that the load of a lane has changed."""
        self._free -= max(0, new_load - LEAST) - max(0, old_load - LEAST)

    @property
    def most(self) -> int:
        """The bytes that a lane may have now."""
        return LEAST + FREE_PARTS * max(0, self._free)


class AdmissionLimit(msgspec.Struct, frozen=True, gc=False):
    """How much of a partition may be admitted.

    `roomy`: there is memory to hold records that are due soon. `most`: the bytes that the partition may have in memory,
    with its refused copies. `because`: why it may have no more.
    """

    roomy: bool
    most: int
    because: NotFetched


class Room:
    """The bytes of one lane's records. `ordered`: a record that is retried in place keeps others back. `shared`: what
    it shares with the lanes of other groups; `room` is then its even part, from which the bounds follow that do not
    change.

    Invariants: `load` is the sum of all partitions' loads, and `_refused_together` that of `refused_bytes`; while the
    lane is more than half full, a time to look at it is set. In a shared room that is done when the next records come,
    because another lane may have made this one's part smaller.
    """

    def __init__(
        self,
        room: int,
        partitions: Mapping[Partition, PartitionState],
        pace: Pace,
        agenda: Agenda,
        *,
        ordered: bool,
        shared: SharedRoom | None = None,
    ) -> None:
        self.load = 0
        """Bytes of everything handed over and not done."""
        self.refused_bytes: Counter[Partition] = Counter()
        """Bytes of records whose copies or progress Kafka refuses, by their partition. They are part of `load`."""
        self._own, self._shared, self._for_refused = room, shared, room // REFUSED_SHARE
        self._refused_together = 0
        self._partitions, self._pace, self._agenda, self._ordered = partitions, pace, agenda, ordered
        self._looked_at_ms = 0

    # --- what is taken ----------------------------------------------------------------------------------------------

    def add_bytes(self, partition: PartitionState, weight: int) -> None:
        """Add the bytes of admitted records, or (negative) of records that are done."""
        partition.throughput.load += weight
        if self._shared is not None:
            self._shared.move(self.load, self.load + weight)
        self.load += weight

    def set_refused(self, refused: Counter[Partition]) -> None:
        """Take note of the bytes of all refused copies, by partition."""
        self.refused_bytes, self._refused_together = refused, refused.total()

    def forget_partition(self, partition: PartitionState) -> None:
        """Forget the records of a partition that is gone."""
        self.add_bytes(partition, -partition.throughput.load)
        self._refused_together -= self.refused_bytes.pop(partition.source, 0)

    @property
    def room(self) -> int:
        """Bytes that the lane may have now, without those for refused copies."""
        return self._own if self._shared is None else self._shared.most

    @property
    def taken(self) -> int:
        """Bytes of the room that are taken; the consumer's thread reads it."""
        return self.load - min(self._refused_together, self._for_refused)

    @property
    def more_than_half(self) -> bool:
        """Whether more than half of the room is taken."""
        return self.taken * 2 > self.room

    def is_full_with(self, under_way: int) -> bool:
        """Return whether nothing more may be handed over, beside so many bytes that are; for the consumer's thread."""
        return self.taken + under_way > self.room

    # --- what a partition may have ----------------------------------------------------------------------------------

    def limit_of(self, partition: PartitionState) -> AdmissionLimit:
        """Return how much of a partition may be admitted now: all, unless one of four things slows it down."""
        whole = self.room
        room = whole - max(0, self._refused_together - self._for_refused)
        most, because = NEVER, NotFetched.DISTANCE
        # While answered failures slow the pace down, the poison records of one partition could fill the room of all.
        # So could its refused copies where they exceed the bytes that are reserved for them. Each partition may
        # therefore have half of its share.
        if self._pace.slowed or room < whole:
            most, because = room // (2 * len(self._partitions)), NotFetched.MEMORY
        if self._keeps_back(partition):
            most = self._part_of_quarter(room)
            because = NotFetched.HELD if _is_held_in_memory(partition) else NotFetched.MEMORY
        elif self._divides(partition) and (share := self.share_of(partition)) < most:
            most, because = share, NotFetched.SHARE
        return AdmissionLimit(self.taken < whole // 2, most + self.refused_bytes[partition.source], because)

    def lets_go_on(self, partition: PartitionState) -> bool:
        """Return whether a paused partition may go on: a quarter of what it may have is free now, or half of it.

        With less, a partition at its limit would be paused and sought for every record. A share of the room may last,
        so there it is half.
        """
        refused, limit = self.refused_bytes[partition.source], self.limit_of(partition)
        free = 2 if limit.because is NotFetched.SHARE else 3
        return partition.throughput.load - refused <= (limit.most - refused) * free // 4

    def share_of(self, partition: PartitionState) -> int:
        """Return the bytes that a partition may have while the lane is more than half full.

        Half of the room is divided by the topics that have records in it, and the part of a topic by its partitions
        that have some. One that keeps records back may have its part of the quarter, if that is more.
        """
        topics, partitions = {partition.source.topic}, 1
        for source, other in self._partitions.items():
            if other.throughput.load and other is not partition:
                topics.add(source.topic)
                partitions += source.topic == partition.source.topic
        quarter = self._part_of_quarter(self.room) if self._keeps_back(partition) else 0
        fast = partition.throughput.done_a_second * SLOW
        return max(self.room // (2 * len(topics) * partitions), fast, quarter)

    def crowds_out(self, partition: PartitionState) -> bool:
        """Return whether the refused copies of a partition take so much that none of its records is delivered.

        All partitions with such copies share half of the bytes for them. A partition that is stopped already needs a
        quarter of its share free.
        """
        share = self._for_refused // (2 * max(1, len(self.refused_bytes)))
        if partition.blocked:
            share = share * 3 // 4
        return self._refused_together > self._for_refused // 2 and self.refused_bytes[partition.source] > share

    def _keeps_back(self, partition: PartitionState) -> bool:
        """Return whether records of a partition may wait for ever in memory, and others behind them.

        They wait behind one that is retried in place, or an operator holds them. They would fill the room of the whole
        lane, so all such partitions share a quarter of it, and the others continue. The quarter holds instead of their
        shares: what a partition keeps back may fill its share, and then it would take nothing of its other keys.
        """
        return (self._ordered and partition.offsets.tried > 0) or _is_held_in_memory(partition)

    def _part_of_quarter(self, room: int) -> int:
        return room // (4 * sum(map(self._keeps_back, self._partitions.values())))

    def _divides(self, partition: PartitionState) -> bool:
        """Return whether a partition may have no more than its share now: with one flow there is nothing to share.

        What has paused goes on only when the lane is less than a quarter full, or much of its share is free: at one
        bound it would be paused and sought for every record.
        """
        paused = partition.paused is not None and partition.paused.because is NotFetched.SHARE
        full = self.taken * 4 > self.room if paused else self.more_than_half
        return full and len(self._partitions) > 1

    # --- looks at a full lane ---------------------------------------------------------------------------------------

    def is_to_be_looked_at(self, now: Now) -> bool:
        """Return whether to look at the lane now that records came; if not, a look is set where the lane fills."""
        if now.steady_ms - self._looked_at_ms >= LOOK_AT_MOST_MS:
            return True
        if self.more_than_half:
            self._agenda.set_earlier(ROOM, self._looked_at_ms + LOOK_EVERY_MS)
        return False

    def look(self, now: Now) -> bool:
        """See what each partition has got done; return whether the lane is full, and others need what one holds."""
        lasted_ms, self._looked_at_ms = now.steady_ms - self._looked_at_ms, now.steady_ms
        for partition in self._partitions.values():
            partition.throughput.look(max(1, lasted_ms))
        return self.taken > self.room - self.room // FULL and len(self._partitions) > 1

    def end_look(self, now: Now) -> None:
        """Set the next look, once what had to be let go is."""
        self._agenda.set_time(ROOM, now.steady_ms + LOOK_EVERY_MS if self.more_than_half else NEVER)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        loads = sum(partition.throughput.load for partition in self._partitions.values())
        ensure(self.load == loads, f"the lane has the bytes of its partitions, {self.load} and {loads}")
        refused_bytes = self.refused_bytes.total()
        ensure(self._refused_together == refused_bytes, "the bytes of refused copies are those of each partition")
        is_looked_at = self._agenda.time_of(ROOM) != NEVER
        ensure(
            self._shared is not None or not self.more_than_half or is_looked_at,
            "a lane that is more than half full is looked at",
        )


class RoomMaker:
    """Lets go of what waits in memory, where a partition has more than its share and others need the room."""

    def __init__(
        self,
        room: Room,
        waiting: WaitingRecords,
        fetching: Fetching,
        dispatcher: Dispatcher,
        partitions: Mapping[Partition, PartitionState],
    ) -> None:
        self._room, self._waiting, self._fetching = room, waiting, fetching
        self._dispatcher, self._partitions = dispatcher, partitions

    def look_if_due(self, now: Now) -> None:
        """Look at the lane, unless that was done a moment ago."""
        if self._room.is_to_be_looked_at(now):
            self.look(now)

    def look(self, now: Now) -> None:
        """See what each partition gets done, and make room if the lane is full of one that hangs."""
        if self._room.look(now):
            self._make_room(now)
        self._room.end_look(now)

    def _make_room(self, now: Now) -> None:
        """Let go what waits of partitions that hold more than their share; it is fetched again."""
        self._dispatcher.dispatch(now)  # what may go out is not let go: else it would be fetched, and let go, for ever
        shares = {source: self._room.share_of(partition) for source, partition in self._partitions.items()}
        for source, partition in self._partitions.items():
            # Where its progress is too long for the brokers, what it has in memory must end. What would not be read yet
            # of a suspect one might be the suspect, and the care had no end. A queue's records are bounded by
            # themselves.
            suspicion = partition.suspicion
            stays = partition.blocked or partition.closing or partition.kind.under is not None
            stays = stays or (suspicion is not None and suspicion.stage is not Stage.FRESH)
            if stays or partition.throughput.load <= shares[source]:
                continue
            # With nothing out it may have its one record, and sends it as soon as the pace, or its topic's limit,
            # allows.
            from_offset = NEVER if partition.in_flight == 0 else 0
            if self._waiting.ready.at_rest(source):
                from_offset = _first_above_share(partition, shares[source])
            if from_offset != NEVER and (entries := self._waiting.take_back_ready(partition, from_offset)):
                self._fetching.drop_and_fetch_again(partition, entries, now.steady_ms, NotFetched.SHARE)


def _first_above_share(partition: PartitionState, share: int) -> int:
    """Return the offset from which on the waiting records of a partition are above its share: not its first one."""
    records = list(partition.records(READY, BEHIND))
    free_bytes = share - partition.throughput.load + sum(record.weight for record in records)
    for number, record in enumerate(records):
        free_bytes -= record.weight
        if number and free_bytes < 0:
            return record.offset
    return NEVER


def _is_held_in_memory(partition: PartitionState) -> bool:
    """Return whether an operator holds records of a partition that cannot be fetched again."""
    return any(entry.hold for entry in partition.offsets.stopped())
