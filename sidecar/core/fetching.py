"""Which partitions are fetched, and which records of a run begin.

A partition that is not fetched has a `Pause`: where it goes on, when at the earliest, and why (`NotFetched`). It costs
no memory: what the client has fetched is dropped, and fetched again. It goes on once its time has come, its span has a
quarter free, and there is memory for it (`PartitionState.may_fetch`, `Room.lets_go_on`). The agenda has the time of
each. What waits for room has none that is known: what it may have depends on the pace and on other partitions, so it
is looked at once a second, and whenever something of it ends.

Each change is stated to the consumer (`WantedFetch`), whose thread compares it with what its client does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from reconsume.sidecar.core.agenda import Agenda
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.offset_ranges import NONE
from reconsume.sidecar.core.partition import (
    AWAY,
    KEPT,
    READY,
    Entry,
    FetchedRecords,
    PartitionState,
    Pause,
    WantedFetch,
)
from reconsume.sidecar.core.ports import Fetch
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import NEVER, Now, Record
from reconsume.sidecar.core.room import Room

HOLD_WITHIN_MS = 3_000
"""ms. A record that is due within this time waits in memory. For a later one its partition is paused
instead, which costs no memory."""

RESUME_EARLY_MS = 1_150
"""ms by which a paused partition is resumed early: an idle broker thread takes up to 1.00 s to fetch again (measured).

