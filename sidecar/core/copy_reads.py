"""Copies of one queue that are read by their offset, and those of them that are not delivered: what is read *aside*.

A head is read and delivered (`owned_queue.py`). Aside are read

    settled  records about which an operator has decided
    parked   records that are parked, in a group that parks no longer: they become dead letters
    old      records whose copies are more than 4 h old at a look, one each 8 h: they *hop*
    hops     the first records of the queue, where progress would not reach to its end

Records that are delivered next are read *ahead*. A read takes some ten ms, in which a fast service takes fifty records
of a key. So while heads are out, the reader is given the offsets of what follows: the next heads that may go, where
there is no room for all of them, and otherwise the records behind each head that goes out for the first time. The
reader keeps these in its cache, which is asked first for each head. Once half of them have gone out, it is given more.
So after a head has ended, no record behind it waits for a read. What the cache has lost is read in its turn.

A record hops when it is written again at the end of its queue as it is, with the same count. Progress holds done
offsets up to SPAN behind the first open one, so a record further behind could not be marked as done (contract 5.3). The
first ones hop if most between them and the end are done, or if a head that is due is out of reach; each once in 30 s.

Only one record of a key is out at a time, so a record that is wanted aside waits until the head of its key is answered,
or is written again. One that memory keeps, in place or throttled, is settled or written again from there.

`OwnedQueue` owns it. Event loop alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.core.decide import postponed_since
from reconsume.sidecar.core.decisions import ByHand, Ruled, ruled_by_hand
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.key_lines import Identity, Phase, WaitingEntry
from reconsume.sidecar.core.ledger import identity_of
from reconsume.sidecar.core.partition import AWAY, DELAYED, READY, STOPPED, Entry, PartitionState
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import NEVER, Now, Record
from reconsume.topics import transitions
from reconsume.topics.attempt import retry_state_of
from reconsume.topics.reasons import reason_class, text_of
from reconsume.topics.transitions import Hop

if TYPE_CHECKING:
    from reconsume.sidecar.core.owned_queue import OwnedQueue, QueueTies

MOST_OUT = 64
"""Records of one queue that are requested, or in memory, at a time. A read by offset takes a few ms, so this keeps some
thousand a second on their way."""
MOST_AHEAD = 256
"""Records of one queue that are read ahead at a time: half of them last longer than the read of the next ones."""
AHEAD_SHARE = 4
"""What is read ahead of a queue takes one part in this many of the bytes that its records may take in memory: for all
queues that is half of the reader's cache."""
MOST_HOPS = 16
"""Records of one queue that hop at a time, so that a queue of which much is open does not fill its log with hops."""
OLD_MS, KEEP_MS = 4 * 3_600_000, 8 * 3_600_000
"""ms after which a copy is old, and between two looks for old ones. They are written again at the end: so none is in a
queue for more than 12 h, half of the shortest retention that a queue may have, however long a key is blocked. With each
look the progress of the queue is committed again although it is the same: Kafka forgets the offsets of a topic to which
the group is not subscribed, seven days after their last commit by default (KIP-496)."""
ROUND_MS = 30_000
"""ms between two rounds of hops at least: transactions leave markers, so hops alone may not make a queue short."""


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
        """The steady time (ms) at which the present round began: what was below `_round_end` then hops once."""
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


