"""Which heads of one partition's queue may go out, and what keeps the others.

The head of a line (`key_lines.py`) that is in the queue gets a ticket and passes through these, each of which it leaves
when what it waits for has come:

    due          its time
    unread       the main partition to be read up to it, so that it overtakes nothing of its key (contract 5.5)
    behind main  the main records of its key that are under way
    wanted       to be asked for (`take`)
    far          progress to reach its copy: the first records of the queue hop before
    held         an operator to let it go (contract 10.4)

Nothing is searched in them. An element has the number of the ticket that it was filed under: an entry that has another
ticket by now, or that is no head any more, is passed over when its turn comes. Behind main records, and held, a head
has no ticket: its key is noted, and whichever head the key has then is offered again.

`KeyLedger` (`ledger.py`) offers heads, `OwnedQueue` (`owned_queue.py`) takes them. Event loop alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import chain, count, islice
from typing import TypeAlias

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.key_lines import KeyLine, KeyLines, Phase, WaitingEntry
from reconsume.sidecar.core.record import NEVER

UnderWay: TypeAlias = Callable[[bytes], bool]
"""Whether main records of a key are in the lane's memory, or with the service."""
Filed: TypeAlias = tuple[int, int, WaitingEntry]
"""What an element is sorted by (a time or an offset), its ticket, and its entry. Of two heads of one time the one that
came first goes first; entries themselves have no order."""