If it were resumed at the due time itself, a record would be 650 ms late in the median.
"""
CHECK_ROOM_EVERY_MS = 1_000
"""ms between checks of a partition that waits for room."""


Admitted: TypeAlias = tuple[Record, Entry, int]
"""A record that begins, and the ms that remain of its level delay."""


class Fetching:
    """The fetching of one lane's partitions. Invariant: each that is paused until a time is looked at then."""

    def __init__(self, fetch: Fetch, room: Room, agenda: Agenda) -> None:
        self._fetch, self._room, self._agenda = fetch, room, agenda

    # --- a run of records -------------------------------------------------------------------------------------------

    def admit(self, partition: PartitionState, run: FetchedRecords, now: Now) -> Iterator[Admitted]:
        """Yield the records of a run that begin now, each once, as READY.

        Ends early, with the partition paused, at a record that is not due soon, lies beyond the span, or exceeds the
        bytes of the partition.
        """
        allowed = self._room.limit_of(partition)
        near_ms = HOLD_WITHIN_MS if allowed.roomy else RESUME_EARLY_MS
        offsets, throughput, is_level = partition.offsets, partition.throughput, bool(partition.kind.delay_ms)
        if is_level and run.high:
            # Not only at the end of the log: what hops makes the log longer, and then its end is not seen for long.
            partition.append_times.note(run.high - 1, now.steady_ms)
        order, span = offsets.order, offsets.bounds.span
        for record in run.records:
            offset, remaining_ms = record.offset, 0
            may_be_done = offset < offsets.next or offsets.inherited is not NONE
            if may_be_done and (end := offsets.end_of_done(offset)) is not None:
                because = NotFetched.DONE if offsets.may_begin(end) else _bound(partition)
                self.pause(partition, end, now.steady_ms, because)  # goes on there as soon as it may: a seek
                return
            if is_level and (remaining_ms := partition.time_left(record, now)) > near_ms:
                partition.append_times.note(max(run.records[-1].offset, run.high - 1), now.steady_ms)
                self.pause(partition, offset, now.steady_ms + remaining_ms - RESUME_EARLY_MS, NotFetched.NOT_DUE)
                return
            if order and offset - order[0] >= span and not offsets.may_begin(offset):
                self.pause(partition, offset, now.steady_ms, _bound(partition))
                return
            if throughput.load > allowed.most:
                self.pause(partition, offset, now.steady_ms, allowed.because)
                return
            if (entry := offsets.begin(offset, READY, record)) is not None:
                self._room.add_bytes(partition, record.weight)
                yield record, entry, remaining_ms

    # --- stop -------------------------------------------------------------------------------------------------------

    def pause(self, partition: PartitionState, offset: int, at_ms: int, because: NotFetched) -> None:
        """Stop fetching a partition; keep only the offset to continue from."""
        self._fetch.want_fetch(partition.source, WantedFetch(partition.epoch, False, partition.seek_count))
        self._set_pause(partition, Pause(offset, at_ms, because))

    def drop_and_fetch_again(
        self, partition: PartitionState, entries: Iterable[Entry], at_ms: int, because: NotFetched
    ) -> None:
        """Drop records that wait in memory; they are fetched again from the steady time `at_ms` on, as soon as the
        partition may continue. NEVER: once it is unblocked."""
        self._pause_until(partition, at_ms, because)
        offsets = [self.drop_from_memory(partition, entry) for entry in entries]
        self._reread(partition, offsets, at_ms)

    def drop_from_memory(self, partition: PartitionState, entry: Entry) -> int:
        """Keep only the offset of a record that has begun; return it."""
        assert entry.record is not None
        self._room.add_bytes(partition, -entry.record.weight)
        entry.record = None
        partition.offsets.move(entry, KEPT if entry.hold else AWAY)
        return entry.offset

    def fetch_held(self, partition: PartitionState, offsets: list[int], steady_ms: int) -> None:
        """Fetch records that no operator holds any more, as soon as the partition may continue."""
        pause = partition.paused
        self._pause_until(partition, steady_ms, pause.because if pause and partition.blocked else NotFetched.HELD)
        self._reread(partition, offsets, steady_ms)

    def _reread(self, partition: PartitionState, offsets: list[int], steady_ms: int) -> None:
        assert partition.paused is not None
        pause = partition.paused
        partition.paused = pause._replace(offset=min((pause.offset, *offsets)))
        self.resume_if_ready(partition, steady_ms)

    def block(self, partition: PartitionState, reason: str) -> None:
        """Deliver nothing more of a partition until `unblock`."""
        # Contract 7.6, 7.7: nothing of it is delivered, because its attempts could not be counted; others go on.
        partition.blocked = reason
        if partition.paused is None:
            self.pause(partition, partition.offsets.unread, NEVER, NotFetched.REFUSED)

    # --- go on ------------------------------------------------------------------------------------------------------

    def go_on(self, partition: PartitionState, steady_ms: int) -> None:
        """Let a paused partition continue as soon as it may, whatever time its pause had."""
        if partition.paused is not None:
            self._pause_until(partition, steady_ms, partition.paused.because)
            self.resume_if_ready(partition, steady_ms)

    def unblock(self, partition: PartitionState, steady_ms: int) -> None:
        """Unblock a partition. It continues only if no other reason keeps it paused."""
        partition.blocked = ""
        if (pause := partition.paused) is not None:
            at_ms = steady_ms if pause.because is NotFetched.REFUSED else max(pause.at_ms, steady_ms)
            self._pause_until(partition, at_ms, pause.because)
            self.resume_if_ready(partition, steady_ms)

    def resume_if_ready(self, partition: PartitionState, steady_ms: int) -> None:
        """Let a partition continue if it may.

        The new seek count distinguishes what is fetched then from what was fetched before.
        """
        pause = partition.paused
        if pause is not None and partition.may_fetch(steady_ms) and self._room.lets_go_on(partition):
            partition.paused = None
            partition.seek_count += 1
            self._agenda.set_time(partition, NEVER)
            wanted = WantedFetch(partition.epoch, True, partition.seek_count, pause.offset)
            self._fetch.want_fetch(partition.source, wanted)

    def look_at_paused(self, partition: PartitionState, now: Now) -> None:
        """Let a partition continue whose time has come; look again in a second if it may not."""
        self.resume_if_ready(partition, now.steady_ms)
        if (pause := partition.paused) is not None and not (partition.blocked or partition.closing):
            self._agenda.set_time(partition, max(pause.at_ms, now.steady_ms + CHECK_ROOM_EVERY_MS))

    def _pause_until(self, partition: PartitionState, at_ms: int, because: NotFetched) -> None:
        """Pause a partition, or give its pause another time, at which it is looked at."""
        if partition.paused is None:
            self.pause(partition, partition.offsets.unread, at_ms, because)
        else:
            self._set_pause(partition, Pause(partition.paused.offset, at_ms, because))

    def _set_pause(self, partition: PartitionState, pause: Pause) -> None:
        partition.paused = pause
        self._agenda.set_time(partition, pause.at_ms)

    def check(self, partitions: Iterable[PartitionState]) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        for partition in partitions:
            pause = partition.paused
            if pause is not None and pause.at_ms != NEVER and not (partition.blocked or partition.closing):
                ensure(self._agenda.time_of(partition) != NEVER, f"{partition.source} is paused, and looked at in time")


def _bound(partition: PartitionState) -> NotFetched:
    """Return why a partition at its bound is paused: HELD if it is a held record that stays open, else DISTANCE."""
    return NotFetched.HELD if partition.offsets.counts[KEPT] else NotFetched.DISTANCE