class CopyReads:
    """What is read of one queue by its offset. `spans`: within these its records are delivered, and hop.

    Invariant: a bounded number of records is being read, or in memory.
    """

    def __init__(self, owned: OwnedQueue, ties: QueueTies, spans: Spans) -> None:
        self._owned, self._ties, self.spans = owned, ties, spans
        self.hops = Hops()
        self.requested: dict[int, Identity] = {}
        """The records that are being read, by the offset of their copy."""
        self._heads_ahead = 0
        """How many heads are requested before the next ones are read ahead."""
        self.hopping: set[int] = set()
        """The offsets of those that are written again at the end, or settled, unless they end."""
        self.given_up: set[int] = set()
        """The offsets of copies that are none of what waits, on their way to the DLQ: any number, as others write
        them."""
        self.settling: dict[Identity, ByHand] = {}
        """What operators have decided about records that wait here, until it is carried out."""
        self._old: set[Identity] = set()
        """Those whose copies are to be written again because they are old."""
        self.refresh_at_ms = -NEVER
        """The steady time (ms) at which old copies are looked for again."""

    # --- how much is read -------------------------------------------------------------------------------------------

    def count_out(self) -> int:
        """Return how many records of the queue are being read, or in memory."""
        offsets = self._owned.opened.offsets
        return len(self.requested) + len(offsets.entries) - offsets.counts[AWAY] - len(self.given_up)

    def has_room(self) -> bool:
        """Return whether one more record may be read."""
        return self.count_out() < MOST_OUT

    def coming_bytes(self) -> int:
        """Return the bytes of the records that are being read."""
        entries = map(self._owned.ledger.entry, self.requested.values())
        return sum(entry.weight for entry in entries if entry is not None)

    def request_copy(self, entry: WaitingEntry) -> None:
        """Have one record read by its offset."""
        self.requested[entry.offset] = entry.identity
        self._ties.reads.fetch(self._owned.source, self._owned.main.epoch, entry.offset)

    def read_ahead(self, requested_heads: Sequence[WaitingEntry], most_bytes: int, now: Now) -> None:
        """Have the records read ahead that go after these heads, which were requested just now.

        `most_bytes`: of the queue's records that may be in memory.
        """
        ledger, most_bytes, count = self._owned.ledger, most_bytes // AHEAD_SHARE, self.count_out()
        if ledger.heads.wait_for_room:
            self._heads_ahead -= len(requested_heads)
            if self._heads_ahead <= 0:
                self._heads_ahead = self._read_first(ledger.heads.next_heads(MOST_AHEAD), most_bytes, now) // 2
            return
        for head in requested_heads:
            line = ledger.lines.by_key[head.key]
            if head.attempt.times:  # as long as it fails nothing follows, and what was read ahead may be pushed out
                line.ahead = 0
            elif line.ahead > 1:
                line.ahead -= 1
            else:
                behind = islice(line.entries, 1, 1 + MOST_AHEAD // count)
                line.ahead = self._read_first(behind, most_bytes // count, now) // 2

    def _read_first(self, entries: Iterable[WaitingEntry], most_bytes: int, now: Now) -> int:
        """Have the first of these records read ahead, as far as they are due; return how many."""
        offsets, weight = list[int](), 0
        for entry in entries:
            weight += entry.weight
            if entry.phase is not Phase.QUEUED or entry.due_ms > now.steady_ms or weight > most_bytes:
                break
            offsets.append(entry.offset)
        if offsets:
            self._ties.reads.read_ahead(self._owned.source, self._owned.main.epoch, offsets)
        return len(offsets)

    def take_record(self, record: Record, now: Now) -> None:
        """Take in a record that was read: it is delivered, or ends here."""
        machines, queue = self._ties.machines, self._owned.opened
        entry = queue.offsets.begin(record.offset, READY, record)
        assert entry is not None, "what is read again was let go"
        machines.room.add_bytes(queue, record.weight)
        if (ruled := self._ruled_aside(record, now)) is not None:
            self._write_ruled(record, ruled, now)
        else:
            machines.waiting.release_record(queue, entry)

    # --- what an operator has decided -------------------------------------------------------------------------------

    def bind(self, entry: WaitingEntry, by_hand: ByHand, now: Now) -> None:
        """Have a record settled that waits here."""
        self.settling[entry.identity] = by_hand._replace(attempt=entry.attempt)
        if entry.phase is Phase.TAKEN:  # one that is out is answered before
            self._settle_from_memory(entry, now)
        self._owned.look_soon()

    def decided_meanwhile(self, record: Record, now: Now) -> Ruled | None:
        """Return what an operator has decided about a record that is to stay in memory after its response; None if
        nobody has."""
        if self._old and not _are_tries_bounded(self._ties.decisions.policy):  # it may be one of these
            self._owned.look_soon()
        return self._ruled_by_hand(record, now) if self.settling else None

    def _ruled_by_hand(self, record: Record, now: Now) -> Ruled | None:
        """Return what follows from an operator's decision about a record that the lane has; None if there is none."""
        said = self.settling.pop(identity_of(record), None) if not record.fault else None
        # Contract 5.7: a decision acts once, on the copy that it names.
        if said is None or said.by == retry_state_of(record).settled:
            return None
        return ruled_by_hand(said, record, now)

    def _ruled_aside(self, record: Record, now: Now) -> Ruled | None:
        """Return what becomes of a record that was read and is not to be delivered now; None if it is."""
        if (by_hand := self._ruled_by_hand(record, now)) is not None:
            return by_hand
        settling = self._ties.decisions.settling
        if settling.in_force and (ruled := settling.ruled_aside(self._owned.opened, record, now)) is not None:
            return ruled
        state = retry_state_of(record)
        if state.parked and self._parks_no_longer():
            why = reason_class(state.reason), text_of(state.reason)
            return Ruled(transitions.dead_letter(record, *why, now.wall_ms), "")
        return Ruled(Hop(state, None), "") if record.offset in self.hopping else None

    def _parks_no_longer(self) -> bool:
        policy = self._ties.decisions.policy
        return policy.queued and not policy.parks

    def _settle_from_memory(self, entry: WaitingEntry, now: Now) -> None:
        """Carry out a decision about a record, if it waits in memory."""
        # A suspect too, but for the one that is about to be delivered alone.
        suspicion, in_map = self._owned.opened.suspicion, self._entry_in_memory(entry)
        if in_map is None or in_map.record is None or (suspicion is not None and suspicion.mark == entry.offset):
            return
        if (ruled := self._ruled_by_hand(in_map.record, now)) is not None:
            self._ties.machines.waiting.pick_record(self._owned.opened, in_map)
            self._write_ruled(in_map.record, ruled, now)

    def _entry_in_memory(self, entry: WaitingEntry) -> Entry | None:
        """Return the entry in the map of a record that waits in memory for its time or its turn. Of a blocked queue
        nothing is written."""
        queue = self._owned.opened
        in_map = None if queue.blocked else queue.offsets.entries.get(entry.offset)
        return in_map if in_map is not None and in_map.where in (READY, DELAYED, STOPPED) else None

    def _write_ruled(self, record: Record, ruled: Ruled, now: Now) -> None:
        self._ties.decisions.write(self._owned.opened, record, ruled.decision, now, settled_by=ruled.by)

    # --- what is read aside -----------------------------------------------------------------------------------------

    def look_for_old(self, now: Now) -> None:
        """Find the copies that are to be written again because they are old."""
        self.refresh_at_ms = now.steady_ms + KEEP_MS
        aged = (entry for entry in self._owned.ledger.entries() if entry.written_ms < now.wall_ms - OLD_MS)
        self._old = {entry.identity for entry in aged if not self._is_culprit(entry)}

    def read_aside(self, now: Now) -> None:
        """Have the records read about which somebody has decided, and those whose copies are old."""
        ledger = self._owned.ledger
        if self._parks_no_longer():
            self._request_aside(ledger.parked(), MOST_OUT)
        if self.settling:
            about = ((ledger.entry(identity), one) for identity, one in self.settling.items())
            # What is meant for another wait is forgotten.
            meant = [(entry, one) for entry, one in about if entry and entry.attempt == one.attempt]
            self.settling = {entry.identity: one for entry, one in meant}
            self._request_aside([entry for entry, _ in meant], MOST_OUT)
        if self._old and len(self.hopping) < MOST_HOPS:
            old = [entry for identity in self._old if (entry := ledger.entry(identity)) is not None]
            going = self._request_aside(old, MOST_HOPS - len(self.hopping))
            # What follows of its key could not be written again either: one of a key is out at a time.
            going += [one.identity for one in old if one.phase is Phase.TAKEN and self._write_again(one, now)]
            self._old = {entry.identity for entry in old}.difference(going)

    def _request_aside(self, entries: Iterable[WaitingEntry], most: int) -> list[Identity]:
        """Have records read that need not be heads, `most` of them at most; return which."""
        requested = list[Identity]()
        for entry in entries:
            if len(requested) >= most or not self.has_room():
                break
            if self._owned.opened.offsets.span(entry.offset) >= self.spans.delivered:
                self.hops.out_of_reach = entry.offset  # the first ones hop, until progress reaches it
            elif self._take_aside(entry):
                requested.append(entry.identity)
        return requested

    def _take_aside(self, entry: WaitingEntry) -> bool:
        """Have a record read that is not to be delivered; return False if another one of its key is out."""
        if is_taken := self._owned.ledger.take_aside(entry):
            self.hopping.add(entry.offset)
            self.request_copy(entry)
        return is_taken

    def hop(self, now: Now) -> int:
        """Write the first records of the queue again at its end, if progress could not reach to the end otherwise;
        return when to look again (steady ms)."""
        room, queue, ledger = MOST_HOPS - len(self.hopping), self._owned.opened, self._owned.ledger
        if room <= 0:
            return NEVER
        end, again_ms = self.hops.end_of_hops(queue, len(ledger), self.spans, now.steady_ms)
        if end > queue.offsets.first:
            for entry in ledger.lowest(room):
                if entry.offset < end and not self._is_culprit(entry):
                    self._take_aside(entry)
        return again_ms

    def _write_again(self, entry: WaitingEntry, now: Now) -> bool:
        """Write a record again at the end of its queue, if it waits in memory; return whether it does.

        The retries that were made in place are not counted any more, so one of which they are bounded stays. Of a
        suspect the gate after a crash knows whether it may be out, so that takes its turn.
        """
        queue, in_map = self._owned.opened, self._entry_in_memory(entry)
        if in_map is None or (record := in_map.record) is None or queue.suspicion is not None:
            return False
        state = retry_state_of(record)
        if in_map.where is STOPPED and not in_map.hold:
            return False
        if record.times > state.times and _are_tries_bounded(self._ties.decisions.policy):
            return False
        until_ms = self._ties.machines.waiting.pick_record(queue, in_map)
        state = replace(state, postponed_at=postponed_since(record))
        if until_ms > now.steady_ms:
            state = replace(state, due_at=now.wall_ms + until_ms - now.steady_ms)
        self._write_ruled(record, Ruled(Hop(state, None), ""), now)
        return True

    def _is_culprit(self, entry: WaitingEntry) -> bool:
        """Return whether a record is the one that crashes its service: it is known by the offset of its copy alone."""
        suspicion = self._owned.opened.suspicion
        return suspicion is not None and suspicion.culprit == entry.offset

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        out = self.count_out()
        ensure(out <= MOST_OUT + MOST_HOPS, f"{out} records of {self._owned.source} are out")


def _are_tries_bounded(policy: Policy) -> bool:
    """Return whether retries in place end on their own, and are counted for that in memory."""
    return policy.in_place is not None and policy.in_place.max_times is not None