class DueHeads:
    """The heads of one partition. Only these write `WaitingEntry.ticket`.

    Invariants: a head that is queued has a ticket, unless it is parked, another of its key is out, or its key is noted
    as behind main records or held; a head that has a ticket is filed under it.
    """

    def __init__(self, lines: KeyLines) -> None:
        self._lines = lines
        self.read_to = 0
        """Every record of the main partition below this offset was read."""
        self._former_from = NEVER
        """Heads from this offset on are of a former log of the main partition, which has no such offsets now."""
        self._tickets = count(1)
        self._due: list[Filed] = []
        """Heads, by when they are due."""
        self._unread: list[Filed] = []
        """Heads that are due, by the offset up to which the main partition must be read before."""
        self._behind_main: set[bytes] = set()
        """Keys whose heads are due, and of which main records are under way."""
        self._wanted: deque[Filed] = deque()
        """Heads that may go out."""
        self._far: list[Filed] = []
        """Heads that could go out, by the offsets of their copies, which progress could not reach."""
        self._held: set[bytes] = set()
        """Keys whose heads could go out, and that an operator holds."""

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

    @property
    def wait_for_room(self) -> bool:
        """Whether heads that may go out were not asked for yet."""
        return bool(self._wanted)

    def next_heads(self, most: int) -> list[WaitingEntry]:
        """Return the first of these, `most` at most, in the order in which they are asked for."""
        return [entry for _, ticket, entry in islice(self._wanted, most) if entry.ticket == ticket]

    def nearest_far(self) -> int:
        """Return the lowest offset that progress must reach for a head to go out; −1 if no head waits for that."""
        return self._far[0][0] if self._far else -1

    @property
    def held(self) -> int:
        """How many heads could go out, and are held."""
        return sum(1 for _ in self._heads_of(self._held))

    def oldest_due(self) -> int:
        """Return the steady time (ms) since when the oldest head waits that could go out; NEVER if there is none.

        A head that is not due yet counts with the time at which it will be. Those that are held do not count. Slow: it
        looks at all heads that are due.
        """
        filed = (entry for _, ticket, entry in chain(self._unread, self._far, self._wanted) if entry.ticket == ticket)
        passed = chain(filter(self._lines.is_free_head, filed), self._heads_of(self._behind_main))
        return min((entry.due_ms for entry in passed), default=self.next_at())

    def _heads_of(self, keys: set[bytes]) -> Iterator[WaitingEntry]:
        """Yield the heads of these keys that are in the queue, and have no ticket."""
        heads = (line.entries[0] for key in keys if (line := self._lines.by_key.get(key)) is not None)
        return (head for head in heads if not head.ticket and self._lines.is_free_head(head))

    # --- what heads wait for comes -----------------------------------------------------------------------------------

    def offer(self, line: KeyLine) -> None:
        """File the head of a line, if it is in the queue, is not parked, and nothing of its key is out."""
        head = line.entries[0]
        # Not `is_parked`: this is asked for each copy, and would be a call more.
        if line.out is None and head.phase is Phase.QUEUED and not head.ticket and head.due_ms < NEVER:
            head.ticket = next(self._tickets)
            heappush(self._due, (head.due_ms, head.ticket, head))

    def withdraw(self, entry: WaitingEntry) -> None:
        """Take an entry off: it goes out without its turn, or has another copy now. It may be offered again."""
        entry.ticket = 0

    def advance(self, steady_ms: int, read_to: int, under_way: UnderWay) -> None:
        """Find the heads that may go out now.

        `read_to`: as the field. `under_way`: whether main records of a key are in the lane's memory.
        """
        self.read_to = read_to
        while self._unread and self._unread[0][0] <= read_to:
            self._pass(heappop(self._unread), under_way)
        while self._due and self._due[0][0] <= steady_ms:
            self._pass(heappop(self._due), under_way)

    def take_as_former(self, offset: int, under_way: UnderWay) -> None:
        """Let heads go that wait for main to be read up to `offset` or further: it has no such offsets."""
        self._former_from, waiting = offset, self._unread
        self._unread = []
        for filed in waiting:
            self._pass(filed, under_way)

    def main_ended(self, key: bytes) -> bool:
        """Note that no main record of a key is under way any more; return whether a head has waited for it."""
        if has_waited := key in self._behind_main:
            self._behind_main.discard(key)
            self._offer_again((key,))
        return has_waited

    def let_held(self) -> None:
        """Have the heads offered again that were held: the holds are others."""
        held, self._held = self._held, set()
        self._offer_again(held)

    def _offer_again(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            if (line := self._lines.by_key.get(key)) is not None:
                self.offer(line)

    def _pass(self, filed: Filed, under_way: UnderWay) -> None:
        """Let a head that is due go one step further."""
        if not self._is_kept(filed, under_way):
            self._wanted.append(filed)

    def _is_kept(self, filed: Filed, under_way: UnderWay) -> bool:
        """Return whether an element means nothing any more, or main keeps its head, which is filed or noted for that
        then."""
        _, ticket, entry = filed
        if entry.ticket != ticket:
            return True
        if not self._lines.is_free_head(entry):
            entry.ticket = 0
            return True
        if self.read_to < entry.order.offset < self._former_from:
            heappush(self._unread, (entry.order.offset, ticket, entry))
            return True
        if under_way(entry.key):
            entry.ticket = 0
            self._behind_main.add(entry.key)
            return True
        return False

    # --- the next one ------------------------------------------------------------------------------------------------

    def take(self, under_way: UnderWay, is_held: Callable[[bytes], bool], reach: int = NEVER) -> WaitingEntry | None:
        """Take off the next head that may go out now; None if there is none. As `KeyLedger.ask`."""
        while self._far and (self._far[0][0] < reach or self._far[0][1] != self._far[0][2].ticket):
            self._wanted.append(heappop(self._far))
        while self._wanted:
            _, ticket, entry = filed = self._wanted.popleft()
            # Looked at again: a main record of the key may have begun since, or main was read less far.
            if self._is_kept(filed, under_way):
                continue
            if entry.offset >= reach and not is_held(entry.key):
                heappush(self._far, (entry.offset, ticket, entry))
                continue
            entry.ticket = 0
            if not is_held(entry.key):
                return entry
            self._held.add(entry.key)
        return None

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        filed = {(ticket, id(entry)) for _, ticket, entry in chain(self._due, self._unread, self._far, self._wanted)}
        for key, line in self._lines.by_key.items():
            head = line.entries[0]
            waits = head.phase is Phase.QUEUED and line.out is None and not head.is_parked
            is_noted = key in self._behind_main or key in self._held
            ensure(bool(head.ticket) or is_noted or not waits, f"the head at {head.order} has a ticket")
            ensure(not head.ticket or (head.ticket, id(head)) in filed, f"the head at {head.order} is filed")
