"""The heads of keys on their way out of a queue: what each of them still waits for, and which one is next.

A head is listed in one of these, and passes from one to the next:

    due          its time
    unread       the main partition to be read up to it, so that it overtakes nothing of its key (contract 5.5)
    behind main  the main records of its key that are under way
    wanted       to be asked for
    far          progress to reach its copy: the first records of the queue hop before (`queue_hops.py`)
    held         an operator to let it go (contract 10.4)

Nothing is searched in them: an entry that is no head any more when its turn comes is dropped then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import chain, count

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.lane.key_lines import KeyLine, KeyLines
from reconsume.sidecar.core.lane.ledger_entry import Entry, Phase
from reconsume.sidecar.core.record import NEVER


class DueHeads:
    """The heads of the lines of one partition. Only these write `Entry.listed`.

    Invariants: a head that is queued is listed, unless it is parked, or another of its key is out; a head that is
    listed stands in one of the lists at least.
    """

    def __init__(self, lines: KeyLines) -> None:
        self._lines = lines
        self.read_to = 0
        """Every record of the main partition below this offset was read."""
        self._former_from = NEVER
        """Heads from this offset on are of a former log of the main partition, which has no such offsets now."""
        self._numbers = count()
        """Of two heads of one time the one that came first goes first; entries themselves have no order."""
        self._due: list[tuple[int, int, Entry]] = []
        """Heads, by when they are due."""
        self._unread: list[tuple[int, int, Entry]] = []
        """Heads that are due, by the offset up to which the main partition must be read before."""
        self._behind_main: dict[bytes, Entry] = {}
        """Heads that are due, while main records of their keys are under way."""
        self._wanted: deque[Entry] = deque()
        """Heads that may go out."""
        self._far: list[tuple[int, int, Entry]] = []
        """Heads that could go out, by the offsets of their copies, which progress could not reach."""
        self._held: list[Entry] = []
        """Heads that could go out, and that an operator holds."""

    # --- questions --------------------------------------------------------------------------------------------------

    def next_at(self) -> int:
        """Return the steady time (ms) at which the next head is due; NEVER if none waits for its time."""
        return self._due[0][0] if self._due else NEVER

    def waits_for_main(self) -> bool:
        """Return whether a head that is due waits until more of the main partition is read."""
        return bool(self._unread)

    def lowest_ahead_of_main(self) -> int:
        """Return the lowest offset up to which a head that is due waits for main to be read; NEVER if none does."""
        return self._unread[0][0] if self._unread else NEVER

    @property
    def waits_for_keys(self) -> bool:
        """Whether heads that are due wait until no main record of their key is under way."""
        return bool(self._behind_main)

    def nearest_far(self) -> int:
        """Return the lowest offset that progress must reach for a head to go out; −1 if no head waits for that."""
        return self._far[0][0] if self._far else -1

    @property
    def held(self) -> int:
        """How many heads could go out, and are held."""
        return sum(self._is_free(entry) for entry in self._held)

    def oldest_due(self) -> int:
        """Return the steady time (ms) since when the oldest head waits that could go out; NEVER if none is listed.

        A head that is not due yet counts with the time at which it will be. Those that are held do not count. Slow: it
        looks at all heads that are due.
        """
        heaps = chain(self._unread, self._far)
        passed = chain((entry for *_, entry in heaps), self._behind_main.values(), self._wanted)
        return min((entry.due_ms for entry in passed if self._is_free(entry)), default=self.next_at())

    def _is_free(self, entry: Entry) -> bool:
        return entry.listed and self._lines.is_free_head(entry)

    # --- what heads wait for comes -----------------------------------------------------------------------------------

    def offer(self, line: KeyLine) -> None:
        """List the head of a line, if it lies in the queue, is not parked, and nothing of its key is out."""
        head = line.entries[0]
        # Not `is_parked`: this is asked for each copy, and would be a call more.
        if line.out is None and head.phase is Phase.QUEUED and not head.listed and head.due_ms < NEVER:
            head.listed = True
            heappush(self._due, (head.due_ms, next(self._numbers), head))

    def withdraw(self, entry: Entry) -> None:
        """Take an entry off: it goes out without its turn. It is offered anew when it comes back."""
        entry.listed = False

    def advance(self, steady_ms: int, read_to: int, under_way: Callable[[bytes], bool]) -> None:
        """Find the heads that may go out now.

        `read_to`: as the field. `under_way`: whether main records of a key are in the lane's memory.
        """
        self.read_to = read_to
        while self._unread and self._unread[0][0] <= read_to:
            self._pass(heappop(self._unread)[2], under_way)
        while self._due and self._due[0][0] <= steady_ms:
            self._pass(heappop(self._due)[2], under_way)

    def take_as_former(self, offset: int, under_way: Callable[[bytes], bool]) -> None:
        """Let heads go that wait for main to be read up to `offset` or further: it has no such offsets."""
        self._former_from, waiting = offset, self._unread
        self._unread = []
        for *_, entry in waiting:
            self._pass(entry, under_way)

    def main_ended(self, key: bytes) -> bool:
        """Note that no main record of a key is under way any more; return whether a head has waited for it."""
        if (entry := self._behind_main.pop(key, None)) is None:
            return False
        self._wanted.append(entry)
        return True

    def let_held(self) -> None:
        """Have the heads asked for again that were held: the holds are others."""
        self._wanted.extend(self._held)
        self._held.clear()

    def _pass(self, entry: Entry, under_way: Callable[[bytes], bool]) -> None:
        """Let a head that is due go one step further: main is read up to it, nothing of its key is under way."""
        if not self._is_free(entry):
            entry.listed = False
        elif self._is_ahead_of_main(entry):
            heappush(self._unread, (entry.order.offset, next(self._numbers), entry))
        elif under_way(entry.key):
            if (before := self._behind_main.get(entry.key)) is not None:
                before.listed = False  # it is not the head any more
            self._behind_main[entry.key] = entry
        else:
            self._wanted.append(entry)

    def _is_ahead_of_main(self, entry: Entry) -> bool:
        """Return whether main records may come that stand before an entry."""
        return self.read_to < entry.order.offset < self._former_from

    # --- the next one ------------------------------------------------------------------------------------------------

    def take(
        self, under_way: Callable[[bytes], bool], is_held: Callable[[bytes], bool], reach: int = NEVER
    ) -> Entry | None:
        """Take off the next head that may go out now; None if there is none. As `KeyLedger.ask`."""
        # One that has another copy by now is looked at anew.
        while self._far and (self._far[0][0] < reach or self._far[0][0] != self._far[0][2].offset):
            self._wanted.append(heappop(self._far)[2])
        while self._wanted:
            entry = self._wanted.popleft()
            if not self._is_free(entry):
                entry.listed = False
            elif is_held(entry.key):
                self._held.append(entry)
            elif self._is_ahead_of_main(entry) or under_way(entry.key):
                # A main record of the key has begun since, or its log is another one and was read less far.
                self._pass(entry, under_way)
            elif entry.offset >= reach:
                heappush(self._far, (entry.offset, next(self._numbers), entry))
            else:
                entry.listed = False
                return entry
        return None

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        standing = {id(entry) for heap in (self._due, self._unread, self._far) for *_, entry in heap}
        standing |= {id(entry) for some in (self._behind_main.values(), self._wanted, self._held) for entry in some}
        for line in self._lines.lines():
            head = line.entries[0]
            waits = head.phase is Phase.QUEUED and line.out is None and not head.is_parked
            ensure(head.listed or not waits, f"the head at {head.order} is listed")
            ensure(not head.listed or id(head) in standing, f"the head at {head.order} that is listed stands in a list")
