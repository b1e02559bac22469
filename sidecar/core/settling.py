"""Operators' decisions about waiting records, carried out by the owner of their partitions (contract 5.7).

A decision (`topics/decision_record.py`) names which records it means, and the ranges of offsets in which they waited.
This machine of a lane carries out its part in each partition that is owned, in the lane's usual transactions:

- *The scan* makes records early. One reader brings the records of a range (port `NotesReads`), one partition at a time.
  What has not begun is settled early (`notes.py`); what waits in memory, or was dropped from it, is settled there; what
  is in flight is awaited; what waits in a queue is settled by the queue's own machine (`queues.py`).
- *A record whose turn comes*, or that would hop, is matched then, whatever the scan has reached: commit and dead-letter
  are carried out, retry-now lets it go as it is if it is due. Beyond the decision's rate it is kept back for the scan.
- *A response comes first.* If it is a failure, commit and dead-letter take the place of the retry; retry-now has no
  effect then.

So while a decision is open nobody delivers the record otherwise, and nothing here depends on how far a scan has come: a
new owner begins again at what the last one has noted (`done/…`), and passes over what is done. Of several decisions
about one record the last one applies. A copy that a decision has written names it (RETRY_SETTLED), so neither it nor an
earlier one acts on that again. In a queue the scan waits for what its owner has not read, or is writing again.

The state of a range:

    state    | what it means                                        | leaves to, when
    ---------|------------------------------------------------------|---------------------------------------------------
    unknown  | what earlier owners have done in it is not read yet  | scanned: the notes were read
    scanned  | its range is read from `scanned` on                  | awaited: all of it was read
    awaited  | records that it means are in flight, or in a         | finished: none is left
             | transaction                                          | scanned: Kafka took no notes
    finished | it has no effect any more, and a note says so        |

Suspects after a crash are settled as all others, as nothing is delivered for it. A lane without open decisions pays one
comparison for each record and call. Event loop alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from reconsume.sidecar.core.commit_batch import CommitResult, SettledRecord
from reconsume.sidecar.core.decisions import ByHand, Decisions, Ruled, ruled_by_hand
from reconsume.sidecar.core.hold_gate import HoldGate
from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.key_lines import NOT_IN_QUEUE
from reconsume.sidecar.core.ledger import identity_of
from reconsume.sidecar.core.notes import NoteKeeper, coming_bytes
from reconsume.sidecar.core.outbox import BATCH_MAX
from reconsume.sidecar.core.ownership import Machines
from reconsume.sidecar.core.partition import AWAY, BEHIND, KEPT, OUT, READY, SETTLED, Entry, PartitionState
from reconsume.sidecar.core.ports import NotesReads, ScannedRange
from reconsume.sidecar.core.record import NEVER, Now, Partition, Record
from reconsume.topics.attempt import attempt_of, retry_state_of
from reconsume.topics.decision_record import RETRY_NOW, DecidedRange, DecisionRecord, level_of_wait
from reconsume.topics.names import Kind
from reconsume.topics.owner_notes import DoneNote, OwnerNotes, done_key, render_note
from reconsume.topics.rates import parse_rate
from reconsume.topics.transition_records import writes_of

SETTLING = "settling"
"""The name of the next look at decisions in the agenda."""
LATER_MS = 1_000
"""ms after which a scan is tried again that could not go on."""
BURST_MS = 1_000
"""ms of a rate that may be used at once."""
EARLY_SHARE = 8
"""One part in this many of the lane's room is for records that are settled early and on their way into Kafka. One
always fits."""


@dataclass(slots=True, eq=False)
class OpenRange:
    """What a decision has done in one partition. `span`: where it applies.

    `scanned`: all before it was looked at. `awaited`: offsets of what it means that were in flight, or on their way
    into Kafka, when they were looked at. `is_noted`: Kafka knows it.
    `later_ms`: when the scan may go on (steady ms).
    """

    span: DecidedRange
    scanned: int
    done: int = 0
    without_effect: int = 0
    is_finished: bool = False
    is_noted: bool = True
    awaited: set[int] = field(default_factory=set)
    later_ms: int = 0


class OpenDecision:
    """One decision, with its ranges. `number`: of two decisions the one with the greater was made later."""

    def __init__(self, ident: str, record: DecisionRecord, number: int) -> None:
        self.ident, self.record, self.number = ident, record, number
        self.by_hand = ByHand(record.how, record.why, record.who, ident)
        self.ranges = {Partition(one.topic, one.partition): OpenRange(one, one.start) for one in record.ranges}
        self._interval_ms = 0.0
        if record.rate:
            rate = parse_rate(record.rate)
            self._interval_ms = rate.per_ms / rate.count
        self._free_at_ms = 0.0

    def token_at(self, steady_ms: int) -> int:
        """Return when a record may be settled by the rate (steady ms); at most `steady_ms` if now."""
        return int(max(self._free_at_ms, steady_ms - BURST_MS)) if self._interval_ms else 0

    def take_token(self, steady_ms: int, owned: int) -> None:
        """Note that a record is settled. `owned`: how many of its open ranges are owned here, which share the rate
        with those of other instances."""
        if self._interval_ms:
            unfinished = max(1, sum(not open_range.is_finished for open_range in self.ranges.values()))
            share = min(1.0, max(1, owned) / unfinished)
            self._free_at_ms = max(self._free_at_ms, steady_ms - BURST_MS) + self._interval_ms / share


class Settling:
    """The open decisions of one lane.

    Invariants: what is kept back for a decision is kept back for one that is open; a range that is finished awaits
    nothing.
    """

    def __init__(
        self, machines: Machines, decisions: Decisions, notes: NoteKeeper, hold_gate: HoldGate, reads: NotesReads
    ) -> None:
        self.in_force = False
        """Whether any decision is open: asked for each record."""
        self.open: dict[str, OpenDecision] = {}
        self._machines, self._decisions, self._notes = machines, decisions, notes
        self._hold_gate, self._reads = hold_gate, reads
        self._known: dict[Partition, int] = {}
        """The epochs of partitions in which it is read what earlier owners have done. A decision that was made since is
        one about which no earlier owner has done anything."""
        self._scanning: tuple[OpenDecision, Partition, int] | None = None
        """The scan that is awaited: for which decision, in which partition, and that one's epoch."""
        self._early_room = 0
        """Bytes of records that may be settled early, of the scan that is taken in."""
        self._in_batch: list[OpenRange] = []
        """The ranges whose end the batch in flight notes."""
        self._work: list[tuple[OpenDecision, PartitionState, OpenRange]] | None = None
        """The ranges that are owned here, and of which something is left to do or to note. None: to be sorted out."""
        notes.decided, notes.forgotten = self._done_notes, self._forgotten

    # --- what is decided --------------------------------------------------------------------------------------------

    def decide(self, records: Mapping[str, DecisionRecord], now: Now) -> None:
        """Carry out these decisions from now on, in their order, and no others."""
        before = self.open
        self.open = {}
        for number, (ident, record) in enumerate(records.items()):
            known = before.get(ident)
            if known is None or known.record != record:
                known = OpenDecision(ident, record, number)
            known.number = number
            if not record.is_over(now.wall_ms):
                self.open[ident] = known
        self.in_force = bool(self.open)
        if self.in_force:
            self._notes.use()
        self._let_undecided(now)
        self._read_done(self._machines.partitions.values())

    def _let_undecided(self, now: Now) -> None:
        """Let go on what was kept back for decisions that have ended."""
        self._work = None
        for partition in self._machines.partitions.values():
            if not partition.closing:
                self._hold_gate.let_undecided(partition, self.open.keys(), now)

    def begin_partitions(self, partitions: Iterable[PartitionState]) -> None:
        """Find out what earlier owners have done in partitions that begin."""
        self._work = None
        if self.in_force:
            self._read_done(partitions)

    def _read_done(self, partitions: Iterable[PartitionState]) -> None:
        meant = {source for one in self.open.values() for source in one.ranges}
        self._notes.read(
            partition
            for partition in partitions
            if partition.source in meant and self._known.get(partition.source) != partition.epoch
        )

    def take_notes(self, partitions: Iterable[PartitionState], notes: OwnerNotes) -> None:
        """Take in what earlier owners have done in partitions."""
        self._work = None
        for partition in partitions:
            source, log = partition.source, partition.commit.progress.log
            if self._known.get(source) == partition.epoch:
                continue  # what is done since is done here
            self._known[source] = partition.epoch
            for one in self.open.values():
                if (open_range := one.ranges.get(source)) is not None:
                    note = notes.of(source).done.get(one.ident)
                    is_former = note is not None and log is not None and note.id != log.topic
                    resumed = one.ranges[source] = _resumed(open_range, None if is_former else note)
                    # What this owner has settled before is not noted yet.
                    resumed.done += open_range.done
                    resumed.is_noted = not open_range.done and self._machines.commits.in_flight is None

    def drop_partitions(self, partitions: Iterable[Partition]) -> None:
        """Forget what is known of partitions that are gone."""
        self._work = None
        for source in partitions:
            self._known.pop(source, None)
            for one in self.open.values():
                if (open_range := one.ranges.get(source)) is not None:
                    one.ranges[source] = OpenRange(open_range.span, open_range.span.start)

    # --- which decision applies -------------------------------------------------------------------------------------

    def decision_on(self, partition: PartitionState, record: Record) -> OpenDecision | None:
        """Return the decision that applies to a waiting record; None if none does, or a later one has acted on it."""
        state, level, latest = record.retry_state, "", None
        if state is None or record.fault:
            return None
        acted = self.open.get(state.settled)
        for one in self.open.values():
            if acted is not None and one.number <= acted.number:
                continue
            if latest is not None and one.number < latest.number:
                continue
            open_range = one.ranges.get(partition.source)
            if one.record.id:  # wherever it lies; but in a queue what is parked again has the same counts
                if open_range is not None and open_range.is_finished and partition.kind.under is not None:
                    continue
            else:
                if (
                    open_range is None
                    or open_range.is_finished
                    or not open_range.span.start <= record.offset < open_range.span.end
                ):
                    continue
                level = level or level_of_wait(state, _kind_of(partition), self._decisions.policy)
                if not self._is_log(partition, open_range.span):
                    continue
            if one.record.fits(state, record.key, level):
                latest = one
        return latest

    @staticmethod
    def _is_log(partition: PartitionState, span: DecidedRange) -> bool:
        """Return whether a range is of the log that is read. Where Kafka tells no ids it is taken to be."""
        log = partition.commit.progress.log
        return not span.log or log is None or span.log == log.topic

    # --- a record's turn, and its response --------------------------------------------------------------------------

    def takes(self, partition: PartitionState, record: Record, now: Now) -> bool:
        """Settle a record whose turn has come, or that would hop; return whether it is not to go on."""
        if (one := self.decision_on(partition, record)) is None:
            return False
        is_due = retry_state_of(record).due_at <= now.wall_ms
        if one.record.how == RETRY_NOW and is_due:
            return False
        is_scanned = (open_range := one.ranges.get(partition.source)) is not None and record.offset < open_range.scanned
        if not is_scanned and partition.kind.under is None and one.token_at(now.steady_ms) > now.steady_ms:
            self._hold_gate.keep_back(partition, record, one.ident)
        else:
            self._take_token(one, now)
            self._write(partition, record, ruled_by_hand(one.by_hand, record, now), now)
        return True

    def ruled_aside(self, queue: PartitionState, record: Record, now: Now) -> Ruled | None:
        """Return what becomes of a record of a queue that was read as its turn has come, or to be written again; None:
        it goes on. The rate does not bound these: they are few, and none may be delivered."""
        one = self.decision_on(queue, record)
        if one is None or (one.record.how == RETRY_NOW and 0 < retry_state_of(record).due_at <= now.wall_ms):
            return None
        self._take_token(one, now)
        return ruled_by_hand(one.by_hand, record, now)

    def decided_meanwhile(self, partition: PartitionState, record: Record, now: Now) -> Ruled | None:
        """Return what takes the place of the retry of a record that has failed, or waits on; None: nothing does."""
        if (one := self.decision_on(partition, record)) is None:
            return None
        if one.record.how == RETRY_NOW:
            open_range = one.ranges.get(partition.source)
            if open_range is not None:
                open_range.without_effect += 1
            return None
        return ruled_by_hand(one.by_hand, record, now)

    def _write(self, partition: PartitionState, record: Record, ruled: Ruled, now: Now) -> None:
        self._decisions.write(partition, record, ruled.decision, now, settled_by=ruled.by)

    def _take_token(self, one: OpenDecision, now: Now) -> None:
        if not one.record.rate:
            return
        owned = sum(
            source in self._machines.partitions and not open_range.is_finished
            for source, open_range in one.ranges.items()
        )
        one.take_token(now.steady_ms, owned)

    # --- the scan ---------------------------------------------------------------------------------------------------

    def turn(self, now: Now) -> None:
        """Finish the ranges of which nothing is left, and have the next range read."""
        if over := [ident for ident, one in self.open.items() if one.record.is_over(now.wall_ms)]:
            self.open = {ident: one for ident, one in self.open.items() if ident not in over}
            self.in_force = bool(self.open)
            self._let_undecided(now)
        if self._work is None:
            self._work = list(self._unfinished())
        at_ms = NEVER
        for one, partition, open_range in self._work:
            if partition.closing or partition.blocked:
                continue
            if open_range.is_finished:
                self._note_end(partition, open_range)
            elif not self._is_log(partition, open_range.span):  # another topic of that name: it has no effect here
                self._finish(partition, open_range)
            elif open_range.scanned >= open_range.span.end:
                self._look_at_awaited(partition, open_range)
            elif self._scanning is None and len(self._machines.outbox.pending) < BATCH_MAX:
                wait_ms = max(open_range.later_ms, one.token_at(now.steady_ms))
                if wait_ms <= now.steady_ms:
                    self._scanning = one, partition.source, partition.epoch
                    self._reads.scan(partition.source, partition.epoch, open_range.scanned, open_range.span.end)
                else:
                    at_ms = min(at_ms, wait_ms)
        self._machines.agenda.set_time(SETTLING, at_ms)

    def _note_end(self, partition: PartitionState, open_range: OpenRange) -> None:
        """Have the end of a range noted, or noted again: Kafka may have refused that."""
        if open_range.is_noted:
            self._work = None
        elif self._machines.commits.in_flight is None and not self._notes.is_refused:
            self._machines.commits.at_once(partition)

    def _unfinished(self) -> Iterator[tuple[OpenDecision, PartitionState, OpenRange]]:
        """Yield what is open and owned here."""
        partitions = self._machines.partitions
        for one in self.open.values():
            for source, open_range in one.ranges.items():
                partition = partitions.get(source)
                if (
                    partition is not None
                    and self._known.get(source) == partition.epoch
                    and not (open_range.is_finished and open_range.is_noted)
                ):
                    yield one, partition, open_range

    def scanned(self, scanned: ScannedRange, now: Now) -> None:
        """Take in the records of a range that was asked for."""
        if self._scanning is None:
            return
        one, source, epoch = self._scanning
        self._scanning = None
        partition, open_range = self._machines.partitions.get(source), one.ranges.get(source)
        is_current = partition is not None and partition.epoch == epoch == scanned.epoch and not partition.closing
        if partition is None or open_range is None or not is_current or self.open.get(one.ident) is not one:
            return
        if open_range.scanned != scanned.begin or open_range.is_finished:
            return
        coming = sum(map(coming_bytes, self._machines.partitions.values()))
        self._early_room = max(1, self._machines.room.room // EARLY_SHARE) - coming
        for record in scanned.records:
            if record.offset >= open_range.span.end:
                break
            if not self._settle_scanned(one, open_range, partition, record, now):
                open_range.scanned = record.offset
                token_ms, later_ms = one.token_at(now.steady_ms), now.steady_ms + LATER_MS
                open_range.later_ms = min(token_ms, later_ms) if token_ms > now.steady_ms else later_ms
                return
        open_range.scanned = scanned.next
        open_range.later_ms = now.steady_ms + LATER_MS if scanned.next == scanned.begin else 0

    def _settle_scanned(
        self, one: OpenDecision, open_range: OpenRange, partition: PartitionState, record: Record, now: Now
    ) -> bool:
        """Settle a record that was read, if the decision means it; return False if the scan must wait before it."""
        entry = self._waiting_entry(partition, record)
        if entry is None and self._is_done(partition, record.offset):
            return True
        if entry is not None and entry.record is not None:
            record = entry.record
        if (latest := self.decision_on(partition, record)) is not one:
            open_range.without_effect += latest is not None and one.record.fits(retry_state_of(record), record.key, "")
            return True
        if entry is not None and (entry.where in (OUT, SETTLED, BEHIND) or self._is_marked(partition, record)):
            open_range.awaited.add(record.offset)
            return True
        if one.token_at(now.steady_ms) > now.steady_ms:
            return False
        if partition.kind.under is not None:
            return self._settle_in_queue(one, open_range, partition, record, now)
        if entry is not None:
            self._settle_begun(partition, entry, record, ruled_by_hand(one.by_hand, record, now), now)
        elif self._early_room > 0 and self._notes.may_settle_early(partition):
            self._early_room -= record.weight
            self._settle_early(partition, record, ruled_by_hand(one.by_hand, record, now), now)
        else:
            return False
        open_range.awaited.add(record.offset)
        self._take_token(one, now)
        return True

    @staticmethod
    def _waiting_entry(partition: PartitionState, record: Record) -> Entry | None:
        return partition.offsets.entries.get(record.offset) if partition.kind.under is None else None

    @staticmethod
    def _is_done(partition: PartitionState, offset: int) -> bool:
        notes = partition.offsets.notes
        if partition.kind.under is not None:
            return False  # its ledger knows
        return partition.offsets.is_done(offset) or (notes is not None and offset in notes.coming)

    @staticmethod
    def _is_marked(partition: PartitionState, record: Record) -> bool:
        """Return whether a record is about to be delivered alone, as soon as Kafka knows that."""
        return partition.suspicion is not None and partition.suspicion.mark == record.offset

    def _settle_early(self, partition: PartitionState, record: Record, ruled: Ruled, now: Now) -> None:
        """Settle a record that has not begun."""
        writes = writes_of(record, ruled.decision, self._decisions.policy, now.wall_ms)
        self._notes.settle_early(partition, record)
        entry = SettledRecord(record, ruled.decision, writes, settled_by=ruled.by, is_early=True)
        self._machines.outbox.pending.append(entry)
        self._machines.commits.entry_added()

    def _settle_begun(self, partition: PartitionState, entry: Entry, record: Record, ruled: Ruled, now: Now) -> None:
        """Settle a record that waits in memory, or that was dropped from it."""
        if entry.where in (AWAY, KEPT):
            entry.record, entry.stopped_by, entry.hold = record, None, ""
            self._machines.room.add_bytes(partition, record.weight)
            partition.offsets.move(entry, READY)
        else:
            self._machines.waiting.pick_record(partition, entry)
        self._write(partition, record, ruled, now)

    def _settle_in_queue(
        self, one: OpenDecision, open_range: OpenRange, queue: PartitionState, record: Record, now: Now
    ) -> bool:
        """Have the queue settle a record, of which it knows whether it still waits; return False if it does not know
        yet, or not yet where its copy lies."""
        queues = self._decisions.queues
        owned = None if queues is None else queues.under(queue)
        assert owned is not None, "a queue partition is one of its lane's queues"
        waiting = owned.ledger.entry(identity_of(record))
        if record.offset >= queue.offsets.next or (waiting is not None and waiting.phase in NOT_IN_QUEUE):
            return False
        if waiting is None:
            return True
        if one.record.how == RETRY_NOW and not owned.ledger.lines.is_head(waiting):
            open_range.without_effect += 1
        elif waiting.attempt == attempt_of(retry_state_of(record)):
            open_range.awaited.add(waiting.offset)
            owned.copy_reads.bind(waiting, one.by_hand, now)
            self._take_token(one, now)
        return True

    # --- the end of a range ------------------------------------------------------------------------------------------

    def _look_at_awaited(self, partition: PartitionState, open_range: OpenRange) -> None:
        offsets, notes = partition.offsets, partition.offsets.notes
        coming = {} if notes is None else notes.coming
        open_range.awaited = {offset for offset in open_range.awaited if offset in offsets.entries or offset in coming}
        if not open_range.awaited:
            self._finish(partition, open_range)

    def _finish(self, partition: PartitionState, open_range: OpenRange) -> None:
        """End a range: nothing that it means waits in its range."""
        open_range.is_finished, open_range.is_noted = True, False
        open_range.awaited.clear()
        self._machines.commits.at_once(partition)
        if partition.paused is not None and partition.kind.under is None:
            self._machines.fetching.go_on(partition, 0)  # what it waits for may be settled

    def _forgotten(self, source: Partition, offset: int) -> None:
        """Note that a record is not settled early after all: Kafka takes no notes."""
        for one in self.open.values():
            open_range = one.ranges.get(source)
            if open_range is not None and open_range.span.start <= offset < open_range.span.end:
                open_range.awaited.discard(offset)
                open_range.scanned = min(open_range.scanned, offset)
                open_range.later_ms = 0

    def _done_notes(
        self, counts: Mapping[tuple[str, Partition], int], source: Partition
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield what goes with a batch of what decisions have done in a partition."""
        partition = self._machines.partitions[source]
        for one in self.open.values():
            more = counts.get((one.ident, source), 0)
            open_range = one.ranges.get(source)
            if open_range is None and more:
                open_range = one.ranges[source] = OpenRange(DecidedRange(*source, "", 0, 0), 0, is_finished=True)
            if open_range is not None and not open_range.is_finished and self._known.get(source) != partition.epoch:
                continue  # the note of an earlier owner would be lost
            if open_range is not None and (more or not open_range.is_noted):
                if open_range.is_finished:  # one that ends meanwhile is noted once more
                    self._in_batch.append(open_range)
                scanned, log = min((open_range.scanned, *open_range.awaited)), partition.commit.progress.log
                ident = "" if log is None else log.topic
                said = open_range.done + more, open_range.without_effect, open_range.is_finished
                yield done_key(one.ident, source), render_note(DoneNote(ident, scanned, *said, one.record.at))

    def batch_ended(self, result: CommitResult) -> None:
        """Count what a batch has settled."""
        for entry in result.done:
            one = self.open.get(entry.settled_by) if entry.settled_by else None
            if one is not None and (open_range := one.ranges.get(entry.record.source)) is not None:
                open_range.done += 1
        in_batch, self._in_batch = self._in_batch, []
        if result.committed:
            for open_range in in_batch:
                open_range.is_noted = True

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure(self.in_force or not self.open, "a decision that is open is in force")
        for one in self.open.values():
            for source, open_range in one.ranges.items():
                ensure(not (open_range.is_finished and open_range.awaited), f"{one.ident} is finished in {source}")


def _kind_of(partition: PartitionState) -> Kind:
    if partition.kind.under is not None:
        return Kind.ORDERED
    return Kind.LEVEL if partition.kind.delay_ms else Kind.READY


def _resumed(open_range: OpenRange, note: DoneNote | None) -> OpenRange:
    """Return a range as its last owner has left it."""
    if note is None:
        return OpenRange(open_range.span, open_range.span.start)
    scanned = max(open_range.span.start, note.scanned)
    return OpenRange(open_range.span, scanned, note.done, note.without_effect, note.finished)
