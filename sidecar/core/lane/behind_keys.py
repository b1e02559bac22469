"""Main records whose keys are blocked: they are written behind what waits of their keys, and never pass it.

Contract 5.5 is kept here for the main partition: a record that begins is delivered only if nothing before it of its key
waits in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.ledger_entry import FIRST_ATTEMPT, identity_of
from reconsume.sidecar.core.lane.owned_queue import LaneTies, OwnedQueue
from reconsume.sidecar.core.lane.owned_queues import OwnedQueues
from reconsume.sidecar.core.lane.partition import Because, FetchedRecords, LanePartition
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.retry_order import Order
from reconsume.topics.transitions import put_behind

GOES_ON = 0.75
"""The share of what may wait below which a main partition goes on that was paused at the whole: at the bound itself it
would be paused and resumed with each record."""


class BehindKeys:
    """The main records of one lane that are to be written behind their keys.

    Invariant: between two calls of the lane there are none, as each call writes what it has led to.
    """

    def __init__(self, queues: OwnedQueues, ties: LaneTies) -> None:
        self._queues, self._ties = queues, ties
        self._by_main, self._next_of = queues.by_main, ties.waiting.next_of  # asked for each record
        self.coming: list[tuple[LanePartition, Record]] = []
        """Those that are to be written by the end of this call of the lane; their keys are blocked already."""

    # --- a main partition is read ------------------------------------------------------------------------------------

    def admits(self, main: LanePartition, run: FetchedRecords) -> bool:
        """Return whether records of a main partition begin; if as much waits in its queue as may, pause it instead."""
        owned = self._queues.by_main.get(main.source)
        if owned is None or not run.records:
            return True
        if owned.ledger.heads.waits_for_main():
            self._queues.look_at(main.source)
        if not self._fills(owned, 1):
            return True
        self._ties.paused.pause(main, run.records[0].offset, NEVER, Because.BEHIND_KEYS)
        return False

    def _fills(self, owned: OwnedQueue, share: float) -> bool:
        """Return whether such a share of what may wait does."""
        if owned.ledger.heads.waits_for_main():  # what waits for main records could never go
            return False
        return self._queues.fill_of(owned) >= share

    def have_room_again(self, main: LanePartition, owned: OwnedQueue) -> bool:
        """Return whether a main partition is paused since so much waited, and a quarter less than may wait does now."""
        is_paused = main.paused is not None and main.paused.because is Because.BEHIND_KEYS
        return is_paused and not self._fills(owned, GOES_ON)

    def main_ended(self, main: LanePartition, end: int) -> None:
        """Note that a main partition was read up to its end."""
        owned = self._queues.by_main.get(main.source)
        if owned is not None:
            owned.main_end = end
            if owned.ledger.heads.waits_for_main():
                self._queues.look_at(main.source)

    # --- one record of it --------------------------------------------------------------------------------------------

    def keeper(self, main: LanePartition) -> Callable[[LanePartition, Record], bool] | None:
        """Return `keeps`; None, as nearly always, if no key of a main partition is blocked: what begins blocks none."""
        owned = self._by_main.get(main.source)
        return None if owned is None or not owned.ledger.lines.by_key else self.keeps

    def keeps(self, main: LanePartition, record: Record) -> bool:
        """Return whether a main record that begins is not to be delivered: its copy waits, or its key is blocked."""
        owned = self._by_main[record.source]
        line = self._queues.line_of(record)
        if line not in owned.ledger.lines.by_key:
            return False
        if owned.ledger.knows(identity_of(record), line):  # the progress beside its copy was lost
            self._ties.finish(main, record)
            return True
        # Where one of the key is in memory, this one queues there: `finished` puts it behind, if that one fails.
        if not owned.ledger.lines.blocks(line, record.offset) or self._ties.waiting.holds(record.source, line):
            return False
        self._put_behind(main, owned, record)
        return True

    def finished(self, record: Record) -> None:
        """Let the next record of a key go: out, or behind what waits of the key."""
        waiting, owned = self._ties.waiting, self._by_main.get(record.source)
        following = self._next_of(record)
        if owned is None or not owned.ledger.lines.by_key:  # as nearly always: no key is blocked
            if following is not None:
                waiting.let_next(following)
            return
        if following is None and not owned.ledger.heads.waits_for_keys:
            return
        line, main = self._queues.line_of(record), self._ties.ownership.partitions[record.source]
        if following is not None and owned.ledger.lines.blocks(line, following.offset):
            for later in waiting.take_line(following):
                self._put_behind(main, owned, later)
        elif following is not None:
            waiting.let_next(following)
            return
        if not waiting.holds(record.source, line) and owned.ledger.heads.main_ended(line):
            self._queues.look_at(record.source)

    def _put_behind(self, main: LanePartition, owned: OwnedQueue, record: Record) -> None:
        identity, line = identity_of(record), self._queues.line_of(record)
        if obsolete := owned.ledger.writing(identity, line, Order(record.offset), FIRST_ATTEMPT):
            self._queues.pass_over(owned, obsolete)
        # Not written here: the lane is amid a run of records, or of answers, and would be entered again.
        self.coming.append((main, record))

    # --- the end of a call -------------------------------------------------------------------------------------------

    def write(self, now: Now) -> None:
        """Write behind their keys what this call of the lane has led to."""
        coming, self.coming = self.coming, []
        for main, record in coming:
            self._ties.write(main, record, put_behind(record, self._ties.policy()), now)

    def dropped(self, partitions: Collection[Partition]) -> None:
        """Forget the records of main partitions that are gone: their next owner reads them again."""
        self.coming = [(main, record) for main, record in self.coming if record.source not in partitions]

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(not self.coming, "what is to be written behind its key is written by the end of a call")
